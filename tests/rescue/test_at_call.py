"""Guarded cells on a card made of the CPU: rescued at the very call, and never repeated silently."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
sys.path.append(str(Path(__file__).parents[1] / "memory"))

from offload_doubles import Card, CardMode  # noqa: E402

from cuda_magic.machine import RealMachine, use  # noqa: E402
from cuda_magic.memory.allocator import Stats, Storage  # noqa: E402
from cuda_magic.memory.torch.caching import TorchAllocator  # noqa: E402
from cuda_magic.memory.torch.offload.op_control import OpControl  # noqa: E402
from cuda_magic.rescue.guard import GuardRun  # noqa: E402

MIB = 1 << 20


class CardAllocator(TorchAllocator):
    """torch's allocator, whose one device is `card`."""

    def __init__(self, card):
        super().__init__()
        self.card, self.session = card, card.session()

    def devices(self):
        return (0,)

    def stats(self, device):
        return Stats(self.card.used(), self.card.used())

    def ooms(self, device):
        return self.card.errors

    def absorbed(self):
        return self.session.store.errors

    def driver_memory(self, device):
        return self.card.cap - self.card.used(), self.card.cap

    def segments(self, device):
        return ()

    def memory_limit(self, device):
        return None

    def storages(self, device, *, doing="move"):
        found = [torch.UntypedStorage._new_with_weak_ptr(weak) for weak in self.card._live.values()]
        return [Storage(s._cdata, 0, s.data_ptr(), s.nbytes(), s) for s in found if s is not None and s.nbytes()]

    def owners(self, found=None):
        return iter(())

    def expandable(self):
        return None

    def moving_refused(self, device, *, doing="move"):
        return "not a real card"

    def started(self):
        return True

    def empty_cache(self):
        pass

    def clear_workspaces(self):
        return []

    def parked(self):
        return self.session.store.nbytes

    def settle(self, ended=False):
        return self.session.settle(ended=ended)

    def release_host(self, *, excess=False):
        return 0 if excess else self.session.store._place().release()

    def ops(self):
        return OpControl(self.torch, used=self.session, kind="cpu")


class Machine(RealMachine):
    def __init__(self, allocator):
        super().__init__()
        object.__setattr__(self, "made", allocator)

    def allocator(self):
        return self.made


@pytest.fixture
def card(cells):
    """A card of 256 MiB; the cells run on it."""
    made = Card(256 * MIB)
    cells.card, cells.allocator = made, CardAllocator(made)
    use(Machine(cells.allocator))
    cells.names |= {"torch": torch, "MIB": MIB, "card": made, "gc": gc}
    cells.plain(
        "class Cycle:\n    def __init__(s, n): s.me = s; s.x = torch.ones(n // 4)\n"
        "def train(leak, steps=20, first=None):\n"
        "    torch.manual_seed(0); done = []\n"
        "    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(.2), torch.nn.Linear(64, 32))\n"
        "    opt = torch.optim.AdamW(net.parameters(), foreach=False)\n"
        "    for step in range(steps):\n"
        "        done.append(step)\n"
        "        if leak: leak(step)\n"
        "        opt.zero_grad(); loss = net(torch.randn(16, 32)).square().mean(); loss.backward(); opt.step()\n"
        "    return done, loss.item(), [p.detach().clone() for p in net.parameters()], torch.rand(3)"
    )
    gc.collect()
    gc.disable()
    with CardMode(made):
        yield made
    gc.enable()


@pytest.fixture
def watched(monkeypatch):
    """Each op is watched from the first attempt on, as else on a repeat."""
    during = GuardRun.during

    def from_the_start(self, step):
        self.trial.attempts += 1
        try:
            return during(self, step)
        finally:
            self.trial.attempts -= 1

    monkeypatch.setattr(GuardRun, "during", from_the_start)


def equal(a, b):
    return a[:2] == b[:2] and all(torch.equal(x, y) for x, y in zip((*a[2], a[3]), (*b[2], b[3]), strict=True))


def test_a_training_loop_that_runs_out_at_step_7_goes_on_at_the_call(cells, card, watched):
    """Watched: one pass over 20 steps, one attempt, bitwise the numbers of enough memory, said once."""
    card.cap = 1 << 30
    cells.plain("want = train(None)")
    gc.collect()
    card.cap = card.used() + 160 * MIB
    error = cells.guard("got = train(lambda step: Cycle(20 * MIB))")
    assert error is None
    assert equal(cells.names["got"], cells.names["want"])
    assert (cells.report.status, cells.report.attempts, cells.report.rungs) == ("rescued", 1, ())
    assert cells.report.handled == 0
    assert all(call.how == ("collect",) for call in cells.report.calls)
    assert len(cells.lines) == 1
    assert "nothing else was repeated" in cells.lines[0]
    assert "Went on at the call" in repr(cells.report)


def test_without_it_a_loop_that_trains_is_not_repeated(cells, card):
    """Never restarted silently: the reason is said, and --repeat is not the first advice."""
    cells.plain(
        "net = torch.nn.Linear(64, 64); opt = torch.optim.AdamW(net.parameters(), foreach=False)\n"
        "def step(i):\n"
        "    opt.zero_grad(); net(torch.randn(64, 64)).sum().backward(); opt.step(); Cycle(40 * MIB)"
    )
    error = cells.guard("for i in range(20): step(i)")
    assert isinstance(error, torch.OutOfMemoryError)
    assert (cells.report.status, cells.report.attempts) == ("refused", 1)
    assert "not repeated: its loop would start again from the top" in cells.report.notes
    assert "--repeat" not in cells.report.next_steps[0].line


def test_on_a_repeat_ops_are_rescued_at_the_call(cells, card):
    """The statement failed once and is repeated: what runs out then goes on at the call."""
    cells.plain("runs = []\ndef work():\n    runs.append(1)\n    for i in range(12): Cycle(60 * MIB)")
    assert cells.guard("work()", repeat=True) is None
    assert len(cells.names["runs"]) == 2
    assert cells.report.attempts == 2
    assert sum(call.times for call in cells.report.calls) >= 1


def test_one_op_larger_than_the_card_is_told(cells, card, watched):
    """A request above the card: not repeated, no paging tried."""
    error = cells.guard("new = torch.ones(100 * MIB)")
    assert isinstance(error, torch.OutOfMemoryError)
    assert cells.report.kind == "too-large"
    assert not cells.report.calls


class FullCard(CardMode):
    """In-place additions need memory of their own, and find none while more than 200 MiB are in use."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add_.Tensor and self.count.used() > 200 * MIB:
            self.count.out(100 * MIB)
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("code", ["torch.ones(1).add_(a[0])", "own(a)"])
def test_what_may_not_be_repeated_falls_back_to_the_statement(cells, card, watched, code):
    """An op in place, and a function that raises the error itself: the ladder, and the statement again."""
    cells.plain(
        "a = torch.ones(16 * MIB)\n"
        "def own(x):\n"
        "    if card.used() > 200 * MIB: card.out(100 * MIB)\n"
        "    return x[0] + 1\n"
    )
    cells.plain("Cycle(150 * MIB) and None")
    with FullCard(card):
        error = cells.guard(f"r = {code}", repeat=True)
    assert error is None
    assert float(cells.names["r"]) == 2
    assert cells.report.attempts == 2
    assert cells.report.calls == ()
    assert cells.rung("collect").state == "ran"


def test_retry_can_be_left_out(cells, card, watched):
    """--without retry: no op is watched."""
    error = cells.guard("Cycle(200 * MIB)\nCycle(200 * MIB)", without=("retry",), retries=0)
    assert isinstance(error, torch.OutOfMemoryError)
    assert not cells.report.calls


def test_what_the_user_named_is_the_ladders(cells, card, watched):
    """--shrink is given: the value is lowered, and the statement runs again."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]; n = 32")  # 224 of 256 MiB
    code = "one = torch.ones(4096); new = torch.ones(n * MIB)[:5].clone(); u = [t[0] for t in ts]"
    assert cells.guard(code.replace("; ", "\n"), shrink=("n", 1)) is None
    assert cells.names["n"] < 32
    assert cells.rung("shrink").state == "ran"


@pytest.fixture
def interrupted(cells, card, watched, loaded):
    """A shell whose cell was interrupted while what it made fills the card: what was parked for it stays parked."""
    loaded.user_ns.update(torch=torch, MIB=MIB, gc=gc, session=cells.allocator.session)
    loaded.run_cell("%%cuda_guard\nts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    code = (
        "with session.watched():\n"
        "    session.store.park([t.untyped_storage() for t in ts[:4]])\n"
        "    new = torch.ones(32 * MIB)\n"
        "    raise KeyboardInterrupt"
    )
    assert isinstance(loaded.run_cell(code).error_in_exec, KeyboardInterrupt)
    loaded.user_ns.pop("session")
    assert cells.allocator.parked() > 0
    assert cells.allocator.session.on
    loaded.run_cell("1")
    assert cells.allocator.parked() > 0  # still no room
    return loaded


BACK = {
    "the next guarded cell": "%%cuda_guard\nnew = None",
    "free": "new = None\nfreed = get_ipython().run_line_magic('gpu_mem', '--free')",
    "unloading": "new = None\n%unload_ext cuda_magic\n%load_ext cuda_magic",
}


@pytest.mark.parametrize("how", BACK)
def test_what_an_interrupt_leaves_parked_comes_back_where_there_is_room(cells, card, interrupted, how):
    """All of it, with its data, by whatever is asked next; then the mode is off."""
    assert interrupted.run_cell(BACK[how]).success
    assert cells.allocator.parked() == 0
    assert not cells.allocator.session.on
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 1  # the card's own
    assert [float(t[5]) for t in interrupted.user_ns["ts"]] == [float(i) for i in range(7)]
    if how == "free":
        assert any("came back to the card" in step.detail for step in interrupted.user_ns["freed"].steps)


def test_free_gives_the_hosts_memory_back_and_it_is_capped(cells, card, watched, loaded):
    """What parking has taken of the host stays for the next time, within its limit, until %gpu_mem --free."""
    arena = cells.allocator.session.store._place()
    arena._limit = 256 * MIB
    loaded.user_ns.update(torch=torch, MIB=MIB)
    loaded.run_cell("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    with cells.allocator.session.watched():
        cells.allocator.session.store.park([t.untyped_storage() for t in loaded.user_ns["ts"][:4]])
    assert cells.allocator.parked() == 0
    assert 0 < arena.held <= 256 * MIB
    held = arena.held
    loaded.run_cell("freed = get_ipython().run_line_magic('gpu_mem', '--free')")
    told = {step.cause: step.detail for step in loaded.user_ns["freed"].steps}
    assert told["host memory kept for parking"] == f"{held / MIB:.2f} MiB back to the host"
    assert arena.held == 0


@pytest.mark.parametrize(
    "code",
    [
        "y = torch.empty(300 * MIB) + 1",
        "y = torch.nn.Linear(4096, 4096)(torch.ones(4, 4096)) @ torch.empty(4096, 300 << 10)",
        "y = torch.ones(8 * MIB, requires_grad=True)\nfor _ in range(20): y = (y * 2).exp()",
        "torch.ones(3) @ torch.ones(4)",
    ],
)
def test_nothing_of_ours_stands_in_the_traceback(cells, card, watched, code):
    """An op that fails while it is watched, with its own error too: each frame of ours is hidden."""
    error = cells.guard(code, retries=0)
    assert error is not None
    found, ours = error.__traceback__, []
    while found is not None:
        frame = found.tb_frame
        if "/cuda_magic/" in frame.f_code.co_filename and "__tracebackhide__" not in frame.f_code.co_varnames:
            ours.append(f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}")
        found = found.tb_next
    assert ours == []
