"""The report as its reader meets it: what happened, what to do, where the memory is, and only then what was tried."""

from __future__ import annotations

import gc
import html
import json
import re

import pytest

from cuda_magic.kernel import holders as kernel
from cuda_magic.render.units import bytes_text
from cuda_magic.rescue.classify import classify, judge

CHEAP = ("holders", "collect", "caches")
GIB = 1 << 30


def steps(cells) -> list[tuple[str, str]]:
    return [(step.why, step.line) for step in cells.report.next_steps]


@pytest.fixture
def full(practice):
    """3 GiB, of which ``big`` holds 2."""
    practice.plain("gpu.limit('3 GiB')\nbig = gpu.empty('2 GiB')")
    return practice


def test_what_to_do_stands_first(full):
    """Sentence, next steps, holders, rungs, in text and HTML; the words of a repeat only where there was one."""
    assert full.guard("y = gpu.empty('2 GiB')", without=("spill",)) is not None
    order = [
        "Line 1: out of GPU memory",
        "What to do next",
        "del big",
        "Where the memory is",
        "What was tried",
        "Skipped:",
    ]
    page = html.unescape(re.sub(r"<[^>]+>", " ", full.report._repr_html_()))
    for text in (repr(full.report), page):
        at = [text.index(words) for words in order]
        assert at == sorted(at), text
        assert "times" not in text


def test_rungs_that_could_not_help_stand_together(full):
    """One line, those with the same reason in one bracket; what the line itself left out is not told again."""
    assert full.guard("y = gpu.empty('2 GiB')", without=("spill",)) is not None
    last = repr(full.report).splitlines()[-1]
    assert last.startswith(
        "Skipped: holders (no earlier failure is kept); compact (1.00 GiB is free in all, 2.00 GiB is"
    )
    assert "spill" not in last
    assert full.guard("raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED')", without=("spill",)) is not None


def test_no_reason_is_told_twice(practice):
    """Before CUDA has started nothing can be asked: five rungs, one reason."""
    practice.gpu.other_process("23.6 GiB")
    assert practice.guard("y = gpu.empty(8)") is not None
    assert repr(practice.report).count("the allocator cannot be asked") == 1
    assert "no room for CUDA to start in this kernel" in repr(practice.report)


def test_two_rescued_statements_are_told_apart(practice):
    """A column names the line, where more than one was rescued."""
    practice.plain("gpu.limit('3 GiB')\nclass Node:\n  def __init__(self): self.x = gpu.empty('2 GiB'); self.me = self")
    gc.disable()
    try:
        assert (
            practice.guard("Node(); None\ny = gpu.empty('2 GiB')\ndel y\nNode(); None\nz = gpu.empty('2 GiB')") is None
        )
    finally:
        gc.enable()
    rows = [line.split()[:3] for line in repr(practice.report).splitlines() if "collect" in line]
    assert rows == [["2", "1", "collect"], ["5", "1", "collect"]]
    assert {r.line for r in practice.report.rungs} == {2, 5}


def test_cycles_are_named_and_their_maker_is_told_how(practice):
    """Each attempt leaves cycles of its own: the type with its bytes, and a collection within the statement."""
    practice.plain("gpu.limit('3 GiB')\nclass N:\n  def __init__(self): self.x = gpu.empty('0.9 GiB'); self.me = self")
    gc.disable()
    try:
        assert practice.guard("[N() and 0 for _ in range(6)]", repeat=True) is not None
    finally:
        gc.enable()
    assert "reference cycles of N (2.70 GiB)" in repr(practice.report)
    assert "asked of GPU 0, 3.60 GiB with what it had taken before" in repr(practice.report)
    assert "It ran 2 times; the statements before it ran once." in repr(practice.report)
    why, line = steps(practice)[0]
    assert ("cycles of N" in why, line) == (True, "import gc; gc.collect()")


def test_what_nothing_can_help_is_said_so(practice):
    """A request that is too much by itself, and nothing to let go of: one step all the same."""
    practice.plain("gpu.limit('1 GiB')")
    assert practice.guard("y = gpu.empty('2 GiB')") is not None
    assert steps(practice) == [
        ("nothing else can be let go of: the statement takes 2.00 GiB, and 1.00 GiB is free", "%debug")
    ]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"shrink": ("bs", 1)}, "%%cuda_guard --shrink bs"),
        ({"shrink": ("bs", 8), "grow": "accum"}, "%%cuda_guard --shrink bs=8 --grow accum"),
        ({"otherwise": (("bs", "4"),)}, "%%cuda_guard --else bs=4"),
    ],
)
def test_a_name_that_was_read_before_is_told_how_to_free(practice, options, line):
    """An earlier statement read it: it goes into another cell, and the same option then works."""
    practice.plain("gpu.limit('1 GiB')\nbs, accum = 64, 1")
    assert practice.guard("n = bs + 1\ny = gpu.empty(bs << 25)", **options) is not None
    assert ("move the earlier statement that reads bs into another cell, then", line) in steps(practice)
    assert practice.guard("y = gpu.empty(bs << 25)", **options) is None


def test_a_statement_that_is_not_repeated_says_why_and_what_comes_first(full):
    """One clause; what holds memory first, then room, and --repeat last and only to who knows."""
    full.plain("losses = []")
    code = "for i in range(2):\n  losses.append(i); y = gpu.empty('2 GiB')"
    assert full.guard(code, without=("spill",)) is not None
    assert full.report.notes == ("not repeated: its loop would start again from the top",)
    assert [line for _, line in steps(full)] == ["del big", "%gpu_mem --free", "%%cuda_guard --repeat"]
    assert steps(full)[-1][0] == "only if you know that all of the statement can run again"
    assert full.names["losses"] == [0]
    assert full.guard(code, without=("spill",), repeat=True) is not None
    assert full.report.status == "failed"
    assert not any("--repeat" in line for _, line in steps(full))


def test_too_large_may_shrink_and_shows_no_holders(practice):
    """Nothing that is freed would help: no table of it; a batch that the statement reads may go down."""
    practice.plain("bs = 128\nbig = gpu.empty('2 GiB')")
    assert practice.guard("y = gpu.empty(bs << 30)") is not None
    assert [line for _, line in steps(practice)] == ["%debug", "%%cuda_guard --shrink bs"]
    assert "Where the memory is" not in repr(practice.report)
    assert any(holder.name == "big" for holder in practice.report.holders)


def test_an_array_beyond_the_host_is_a_shape(practice):
    """64 TiB asked of the host: the shape; less than it has: what it has left."""
    for size, line in ((70368744177664, "%debug"), (4096, "!free -h")):
        text = f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes."
        assert practice.guard(f"raise RuntimeError({text!r})") is not None
        assert [line for _, line in steps(practice)] == [line]


def test_no_memory_to_start_with_on_an_empty_card_is_the_hosts_matter(practice):
    """The first tensor fails with code 2 and the driver tells of 23 GiB free: not the card, and not repeated."""
    assert practice.guard("raise RuntimeError('CUDA error: out of memory')") is not None
    assert (practice.report.kind, practice.report.attempts, practice.report.rungs) == ("start-up", 1, ())
    assert "though the card has 23.75 GiB free" in practice.report.sentence
    assert [line for _, line in steps(practice)] == ["%cuda_doctor"]
    fault = classify(RuntimeError("CUDA error: out of memory"))
    assert judge(fault, practice.gpu.allocator).kind.id == "context"  # nobody tells


def test_waiting_that_helped_says_so(practice):
    """The line of the repeat names the reason, as those of shrink and else do."""
    practice.gpu.empty("1 MiB")
    practice.gpu.other_process("20 GiB", pid=4242, seconds=3)
    assert practice.guard("y = gpu.empty('6 GiB')", wait=20) is None
    assert "another process gave memory back" in practice.lines[-1]


def test_json_has_what_the_text_has(full):
    """Each line of the statement, what it needs, each rung's reason and each step stand in `to_dict` too."""
    assert full.guard("y = gpu.empty('2 GiB')", without=("spill",)) is not None
    data = json.loads(json.dumps(full.report.to_dict()))
    assert (data["line"], data["requested"], data["needed"]) == (1, 2 * GIB, 2 * GIB)
    assert {rung["line"] for rung in data["rungs"]} == {1}
    assert data["next_steps"] == [{"why": why, "line": line} for why, line in steps(full)]


class Hook:
    _, __, ___ = "", [2], None


class Shell:
    """What `%reset -f out` leaves: no Out, and the values where IPython hides them."""

    def __init__(self, value) -> None:
        self.user_ns = {"Out": {}, "_": ""}
        self.user_ns_hidden = {"_": value, "__": value}
        self.displayhook = Hook()


def test_a_shown_value_that_ipython_hides_is_found_and_let_go():
    """It stands under a name, and --free-outputs reaches it."""
    value = [1]
    shell = Shell(value)
    found = kernel.outputs(shell)
    assert list(found) == ["_", "IPython's _", "IPython's __", "the display's __"]
    assert found["IPython's _"] is found["IPython's __"] is value
    assert kernel.forget_outputs(shell, [value]) == 2
    assert value not in kernel.outputs(shell).values()


@pytest.mark.parametrize(
    ("count", "text"),
    [(GIB - 1, "1.00 GiB"), (GIB - (6 << 20), "1018.00 MiB"), (1023, "1023 bytes"), ((1 << 20) - 1, "1.00 MiB")],
)
def test_no_size_reads_1024(count, text):
    """A size that rounds to 1024 of a unit is 1 of the next."""
    assert bytes_text(count) == text


def test_what_the_statement_uses_is_not_to_be_deleted(full):
    """Its own operands, by a function too, are no advice; what it does not touch is."""
    full.plain("idle = gpu.empty('0.5 GiB')\ndef use(): return big.nbytes")
    for code in ("y = gpu.empty('2 GiB'), big", "y = gpu.empty('2 GiB'), use()"):
        assert full.guard(code, only=CHEAP) is not None
        assert [line for _, line in steps(full) if line.startswith("del ")] == []
    assert full.guard("y = gpu.empty('2 GiB')", only=CHEAP) is not None
    assert [line for _, line in steps(full) if line.startswith("del ")] == ["del big"]


@pytest.mark.parametrize(
    "code",
    [
        "for n in (64,): y = gpu.empty(n << 28)",
        "m = batch\ny = gpu.empty(batch << 28)",
        "batch = 64\ny = gpu.empty(batch << 28)",
    ],
)
def test_shrink_is_advised_only_where_it_would_be_taken(full, code):
    """Not a name that the statement or the cell binds, nor one that an earlier statement read."""
    full.plain("n, batch = 64, 64")
    assert full.guard(code, without=("spill",), repeat=True) is not None
    assert not any("--shrink" in line for _, line in steps(full))
    assert full.guard("y = gpu.empty(batch << 28)", without=("spill",)) is not None
    assert any("--shrink batch" in line for _, line in steps(full))
