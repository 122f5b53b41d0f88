"""The restart in place under each pinned release of ipykernel, in an environment of its own below ``.stacks``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from running_kernel import RESTART, ROOT, RunningKernel

STACKS = sorted(path.stem for path in (ROOT / "constraints").glob("ipykernel-*.txt"))


def python_of(stack: str) -> Path:
    """The Python of `stack`, built if it is not there; the constraints' text is kept beside it, to see a change."""
    pins = ROOT / "constraints" / f"{stack}.txt"
    folder = ROOT / ".stacks" / f"{stack}-py{sys.version_info[0]}{sys.version_info[1]}"
    python, built = folder / "bin" / "python", folder / "built.txt"
    if not built.exists() or built.read_text() != pins.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True, timeout=60)
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "-q"]
        wanted = ["ipykernel", "ipython", "psutil", "packaging", "traitlets"]
        subprocess.run([*pip, "-c", pins, *wanted], check=True, timeout=170)
        built.write_text(pins.read_text())
    return python


@pytest.mark.stack
@pytest.mark.parametrize("stack", STACKS)
def test_restart_in_place_under(stack):
    """New environment, same pid, twice; Run All goes on in order and aborts after an error; interrupt; cancelled."""
    with RunningKernel(str(python_of(stack))) as kernel:
        release = kernel.run("import ipykernel; print('ipykernel-' + ipykernel.__version__); old = 1").text.strip()
        assert release == stack
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
