"""The guard in a real kernel, on the practice GPU: what IPython keeps, what is shown, the options of the line."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import jupyter_client
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
SETUP = (
    "%load_ext cuda_magic\nfrom cuda_magic.testing import gpu\ngpu = gpu(force=True)\ngpu.limit('3 GiB')\n"
    "import weakref\n"
    "def fail():\n    a = gpu.empty('2 GiB')\n    global seen\n    seen = weakref.ref(a)\n    b = gpu.empty('2 GiB')"
)


class Kernel:
    """One fresh kernel; `run` gives the messages of a cell as (type, text) in order."""

    def __init__(self) -> None:
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, "PYTHONPATH": PATHS, "CUDA_MAGIC_PRACTICE": "1"})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> list[tuple[str, str]]:
        found = []

        def take(message):
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                found.append((content["name"], content["text"]))
            elif kind == "error":
                found.append(("error", f"{content['ename']}: {content['evalue']}"))
            elif kind in ("display_data", "execute_result"):
                found.append((kind, content["data"]["text/plain"]))

        self.client.execute_interactive(code, output_hook=take, timeout=60, stop_on_error=False)
        return found

    def value(self, expression: str) -> str:
        return next(text for kind, text in self.run(expression) if kind == "execute_result")

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel():
    made = Kernel()
    made.run(SETUP)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def empty_card(kernel):
    """Each test starts with nothing on the card and no report's options in force."""
    yield
    names = "('x', 'y', 'saved', 'k')"
    kernel.run(f"%cuda_guard --off\n%reset -f out\nfor n in {names}: globals().pop(n, None)\nimport gc")
    kernel.run("1/0")
    kernel.run("gc.collect(); gpu.allocator.empty_cache()")


def test_case_41_an_earlier_traceback_lets_go(kernel):
    """A failed cell's function holds 2 GiB; the next, guarded cell gets them, and says so in one line (S1)."""
    kernel.run("fail()")
    assert kernel.value("seen() is not None") == "True"
    assert kernel.run("%%cuda_guard\nx = gpu.empty('1.5 GiB')") == [
        ("stderr", "cuda_guard: GPU memory ran out once; room was made and nothing was repeated\n")
    ]
    assert kernel.value("seen() is None") == "True"
    report = kernel.value("%cuda_guard")
    assert "Room was made where memory was asked for" in report
    assert re.search(r"earlier failures: the traceback of In\[\d+\] \(2\.00 GiB\)", report)


def test_case_41_an_exception_that_the_user_keeps_is_named(kernel):
    """``saved = e`` keeps the frames: not emptied, named with its bytes and the line that lets it go."""
    kernel.run("try:\n    fail()\nexcept RuntimeError as e:\n    saved = e")
    output = kernel.run("%%cuda_guard --no-move\nx = gpu.empty('1.5 GiB')")
    assert [kind for kind, _ in output] == ["error", "display_data"]
    report = output[1][1]
    assert "saved" in report
    assert "2.00 GiB" in report
    assert "del saved" in report
    assert kernel.value("seen() is not None") == "True"


def test_scenario_2_shown_values_are_the_users(kernel):
    """Out[n] holds 2 GiB: named, moved to the host, and let go only with --free-outputs (S2)."""
    kernel.run("gpu.empty('2 GiB')")
    output = kernel.run("%%cuda_guard --only holders,collect,caches\ny = gpu.empty('2 GiB')")
    assert output[0][0] == "error"
    assert "Out[" in output[1][1]
    assert "%%cuda_guard --free-outputs" in output[1][1]
    assert kernel.run("%%cuda_guard\ny = gpu.empty('2 GiB')")[-1][0] == "stderr"
    assert kernel.value("del y; sum(1 for value in Out.values() if type(value) is type(gpu.empty(1)))") == "1"
    output = kernel.run("%%cuda_guard --free-outputs\ny = gpu.empty('2 GiB')")
    assert [kind for kind, _ in output] == ["stderr"]
    assert re.search(r"let go of .*shown values: Out\[\d+\] \(2\.00 GiB\)", kernel.value("%cuda_guard"))


def test_a_shown_value_that_reset_leaves_is_let_go_too():
    """The first `%reset -f out` of a kernel empties Out and not what IPython hides: named, and let go if asked."""
    fresh = Kernel()
    try:
        fresh.run(SETUP)
        fresh.run("gpu.empty('2 GiB')")
        fresh.run("5")
        fresh.run("%reset -f out")
        output = fresh.run("%%cuda_guard --only holders,collect,caches\ny = gpu.empty('2 GiB')")
        assert "%%cuda_guard --free-outputs" in output[1][1]
        assert "reached by no variable" not in output[1][1]
        assert [kind for kind, _ in fresh.run("%%cuda_guard --free-outputs\ny = gpu.empty('2 GiB')")] == ["stderr"]
    finally:
        fresh.close()


def test_the_report_is_bound_on_success_too(kernel):
    """--report NAME, an object with to_dict and a data frame."""
    assert kernel.run("%%cuda_guard --report r\nx = 1") == []
    assert kernel.value("r.status, r.attempts, r.to_dict()['rungs']") == "('ok', 1, [])"


def test_one_error_and_one_report_below_it(kernel):
    """A failure that cannot be rescued: one error output, then the report; another error: nothing of ours."""
    kernel.run("k = gpu.empty('2 GiB')")
    output = kernel.run("%%cuda_guard --no-move\nx = 1\ny = gpu.empty('2 GiB')")
    assert [kind for kind, _ in output] == ["error", "display_data"]
    assert output[1][1].startswith("cuda_guard: not rescued  [PRACTICE]\nLine 3: out of GPU memory; 2.00 GiB asked")
    assert [kind for kind, _ in kernel.run("%%cuda_guard\n1/0")] == ["error"]


def test_all_guards_every_following_cell_until_off(kernel):
    """--all: values, line numbers and other magics as before, and a rescue; --off ends it."""
    kernel.run("%cuda_guard --all --quiet")
    kernel.run("fail()")
    assert kernel.run("x = gpu.empty('1.5 GiB')\n1 + 1") == [("execute_result", "2")]
    assert kernel.run("%%capture out\nprint('hidden')") == []
    assert kernel.run("%%cuda_guard --report r\n5;") == []
    assert kernel.value("get_ipython().run_cell_magic('capture', '', '1'), 3") == "(None, 3)"
    assert kernel.run("import asyncio\nawait asyncio.sleep(0)\n7") == [("execute_result", "7")]
    traceback = kernel.run("a = 1\n\n1/0")
    assert traceback[0][0] == "error"
    kernel.run("%cuda_guard --off")
    assert kernel.run("fail()")[-1][0] == "error"
    assert [kind for kind, _ in kernel.run("y = gpu.empty('1.9 GiB')")] == ["error"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--onlyy", "Did you mean '--only'"),
        ("--only collct", "Did you mean 'collect'"),
        ("--move-anyway", "--move-anyway is gone: "),
        ("--retry-at-call", "--retry-at-call is gone: room is now made where an operation asks for memory"),
        ("--repeat-anyway", "--repeat-anyway is gone: --repeat says that the statement may run again."),
        ("--grow x", "--grow needs --shrink"),
        ("--shrink fresh=0", "integer of 1 or more"),
        ("--shrink nothere", "does not exist"),
        ("--else nothere", "takes NAME=EXPR"),
        ("--else gpu='a b' gpu2", "takes NAME=EXPR"),
        ("--else gpu='open", "not closed"),
        (
            "--checkpoint model",
            "--checkpoint is gone: room is now made before the error and nothing is repeated; --repeat",
        ),
        ("--shrink made", "the cell itself assigns made"),
        ("--retries -1", "0 or more"),
        ("--report 1x", "name of a variable"),
    ],
)
def test_a_mistake_in_the_line_is_one_sentence(kernel, line, said):
    """Nothing runs; one error of ours that names the nearest right thing."""
    output = kernel.run(f"%%cuda_guard {line}\nmade = 1\nprint('ran')")
    assert [kind for kind, _ in output] == ["error"]
    assert output[0][1].startswith("UserError: cuda_guard: ")
    assert said in output[0][1]


def test_else_keeps_quotes_and_brackets_together(kernel):
    """--else where='on the host' size=[1, 2]: expressions as typed."""
    kernel.run("where, size = 'gpu', [0]")
    line = "%%cuda_guard --quiet --else where='on the host' size=[1, 2]"
    code = f"{line}\nif where == 'gpu': gpu.empty('9 GiB')\nwhere, size"
    assert kernel.run(code) == [("execute_result", "('on the host', [1, 2])")]


def test_a_failed_attempts_figure_is_not_shown(kernel):
    """%matplotlib inline: one image after a rescue, and a figure of an earlier statement stays."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("matplotlib_inline")
    kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt")
    draw = "for _ in range(1):\n    plt.figure(); plt.plot([1, 2]); x = gpu.empty('1.5 GiB')"
    for before, images in (("", 1), ("plt.figure(); plt.plot([3])\n", 2)):
        kernel.run("fail()")
        output = kernel.run(f"%%cuda_guard --repeat\n{before}{draw}\ndel x")
        shown = [text for kind, text in output if kind == "display_data"]
        assert [kind for kind, _ in output if kind != "display_data"].count("stderr") == 1
        assert len(shown) == images, output
        assert all(text.startswith("<Figure") for text in shown)


def test_an_interrupt_ends_a_rescue_that_waits(kernel):
    """A real SIGINT while --wait waits: KeyboardInterrupt at once, and the kernel goes on."""
    kernel.run("gpu.limit('24 GiB')\nother = gpu.other_process('23 GiB', pid=77)")
    client = kernel.client
    sent = client.execute("%%cuda_guard --wait 50\nx = gpu.empty('2 GiB')", stop_on_error=False)
    started, interrupted, found = time.monotonic(), False, []
    while True:
        message = client.get_iopub_msg(timeout=40)
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and "waiting for other processes" in content["text"] and not interrupted:
            interrupted = True
            kernel.manager.interrupt_kernel()
        elif kind == "error":
            found.append(content["ename"])
        elif kind == "status" and content["execution_state"] == "idle":
            break
    assert interrupted
    assert found == ["KeyboardInterrupt"]
    assert time.monotonic() - started < 20
    reply = client.get_shell_msg(timeout=20)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert kernel.value("'x' in globals(), 1 + 1") == "(False, 2)"
    kernel.run("other.stop()\ndel other\ngpu.limit('3 GiB')")
    assert kernel.run("%%cuda_guard\nx = gpu.empty('1 GiB')") == []
