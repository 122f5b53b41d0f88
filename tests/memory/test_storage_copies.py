"""Copies on a card that is nearly full: what needs memory of the card itself is put off."""

from __future__ import annotations

import contextlib
import types

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from cuda_magic.memory.torch.offload import pinned_memory, tensor_copies  # noqa: E402
from cuda_magic.memory.torch.offload import storage_copies as lanes  # noqa: E402
from cuda_magic.memory.torch.offload.host_pool import HostPool  # noqa: E402

MIB = 1 << 20


class Event:
    """Of a stream that is always done."""

    def query(self):
        return True

    def synchronize(self):
        return


class Stream:
    """Made on a card with too little memory it fails, as cudaStreamCreate does."""

    def __init__(self, cuda, needs=0):
        if cuda.free < needs:
            raise RuntimeError("CUDA error: out of memory")
        self.stream_id, self.device_index, self.device_type = id(self), 0, 1
        self.log = []

    def wait_stream(self, other):
        self.log.append(("wait", other))

    def wait_event(self, event):
        self.log.append(("event", event))

    def record_event(self):
        return Event()

    def synchronize(self):
        self.log.append(("synchronize",))


class Cuda:
    """Two cards, one with a context, of which `free` bytes are left; its tensors lie on the CPU."""

    def __init__(self, free):
        self.free, self.made, self.registered = free, 0, 0
        self.home = Stream(self)

    def Stream(self, index):  # noqa: N802
        self.made += 1
        return Stream(self, lanes.SPARE)

    def default_stream(self, index):
        return self.home

    current_stream = default_stream

    def mem_get_info(self, index):
        assert index == 0, "the other card has no context, and gets none"
        return self.free, 1 << 40

    def device_count(self):
        return 2

    def is_initialized(self):
        return True

    def device(self, index):
        return contextlib.nullcontext()

    stream = device

    def cudart(self):
        return self

    def synchronize(self):
        return

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        if self.free < 2 * MIB:
            return 2  # cudaErrorMemoryAllocation
        self.registered += 1
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        self.registered -= 1


def made(free):
    """A torch with such a card, which has no pinned memory of its own either while the card is full."""
    cuda = Cuda(free)

    def empty(*size, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return torch.empty(*size, **options)

    core = types.SimpleNamespace(
        _cuda_hasPrimaryContext=lambda index: index == 0,
        _cuda_getCurrentStream=lambda index: (cuda.home.stream_id, index, 1),
        _cuda_setStream=lambda **stream: None,
    )
    names = {n: getattr(torch, n) for n in ("uint8", "device", "frombuffer", "UntypedStorage")}
    return types.SimpleNamespace(cuda=cuda, _C=core, empty=empty, **names)


def out_and_back(lane, arena, tensor):
    """Park the tensor and bring it back; its buffer."""
    storage, want = tensor.untyped_storage(), tensor.clone()
    nbytes = storage.nbytes()
    buffer = arena.take(nbytes)
    left = lane.out(storage, buffer, nbytes)
    storage.resize_(0)
    lane.back(storage, buffer, nbytes, left)
    lane.settle()
    assert torch.equal(tensor, want)
    return buffer


def test_on_a_full_card_the_default_stream_copies_and_memory_need_not_be_pinned():
    """Out and back with no stream made, in ordinary memory that is not kept; both better as soon as there is room."""
    fake = made(MIB)
    lane, arena = lanes.CudaLane(fake, 0), HostPool(fake, limit=256 * MIB)
    tensor = torch.arange(1000.0)
    buffer = out_and_back(lane, arena, tensor)
    assert (buffer.slab.kind, buffer.slab.makeshift) == ("pageable", True)
    assert (fake.cuda.made, fake.cuda.registered) == (0, 0)
    assert fake.cuda.home.log[-1] == ("synchronize",)
    arena.give(buffer)
    del buffer
    assert (arena.free, arena.held) == (0, 0)  # it makes place for pinned memory
    fake.cuda.free = 20 * MIB
    buffer = out_and_back(lane, arena, tensor)
    assert (fake.cuda.made, fake.cuda.registered, buffer.slab.kind) == (0, 1, "registered")
    fake.cuda.free = 1 << 30
    arena.give(buffer)
    out_and_back(lane, arena, tensor)
    assert fake.cuda.made == 2
    assert arena.held > 0  # pinned memory is kept


def test_streams_do_not_take_the_room_of_what_left():
    """158 MiB free, 128 of them of what waits: made once that is back and there is room beside it."""
    fake = made(30 * MIB)
    lane, arena = lanes.CudaLane(fake, 0), HostPool(fake, limit=512 * MIB)
    tensor = torch.zeros(32 * MIB)
    storage, buffer = tensor.untyped_storage(), arena.take(128 * MIB)
    left = lane.out(storage, buffer, 128 * MIB)
    storage.resize_(0)
    fake.cuda.free += 128 * MIB
    out_and_back(lane, arena, torch.arange(1000.0))
    lane.back(storage, buffer, 128 * MIB, left)
    assert fake.cuda.made == 0
    out_and_back(lane, arena, torch.arange(1000.0))
    assert fake.cuda.made == 2


def test_streams_are_made_while_there_is_room():
    """With the lane, before anything leaves: a card that fills up afterwards is no hindrance."""
    fake = made(1 << 30)
    lane, arena = lanes.CudaLane(fake, 0), HostPool(fake, limit=256 * MIB)
    fake.cuda.free = 0
    assert fake.cuda.made == 2
    out_and_back(lane, arena, torch.arange(1000.0))
    assert fake.cuda.made == 2


def test_where_nothing_can_be_pinned_at_all_ordinary_memory_is_kept():
    """A limit on locked memory, say: the card has room, and trying again each time would help nobody."""
    fake = made(1 << 30)
    fake.cuda.cudaHostRegister = lambda *_: 1
    arena = HostPool(fake, limit=256 * MIB)
    buffer = arena.take(4000)
    assert (buffer.slab.kind, buffer.slab.makeshift) == ("pageable", False)
    arena.give(buffer)
    assert arena.free == arena.held > 0


def test_what_autograd_saves_is_copied_by_the_default_stream_on_a_full_card():
    """No stream is made; where there is room, two are."""
    for free, streams in ((20 * MIB, 0), (1 << 30, 2)):
        fake = made(free)
        used = tensor_copies.Copies(fake, 0, 1 << 40)
        assert fake.cuda.made == streams
        assert (used._out is fake.cuda.home) == (not streams)


def test_a_slab_is_unused_when_its_holes_are_all_of_it():
    """Whole again, or not yet touched."""
    one = pinned_memory.Slab(torch, 2 * MIB, False)
    assert one.unused
    one.holes[0].size -= 4096
    assert not one.unused
