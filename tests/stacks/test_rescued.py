"""The real guard on the practice GPU, on each IPython stack: a rescued cell looks as one with enough memory."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from differential import Case, Kernel
from rescued_cells import CASES, FAILURES, FILL, SETUP

EXTENSION = "cuda_magic"
_RESET_ALL = "%reset -f\nimport sys\n"
LINE = re.compile(r"cuda_guard: line [0-9]+ ran out of GPU memory; room was made; it runs again \(attempt 2\)\n")
OWN_FRAME = re.compile(
    r'  \|   File "[^"]*interactiveshell\.py", line [0-9]+, in run_code\n  \|     exec\(.*\n(?:  \|     [~^]+\n)?'
)
"""IPython's own, which stands in a group's traceback; after a rescue that failed it does not."""


def see(kernel: Kernel, case: Case, fill: str = "") -> tuple[Any, Any]:
    """The plain run, and the guarded one after `fill`."""
    plain, guarded = case.texts
    expected = kernel.see(plain, replace(case, setup=f"{SETUP}\n{case.setup}"))
    return expected, kernel.see(guarded, replace(case, setup=f"{SETUP}\n{case.setup}\n{fill}"))


def without_lines(messages: list[Any]) -> tuple[list[Any], int]:
    """The messages without the guard's line for each repeat, and how many there were."""
    left, found = [], 0
    for kind, content in messages:
        if kind == "stream" and content["name"] == "stderr":
            text, count = LINE.subn("", content["text"])
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


@pytest.mark.parametrize("case", FAILURES, ids=lambda case: case.name)
def test_a_cell_that_is_not_rescued_is_the_plain_one_with_the_report_below(kernel, case):
    """The plain cell's error and traceback, then one display: the report."""
    if kernel.python < case.needs:
        return
    expected, seen = see(kernel, case)
    shown = [content for kind, content in seen.messages if kind == "display_data"]
    assert len(shown) == 1
    assert seen.messages[-1][0] == "display_data"
    assert shown[0]["data"]["text/plain"].startswith("cuda_guard: ")
    assert shown[0]["data"]["text/html"].startswith("<div")
    assert [message for message in seen.messages if message[0] != "display_data"] == [
        (kind, {**content, "text": OWN_FRAME.sub("", content["text"])} if kind == "stream" else content)
        for kind, content in expected.messages
    ]
    assert seen.reply == expected.reply
    assert seen.state == expected.state
    assert seen.then == expected.then


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
