"""Rescue paths of a cell, driven by a rescuer of the tests' own and an error that only has the name."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import IPython
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import guarded_by_tests
from guarded_by_tests import OutOfMemoryError, Repeats


@pytest.fixture
def guard(shell):
    """Runs a cell with the tests' guard; gives the result and what the rescuer saw."""
    shell.run_line_magic("load_ext", "guarded_by_tests")

    def run(body, rescuer=None, magic="%%cuda_guard"):
        guarded_by_tests.make[0] = lambda line: rescuer or Repeats(int(line or 1), say=False)
        guarded_by_tests.last.clear()
        result = shell.run_cell(f"{magic}\n{body}", store_history=True)
        return result, (guarded_by_tests.last or [None])[0]

    run.shell = shell
    shell.run_line_magic("colors", "nocolor" if IPython.version_info[0] >= 9 else "NoColor")
    yield run
    shell.run_line_magic("unload_ext", "guarded_by_tests")


FAIL_ONCE = """
tries = []
def once(value=None):
    tries.append(1)
    if len(tries) == 1:
        raise OutOfMemoryError("no room")
    return value
"""


def test_case_35_last_expression(guard):
    """The last expression is the cell's value, in Out and in _."""
    result, _ = guard("x=3\nx+1")
    assert result.result == 4 and guard.shell.user_ns["x"] == 3
    assert guard.shell.user_ns["Out"][1] == 4 and guard.shell.user_ns["_"] == 4


def test_case_37_failing_cell_fails(guard, capsys):
    """An error leaves the cell once, unchanged."""
    result, _ = guard("1/0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert capsys.readouterr().out.count("ZeroDivisionError: division") == 1


def test_case_39_await(guard):
    """A cell that awaits is awaited; below another cell magic it is refused before anything runs."""
    assert guard("import asyncio\nawait asyncio.sleep(0, 7)")[0].result == 7
    result, _ = guard("x = 1\nimport asyncio\nawait asyncio.sleep(0)", magic="%%time\n%%cuda_guard")
    assert "very first line" in str(result.error_in_exec)
    assert "x" not in guard.shell.user_ns


def test_case_41_failed_frames_are_gone_at_recovery(guard):
    """What the failed attempt's frames held is dead when room is made, with no collection."""
    guard.shell.run_cell("class Big: pass\nimport weakref\nrefs = []")
    body = """
def f():
    big = Big()
    refs.append(weakref.ref(big))
    def inner():
        big
        raise OutOfMemoryError("no room")
    inner()
f()
"""
    alive = []
    rescuer = Repeats(1, say=False)
    rescuer.at_recovery = lambda: alive.append(guard.shell.user_ns["refs"][-1]())
    gc.disable()
    try:
        guard(body, rescuer)
    finally:
        gc.enable()
    assert alive == [None, None]


def test_case_55_only_the_failing_statement_repeats(guard):
    """Finished statements ran once; the failing one ran as often as it was tried."""
    result, rescuer = guard(f"{FAIL_ONCE}\ncounter = 0\ncounter += 1\nonce('ok')")
    assert result.result == "ok"
    assert guard.shell.user_ns["counter"] == 1 and len(guard.shell.user_ns["tries"]) == 2
    assert [line for line in rescuer.log if not line.startswith("before")] == ["noticed 4", "recover 4", "finished"]


def test_always_failing_gives_up_with_the_first_error(guard, capsys):
    """After the last repeat the first attempt's error is raised with the traceback it had."""
    body = "n = 0\ndef f():\n    global n\n    n += 1\n    raise OutOfMemoryError(f'try {n}')\nf()"
    result, rescuer = guard(body, Repeats(3, say=False))
    assert str(result.error_in_exec) == "try 1" and guard.shell.user_ns["n"] == 4
    assert rescuer.log[-1] == "gave up 2"
    out = capsys.readouterr().out
    assert out.count("OutOfMemoryError: try 1") == 1 and "line 6, in f()" in out
    guard.shell.run_line_magic("tb", "")
    assert "line 6, in f()" in capsys.readouterr().out


def test_other_error_during_a_repeat_is_raised_as_it_is(guard):
    """An error that is not out of memory ends the cell at once, as in the plain cell."""
    body = (
        "n = 0\ndef f():\n    global n\n    n += 1\n    raise (OutOfMemoryError if n == 1 else ValueError)(str(n))\nf()"
    )
    result, _ = guard(body, Repeats(3, say=False))
    assert isinstance(result.error_in_exec, ValueError)
    assert sys.last_traceback.tb_next.tb_frame.f_code.co_name in ("<module>", "<cell line: 7>")


@pytest.mark.parametrize("method", ["before", "during", "noticed", "recover", "finished", "gave_up"])
def test_an_error_of_ours_never_replaces_the_users(guard, capsys, method):
    """Whatever a rescuer raises is told in one line; the cell ends as it would without it."""
    rescuer = Repeats(1, say=False)

    def fails(*arguments):
        raise TypeError("ours")

    setattr(rescuer, method, fails)
    result, _ = guard("1/0", rescuer)
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    result, _ = guard("raise OutOfMemoryError('users')", rescuer)
    assert isinstance(result.error_in_exec, OutOfMemoryError)
    assert guard("5", rescuer)[0].result == 5
    assert "TypeError: ours" in capsys.readouterr().err


def test_interrupt_during_a_rescue(guard):
    """The user's interrupt ends the rescue and the cell, and keeps the error that was being rescued."""
    rescuer = Repeats(5, say=False)

    def interrupt():
        raise KeyboardInterrupt

    rescuer.at_recovery = interrupt
    result, _ = guard("raise OutOfMemoryError('x')", rescuer)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert isinstance(result.error_in_exec.__context__, OutOfMemoryError)


def test_interrupt_between_two_attempts(guard):
    """Where neither statement nor rescue is running the rescuer is told too that the cell has been left."""
    rescuer = Repeats(5, say=False)
    before = rescuer.before

    def interrupted(step, namespace):
        before(step, namespace)
        if len(rescuer.log) > 1:
            raise KeyboardInterrupt

    rescuer.before = interrupted
    result, _ = guard("raise OutOfMemoryError('x')", rescuer)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert rescuer.log == ["before 0", "noticed 0", "recover 0", "before 0"]
    assert rescuer.gone


@pytest.mark.parametrize("tries", [1, 2])
def test_interrupt_before_and_after_a_rescue(guard, tries):
    """An interrupt of the statement itself, in its first or its repeated attempt, is the user's: raised at once."""
    error = f"KeyboardInterrupt if len(tries) == {tries} else OutOfMemoryError"
    result, _ = guard(f"tries = []\ndef f():\n    tries.append(1)\n    raise {error}\nf()", Repeats(5, say=False))
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert len(guard.shell.user_ns["tries"]) == tries


def test_names_of_the_failed_attempt_go_back(guard):
    """New names are gone and old values back when room is made and when the statement is repeated."""
    seen = []
    rescuer = Repeats(1, say=False)
    rescuer.at_recovery = lambda: seen.append({k: guard.shell.user_ns.get(k) for k in ("a", "b", "i")})
    guard(f"{FAIL_ONCE}\na = 1\nfor i in range(2):\n    a = 10 + a\n    b = 2\n    once()\na", rescuer)
    assert seen == [{"a": 1, "b": None, "i": None}]
    assert guard.shell.user_ns["a"] == 21


def test_a_name_that_cannot_go_back_is_told(guard):
    """A rebound value that has died is `lost` if the statement may read it first, and only then."""
    guard.shell.run_cell("class Big:\n    def __add__(self, other):\n        return Big()")
    _, rescuer = guard(f"{FAIL_ONCE}\nacc = Big()\nfor i in range(2):\n    acc = acc + 1\n    once()")
    assert rescuer.lost == ("acc",)
    _, rescuer = guard(f"{FAIL_ONCE}\nout = Big()\nfor i in range(2):\n    out = Big()\n    once()")
    assert rescuer.lost == ()


@pytest.mark.parametrize("body", ["x = Big()", "for x in [Big()]:\n    use()", "if True:\n    x = Big()\n    use()"])
def test_guarded_peak_is_plain_peak(guard, body):
    """The guard keeps no replaced value alive while a statement runs."""
    guard.shell.run_cell(
        """
import weakref
class Big:
    live, peak = 0, 0
    def __init__(self):
        Big.live += 1; Big.peak = max(Big.peak, Big.live)
        weakref.finalize(self, Big.gone)
    @staticmethod
    def gone():
        Big.live -= 1
def use(): Big.peak = max(Big.peak, Big.live)
"""
    )
    peaks = []
    for run in (guard.shell.run_cell, lambda text: guard(text)):
        run("x = Big(); Big.peak = 0")
        run(body + "\nfor _i in range(3):\n    x = Big()\n    use()\n    x = Big()")
        peaks.append(guard.shell.user_ns["Big"].peak)
    assert peaks[0] == peaks[1] == 2


def test_modes_surround_each_attempt_and_see_its_error(guard):
    """`during` is entered before and left after each attempt, also by an error."""
    import contextlib

    log = []

    @contextlib.contextmanager
    def modes():
        log.append("in")
        try:
            yield
        except OutOfMemoryError:
            log.append("failed")
            raise
        finally:
            log.append("out")

    rescuer = Repeats(1, say=False)
    rescuer.modes = modes
    assert guard(f"{FAIL_ONCE}\nonce(3)", rescuer)[0].result == 3
    assert log[-5:] == ["in", "failed", "out", "in", "out"]


def test_report_is_shown_under_the_traceback(guard, capsys):
    """What gave_up returns is displayed below the error."""
    rescuer = Repeats(0, say=False)
    rescuer.under = "the report"
    guard("raise OutOfMemoryError('x')", rescuer)
    out = capsys.readouterr().out
    assert out.index("OutOfMemoryError: x") < out.index("the report")


def test_group_out_of_memory_given_up(guard, capsys):
    """An exception group is shown in Python's own form after a failed rescue too."""
    if sys.version_info < (3, 11):
        return
    rescuer = Repeats(0, say=False)
    rescuer.noticed = lambda error, step: True
    guard("raise ExceptionGroup('several', [OutOfMemoryError('x')])", rescuer)
    assert "several (1 sub-exception)" in capsys.readouterr().err


def test_rescue_of_an_awaiting_statement(guard):
    """A statement that awaits is repeated as well."""
    body = f"{FAIL_ONCE}\nimport asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return once(9)\nawait f()"
    assert guard(body)[0].result == 9


def test_nothing_is_left_behind(guard):
    """After a cell, failed or not, the shell is as it was; the failed error is not held by us."""
    shell = guard.shell
    shell.run_cell("class Err(Exception): pass")
    result, _ = guard("raise Err('x')")
    assert "showtraceback" not in vars(shell)
    gone = weakref.ref(result.error_in_exec)
    del result
    sys.last_value = sys.last_traceback = sys.last_type = sys.last_exc = None
    shell.InteractiveTB.tb = None
    shell.last_execution_result = None
    gc.collect()
    assert gone() is None


def test_unloading_removes_every_hook(shell):
    """Transformer, events and the hidden magic go with the extension."""
    before = list(shell.input_transformers_post), {k: list(v) for k, v in shell.events.callbacks.items()}
    shell.run_line_magic("load_ext", "guarded_by_tests")
    shell.run_line_magic("unload_ext", "guarded_by_tests")
    assert before == (list(shell.input_transformers_post), {k: list(v) for k, v in shell.events.callbacks.items()})
    assert "_cuda_magic_await" not in shell.magics_manager.magics["cell"]


@pytest.mark.parametrize(
    "text",
    ["", "get_ipython().run_cell_magic(", "get_ipython().run_cell_magic('cuda_guard', 1)\n", "\0", "%%cuda_guard"],
)
def test_the_transformer_never_raises(guard, text):
    """A text that is no call of ours comes back as it was."""
    hook = next(t for t in guard.shell.input_transformers_post if "Hooks" in type(t.__self__).__name__)
    assert hook([text]) == [text]
