"""The same in a terminal IPython: what a plain and a guarded cell print, in its own main loop."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

pexpect = pytest.importorskip("pexpect")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "stacks"))

from cell_cases import AWAITS, ERRORS, MAGICS, SETTINGS, VALUES  # noqa: E402
from environments import OWN_AND_STACKS, python_of  # noqa: E402

KERNELS = {
    "input",
    "input_twice",
    "pdb_statement",
    "interact",
    "interact_error",
    "output_widget",
    "autoreload",
    "timeit",
    "too_deep_for_the_parser",
}
"""Cases of a front end: they ask it, or draw in it; and one whose line is longer than a terminal takes."""
CASES = [
    case
    for case in (*VALUES, *ERRORS, *AWAITS, *MAGICS, *SETTINGS)
    if case.name not in KERNELS
    and not (case.interrupt or case.silent or case.modules or case.stdin or "_interrupt" in case.name)
    and case.store_history
]


class Terminal:
    """An IPython without a kernel; `send` gives what a cell prints."""

    def __init__(self, python: str, folder: Path) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "cells")])
        env = {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(folder), "TERM": "dumb", "COLUMNS": "100"}
        env["PYTHONWARNINGS"] = "ignore::DeprecationWarning,always::UserWarning"
        arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit", "--colors=NoColor"]
        self.child = pexpect.spawn(
            python, arguments, env=env, cwd=str(folder), encoding="utf-8", timeout=40, echo=False, maxread=1 << 16
        )
        self.child.expect(r"In \[1\]: ")
        self.child.sendline("%load_ext typed_by_tests")
        self.number = self._ready()
        self.send("%load_ext guarded_by_tests\nimport sys, os, time")
        release = re.search(r"\(([0-9]+), ([0-9]+)\)", self.send("sys.version_info[:2]"))
        assert release is not None
        self.version = int(release[1]), int(release[2])

    def _ready(self) -> int:
        self.child.expect(r"\r\nREADY ([0-9]+)\r\n")
        return int(self.child.match[1])

    def send(self, text: str) -> str:
        """What the cell prints, In and Out counted from its own number."""
        before = self.number
        self.child.sendline(json.dumps(text))
        self.number = self._ready()
        printed = self.child.before.replace("\r\n", "\n")
        for pattern, new in SWAPS:
            printed = pattern.sub(new, printed)
        printed = re.sub(r"(In ?|Out)\[([0-9]+)\]", lambda m: f"{m[1]}[own{int(m[2]) - before:+d}]", printed)
        return f"{printed}count {self.number - before:+d}"

    def close(self) -> None:
        self.child.close(force=True)


SWAPS = (
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"<ipython-input-[0-9]+-[0-9a-f]+>"), "<cell file>"),
    (re.compile(r"(CPU times|Wall time).*"), r"\1"),
    (re.compile(r" +\n"), "\n"),
)
CLEAN = """
for _n in [k for k in get_ipython().user_ns if not k.startswith('_')]:
    if _n not in ('In', 'Out', 'get_ipython', 'exit', 'quit', 'open', 'sys', 'os', 'time', 'OutOfMemoryError'):
        get_ipython().user_ns.pop(_n)
"""


@pytest.fixture(scope="module", params=OWN_AND_STACKS)
def terminal(request, tmp_path_factory):
    """One terminal IPython of the stack, shared by all cases."""
    made = Terminal(python_of(request.param), tmp_path_factory.mktemp("terminal"))
    yield made
    made.close()


def see(terminal: Terminal, text: str, case) -> list[str]:
    terminal.send(CLEAN + case.setup)
    seen = [terminal.send(text)]
    seen += [terminal.send(then) for then in case.then if then != "%debug"]
    if case.after:
        terminal.send(case.after)
    return seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_guarded_is_plain_in_a_terminal(terminal, case):
    """The same text, the same count, and the same for what follows it."""
    if terminal.version < case.needs:
        return
    plain, guarded = case.texts
    assert see(terminal, guarded, case) == see(terminal, plain, case)


def test_a_rescue_in_a_terminal(terminal):
    """The failed attempt's repeat is said once, and the value is the cell's."""
    once = "tries = []\ndef once():\n    tries.append(1)\n    if len(tries) == 1: raise OutOfMemoryError\n    return 9"
    terminal.send(f"{CLEAN}{once}")
    printed = terminal.send("%%cuda_guard\nonce()")
    assert printed.count("repeat of line 2") == 1
    assert "Out[own+0]: 9" in printed


def test_an_interrupt_in_a_terminal(terminal):
    """Ctrl-C in a guarded cell: KeyboardInterrupt once, the terminal goes on."""
    terminal.child.sendline(json.dumps("%%cuda_guard\nprint('rea' + 'dy', flush=True)\ntime.sleep(30)"))
    terminal.child.expect("ready")
    terminal.child.sendintr()
    terminal.number = terminal._ready()
    assert terminal.child.before.count("KeyboardInterrupt") == 2  # head and foot of one traceback
    assert "Out[own+0]: 2" in terminal.send("1 + 1")


def test_enough_cases_in_a_terminal():
    """Not thinned out unnoticed."""
    assert len(CASES) >= 60


def test_as_typed(tmp_path):
    """Line by line at IPython's own prompt: value, traceback and await."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'cells'}", "IPYTHONDIR": str(tmp_path)}
    arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
    child = pexpect.spawn(sys.executable, arguments, env=env, encoding="utf-8", timeout=30, echo=False)
    child.expect(r"In \[1\]: ")

    def send(text):
        for line in (*text.split("\n"), "", "", "print('the' + ' end')"):
            child.sendline(line)
        child.expect("the end")
        return child.before

    try:
        send("%load_ext guarded_by_tests")
        assert ": 4" in send("%%cuda_guard\nx = 3\nx + 1")
        failed = send("%%cuda_guard\n1 / 0")
        assert "----> 2 1 / 0" in failed and "run_cell_magic" not in failed
        assert ": 7" in send("%%cuda_guard\nimport asyncio\nawait asyncio.sleep(0, 7)")
    finally:
        child.close(force=True)
