"""The real guard on the practice GPU, on each IPython stack: a rescued cell looks as one with enough memory."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from cell_cases import AWAITS, ERRORS, MAGICS, SETTINGS, VALUES
from differential import Case, Kernel
from rescued_cells import BEFORE, CASES, CLEAN, FAILURES, FILL, SCRIPT, SETUP

EXTENSION = "cuda_magic"
_RESET_ALL = "%reset -f\nimport sys\n"
LINE = re.compile(r"cuda_guard: line [0-9]+ ran out of GPU memory; room was made; it runs again \(attempt 2\)\n")
MADE = re.compile(r"cuda_guard: GPU memory ran out (?:once|twice); room was made and nothing was repeated\n")
OWN_FRAME = re.compile(
    r'  \|   File "[^"]*interactiveshell\.py", line [0-9]+, in run_code\n  \|     exec\(.*\n(?:  \|     [~^]+\n)?'
)
"""IPython's own, which stands in a group's traceback; after a rescue that failed it does not."""


def without_own(messages: Iterable[Any]) -> list[Any]:
    """The messages without that frame."""
    return [
        (kind, {**content, "text": OWN_FRAME.sub("", content["text"])} if kind == "stream" else content)
        for kind, content in messages
    ]


PLAIN = [*VALUES, *ERRORS, *MAGICS]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A kernel of this Python with cuda_magic itself."""
    kernel = Kernel(sys.executable, tmp_path_factory.mktemp("kernel"), "cuda_magic")
    yield kernel
    kernel.close()


def see(kernel: Kernel, case: Case, fill: str = "") -> tuple[Any, Any]:
    """The plain run, and the guarded one after `fill`."""
    plain, guarded = case.texts
    expected = kernel.see(plain, replace(case, setup=f"{SETUP}\n{case.setup}"))
    return expected, kernel.see(guarded, replace(case, setup=f"{SETUP}\n{case.setup}\n{fill}"))


def without_lines(messages: list[Any], line: re.Pattern[str] = LINE) -> tuple[list[Any], int]:
    """The messages without such lines of the guard's, and how many there were."""
    left, found = [], 0
    for kind, content in messages:
        if kind == "stream" and content["name"] == "stderr":
            text, count = line.subn("", content["text"])
            found += count
            if not text:
                continue
            content = {**content, "text": text}
        if kind == "stream" and left and left[-1][0] == "stream" and left[-1][1]["name"] == content["name"]:
            left[-1] = kind, {**content, "text": left[-1][1]["text"] + content["text"]}
            continue
        left.append((kind, content))
    return left, found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rescued_cell_is_the_plain_one_with_enough_memory(kernel, case):
    """Messages, reply, Out, count, history, names and what follows are the same; one line for each repeat."""
    if kernel.python < case.needs or not all(kernel.has(module) for module in case.modules):
        return  # what the cell is about is not in this environment; other stacks have it
    expected, seen = see(kernel, case, FILL)
    messages, repeats = without_lines(seen.messages)
    if case.name in ("interrupted_before_it", "capture_outside"):
        assert repeats == 0  # interrupted before anything failed; --quiet
    elif not case.silent:
        assert repeats == (2 if case.name == "twice" else 1)
    assert messages == expected.messages
    assert seen.reply == expected.reply
    assert seen.state == expected.state
    assert seen.then == expected.then


MADE_FOR = {
    *("value", "semicolon", "prints_before_and_after", "display_handle", "loop", "await", "async_for", "run_script"),
    *("run_ipy", "capture_inside", "capture_outside", "error_after_it", "interrupted_after_it", "silent"),
}


@pytest.mark.parametrize("case", [case for case in CASES if case.name in MADE_FOR], ids=lambda case: case.name)
def test_a_cell_for_which_room_is_made_is_the_plain_one(kernel, case):
    """Before the error, nothing repeated: the same, and one line at the end of a cell that ended."""
    expected, seen = see(kernel, case, FILL + BEFORE)
    messages, lines = without_lines(seen.messages, MADE)
    if not case.silent:
        assert lines == (case.name not in ("error_after_it", "interrupted_after_it", "capture_outside"))
    assert messages == expected.messages
    assert (seen.reply, seen.state, seen.then) == (expected.reply, expected.state, expected.then)


@pytest.mark.parametrize("case", [c for c in PLAIN if c.name != "out_of_memory_given_up"], ids=lambda case: case.name)
def test_the_real_guard_is_plain_too(own, case):
    """What is in force around a magic is seen by nobody either."""
    if own.python < case.needs or not all(own.has(module) for module in case.modules):
        return
    plain, guarded = case.texts
    expected, seen = own.see(plain, case), own.see(guarded, case)
    assert (seen.messages, seen.reply) == (expected.messages, expected.reply)
    assert (seen.state, seen.then) == (expected.state, expected.then)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A plain kernel, and one that guards every cell; in one folder."""
    folder = tmp_path_factory.mktemp("both")
    kernels = [Kernel(sys.executable, folder, "cuda_magic") for _ in range(2)]
    kernels[1].run("%cuda_guard --all", store_history=False)
    yield kernels
    for one in kernels:
        one.close()


@pytest.mark.parametrize(
    "case", [c for c in (*ERRORS, *AWAITS, *SETTINGS) if not c.guarded and not c.interrupt], ids=lambda case: case.name
)
def test_a_cell_under_all_is_the_plain_one(both, case):
    """`%cuda_guard --all`: the same cell in both, with the same line numbers."""
    if both[0].python < case.needs:
        return
    expected, seen = [one.see(case.body, case) for one in both]
    assert (seen.messages, seen.reply) == (expected.messages, expected.reply)
    assert (seen.state, seen.then) == (expected.state, expected.then)


@pytest.mark.parametrize("line", ["%%cuda_guard", "%%cuda_guard --repeat"], ids=["", "repeat"])
@pytest.mark.parametrize("case", FAILURES, ids=lambda case: case.name)
def test_a_cell_that_is_not_rescued_is_the_plain_one_with_the_report_below(kernel, case, line):
    """Not repeated, or in vain: the plain cell's error and traceback, then one display: the report."""
    if kernel.python < case.needs:
        return
    expected, seen = see(kernel, replace(case, plain=f"# {line}\n{case.body}", guarded=f"{line}\n{case.body}"))
    shown = [content for kind, content in seen.messages if kind == "display_data"]
    assert len(shown) == 1
    assert seen.messages[-1][0] == "display_data"
    assert shown[0]["data"]["text/plain"].startswith("cuda_guard: ")
    assert shown[0]["data"]["text/html"].startswith("<div")
    assert without_own(m for m in seen.messages if m[0] != "display_data") == without_own(expected.messages)
    assert seen.reply == expected.reply
    assert seen.state == expected.state
    assert seen.then == expected.then


@pytest.mark.parametrize(
    "body",
    [
        "%run too_much.py",
        "%run -m too_much",
        "%run too_much.ipy",
        "%%capture c\nprint('in')\ngpu.empty('4 GiB')",
        "%%capture c\n%run too_much.py",
        "%%time\ngpu.empty('4 GiB')",
    ],
)
def test_an_error_that_a_magic_would_show_ends_the_guarded_cell(kernel, body):
    """The traceback that the plain cell shows, and the report; the cell fails, and nothing of ours stays in place."""
    setup = f"{_RESET_ALL}{SETUP}{SCRIPT}"
    kernel.run(setup)
    plain = next(content for kind, content in kernel.run(body).messages if kind == "error")
    kernel.run(setup)
    seen = kernel.run(f"%%cuda_guard --repeat --report report\n{body}")
    assert seen.reply["status"] == "error"
    errors = [content for kind, content in seen.messages if kind == "error"]
    assert len(errors) == 1
    shown = "run_cell_magic('time'" not in plain["traceback"][2]  # IPython 9's raises it, from the cell's own line
    # IPython 7 names a cell by __file__, which %run sets to the .ipy file as long as it runs
    expected = [re.sub(r"^/\S*too_much\.ipy in", "<cell file> in", text) for text in plain["traceback"]]
    assert errors[0]["traceback"] == expected or not shown
    assert kernel.ask("report.status, report.attempts") == "('failed', 1)"
    assert kernel.ask("any('the plain cell would have' in note for note in report.notes)") == str(shown)
    left = "[n for n in ('showtraceback', 'run_cell') if n in vars(get_ipython())]"
    assert kernel.ask(left) == "[]"
    assert kernel.ask("'inside' in get_ipython().find_line_magic('run').__code__.co_filename") == "False"
    kernel.run(CLEAN)


def test_what_a_failed_script_held_is_free_for_its_repeat(kernel):
    """Its variables lie in IPython's cache, and those of a failed %%time in the notebook: they go before the repeat."""
    setup = f"{_RESET_ALL}{SETUP}\nimport builtins\nbuiltins.need, builtins.gpu = need, gpu\n"
    script = "open('two.py', 'w').write('first = gpu.empty(\"1.5 GiB\")\\nsecond = gpu.empty(\"1.5 GiB\")\\n')\n"
    kernel.run(f"{setup}{script}")
    kernel.run("held = [gpu.empty('0.5 GiB')]\nheld.append(held)\ndel held")
    seen = kernel.run("%%cuda_guard --repeat --only holders,collect,caches --report report\n%run two.py")
    assert seen.reply["status"] == "ok", seen
    assert kernel.ask("report.status, first.nbytes, second.nbytes") == f"('rescued', {3 << 29}, {3 << 29})"
    kernel.run(f"{setup}held = [gpu.empty('0.5 GiB')]\nheld.append(held)\ndel held")
    body = "%%time\nfirst = gpu.empty('1.5 GiB')\nsecond = gpu.empty('1.5 GiB')"
    seen = kernel.run(f"%%cuda_guard --repeat --only holders,collect,caches --report report\n{body}")
    assert seen.reply["status"] == "ok", seen
    assert kernel.ask("report.status, first.nbytes, second.nbytes") == f"('rescued', {3 << 29}, {3 << 29})"
    kernel.run(CLEAN)


def test_other_errors_that_a_magic_shows_are_shown(kernel):
    """No matter of memory: %run shows it and the cell goes on, as without the guard."""
    case = Case("", "%run no_memory_matter.py\nprint('on')", setup=SCRIPT, then=("x", "%tb"))
    expected, seen = see(kernel, case)
    assert (seen.messages, seen.reply, seen.then) == (expected.messages, expected.reply, expected.then)
    kernel.run(CLEAN)


def test_a_nested_cell_of_the_users_own_is_left_alone(kernel):
    """`run_cell` gives its caller the error: that is the user's way of dealing with it."""
    kernel.run(f"{_RESET_ALL}{SETUP}")
    cell = "done = get_ipython().run_cell(\"gpu.empty('4 GiB')\")\ndone.success"
    seen = kernel.run(f"%%cuda_guard --report report\n{cell}")
    assert seen.reply["status"] == "ok"
    assert kernel.ask("done.success, report.status, report.handled") == "(False, 'ok', 1)"


def test_an_interrupt_while_room_is_made(kernel):
    """The stop button while --wait waits: KeyboardInterrupt at once, the report below, and the kernel goes on."""
    kernel.run(f"{SETUP}\ngpu.limit('24 GiB')\nkept = gpu.empty('1 MiB')\nother = gpu.other_process('23 GiB', pid=77)")
    started = time.monotonic()
    request = kernel.client.execute("%%cuda_guard --wait 50\nx = gpu.empty('2 GiB')", stop_on_error=False)
    interrupted = []

    def on(message: dict[str, Any]) -> None:
        if "waiting for other processes" in str(message["content"].get("text", "")) and not interrupted:
            interrupted.append(time.monotonic())
            kernel.manager.interrupt_kernel()

    messages = kernel._until_idle(request, on)
    reply = kernel._reply(request)["content"]
    assert interrupted
    assert time.monotonic() - interrupted[0] < 10
    assert time.monotonic() - started < 40
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    errors = [m["content"] for m in messages if m["msg_type"] == "error"]
    assert [e["ename"] for e in errors] == ["KeyboardInterrupt"]
    assert "while the statement was being rescued" in "\n".join(errors[0]["traceback"])
    assert kernel.ask("'x' in globals(), 1 + 1") == "(False, 2)"
    kernel.run("other.stop()\ndel other")
    assert kernel.run("%%cuda_guard\nx = gpu.empty('1 GiB')").reply["status"] == "ok"


FAILED = """
def fail():
    held = gpu.empty('2 GiB')
    inner = lambda: gpu.empty('2 GiB')
    return inner()
"""


@pytest.mark.parametrize("looked", [(), ("%debug",), ("%tb",)], ids=["", "debugged", "shown again"])
def test_case_41_an_earlier_failure_lets_go(kernel, looked):
    """Its function held 2 GiB of 3. Formatting left snapshots of its locals on old Pythons; they go too.

    The notebook's own names, which are the locals of the failed cell's first frame, stay.
    """
    kernel.run(f"{_RESET_ALL}{SETUP}{FAILED}")
    kernel.run("before = [1, 2]\nat_top = gpu.empty('0.5 GiB')\nfail()")
    for line in looked:
        kernel.run(line, stdin=("p held", "up", "q") if line == "%debug" else ())
    seen = kernel.run("%%cuda_guard --only holders,collect,caches --report report\nx = gpu.empty('2.25 GiB')")
    assert seen.reply["status"] == "ok", seen
    assert kernel.ask("report.status, x.nbytes, before, at_top.nbytes") == f"('rescued', {9 << 28}, [1, 2], {1 << 29})"


def test_case_41_an_exception_that_the_user_keeps_is_named_and_kept(kernel):
    """`saved = e`: the report has the name, the bytes and the line; the frames stay whole."""
    kernel.run(f"{_RESET_ALL}{SETUP}{FAILED}")
    kernel.run("try:\n    fail()\nexcept RuntimeError as e:\n    saved = e")
    seen = kernel.run("%%cuda_guard --report report\nx = gpu.empty('2.25 GiB')")
    assert seen.reply["status"] == "error"
    assert kernel.ask("[h.nbytes for h in report.holders if h.name == 'saved']") == f"[{2 << 30}]"
    assert kernel.ask("any(s.line == 'del saved' for s in report.next_steps)") == "True"
    assert kernel.ask("saved.__traceback__.tb_next.tb_frame.f_locals['held'].nbytes") == str(2 << 30)


def test_shown_values_are_let_go_where_asked(kernel):
    """Out, `_` and IPython's other references: named without --free-outputs, gone with it."""
    kernel.run(f"{_RESET_ALL}{SETUP}")
    kernel.run("gpu.empty('2 GiB')")
    seen = kernel.run("%%cuda_guard --only holders,collect,caches --report report\nx = gpu.empty('2 GiB')")
    assert seen.reply["status"] == "error"
    assert kernel.ask("[h.nbytes for h in report.holders if h.kind == 'output']") == f"[{2 << 30}]"
    assert kernel.ask("any(s.line == '%%cuda_guard --free-outputs' for s in report.next_steps)") == "True"
    seen = kernel.run("%%cuda_guard --free-outputs --only holders,collect,caches\nx = gpu.empty('2 GiB')")
    assert seen.reply["status"] == "ok", seen
