"""The next steps of a report: ranked, each a line to run, and never what is in force or set already."""

import os
import subprocess
import sys

import pytest

from cuda_magic.memory.allocator import Stats
from cuda_magic.rescue.lines import RESTART, allocator_option, variable

CHEAP = ("holders", "collect", "caches")
CONF = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in (CONF, "PYTORCH_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def lines(cells) -> list[str]:
    return [step.line for step in cells.report.next_steps]


@pytest.fixture
def pieces(practice):
    """1.5 GiB free in pieces of 64 MiB, and a statement that asks for 256 MiB."""
    practice.plain("gpu.limit('3.2 GiB'); x = gpu.empty('3 GiB'); del x")
    practice.plain("kept = [gpu.empty('64 MiB') for _ in range(48)][::2]")
    practice.ask = lambda: practice.guard("y = gpu.empty('256 MiB')", only=CHEAP)
    return practice


@pytest.mark.parametrize(
    ("was", "line"),
    [
        (None, f"%cuda_env {CONF}=expandable_segments:True"),
        ("expandable_segments:True", RESTART),
        ("expandable_segments:False", f"%cuda_env {CONF}=expandable_segments:True"),
        (
            "garbage_collection_threshold:0.6",
            f"%cuda_env {CONF}=garbage_collection_threshold:0.6,expandable_segments:True",
        ),
        ("expandable_segments:True,garbage_collection_threshold:0.6", RESTART),
    ],
)
def test_expandable_segments_are_set_beside_what_is_set(pieces, monkeypatch, was, line):
    """The other options stay; set but not in force yet: only the restart is left to do."""
    if was is not None:
        monkeypatch.setenv(CONF, was)
    assert pieces.ask() is not None
    assert lines(pieces)[0] == line


def test_an_allocator_without_such_segments_is_given_no_such_advice(pieces):
    """cudaMallocAsync and pluggable allocators: expandable() is None."""
    pieces.gpu.allocator.expandable = lambda: None
    assert pieces.ask() is not None
    assert not any("expandable" in line for line in lines(pieces))


def test_the_other_name_of_the_variable_is_used_where_it_is(monkeypatch):
    """PYTORCH_ALLOC_CONF is set and the older name is not: a value under the older one would hide it."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    assert allocator_option("expandable_segments", "False") == (
        "%cuda_env PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:False"
    )
    assert variable("A_NAME", "1") == "%cuda_env A_NAME=1"
    monkeypatch.setenv("A_NAME", "1")
    assert variable("A_NAME", "1") == RESTART


def test_what_fragmentation_costs_has_a_row_of_its_own(pieces):
    """Whole cached segments are given back by the rung; what is left lies between live tensors."""
    assert pieces.ask() is not None
    rows = {h.kind: h for h in pieces.report.holders}
    assert rows["fragmented"].nbytes == 1536 << 20
    assert "the largest 64.00 MiB" in rows["fragmented"].detail
    assert "cached" not in rows
    assert "lost to fragmentation" in repr(pieces.report)


@pytest.mark.parametrize(("was", "wanted"), [(None, [RESTART, "%cuda_env CUDA_LAUNCH_BLOCKING=1"]), ("1", [RESTART])])
def test_after_a_lost_context(practice, monkeypatch, was, wanted):
    """Restart; then kernels one by one, unless they run so already."""
    if was:
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", was)
    practice.gpu.empty("1 MiB")
    practice.gpu.lose_context()
    assert practice.guard("y = gpu.empty('1 GiB')") is not None
    assert lines(practice) == wanted


def test_an_allocator_that_cannot_go_on(practice):
    """torch's assert behind expandable segments: one attempt, restart, and how it does not come again."""
    code = "raise RuntimeError('!handles_.at(i) INTERNAL ASSERT FAILED at \"CUDACachingAllocator.cpp\":487')"
    practice.gpu.empty("1 MiB")
    assert practice.guard(code) is not None
    assert (practice.report.kind, practice.report.attempts, practice.report.rungs) == ("lost-allocator", 1, ())
    assert lines(practice) == [RESTART, f"%cuda_env {CONF}=expandable_segments:False"]


def test_segments_that_cannot_be_mapped(practice):
    """Plenty free: no rung, and the setting that needs no mapping."""
    practice.gpu.empty("1 MiB")
    assert practice.guard("raise RuntimeError('CUDA driver error: out of memory')") is not None
    assert practice.report.attempts == 1
    assert lines(practice) == [f"%cuda_env {CONF}=expandable_segments:False"]


def test_start_up_leads_to_the_doctor(practice):
    """Not a matter of memory: no rung, no advice on memory."""
    assert practice.guard("raise RuntimeError('No CUDA GPUs are available')") is not None
    assert (practice.report.kind, practice.report.rungs) == ("start-up", ())
    assert lines(practice) == ["%cuda_doctor"]


IN_FORCE = {
    "--shrink": {"shrink": ("batch_size", 1)},
    "--wait": {"wait": 0.1},
}


@pytest.mark.parametrize("option", IN_FORCE)
def test_an_option_in_force_is_not_advised(practice, option):
    """A batch that went down to 1, others that were waited for."""
    practice.plain("gpu.limit('1 GiB')\nbatch_size = 64")
    if option == "--wait":
        practice.gpu.limit("24 GiB")
        practice.gpu.empty("1 MiB")
        practice.gpu.other_process("22 GiB", pid=77)
    error = practice.guard("y = gpu.empty((batch_size + 63) << 25)", **IN_FORCE[option])
    assert "out of memory" in str(error)
    assert not any(option in line for line in lines(practice)), lines(practice)


def test_without_it_the_option_is_advised(practice):
    """The same failures with nothing in force: --shrink where the batch is to blame, --wait where others are."""
    practice.plain("gpu.limit('1 GiB')\nbatch_size = 64")
    practice.guard("y = gpu.empty(batch_size << 25)")
    assert "%%cuda_guard --shrink batch_size" in lines(practice)
    assert not any("--wait" in line for line in lines(practice))
    practice.gpu.limit("24 GiB")
    practice.gpu.other_process("22 GiB", pid=77)
    practice.guard("y = gpu.empty(batch_size << 26)")
    assert "%%cuda_guard --wait 60" in lines(practice)
    assert not any("--shrink" in line for line in lines(practice))
    assert practice.report.kind == "other-process"
    assert "most of which other processes hold" in repr(practice.report)


@pytest.mark.parametrize("only", [(), CHEAP])
def test_a_card_that_others_hold_is_no_batchs_fault(practice, only):
    """Said in the sentence, first in the steps; --shrink and del are no advice."""
    practice.plain("bs = 64\nmine = gpu.empty('700 MiB')")
    practice.gpu.other_process("22 GiB", pid=4242)
    assert practice.guard("y = gpu.empty(bs << 24)", only=only, without=() if only else ("spill",)) is not None
    assert lines(practice)[0] == "%gpu_mem --who"
    assert not any("shrink" in line or line.startswith("del ") for line in lines(practice))


def test_a_limit_of_this_process_is_named(practice):
    """The card has room, the process may not take it: said first, and how it is lifted. Not where the card is full."""
    practice.gpu.allocator.label = ""
    practice.plain("gpu.limit('3 GiB')\nbig = gpu.empty('2 GiB')")
    practice.guard("y = gpu.empty('2 GiB')", only=CHEAP)
    assert lines(practice)[0] == "torch.cuda.set_per_process_memory_fraction(1.0, 0)"
    assert "limit of 3.00 GiB" in practice.report.next_steps[0].why
    practice.gpu.limit("24 GiB")
    practice.plain("more = gpu.empty('20 GiB')")
    practice.guard("y = gpu.empty('2 GiB')", only=CHEAP)
    assert not any("fraction" in line for line in lines(practice))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"only": CHEAP}, "compact, expandable, spill, activations, cudamalloc"),
        ({"without": ("spill",)}, "(spill)"),
        ({"no_move": True}, "(compact, spill)"),
        ({"retries": 0}, "--retries 0 allows no repeat"),
        ({}, ""),
    ],
)
def test_what_the_options_left_out_is_said(practice, options, said):
    """Rungs that might have helped, by name; nothing where none was left out."""
    practice.plain("gpu.limit('3 GiB')\nbig = gpu.empty('1 GiB')")
    practice.guard("big.fill_(0)\ny = gpu.empty('2.5 GiB'), big", **options)
    whys = [step.why for step in practice.report.next_steps if step.line == "%%cuda_guard"]
    assert (len(whys), said in "".join(whys)) == (1 if said else 0, True)


def test_rungs_that_the_line_left_out_are_no_rows(practice):
    """The user knows; the object has them with their reasons."""
    practice.plain("gpu.limit('3 GiB')\nbig = gpu.empty('2 GiB')")
    practice.guard("y = gpu.empty('2 GiB')", only=CHEAP)
    assert "not in --only" not in repr(practice.report)
    assert practice.rung("compact").reason == "not in --only"


def test_variables_that_together_make_room_are_named_together(practice):
    """Three of 1 GiB where two are missing: two are named, the largest first; one that is enough stands alone."""
    practice.plain("gpu.limit('4.5 GiB')\na, b, c = (gpu.empty(f'{n} MiB') for n in (1000, 1100, 1050))")
    practice.guard("y = gpu.empty('3.2 GiB')", only=CHEAP)
    assert [line for line in lines(practice) if line.startswith("del ")] == ["del b, c"]
    practice.guard("y = gpu.empty('2 GiB')", only=CHEAP)
    assert [line for line in lines(practice) if line.startswith("del ")] == ["del b"]


def test_a_floor_that_was_reached_may_go_lower(practice):
    """--shrink in force and at its floor: the same without the floor; with the floor at 1 nothing."""
    practice.plain("gpu.limit('1 GiB')\nbs = 64")
    practice.guard("y = gpu.empty(bs << 28)", shrink=("bs", 16))
    assert "%%cuda_guard --shrink bs" in lines(practice)
    practice.plain("bs = 4")
    practice.guard("y = gpu.empty(bs << 30)", shrink=("bs", 1))
    assert not any("--shrink" in line for line in lines(practice))


def test_each_step_is_a_line_to_run(practice, shell):
    """Every line that the scenarios above give parses as IPython reads it."""
    import ast

    practice.plain("gpu.limit('3 GiB')\nbatch_size = 8\nbig = gpu.empty('2 GiB')")
    practice.guard("y = gpu.empty(batch_size << 28)", only=CHEAP)
    assert lines(practice)
    for line in lines(practice):
        ast.parse(shell.transform_cell(line + ("\n1" if line.startswith("%%") else "")))


def test_html_and_text_say_the_same(practice):
    """Every holder, rung, step and note of the text stands in the HTML."""
    import html
    import re

    practice.plain("gpu.limit('3 GiB')\nbatch_size = 8\nbig = gpu.empty('2 GiB')")
    practice.guard("y = gpu.empty(batch_size << 28)", only=CHEAP)
    page = html.unescape(re.sub(r"<[^>]+>", " ", practice.report._repr_html_()))
    for word in re.findall(r"[\w%.:-]+", repr(practice.report)):
        if word.strip("-"):
            assert word in page, word


def test_another_process_is_named_by_its_program_and_not_its_owner(monkeypatch):
    """Name and notebook's file; no folder, no user."""
    from cuda_magic.devices.processes import Person
    from cuda_magic.rescue import survey

    people = {
        1: Person(1, "python3", "somebody", "/home/somebody/train.ipynb", "ab-c"),
        2: Person(2, "python3", "somebody", None, "ab-c"),
        3: Person(3, outside=True),
        4: Person(4, "ollama", "root"),
    }
    monkeypatch.setattr(survey, "describe", lambda pid, known: people[pid])
    said = [survey._who(pid) for pid in people]
    assert said == ["python3, notebook train.ipynb", "python3, a Jupyter kernel", "outside this container", "ollama"]


def test_a_real_process_is_described():
    """A child of ours, read as it is."""
    from cuda_magic.rescue.survey import _who

    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert _who(child.pid) in (
            "outside this container",
            os.path.basename(os.path.realpath(sys.executable)),
            "python",
        )
    finally:
        child.communicate(b"\n")


def test_stats_without_segments_lose_nothing(practice):
    """Where no segment can be read nothing is said of fragmentation."""
    from cuda_magic.rescue.situation import room_of

    practice.gpu.empty("1 MiB")
    practice.gpu.allocator.segments = lambda device: ()
    practice.gpu.allocator.stats = lambda device: Stats(1 << 20, 3 << 20)
    room = room_of(practice.gpu.allocator, 0)
    assert (room.cached, room.lost) == (2 << 20, 0)
