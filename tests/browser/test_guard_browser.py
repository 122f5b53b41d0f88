"""A guarded cell as a person in JupyterLab sees it: the plain cell's outputs, prompts and errors, and a rescue."""

from __future__ import annotations

import re

BODIES = [
    "print('out'); 6 * 7",
    "a = 1\na + 1;",
    "from IPython.display import HTML, display\ndisplay(HTML('<b>bold</b>'))\n'last'",
    "import sys\nprint('err', file=sys.stderr)\n\ndef f():\n    return [][3]\n\nf()",
    "import asyncio\nawait asyncio.sleep(0)\n'awaited'",
    "x = = 1",
    "_ + '!'",
    "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "raise ExceptionGroup('two', [ValueError(1), KeyError(2)])",
    "!echo from the shell",
    "%matplotlib inline\nimport matplotlib.pyplot as plt\n_ = plt.plot([1, 2])",
    "h = display('a', display_id='fixed')\nh.update('b')",
    "raise SystemExit(3)",
]
SETUP = "%load_ext cuda_magic"
PRACTICE = """from cuda_magic.testing import gpu
gpu = gpu(force=True)
gpu.limit('3 GiB')
def fail():
    a = gpu.empty('2 GiB')
    b = gpu.empty('2 GiB')"""


def test_a_guarded_cell_looks_as_the_plain_one(lab, open_page):
    """Outputs, prompts, output prompts and traceback text are the same; line 1 is a comment in both."""
    seen = []
    for name, first in (("plain", "# %%cuda_guard"), ("guarded", "%%cuda_guard")):
        page = open_page(lab, f"{name}.ipynb", [SETUP, *(f"{first}\n{body}" for body in BODIES)])
        texts = [page.execute(index) for index in range(len(BODIES) + 1)]
        seen.append((texts, page.prompts(), [message for message in page.console if "rror" in message[0]]))
    plain, guarded = seen
    for body, one, other in zip((SETUP, *BODIES), plain[0], guarded[0], strict=True):
        assert re.sub(r"ipykernel_[0-9]+/[0-9]+", "<cell>", other) == re.sub(
            r"ipykernel_[0-9]+/[0-9]+", "<cell>", one
        ), body
    assert guarded[1:] == plain[1:]
    assert guarded[1] == [f"[{n}]:" for n in range(1, len(BODIES) + 2)]
    assert "IndexError" in guarded[0][4]
    assert "awaited!" in guarded[0][7] or "awaited" in guarded[0][5]


def test_a_rescued_cell_in_the_page(lab, open_page):
    """After a failed cell that holds the memory: the value is shown, and one line says that room was made."""
    cells = [f"{SETUP}\n{PRACTICE}", "fail()", "%%cuda_guard\nx = gpu.empty('1.5 GiB')\n'made'", "%cuda_guard"]
    page = open_page(lab, "rescued.ipynb", cells)
    page.execute(0)
    assert "out of memory" in page.execute(1)
    rescued = page.execute(2)
    assert "cuda_guard: GPU memory ran out once; room was made and nothing was repeated" in rescued
    assert "'made'" in rescued
    assert "Error" not in rescued
    assert page.prompts()[2] == "[3]:"
    assert "rescued" in page.execute(3)
