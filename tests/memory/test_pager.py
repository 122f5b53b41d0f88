"""Paging on a card made of the CPU: bitwise the numbers of enough memory, and data in one place whatever happens."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from parking_doubles import Card, CardMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from cuda_magic.memory.torch.parking.ahead import Room  # noqa: E402
from cuda_magic.memory.torch.parking.arena import Arena, NoHostMemory  # noqa: E402
from cuda_magic.memory.torch.parking.lane import PlainLane, quiet  # noqa: E402
from cuda_magic.memory.torch.parking.order import Order  # noqa: E402
from cuda_magic.memory.torch.parking.parked import Store  # noqa: E402
from cuda_magic.memory.torch.parking.session import Session  # noqa: E402

KIB = 1024


def storage_of(tensor):
    return torch._C.TensorBase.untyped_storage(tensor)


def model(width=64, layers=8, dropout=0.0):
    torch.manual_seed(0)
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Dropout(dropout)]
    return torch.nn.Sequential(*parts)


def size_of(net):
    return sum(p.numel() * 4 for p in net.parameters() if p.numel() * 4 >= KIB)


def test_inference_of_a_model_larger_than_the_card():
    """1.5 times the cap, three passes: bitwise equal, never more than the cap, weights leave for nothing after once."""
    net = model(layers=12)
    x = torch.randn(4, 64)
    with torch.no_grad():
        want = net(x)
    card = Card(int(size_of(net) / 1.5))
    session = card.session()
    pager = card.paged(session, least=4 * KIB)
    pager.follow(storage_of(p) for p in net.parameters())
    card.take_over(list(net.parameters()))
    session.store.park([storage_of(p) for p in net.parameters() if p.dim() == 2][7:])  # the rest of the card is full
    with CardMode(card), session.watched(), torch.no_grad():
        for _ in range(4):
            assert torch.equal(net(x), want)
        assert session.store.out_bytes <= size_of(net)  # nothing changed: no weight is copied out twice
        assert card.broken == ""
        assert card.peak <= card.cap
        card.cap *= 2
    assert pager.faults
    assert pager.ahead
    assert not session.on
    assert torch.equal(net(x), want)


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "sgd momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True, foreach=False),
}


def train(make, steps=5, grow=None):
    net = model(layers=6, dropout=0.2)
    opt = make(net.parameters())
    losses = []
    for step in range(steps):
        if grow is not None:
            grow(step, net, opt)
        opt.zero_grad()
        loss = net(torch.randn(16, 64)).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    state = [v for s in opt.state.values() for v in s.values() if torch.is_tensor(v)]
    return [torch.tensor(losses), torch.rand(3), *[p.detach().clone() for p in net.parameters()], *state]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_on_a_card_that_is_too_small(name):
    """Parameters, gradients and state are 1.3 times the cap: losses, weights, state and random numbers are equal."""
    want = train(OPTIMIZERS[name])
    net = model(layers=6)
    states = {"sgd momentum": 3, "adamw amsgrad": 5}.get(name, 4)
    card = Card(int(states * size_of(net) / 1.3))
    session = card.session()
    pager = card.paged(session)

    def first(step, net, opt):
        if step == 0:
            card.take_over(list(net.parameters()))
            pager.follow(storage_of(p) for p in net.parameters())

    with CardMode(card), session.watched():
        got = train(OPTIMIZERS[name], grow=first)
        assert card.peak <= card.cap
        card.cap *= 10
    assert pager.evictions > 10
    assert card.broken == ""
    assert not session.on
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_fused_or_foreach_op_larger_than_the_card_is_told_before_it_is_tried():
    """The sentence names the op and both sizes; nothing was changed; everything is still there."""
    weights = [torch.full((KIB,), float(i)) for i in range(8)]
    card = Card(20 * KIB)
    session = card.session()
    card.paged(session).follow(storage_of(w) for w in weights)
    session.store.park(storage_of(w) for w in weights[4:])
    card.take_over(weights)
    with CardMode(card), session.watched():
        with pytest.raises(torch.OutOfMemoryError, match="larger than the card"):
            torch._foreach_add_(weights, 1)
        card.cap *= 10
    assert not session.on
    assert all(bool((w == i).all()) for i, w in enumerate(weights))


def test_in_place_changes_are_copied_out_again():
    """A storage that was changed after it came back does not leave with its old copy."""
    weights = [torch.full((KIB,), float(i)) for i in range(6)]
    card = Card(12 * KIB)
    session = card.session()
    card.paged(session).follow(storage_of(w) for w in weights)
    session.store.park(storage_of(w) for w in weights)
    card.take_over(weights)
    with CardMode(card), session.watched():
        for step in range(4):
            for w in weights:
                w.add_(1)
                if step % 2:
                    torch.mul(w, 2, out=w)
                w[3:5].sub_(1)
        card.cap *= 10
    assert not session.on
    want = [torch.full((KIB,), float(i)) for i in range(6)]
    for step in range(4):
        for w in want:
            w.add_(1)
            if step % 2:
                w.mul_(2)
            w[3:5].sub_(1)
    assert all(torch.equal(a, b) for a, b in zip(weights, want, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_give_the_numbers_of_enough_memory(seed):
    """200 random ops on 12 tensors of which 4 fit: views, in place, lists, deletions, backward."""

    def program(weights):
        draw = random.Random(seed)
        for _ in range(200):
            kind = draw.randrange(8)
            a, b = draw.randrange(len(weights)), draw.randrange(len(weights))
            if kind == 0:
                weights[a] = weights[a] * 0.5 + weights[b]
            elif kind == 1:
                weights[a].add_(weights[b], alpha=0.25)
            elif kind == 2:
                weights[a][10:500].mul_(0.9)
            elif kind == 3:
                weights[a] = torch.cat([weights[a][:512], weights[b][512:]])
            elif kind == 4:
                torch._foreach_mul_([weights[a]], 0.99)
            elif kind == 5:
                weights[a] = weights[a].view(32, 32).t().contiguous().view(-1)
            elif kind == 6:
                weights[a] = torch.nn.functional.dropout(weights[a], 0.1)
            else:
                leaf = weights[a].clone().requires_grad_()
                (leaf.sin() * weights[b]).sum().backward()
                weights[a] = leaf.grad
        return weights

    def start():
        torch.manual_seed(seed)
        return [torch.randn(KIB) for _ in range(12)]

    want = program(start())
    card = Card(30 * KIB)
    session = card.session()
    weights = start()
    card.paged(session).follow(storage_of(w) for w in weights)
    session.store.park(storage_of(w) for w in weights[5:])
    card.take_over(weights)
    with CardMode(card), session.watched():
        got = program(weights)
        card.cap *= 10
    assert not session.on
    assert card.broken == ""
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_interrupts_at_random_moments_leave_every_tensor_its_data():
    """SIGINT inside paged passes: KeyboardInterrupt, weights unchanged, modes and handlers as they were."""
    net = model(layers=8)
    x = torch.randn(4, 64)
    with torch.no_grad():
        want = net(x)
    keep = [p.detach().clone() for p in net.parameters()]
    card = Card(int(size_of(net) / 1.5))
    session = card.session()
    pager = card.paged(session)
    pager.follow(storage_of(p) for p in net.parameters())
    session.store.park(storage_of(p) for p in net.parameters())
    card.take_over(list(net.parameters()))
    hits = 0
    start = time.perf_counter()
    draw = random.Random(0)
    with CardMode(card):
        with session.watched(), torch.no_grad():
            net(x)
        once = time.perf_counter() - start
        session.settle(ended=True)
        for _ in range(60):
            timer = threading.Timer(draw.uniform(0, once), os.kill, (os.getpid(), signal.SIGINT))
            try:
                try:
                    timer.start()
                    with session.watched(), torch.no_grad():
                        while True:
                            net(x)
                finally:
                    timer.join()
            except KeyboardInterrupt:
                hits += 1
            session.settle(ended=True)
            pager.follow(storage_of(p) for p in net.parameters())
        card.cap *= 10
        assert session.settle(ended=True) == 0
    assert hits == 60
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert torch.is_grad_enabled()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not session.on
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), keep, strict=True))
    with torch.no_grad():
        assert torch.equal(net(x), want)


def test_a_full_host_ends_paging_and_loses_nothing():
    """No host memory: the op's own error is raised, the reason is kept, every tensor has its data."""
    weights = [torch.full((1 << 18,), float(i)) for i in range(4)]  # 1 MiB each; the host gives one slab of 2 MiB
    card = Card(4 << 20)
    session = card.session(limit=2 << 20)
    pager = card.paged(session)
    pager.follow(storage_of(w) for w in weights)
    card.take_over(weights)
    with CardMode(card), session.watched():
        made = [torch.ones(1 << 18), torch.ones(1 << 18)]
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(1 << 19)
        assert "host" in pager.refused
        del made
        card.cap *= 10
    assert not session.on
    assert all(bool((w == i).all()) for i, w in enumerate(weights))


def test_copies_of_what_is_back_make_room_on_the_host():
    """Those that were changed first, all others after; what is away keeps its own, and a full host is still told."""
    weights = [torch.full((1 << 18,), float(i)) for i in range(6)]  # 1 MiB each
    card = Card(100 << 20).take_over(weights)
    session = card.session(limit=4 << 20)
    store, pager = session.store, card.paged(session)
    pager.follow(storage_of(w) for w in weights)
    entries = [store.followed[storage_of(w)._cdata] for w in weights]
    with CardMode(card), session.watched():
        store.park(storage_of(w) for w in weights[:4])  # the host is full
        weights[0].sum()
        weights[1].add_(1)
        weights[2].sum()
        store.park([storage_of(weights[4])])
        assert [e.buffer is not None for e in entries] == [True, False, True, True, True, False]
        store.park([storage_of(weights[5])])  # now unchanged copies too
        assert [e.buffer is not None for e in entries] == [False, False, False, True, True, True]
        store.park([storage_of(weights[0])])
        with pytest.raises(NoHostMemory):
            store.park([storage_of(weights[1])])
        assert float(weights[1][0]) == 2
    assert not session.on
    assert [float(w[7]) for w in weights] == [0, 2, 2, 3, 4, 5]


def test_the_order_of_an_iteration_predicts_the_next():
    """Forward, backward and step use the same storages in different orders: two in a row tell where we are."""
    order = Order()
    iteration = [1, 2, 3, 4, 4, 3, 2, 1, 1, 11, 2, 12, 3, 13, 4, 14]
    for key in iteration * 2:
        order.used(key)
    order.used(1)
    order.used(2)
    assert [order.expected(n) for n in (1, 2, 3)] == [3, 4, 3]
    assert order.distance(3) == 1
    assert order.distance(11) > order.distance(4)
    assert order.distance(99) is None


def iteration_of(order, living, parameters=(1, 2, 3)):
    """Forward, then a gradient made for each parameter, used by a step, dead when the next iteration begins."""
    living.clear()
    for p in parameters:
        order.used(p)
    gradients = {p: order.made(64, living.__contains__) for p in reversed(parameters)}
    living.update(gradients.values())
    for p, g in gradients.items():
        order.used(p)
        order.used(g)
    return gradients


def test_what_each_iteration_makes_anew_bears_the_name_of_the_one_before():
    """So a gradient's next use is known; not while the older one lives, and not where the size is another."""
    order, living = Order(), set()
    for p in (1, 2, 3):
        assert order.new() == p
    iteration_of(order, living)
    second = iteration_of(order, living)
    assert iteration_of(order, living) == second
    order.used(1)
    assert order.distance(second[3]) == 3
    order.used(2)
    order.used(3)
    assert order.made(128, living.__contains__) not in second.values()
    living.clear()
    assert order.made(64, living.__contains__) == second[3]
    assert order.made(64, set(second.values()).__contains__) not in second.values()


def test_what_is_made_in_no_order_does_not_hide_the_order_of_parameters():
    """Results of another size in each iteration: the parameters still tell where we are."""
    order = Order()
    names = [order.new() for _ in range(6)]
    for step in range(4):
        for name in (*names, *reversed(names)):
            order.used(name)
            result = order.made(1000 + step, lambda other: False)
            order.used(result)
    order.used(names[0])
    order.used(names[1])
    assert names[2] in [order.expected(n) for n in range(1, 5)]


def test_what_a_cycle_uses_last_leaves_first():
    """Going round and round, the storage just used is the one needed last: a pass brings back what does not fit."""
    weights = [torch.full((KIB,), float(i)) for i in range(12)]
    card = Card(8 * 4 * KIB)
    session = card.session()
    pager = card.paged(session)
    pager.follow(storage_of(w) for w in weights)
    session.store.park(storage_of(w) for w in weights[6:])
    card.take_over(weights)
    with CardMode(card), session.watched():
        for _ in range(3):
            for w in weights:
                w.sum()
        before = session.store.in_bytes
        for w in weights:
            w.sum()
        came = (session.store.in_bytes - before) // (4 * KIB)
        card.cap *= 10
    assert came <= 8  # 12 by the rule of the longest unused; 5 are the least possible
    assert not session.on


class Ordered(PlainLane):
    """A lane whose copies out end only when somebody waits for them: what is told of them, in order."""

    def __init__(self, card):
        super().__init__(torch, card.ask)
        self.told = []
        self.under_way = {}

    def out(self, storage, buffer, nbytes):
        event = len(self.told)
        self.told.append(("out", event))
        self.under_way[event] = lambda: PlainLane.out(self, storage, buffer, nbytes)
        return event

    def _end(self, event):
        copy = self.under_way.pop(event, None)
        if copy is not None:
            copy()

    def vacate(self, event):
        self.told.append(("vacate", event))
        self._end(event)

    def wait(self, event):
        self.told.append(("wait", event))
        self._end(event)


def test_a_copy_made_in_advance_is_waited_for_before_a_change_and_before_leaving():
    """The contents at the moment of the copy are what is kept; reading waits for nothing."""
    card = Card(1 << 20)
    lane = Ordered(card)
    arena = Arena(torch, pin=False, limit=1 << 30)
    session = Session(torch, Store(torch, lambda: arena, lambda device: lane))
    pager = card.paged(session)
    weights = [torch.full((KIB,), float(i)) for i in range(3)]
    card.take_over(weights)
    pager.follow(storage_of(w) for w in weights)
    entries = [session.store.followed[storage_of(w)._cdata] for w in weights]
    with CardMode(card), session.watched():
        for entry, w in zip(entries, weights, strict=True):
            session.store.save(entry, storage_of(w))
        assert [e.clean and e.saving for e in entries] == [True] * 3
        weights[0].sum()
        assert lane.told == [("out", 0), ("out", 1), ("out", 2)]
        weights[0].add_(1)  # the copy has ended by then
        assert lane.told[3:] == [("wait", 0)]
        assert not entries[0].clean
        session.store.leave(entries[1], storage_of(weights[1]))
        assert lane.told[4:] == [("vacate", 1)]
        assert storage_of(weights[1]).nbytes() == 0
        weights[2].data_ptr()  # who knows its address may write to it
        assert ("wait", 2) in lane.told
        assert not entries[2].clean
    assert [float(w[0]) for w in weights] == [1.0, 1.0, 2.0]
    assert not session.on


def test_what_recurs_stays_free_and_what_was_asked_for_once_does_not():
    """As much as the last two asked for, beside what is free in pieces; a quarter at most; forgotten by the next."""
    live = torch.empty(1580, dtype=torch.uint8)
    card = Card(1600).take_over(live)
    room = Room(card, 50)
    room.asked(300, moment=1)
    room.asked(600, moment=1)  # the same op, which still found no room
    assert room.spare == 50
    room.asked(40, moment=2)
    assert room.spare == 80
    del live
    room.asked(40, moment=3)  # all of the card is free, and 40 bytes found no room
    assert room.spare == 400
    room.anew()
    assert room.spare == 50
    room.asked(300, moment=4)
    assert room.spare == 50


def test_our_own_copies_are_seen_by_no_mode():
    """Modes and gradients are off inside and as they were afterwards, behind an error too."""

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    weight = torch.ones(3, requires_grad=True)
    with Seen():
        with contextlib.suppress(ValueError), quiet(torch):
            assert not (weight * 2).requires_grad
            raise ValueError
        assert seen == []
        assert (weight * 2).requires_grad
        assert seen
        with torch.no_grad(), quiet(torch), quiet(torch):
            pass
        assert torch.is_grad_enabled()


def test_what_the_statement_never_names_leaves_first_and_stays_away():
    """As the rung spill would have it: with the idle tensors away the loop moves nothing more."""
    idle = [torch.full((KIB,), -1.0) for _ in range(4)]
    weights = [torch.full((KIB,), float(i)) for i in range(5)]
    card = Card(9 * 4 * KIB)  # room for all of them, and for nothing else
    session = card.session()
    pager = card.paged(session)
    card.take_over(idle, weights)
    pager.follow(storage_of(t) for t in (*weights, *idle))
    with CardMode(card), session.watched():
        for _ in range(2):
            for w in weights:
                w.mul_(1.0)
                assert float((w + 1)[0]) == float(w[0]) + 1
        moved = session.store.in_bytes, session.store.out_bytes
        for w in weights * 3:
            assert float((w + 1)[0]) == float(w[0]) + 1
        assert (session.store.in_bytes, session.store.out_bytes) == moved
        assert session.store.in_bytes <= 4 * KIB * len(weights)  # nothing was known at first
        assert all(storage_of(w).nbytes() for w in weights)
        assert any(not storage_of(t).nbytes() for t in idle)
        card.cap *= 10
    assert not session.on
    assert all(bool((t == -1).all()) for t in idle)
