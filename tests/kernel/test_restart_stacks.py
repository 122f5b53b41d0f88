"""The restart in place under each pinned release of ipykernel, in an environment of its own below ``.stacks``."""

from __future__ import annotations

import sys
import time

import pytest
from running_kernel import RESTART, ROOT, RunningKernel

sys.path.insert(0, str(ROOT / "tests" / "stacks"))

from environments import Stack, python_of  # noqa: E402
from test_restart_held_state import compare  # noqa: E402

THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"
WANTED = ("ipykernel", "ipython", "psutil", "packaging", "traitlets")
STACKS = [
    Stack(path.stem, (THIS,), path.name, WANTED) for path in sorted((ROOT / "constraints").glob("ipykernel-*.txt"))
]


@pytest.mark.stack
@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_restart_in_place_under(stack):
    """New environment, same pid, twice; Run All goes on in order and aborts after an error; interrupt; cancelled."""
    with RunningKernel(python_of(stack)) as kernel:
        release = kernel.run("import ipykernel; print('ipykernel-' + ipykernel.__version__); old = 1").text.strip()
        assert release == stack.name
        assert kernel.restart_cell("one").status == "ok"
        show = "import os; print(os.getpid(), os.environ['FOO'], 'old' in globals())"
        assert kernel.run(show).text == f"{kernel.pid} one False\n"
        failed = kernel.restart_cell("no", before="kept = 1", after="1/0")
        assert (failed.status, kernel.run("print(kept)").text) == ("error", "1\n")
        asks = f"import os; os.environ['FOO'] = 'two'; {RESTART}"
        ran = kernel.run_all("old = 1", asks, show, "print('next')", "1/0", "print('not run')")
        assert [one.text for one in ran] == ["", "", f"{kernel.pid} two False\n", "next\n", "", ""]
        assert [one.status for one in ran] == ["ok"] * 4 + ["error", "aborted"]
        cell = kernel.client.execute("import time; time.sleep(30)")
        time.sleep(0.5)
        kernel.manager.interrupt_kernel()
        while (reply := kernel.client.get_shell_msg(timeout=10))["parent_header"]["msg_id"] != cell:
            pass
        assert reply["content"]["ename"] == "KeyboardInterrupt"


@pytest.mark.stack
@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
def test_nothing_is_lost_under(stack, tmp_path):
    """Kinds of held state, beside the restart from the menu."""
    compare(tmp_path, python_of(stack))
