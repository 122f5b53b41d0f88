"""The same in a terminal IPython."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pexpect = pytest.importorskip("pexpect")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def terminal(tmp_path):
    """Sends a cell to ``ipython --simple-prompt`` and gives what it printed."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'cells'}", "IPYTHONDIR": str(tmp_path)}
    arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
    child = pexpect.spawn(sys.executable, arguments, env=env, encoding="utf-8", timeout=30, echo=False)
    child.expect(r"In \[1\]: ")

    def send(text):
        for line in text.split("\n"):
            child.sendline(line)
        child.sendline("")
        child.sendline("")
        child.sendline("print('the' + ' end')")
        child.expect("the end")
        return child.before

    send("%load_ext guarded_by_tests")
    yield send
    child.close(force=True)


def test_terminal(terminal):
    """Value, traceback, await and a rescue, as typed."""
    assert ": 4" in terminal("%%cuda_guard\nx = 3\nx + 1")
    failed = terminal("%%cuda_guard\n1 / 0")
    assert "----> 2 1 / 0" in failed and "run_cell_magic" not in failed
    assert ": 7" in terminal("%%cuda_guard\nimport asyncio\nawait asyncio.sleep(0, 7)")
