"""The same answers where there is no live front end: terminal, nbconvert, papermill, jupyter execute, a saved file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

SETUP = "%load_ext cuda_magic\nfrom cuda_magic.testing import gpu\ncard = gpu(force=True)\nkept = card.full('2 GiB', 1)"
LOOK = "%gpu_mem --once"
FRAGMENT = """card.limit("3.2 GiB")
del kept
whole = card.empty("3 GiB")
del whole
parts = [card.full("64 MiB", i) for i in range(48)][::2]"""
GUARDED = '%%cuda_guard\nbig = card.full("256 MiB", 200)\ncard.sum(big)'
REPORT = "%cuda_guard"
OTHERS = ["%cuda_doctor", "%cuda_env CUDA_VISIBLE_DEVICES", "%gpu_mem --interval 0.25", "%gpu_mem --stop"]
SEEN = ("[PRACTICE]", "Practice GPU 24 GiB", "24.00 GiB", str((256 << 20) * 200), "rescued", "no tensor moved")
SEEN += ("CUDA starts here, 1 device", "Which GPUs this process sees")
WRONG = "%gpu_mem --onec"
SENTENCE = "gpu_mem: unknown option --onec. Did you mean '--once'?"


def notebook(*sources):
    made = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    made.cells = [new_code_cell(source) for source in sources]
    return made


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.ipynb"
    nbformat.write(notebook(SETUP, LOOK, FRAGMENT, GUARDED, REPORT, *OTHERS), path)
    return path


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.ipynb"
    nbformat.write(notebook(SETUP, WRONG, "open('went_on', 'w').close()"), path)
    return path


def run(*words, folder, given=None):
    env = {**os.environ, "PYTHONPATH": PATHS, "NO_COLOR": "1", "IPYTHONDIR": str(folder / "ipython")}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, input=given, capture_output=True, text=True, timeout=150
    )


def texts(path):
    """All text that a saved notebook shows without a kernel."""
    shown = []
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.outputs:
            shown.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(shown)


def test_terminal(tmp_path):
    """A terminal shows tables as text, and a mistake as one sentence without our frames; the session goes on."""
    lines = "\n".join([SETUP, LOOK, FRAGMENT.replace("\n", "; "), *OTHERS, WRONG, "6 * 7000", ""])
    done = run("-m", "IPython", "--simple-prompt", "--colors=NoColor", "--no-banner", folder=tmp_path, given=lines)
    assert "[PRACTICE]" in done.stdout and "Practice GPU 24 GiB" in done.stdout, done.stderr
    assert SENTENCE in done.stdout and "42000" in done.stdout
    assert "CUDA starts here, 1 device" in done.stdout and "Which GPUs this process sees" in done.stdout
    assert "<div" not in done.stdout and "magics/" not in done.stdout


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_nbconvert(good, form):
    """nbconvert runs the notebook and shows all of it, in each form."""
    done = run("-m", "nbconvert", "--execute", "--to", form, "--output", "page", good.name, folder=good.parent)
    assert done.returncode == 0, done.stderr
    page = good.with_name("page.md" if form == "markdown" else "page.html").read_text()
    assert all(word in page for word in SEEN if word != "[PRACTICE]") and "PRACTICE" in page
    assert "Traceback" not in page and "Error" not in re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)


def test_papermill(good):
    """papermill runs the notebook and saves text and HTML of each result."""
    done = run("-m", "papermill", good.name, "out.ipynb", "--no-progress-bar", folder=good.parent)
    assert done.returncode == 0, done.stderr
    assert all(word in texts(good.with_name("out.ipynb")) for word in SEEN)


def test_jupyter_execute_and_reopening(good):
    """`jupyter execute` saves a notebook that shows all without a kernel, as text and as HTML, without widgets too."""
    done = run("-m", "jupyter", "execute", "--inplace", good.name, folder=good.parent)
    assert done.returncode == 0, done.stderr
    assert all(word in texts(good) for word in SEEN)
    saved = nbformat.read(good, as_version=4)
    assert "text/html" in saved.cells[1].outputs[0].data
    del saved.metadata["widgets"]  # the runner saves them; the panel's last reading is an output of its own
    from cuda_magic.testing.demo import to_html

    page = to_html(saved, "good")
    assert page.count("Practice GPU 24 GiB") >= 3 and "PRACTICE" in page
    shown = texts(good)  # the panel's words, and its last reading as a table
    assert "GPU memory over time: the last chart and reading are below." in shown and "; the panel is stopped." in shown


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "jupyter", "execute", "bad.ipynb"),
        ("-m", "papermill", "bad.ipynb", "out.ipynb", "--no-progress-bar"),
    ],
    ids=["jupyter execute", "papermill"],
)
def test_a_mistake_stops_the_run(bad, words):
    """A cell with an unknown option fails for every runner, with its sentence, and no later cell runs."""
    done = run(*words, folder=bad.parent)
    assert done.returncode != 0
    assert SENTENCE in done.stderr
    assert not bad.with_name("went_on").exists()
