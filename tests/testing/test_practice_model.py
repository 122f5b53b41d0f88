"""The practice GPU behaves as a card and as torch's caching allocator do."""

import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_magic.errors import UserError
from cuda_magic.machine import machine, use
from cuda_magic.memory.allocator import largest_free
from cuda_magic.memory.compaction import compact
from cuda_magic.testing import gpu
from cuda_magic.testing.errors import FORMS, AcceleratorError, OutOfMemoryError, error, torch_size
from cuda_magic.testing.practice import PracticeGpu

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def card():
    return PracticeGpu(["24 GiB"])


@pytest.fixture
def heap(card):
    card.limit("3.2 GiB")
    x = card.empty("3 GiB")
    del x
    parts = [card.full("64 MiB", i) for i in range(48)]
    return parts[::2]


def check(gpu):
    """Segments are tiled by their blocks, nothing overlaps, and all sums agree with the counters."""
    for device in gpu.allocator.devices():
        stats, segments = gpu.allocator.stats(device), gpu.allocator.segments(device)
        end = 0
        for segment in segments:
            assert segment.address >= end
            at = segment.address
            for block, after in zip(segment.blocks, (*segment.blocks[1:], None), strict=True):
                assert block.address == at and block.size > 0 and block.size % 512 == 0
                assert after is None or not (block.state == after.state == "free"), "free neighbours merge"
                at += block.size
            assert at == segment.address + segment.size
            end = at
        blocks = [b for s in segments for b in s.blocks]
        assert stats.reserved == sum(s.size for s in segments)
        assert stats.allocated == sum(b.size for b in blocks if b.state == "live")
        limit = gpu.allocator.memory_limit(device)
        # the limit is asked of the request; an expandable segment then grows by whole pages of 20 MiB
        page = 20 << 20 if any(s.expandable for s in segments) else 0
        assert limit is None or stats.reserved <= limit + page
        free, total = gpu.allocator.driver_memory(device)
        assert 0 <= free <= total
        live = sorted((s.address, s.nbytes) for s in gpu.allocator.storages(device))
        assert all(a + n <= b for (a, n), (b, _) in zip(live, live[1:], strict=False))


sizes = st.one_of(st.integers(1, 4 * MIB), st.integers(MIB, 300 * MIB), st.sampled_from([512, MIB, 10 * MIB, 20 * MIB]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("new"), sizes),
        st.tuples(st.just("drop"), st.integers(0, 1 << 20)),
        st.tuples(st.just("empty"), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 1 << 20)),
        st.tuples(st.just("expandable"), sizes),
        st.tuples(st.just("uncached"), sizes),
    ),
    max_size=60,
)


def run(gpu, steps, limit):
    gpu.limit(limit)
    kept, log = [], []
    for number, (what, n) in enumerate(steps):
        try:
            if what == "new":
                kept.append((gpu.full(n, number % 256), number % 256))
            elif what == "expandable":
                with gpu.allocator.with_expandable():
                    kept.append((gpu.full(n, number % 256), number % 256))
            elif what == "uncached":
                with gpu.allocator.uncached():
                    kept.append((gpu.full(n, number % 256), number % 256))
            elif what == "empty":
                gpu.allocator.empty_cache()
            elif kept and what == "drop":
                del kept[n % len(kept)]
            elif kept:
                key = kept[n % len(kept)][0].untyped_storage().key
                gpu.allocator.move(next(s for s in gpu.allocator.storages(0) if s.key == key))
            log.append(True)
        except (OutOfMemoryError, AcceleratorError):
            log.append(False)
        check(gpu)
        assert all(gpu.sum(t) == t.nbytes * value for t, value in kept), "data is intact"
        log.append([t.data_ptr() for t, _ in kept])
    return log


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from([None, "100 MiB", "600 MiB"]))
def test_any_sequence_keeps_the_books(steps, limit):
    """Whatever is asked: blocks tile segments, sums agree, data stays, and a second run gives the same addresses."""
    assert run(PracticeGpu(["2 GiB"]), steps, limit) == run(PracticeGpu(["2 GiB"]), steps, limit)


@settings(max_examples=30, deadline=None)
@given(st.lists(sizes, max_size=40), st.randoms(use_true_random=False))
def test_all_memory_comes_back(asked, order):
    """When every tensor is gone and the cache is emptied, the card is as free as with the context alone."""
    gpu = PracticeGpu(["4 GiB"])
    kept = []
    for n in asked:
        try:
            kept.append(gpu.empty(n))
        except OutOfMemoryError:
            kept.clear()
    order.shuffle(kept)
    kept.clear()
    gpu.allocator.empty_cache()
    if asked:
        card = gpu.machine.cards[0]
        assert gpu.allocator.stats(0).reserved == 0 == gpu.allocator.stats(0).allocated
        assert card.free == card.capacity - card.context_size


def test_sizes_of_blocks_and_segments(card):
    """A small request takes 2 MiB, one below 10 MiB takes 20 MiB, a larger one is rounded to 2 MiB."""
    for asked, block, segment in ((1, 512, 2 * MIB), (MIB + 1, MIB + 512, 20 * MIB), (11 * MIB, 11 * MIB, 12 * MIB)):
        gpu = PracticeGpu()
        kept = gpu.empty(asked)
        (found,) = gpu.allocator.segments(0)
        assert found.size == segment
        assert found.blocks[0].size == (segment if segment - block <= MIB and found.pool == "large" else block)
        assert found.blocks[0].requested == kept.nbytes == asked


def test_a_cached_block_is_used_again(card):
    """A freed block stays reserved and serves the next request of its size at the same address."""
    one = card.empty("2 GiB")
    address = one.data_ptr()
    del one
    assert card.allocator.stats(0).cached == 2 * GIB
    assert card.empty("2 GiB").data_ptr() == address


def test_the_cache_is_given_back_before_an_error(card):
    """Memory cached in another size does not make a request fail: torch empties the cache and tries again."""
    card.limit("4 GiB")
    for _ in range(2):
        card.empty("3 GiB")
    kept = card.empty("3.5 GiB")
    stats = card.allocator.stats(0)
    assert (stats.retries, stats.ooms, kept.nbytes) == (1, 0, 3.5 * GIB)
    del kept
    card.empty_cache()
    assert card.allocator.stats(0).reserved == 0


def test_an_error_has_no_frames_of_the_model(card):
    """The traceback ends at the call, as torch's does, and names no earlier error."""
    with pytest.raises(OutOfMemoryError) as caught:
        card.full("30 GiB", 1)
    files = [entry.path.name for entry in caught.traceback]
    assert "caching.py" not in files and "allocator.py" not in files
    assert caught.value.__context__ is None and caught.value.__cause__ is None


def test_the_text_of_the_error(card):
    """Torch's own words, with what each party holds."""
    card.limit("3 GiB")
    card.other_process("6 GiB", pid=977)
    kept = card.empty("2 GiB")
    with pytest.raises(OutOfMemoryError) as caught:
        card.empty("2 GiB")
    assert str(caught.value).startswith(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.75 GiB of which 15.25 GiB is"
        " free. Process 977 has 6.00 GiB memory in use. Including non-PyTorch memory, this process has 2.50 GiB memory"
        " in use. 3.00 GiB allowed; Of the allocated memory 2.00 GiB is allocated by PyTorch, and 0 bytes is reserved"
        " by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )
    assert isinstance(caught.value, RuntimeError) and kept.nbytes == 2 * GIB


def test_fragmentation_needs_compaction(card, heap):
    """S3: half of the heap is free and no piece is large enough; moving live tensors together helps, data intact."""
    with pytest.raises(OutOfMemoryError):
        card.empty("256 MiB")
    assert largest_free(card.allocator.segments(0)) == 64 * MIB
    gc.collect()
    card.allocator.empty_cache()
    with pytest.raises(OutOfMemoryError):
        card.empty("256 MiB")
    outcome = compact(card.allocator, 0, 256 * MIB)
    assert outcome.done, outcome.reason
    assert card.empty("256 MiB").nbytes == 256 * MIB
    assert [card.sum(t) for t in heap] == [64 * MIB * i for i in range(0, 48, 2)]


def test_other_processes_and_the_context():
    """S6 and S7: another process takes the card; the context then has no room, and has when it ends."""
    gpu = PracticeGpu(["8 GiB"])
    other = gpu.other_process("7.6 GiB", pid=51)
    with pytest.raises(AcceleratorError) as caught:
        gpu.empty(1)
    assert caught.value.error_code == 2 and "out of memory" in str(caught.value)
    assert not gpu.allocator.started() and gpu.allocator.segments(0) == ()
    other.stop()
    assert gpu.empty(1).nbytes == 1
    with pytest.raises(UserError, match="is free"):
        gpu.other_process("9 GiB")
    free = gpu.machine.cards[0].free
    timed = gpu.other_process("1 GiB", seconds=0.0)
    assert not timed.running and gpu.machine.cards[0].free == free


def test_a_tensor_goes_when_nothing_refers_to_it(card):
    """Storages are freed by reference count, tensors can be watched weakly, cycles wait for the collector."""
    one = card.empty("1 GiB")
    seen = weakref.ref(one)
    del one
    assert seen() is None and card.allocator.stats(0).allocated == 0
    gc.disable()
    try:
        holder = [card.empty("1 GiB")]
        holder.append(holder)
        del holder
        assert card.allocator.stats(0).allocated == GIB
        gc.collect()
        assert card.allocator.stats(0).allocated == 0
    finally:
        gc.enable()


def test_owners_and_storages(card):
    """Every tensor is named once, with its device, storage and bytes."""
    a, b = card.empty("1 GiB"), card.empty("2 GiB")
    assert [(o, d, n) for o, d, _, n in card.allocator.owners()] == [(a, 0, GIB), (b, 0, 2 * GIB)]
    assert [s.nbytes for s in card.allocator.storages(0)] == [GIB, 2 * GIB]


def test_plain_cuda_malloc_is_not_counted(card):
    """With the caching allocator bypassed, memory comes from the driver, is not counted, and goes straight back."""
    card.empty(1)
    before = card.machine.cards[0].free
    with card.allocator.uncached():
        kept = card.empty("1 GiB")
        with pytest.raises(AcceleratorError):
            card.empty("23 GiB")
    assert card.allocator.stats(0).allocated == 0 and card.machine.cards[0].free == before - GIB
    assert card.allocator.storages(0)[0].reason
    del kept
    assert card.machine.cards[0].free == before


def test_expandable_segments_grow_in_place(card):
    """Expandable segments serve a growing series of sizes from one stretch of addresses."""
    card.limit("4 GiB")
    with card.allocator.with_expandable():
        for n in range(1, 5):
            card.empty(n * 512 * MIB)
        (segment,) = card.allocator.segments(0)
    assert segment.expandable and segment.size == 2060 * MIB
    assert card.allocator.stats(0).retries == 0 and card.allocator.expandable() is False


def test_several_devices_have_books_of_their_own():
    """Each card has its own size, segments, limit and name."""
    gpu = PracticeGpu(["24 GiB", "8 GiB"])
    kept = gpu.empty("4 GiB", device=1)
    assert gpu.allocator.devices() == (1,)
    with pytest.raises(OutOfMemoryError, match="GPU 1 has a total capacity of 7.75 GiB"):
        gpu.empty("4 GiB", device=1)
    assert gpu.empty("4 GiB", device=0).device == "cuda:0" and kept.device == "cuda:1"
    with pytest.raises(UserError, match="no device 2"):
        gpu.empty(1, device=2)


def test_readings_add_up(card):
    """A reading names the card, and what the processes hold is what is used."""
    kept = card.full("2 GiB", 3)
    card.other_process("6 GiB", pid=977)
    reading = card.machine.devices().read()
    (device,) = reading.devices
    assert reading.label == card.machine.label == card.allocator.label == "PRACTICE" and kept.nbytes
    assert device.name == "Practice GPU 24 GiB" and device.uuid.startswith("GPU-")
    memory = device.memory
    assert memory.used + memory.free + memory.reserved == memory.total == 24 * GIB
    assert sum(p.used for p in device.processes) == memory.used
    assert PracticeGpu(["24 GiB"]).machine.devices().read().devices[0].uuid == device.uuid


def test_random_states_come_back(card):
    """The generator's state can be taken and put back, and a new practice GPU starts with the same numbers."""
    state = card.allocator.random_state()
    first = [card.rand() for _ in range(3)]
    card.allocator.set_random_state(state)
    assert [card.rand() for _ in range(3)] == first == [g.rand() for g in [PracticeGpu()] for _ in range(3)]


def test_a_lost_context_stays_lost(card):
    """After a device-side assert every use raises code 710, and the allocator is not healthy."""
    card.empty(1)
    card.lose_context()
    assert not card.allocator.healthy(0)
    for use_it in (lambda: card.empty(1), lambda: card.allocator.driver_memory(0)):
        with pytest.raises(AcceleratorError) as caught:
            use_it()
        assert caught.value.error_code == 710


def test_every_form_of_error_can_be_made():
    """Each form has its class, text and code; a size is written as torch writes it."""
    for form, (kind, text, code) in FORMS.items():
        made = error(form)
        assert type(made) is kind and str(made) == text and getattr(made, "error_code", None) == code
    shown = [torch_size(n) for n in (0, 1024, 1025, MIB, MIB + 1, GIB, 3 * GIB)]
    assert shown == ["0 bytes", "1024 bytes", "1.00 KiB", "1024.00 KiB", "1.00 MiB", "1024.00 MiB", "3.00 GiB"]


def test_gpu_installs_the_machine(monkeypatch):
    """`gpu()` gives the practice GPU where it is forced, and the magics then look at it."""
    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    before = machine()
    try:
        made = gpu(devices=["8 GiB", "8 GiB"])
        assert machine() is made.machine and len(machine().devices().read().devices) == 2
        assert repr(made) == "PRACTICE: Practice GPU 8 GiB, Practice GPU 8 GiB (a model, no real GPU is used)"
        with pytest.raises(UserError, match="not a size"):
            made.empty("two")
        with pytest.raises(ValueError, match="byte"):
            made.full(1, 256)
        assert repr(made.full("2 GiB", 1)) == "PracticeTensor(2.00 GiB, PRACTICE cuda:0)"
    finally:
        use(before)


def test_one_size_is_one_card():
    """`gpu("8 GiB")` is a card of that size, and no list of letters."""
    try:
        assert [one.name for one in gpu("8 GiB", force=True).machine.cards] == ["Practice GPU 8 GiB"]
    finally:
        use(None)
