"""Storages parked on the host: what is true at each step, and when a step fails."""

from __future__ import annotations

import gc
import os
import signal

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from offload_doubles import Card, CardMode  # noqa: E402

from cuda_magic.memory.torch.offload import store  # noqa: E402
from cuda_magic.memory.torch.offload.host_pool import NoHostMemory  # noqa: E402

KIB = 1024


def filled(count=8, size=4 * KIB):
    return [torch.full((size // 4,), float(i)) for i in range(count)]


def storage_of(tensor):
    return torch._C.TensorBase.untyped_storage(tensor)


def test_parked_contents_come_back_under_the_same_tensors_and_views():
    """Views, parameters, versions and identities stay; the storage is empty meanwhile."""
    session = Card(1 << 30).session()
    tensors = filled()
    views = [t[3:9] for t in tensors]
    weight = torch.nn.Parameter(torch.arange(512.0))
    versions = [t._version for t in tensors]
    before = [t.clone() for t in (*tensors, weight)]
    freed = session.store.park([storage_of(t) for t in (*tensors, weight)])
    assert freed == 8 * 4 * KIB + 2 * KIB == session.store.nbytes
    assert all(storage_of(t).nbytes() == 0 for t in (*tensors, weight))
    assert session.store.bring_back() == freed
    assert session.store.nbytes == 0
    assert all(torch.equal(a, b) for a, b in zip((*tensors, weight), before, strict=True))
    assert [t._version for t in tensors] == versions
    assert all(bool((v == i).all()) for i, v in enumerate(views))


def test_a_recycled_address_is_never_taken_for_the_parked_storage():
    """The key of a storage that died while parked is given out to no other: its struct is held by the entry."""
    session = Card(1 << 30).session()
    keys = set()
    for _ in range(200):
        tensor = torch.ones(KIB)
        session.store.park([storage_of(tensor)])
        keys.add(storage_of(tensor)._cdata)
        del tensor
        other = torch.zeros(KIB)
        assert storage_of(other)._cdata not in keys
        assert session.watcher.named([other]) == []
        del other
    assert len(keys) == 200
    assert session.store.sweep() == 200
    assert session.store.away == {}
    # the control: without the entries, the same loop meets an old address at once
    seen = [storage_of(torch.ones(KIB))._cdata for _ in range(200)]
    assert len(set(seen)) < 200


def test_what_dies_while_parked_gives_its_host_memory_back():
    """Dead entries leave nothing in the arena."""
    session = Card(1 << 30).session()
    tensors = filled()
    session.store.park(map(storage_of, tensors))
    arena = session.store._place()
    busy = arena.free
    del tensors
    gc.collect()
    session.store.sweep()
    assert arena.free == busy + 8 * 4 * KIB


def test_a_host_that_is_full_leaves_everything_valid():
    """What left stays parked, the rest is untouched, all comes back."""
    card = Card(1 << 30)
    session = card.session(limit=2 << 20)
    tensors = [torch.full((1 << 18,), float(i)) for i in range(5)]  # 1 MiB each, the arena grows by 2 MiB
    with pytest.raises(NoHostMemory):
        session.store.park(map(storage_of, tensors))
    assert [storage_of(t).nbytes() for t in tensors] == [0, 0, 1 << 20, 1 << 20, 1 << 20]
    session.store.bring_back()
    assert all(bool((t == i).all()) for i, t in enumerate(tensors))


def test_a_copy_that_fails_leaves_the_tensor_where_it_was(monkeypatch):
    """On the way out it stays on the device, on the way back it stays parked; the next try succeeds."""
    session = Card(1 << 30).session()
    (tensor,) = filled(1)
    tensor += 7
    lane = session.store.lane(("cpu", None))
    good = lane.out
    monkeypatch.setattr(lane, "out", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.store.park([storage_of(tensor)])
    assert session.store.nbytes == 0
    assert bool((tensor == 7).all())
    monkeypatch.setattr(lane, "out", good)
    session.store.park([storage_of(tensor)])
    from cuda_magic.memory.torch.offload import storage_copies as lanes

    real = lanes._bytes
    monkeypatch.setattr(lanes, "_bytes", lambda *a: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.store.bring_back()
    assert storage_of(tensor).nbytes() == 0
    monkeypatch.setattr(lanes, "_bytes", real)
    session.store.bring_back()
    assert bool((tensor == 7).all())


def test_no_room_on_the_way_back_loses_nothing():
    """An out-of-memory error while bringing back: the rest stays parked; again once there is room."""
    card = Card(20 * KIB)
    tensors = filled(4)
    session = card.take_over(tensors).session()
    session.store.park(map(storage_of, tensors))
    card.cap = 9 * KIB
    with pytest.raises(torch.OutOfMemoryError):
        session.store.bring_back()
    assert len(session.store.away) == 2
    card.cap = 20 * KIB
    session.store.bring_back()
    assert all(bool((t == i).all()) for i, t in enumerate(tensors))


@pytest.mark.parametrize("at", range(12))
def test_an_interrupt_at_any_copy_is_delivered_after_it(monkeypatch, at):
    """SIGINT in the middle of a step: KeyboardInterrupt when the step is whole, every tensor valid."""
    session = Card(1 << 30).session()
    tensors = filled(4)
    count = [0]
    lane = session.store.lane(("cpu", None))
    for name, real in (("out", lane.out), ("back", lane.back)):

        def step(*args, good=real):
            count[0] += 1
            if count[0] == at + 1:
                os.kill(os.getpid(), signal.SIGINT)
            return good(*args)

        monkeypatch.setattr(lane, name, step)
    hit = False
    for _ in range(2):
        try:
            session.store.park(map(storage_of, tensors))
            session.store.bring_back()
        except KeyboardInterrupt:
            hit = True
            session.store.bring_back()
    assert hit
    assert all(bool((t == i).all()) for i, t in enumerate(tensors))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# tolist, numpy and repr read the CPU's own memory with no op; on a card they copy, and tests/gpu has them
OPS = {
    "item": lambda t: t[0].item(),
    "cat of a list": lambda t: torch.cat([t, t]).sum(),
    "out=": lambda t: torch.add(torch.ones(1024), 1, out=t).sum(),
    "in place": lambda t: t.add_(1).sum(),
    "slice": lambda t: t[5:9].sum(),
    "transpose": lambda t: t.view(32, 32).t().sum(),
    "keyword": lambda t: torch.where(condition=t > 0, input=t, other=t).sum(),
    "indexed": lambda t: torch.ones(1024)[t.long().clamp(max=5)].sum(),
    "foreach": lambda t: torch._foreach_add([t, t], 1)[1].sum(),
    "deepcopy": lambda t: __import__("copy").deepcopy(t).sum(),
    "detach then use": lambda t: t.detach().mul(2).sum(),
    "data": lambda t: t.data.mul(2).sum(),
    "len of storage": lambda t: len(t.untyped_storage()),
    "save": lambda t: _saved(t).sum(),
    "set_": lambda t: torch.empty(0).set_(t).sum(),
}


def _saved(tensor):
    import io

    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("name", OPS)
def test_touching_a_parked_tensor_gives_what_it_gives_otherwise(name):
    """Whatever names it brings it back first: the result is the plain one, nothing runs on an emptied storage."""
    card = Card(1 << 30)
    plain = OPS[name](torch.arange(1024.0))
    tensor = torch.arange(1024.0)
    session = card.take_over(tensor).session()
    with CardMode(card), session.watched():
        session.store.park([storage_of(tensor)])
        assert storage_of(tensor).nbytes() == 0
        got = OPS[name](tensor)
    assert str(got) == str(plain)
    assert card.broken == ""
    assert session.store.nbytes == 0
    assert not session.on


def test_backward_through_parked_tensors_is_right():
    """What autograd saved is parked between forward and backward: gradients bitwise the same."""
    torch.manual_seed(0)
    a, b = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    want = torch.autograd.grad(((a @ b).sin() * a).sum(), (a, b))
    card = Card(1 << 30)
    session = card.session()
    with CardMode(card), session.watched():
        hidden = a @ b
        loss = (hidden.sin() * a).sum()
        session.store.park([storage_of(t) for t in (a, b, hidden)])
        got = torch.autograd.grad(loss, (a, b))
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
    assert card.broken == ""


def test_what_finds_no_room_stays_parked_and_safe_and_returns_at_the_next_chance():
    """Too full at the end: the mode stays on, touching brings back, settle ends it once there is room."""
    card = Card(10 * KIB)
    tensors = filled(2)
    session = card.take_over(tensors).session()
    before = torch.Tensor.untyped_storage
    with CardMode(card):
        with session.watched():
            session.store.park(map(storage_of, tensors))
            new = torch.ones(2 * KIB)
        assert session.on
        assert session.store.nbytes == 8 * KIB
        with pytest.raises(torch.OutOfMemoryError):
            tensors[1] + 1
        assert storage_of(tensors[1]).nbytes() == 0
        del new
        assert float((tensors[1] + 1)[0]) == 2.0
        assert session.settle() == 0
        assert not session.on
    assert torch.Tensor.untyped_storage is before
    assert all(bool((t == i).all()) for i, t in enumerate(tensors))


def test_held_interrupts_outside_of_the_main_thread_does_nothing():
    """Only the main thread may set handlers."""
    import threading

    seen = []

    def work():
        with store.held_interrupts():
            seen.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [1]


def test_the_thread_that_is_watched_does_not_forbid_parking():
    """Asked from a thread of autograd's while the cell's own thread waits in backward: it is none of the others."""
    import threading

    from cuda_magic.memory.torch import threads

    session = Card(1 << 30).session()
    got = []

    def ask():
        thread = threading.Thread(target=lambda: got.append(threads.using_cuda()))
        threading.Thread.start(thread)
        thread.join()

    ask()
    with session.watched():
        ask()
    ask()
    name = threading.current_thread().name
    assert got == [name, "", name]


def test_threads_started_meanwhile_are_watched():
    """A new thread and a pool that stood before: both bring back what they touch; the methods are put back."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    before = threading.Thread.start, ThreadPoolExecutor.submit
    card = Card(1 << 30)
    tensors = filled(2)
    session = card.take_over(tensors).session()
    got = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(len, ()).result()  # its thread waits from now on
        with session.watched():
            session.store.park(map(storage_of, tensors))
            thread = threading.Thread(target=lambda: got.append(float(tensors[0].sum())))
            thread.start()
            thread.join()
            got.append(pool.submit(lambda x: float(tensors[1].sum() + x), 1).result())
    assert got == [0.0, 1025.0]
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == before
