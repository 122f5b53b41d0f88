"""Each cause of running out of memory, on the practice card: the rung that helps, and what the others say."""

import functools
import gc
import random

import pytest

GIB = 1 << 30
CHEAP = ("holders", "collect", "caches")


def fragment(cells, live="64 MiB", count=48):
    """A 3 GiB segment with a live block in every second place; 1.5 GiB free in pieces of 64 MiB."""
    cells.names["live"], cells.names["count"] = live, count
    cells.plain("gpu.limit('3.2 GiB'); x = gpu.empty('3 GiB'); del x")
    cells.plain("kept = [gpu.empty(live) for _ in range(count)]")
    cells.plain("kept = kept[::2]\nfor i, t in enumerate(kept): t.fill_(i)")


def test_a_cell_that_succeeds_says_nothing_and_has_a_report(practice):
    """No line, no rung, status ok."""
    assert practice.guard("a = gpu.empty('1 GiB')\nb = 2") is None
    assert practice.lines == []
    assert practice.report.status == "ok"
    assert practice.report.rungs == ()


@pytest.mark.parametrize("options", [{"only": CHEAP}, {}], ids=["cheap", "full"])
def test_cycles_are_collected_and_named(practice, options):
    """A reference cycle of an earlier cell holds 2 GiB: collect frees it and says what type it was."""
    practice.plain("gpu.limit('3 GiB')\nclass Node:\n  def __init__(self): self.x = gpu.empty('2 GiB'); self.me = self")
    gc.collect()  # the classes of other tests, whose functions hold their tensors
    gc.disable()
    try:
        practice.plain("Node(); None")
        assert practice.guard("y = gpu.empty('2 GiB')", **options) is None
    finally:
        gc.enable()
    assert practice.report.status == "rescued"
    assert practice.rung("collect").freed_bytes == 2 * GIB
    assert dict(practice.rung("collect").cycles) == {"Node": 2 * GIB}
    assert len(practice.lines) == 1


def test_scenario_9_a_statement_that_makes_its_own_cycles_ends(practice):
    """Six cycles of 0.9 GiB under 3 GiB: repeated while numbers change, never for ever, the type named (S9)."""
    practice.plain("gpu.limit('3 GiB')\nclass N:\n  def __init__(self): self.x = gpu.empty('0.9 GiB'); self.me = self")
    gc.disable()
    try:
        error = practice.guard("[N() and 0 for _ in range(6)]", repeat=True)
    finally:
        gc.enable()
    assert "out of memory" in str(error)
    assert practice.report.status == "failed"
    assert practice.report.attempts == 2
    assert any(name == "N" for r in practice.report.rungs for name, _ in r.cycles)


def test_scenario_3_fragmentation_is_compacted_with_the_data_intact(practice):
    """1.5 GiB free in pieces of 64 MiB: the full ladder compacts and gives the 250 MiB (S3)."""
    fragment(practice)
    assert practice.guard("y = gpu.empty('256 MiB')") is None
    assert practice.report.status == "rescued"
    assert practice.rung("compact").moved_bytes > 0
    assert [t.sum() for t in practice.names["kept"]] == [i * (64 << 20) for i in range(24)]


def test_scenario_3_without_compaction_the_answer_is_not_a_smaller_batch(practice):
    """The cheap rungs cannot help: the report tells the pieces, and expandable segments at the next start (S3)."""
    fragment(practice)
    practice.names["batch_size"] = 64
    error = practice.guard("y = gpu.empty(batch_size << 22)", only=CHEAP)
    assert error is not None
    report = practice.report
    assert report.status == "failed"
    assert (report.cached, report.largest_free) == (1536 << 20, 64 << 20)
    lines = [step.line for step in report.next_steps]
    assert lines[0] == "%cuda_env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert "64.00 MiB" in report.next_steps[0].why
    assert practice.rung("compact").reason == "not in --only"


def test_moving_is_refused_where_an_address_is_remembered(practice):
    """A captured graph forbids moving; the reason is kept; --no-move never asks."""
    fragment(practice)
    practice.gpu.allocator.refusal = "a captured CUDA graph remembers the addresses of its tensors"
    assert practice.guard("y = gpu.empty('256 MiB')", only=(*CHEAP, "compact")) is not None
    assert "remembers the addresses" in practice.rung("compact").reason
    assert practice.guard("y = gpu.empty('256 MiB')", no_move=True) is not None
    assert practice.rung("compact").reason == "--no-move was given"


def test_case_55_the_same_again_is_not_repeated_for_ever(practice):
    """Out of memory always, with the same numbers: at most two attempts; the statement before ran once."""
    practice.names["counter"] = 0
    practice.plain("gpu.limit('1 GiB')")
    error = practice.guard("counter += 1\ny = gpu.empty('2 GiB')")
    assert error is not None
    assert practice.names["counter"] == 1
    assert practice.report.attempts <= 2
    assert practice.report.status == "failed"


def test_case_55_rescued_at_the_second_attempt_says_two(practice):
    """Out of memory once, then fine: two attempts in the report, one line."""
    practice.plain("gpu.limit('3 GiB')\na = [gpu.empty('2 GiB')]\na.append(a)\ndel a")
    assert practice.guard("y = gpu.empty('2 GiB')") is None
    assert practice.report.attempts == 2
    assert practice.lines == ["cuda_guard: line 1 ran out of GPU memory; room was made; it runs again (attempt 2)"]


def test_quiet_hides_lines_and_retries_0_never_repeats(practice):
    """--quiet: no line. --retries 0: the report alone."""
    practice.plain("gpu.limit('3 GiB')\na = [gpu.empty('2 GiB')]\na.append(a)\ndel a")
    assert practice.guard("y = gpu.empty('2 GiB')", retries=0) is not None
    assert practice.report.attempts == 1
    assert practice.guard("y = gpu.empty('2 GiB')", quiet=True) is None
    assert practice.lines == []


def test_scenario_5_shrink_ends_at_a_value_that_fits(practice):
    """A batch too big: lowered until it fits, left there, said; the same random numbers at each try (S5)."""
    practice.plain("gpu.limit('1 GiB')\nimport random\nbs = 65536")
    code = "drawn = random.random(); y = gpu.empty(bs * (1 << 16))"
    random.seed(5)
    wanted = random.random()
    random.seed(5)
    assert practice.guard(f"for _ in range(1):\n  {code}", shrink=("bs", 8)) is None
    assert practice.names["bs"] == 16384
    assert practice.names["drawn"] == wanted
    assert practice.report.status == "rescued"
    assert "bs 65536 -> 16384" in practice.lines[0]
    assert len(practice.lines) == 1


def test_shrink_with_grow_keeps_the_product(practice):
    """With --grow only divisors are tried, so that the product stays exact."""
    practice.plain("gpu.limit('1 GiB')\nbs = 96\naccum = 2")
    assert practice.guard("y = gpu.empty(bs << 25)", shrink=("bs", 1), grow="accum") is None
    assert practice.names["bs"] * practice.names["accum"] == 192
    assert 96 % practice.names["bs"] == 0


def test_shrink_stops_at_its_floor_and_after_an_earlier_reader(practice):
    """Never below the floor; refused where an earlier statement of the cell already read the name."""
    practice.plain("gpu.limit('1 GiB')\nbs = 64")
    assert practice.guard("y = gpu.empty(bs << 30)", shrink=("bs", 16)) is not None
    assert practice.names["bs"] == 16
    assert "may not be lower than 16" in practice.rung("shrink").reason
    practice.plain("bs = 64")
    assert practice.guard("n = bs + 1\ny = gpu.empty(bs << 25)", shrink=("bs", 1)) is not None
    assert practice.names["bs"] == 64
    assert "already read bs" in practice.rung("shrink").reason


def test_else_gives_other_values_once(practice):
    """--else where='host': the named variable, once, when all else failed."""
    practice.plain("gpu.limit('1 GiB')\nwhere = 'gpu'")
    code = "y = gpu.empty('2 GiB') if where == 'gpu' else 'on the host'"
    assert practice.guard(code, otherwise=(("where", "'host'"),)) is None
    assert practice.names["y"] == "on the host"
    assert "where='host'" in practice.lines[0]


def test_scenario_6_waits_for_another_process(practice):
    """Another process leaves: rescued. It stays: a bounded wait, no advice on the batch, its pid named (S6)."""
    practice.names["bs"] = 64
    practice.gpu.empty("1 MiB")
    other = practice.gpu.other_process("20 GiB", pid=4242, seconds=3)
    assert practice.guard("y = gpu.empty('6 GiB')", wait=20) is None
    assert practice.rung("wait").state == "ran"
    del practice.names["y"]
    practice.gpu.allocator.empty_cache()
    other = practice.gpu.other_process("20 GiB", pid=4242)
    assert practice.guard("y = gpu.empty('6 GiB' if bs else 0)", wait=0.3) is not None
    assert "0.3 s" in practice.rung("wait").reason
    assert any(h.kind == "process" and h.name == "process 4242" for h in practice.report.holders)
    assert not any("shrink" in step.line for step in practice.report.next_steps)
    assert practice.report.next_steps[0].line == "%gpu_mem --who"
    other.stop()


def test_an_interrupt_ends_the_wait_at_once(practice, request):
    """KeyboardInterrupt while waiting is not swallowed."""
    import _thread
    import signal
    import threading
    import time

    # parallel test workers ignore SIGINT, which this process must feel
    request.addfinalizer(functools.partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    practice.gpu.empty("1 MiB")
    practice.gpu.other_process("20 GiB")

    def interrupt():
        while not practice.lines:  # while it waits: a collector's callback, before that, would swallow the interrupt
            time.sleep(0.01)
        time.sleep(0.2)
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        practice.guard("y = gpu.empty('6 GiB')", wait=60)
    assert time.monotonic() - started < 30


def test_scenario_7_no_room_for_the_context(practice):
    """The first tensor with a full card: said to be the context; it works once the other process has left (S7)."""
    other = practice.gpu.other_process("23.6 GiB")
    practice.names["bs"] = 8
    assert practice.guard("y = gpu.empty(bs)") is not None
    assert practice.report.kind == "context"
    assert practice.report.attempts == 1
    assert not any("shrink" in s.line or "expandable" in s.line for s in practice.report.next_steps)
    other.stop()
    practice.gpu.other_process("23.6 GiB", seconds=0.5)
    assert practice.guard("y = gpu.empty(bs)", wait=20) is None


def test_case_51_someone_else_holds_the_card(cells):
    """GPU 0 full by pid X, GPU 1 empty: others named, the free card named, one attempt."""
    from cuda_magic.testing import gpu

    cells.names["gpu"] = two = gpu(["24 GiB", "24 GiB"], force=True)
    cells.names["mine"] = two.empty("64 MiB")
    two.other_process("22.9 GiB", pid=5151)
    assert cells.guard("y = gpu.empty('2 GiB')") is not None
    report = cells.report
    assert report.attempts == 1
    assert report.next_steps[0].line == "%gpu_mem --who"
    assert report.next_steps[1].line == "%cuda_env --devices 1"
    assert "23.75 GiB free" in report.next_steps[1].why
    assert "process 5151" in repr(report)


def test_case_46_a_lost_context_is_never_repeated(practice):
    """A device-side assert: one attempt, no rung, "restart the kernel"; our own readings raise nothing (S12)."""
    practice.gpu.empty("1 MiB")
    practice.gpu.lose_context()
    assert practice.guard("y = gpu.empty('1 GiB')") is not None
    assert practice.report.kind == "lost-context"
    assert practice.report.attempts == 1
    assert practice.report.rungs == ()
    assert practice.report.next_steps[0].line == "%cuda_env --restart"


def test_case_46_host_memory_is_not_the_cards(practice):
    """DefaultCPUAllocator: the host is named, no rung is tried."""
    code = (
        'raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 70368744177664 bytes.")'
    )
    assert practice.guard(code) is not None
    assert practice.report.kind == "host-memory"
    assert practice.report.rungs == ()
    assert practice.report.holders == ()
    practice.gpu.empty("1 MiB")  # the allocator has started: a device is known
    assert practice.guard(code) is not None
    assert "64.00 TiB asked of the host" in str(practice.report)


def test_case_48_larger_than_the_card_runs_once(practice):
    """More than the card has: no repeat, no allocator advice, how many times the card."""
    assert practice.guard("y = gpu.empty('95 GiB')") is not None
    assert practice.report.attempts == 1
    assert practice.report.kind == "too-large"
    assert "4.0 times the card" in practice.report.next_steps[0].why
    assert not any("ALLOC_CONF" in s.line for s in practice.report.next_steps)


def test_case_45_a_library_handle_is_helped_by_emptying_the_cache(practice):
    """CUBLAS_STATUS_ALLOC_FAILED with 3 GiB cached and the card full: caches, one repeat, success noted (S8)."""
    practice.plain(
        "from cuda_magic.testing.errors import error\n"
        "a = gpu.empty('3 GiB'); b = gpu.empty('19.9 GiB'); del a\n"
        "def matmul():\n"
        "  if gpu.allocator.driver_memory(0)[0] < 1 << 30: raise error('cublas')\n"
        "  return 'product'"
    )
    assert practice.guard("y = matmul()", repeat=True) is None
    assert practice.names["y"] == "product"
    assert practice.rung("caches").freed_bytes == 3 * GIB
    assert practice.report.attempts == 2


def test_case_49_fragmentation_told_by_the_message_alone(cells):
    """4 GiB asked, 1 free, 9 reserved and unallocated, nothing else known: one repeat, then the restart line."""
    text = (
        "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is "
        "free. Of the allocated memory 9.10 GiB is allocated by PyTorch, and 9.00 GiB is reserved by PyTorch but "
        "unallocated."
    )
    assert cells.guard(f"raise RuntimeError({text!r})", repeat=True) is not None
    assert cells.report.attempts == 2
    steps = cells.report.next_steps
    assert any(s.line.endswith("expandable_segments:True") and "9.00 GiB" in s.why for s in steps)


def test_case_53_a_fallback_that_did_not_happen_is_not_reported(practice):
    """The switch to plain cudaMalloc raises: "not possible in this kernel", and the original error."""
    from contextlib import contextmanager

    from cuda_magic.errors import Refused

    @contextmanager
    def cannot():
        raise Refused("Can't swap an already initialized allocator")
        yield

    practice.gpu.allocator.uncached = cannot
    free = practice.gpu.empty("1 MiB") and practice.gpu.allocator.driver_memory(0)[0]
    practice.names["kept"] = practice.gpu.empty(free - (15 << 20))
    error = practice.guard("y = gpu.empty('5 MiB')", only=("cudamalloc",))
    assert "CUDA out of memory. Tried to allocate" in str(error)
    assert practice.rung("cudamalloc").state == "failed"
    assert practice.rung("cudamalloc").reason == (
        "not possible in this kernel: Can't swap an already initialized allocator"
    )
    assert (practice.report.status, practice.report.attempts, practice.lines) == ("failed", 1, [])


def test_plain_cudamalloc_takes_the_last_megabytes(practice):
    """15 MiB left for the driver, 5 asked: a segment of 20 does not fit, cudaMalloc of 6 does."""
    free = practice.gpu.empty("1 MiB") and practice.gpu.allocator.driver_memory(0)[0]
    practice.names["kept"] = practice.gpu.empty(free - (15 << 20))
    assert practice.guard("y = gpu.empty('5 MiB')", only=CHEAP) is not None
    assert practice.guard("y = gpu.empty('5 MiB')", without=("spill",)) is None
    assert practice.rung("cudamalloc").state == "on"
    assert practice.names["y"].sum() == 0


def test_expandable_only_after_compact_has_no_plan(practice):
    """Off again after the statement; already in force: skipped, and never advised."""
    practice.plain("gpu.limit('3 GiB')\nfull = gpu.empty('2.5 GiB')")
    with practice.gpu.allocator.with_expandable():
        assert practice.guard("y = gpu.empty('2 GiB')", without=("spill",)) is not None
        assert practice.rung("expandable").reason == "already in force"
        assert not any("expandable" in s.line for s in practice.report.next_steps)
    assert practice.gpu.allocator.expandable() is False


def test_scenario_11_a_swallowed_error_is_noted(practice):
    """The cell handles its own out-of-memory error: no repeat, one note, the result kept (S11)."""
    practice.plain("gpu.limit('1 GiB'); gpu.empty('1 KiB')")
    code = (
        "for size in ('2 GiB', '1 MiB'):\n  try:\n    y = gpu.empty(size)\n    break\n  except RuntimeError:\n    pass"
    )
    assert practice.guard(code) is None
    assert practice.report.status == "ok"
    assert practice.report.handled == 1
    assert "1 out-of-memory error was handled inside the cell" in repr(practice.report)
    assert practice.lines == []


def test_another_error_passes_unchanged(practice):
    """ZeroDivisionError: nothing noticed, no text, status error."""
    assert isinstance(practice.guard("x = 1\n1/0"), ZeroDivisionError)
    assert practice.text is None
    assert practice.report.status == "error"


def test_the_report_is_the_same_twice(practice):
    """No time, no address: the same failure gives the same text, and seconds are in to_dict."""
    import json

    practice.plain("gpu.limit('3 GiB')\nbig = [gpu.empty('2.5 GiB')]")
    practice.guard("y = gpu.empty('1 GiB')", without=("spill",))
    first = repr(practice.report)
    practice.guard("y = gpu.empty('1 GiB')", without=("spill",))
    assert repr(practice.report) == first
    assert "PRACTICE" in first
    assert "big" in first
    data = json.loads(json.dumps(practice.report.to_dict()))
    assert all("seconds" in rung for rung in data["rungs"])
    assert practice.report._repr_html_().startswith("<div")


def test_what_python_collects_by_itself_is_not_taken_for_the_statements_own(practice, monkeypatch):
    """A collection while the failure is looked at would free an earlier cycle: 2 GiB are needed, not 4."""
    from cuda_magic.rescue import failed

    before, classify = gc.get_threshold(), failed.classify

    def eager(error):
        gc.set_threshold(1)  # each new object would start a collection
        return classify(error)

    monkeypatch.setattr(failed, "classify", eager)
    gc.set_threshold(1_000_000)
    try:
        practice.plain("gpu.limit('3 GiB')\nheld = [gpu.empty('2 GiB')]\nheld.append(held)\ndel held")
        assert practice.guard("y = gpu.empty('2 GiB')") is None
    finally:
        gc.set_threshold(*before)
    assert (practice.report.status, practice.report.attempts) == ("rescued", 2)


def test_pythons_collector_is_left_as_it_was(practice):
    """After a rescue, a failure, a refusal, an error that is none of memory; and off where the user has it off."""
    practice.plain("gpu.limit('3 GiB')\nlosses = []")
    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            for code in (
                "held = [gpu.empty('2 GiB')]\nheld.append(held)\ndel held\ny = gpu.empty('2 GiB')\ndel y",
                "y = gpu.empty('4 GiB')",
                "for i in (1, 2):\n  losses.append(i); y = gpu.empty('4 GiB')",
                "1/0",
                "y = 1",
            ):
                practice.guard(code)
                assert gc.isenabled() is on, code
        finally:
            gc.enable()
