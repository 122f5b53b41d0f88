"""Guarded cells on a card made of the CPU: rescued at the very call, paged, and never repeated silently."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
sys.path.append(str(Path(__file__).parents[1] / "memory"))

from parking_doubles import Card, CardMode, storages  # noqa: E402

from cuda_magic.machine import RealMachine, use  # noqa: E402
from cuda_magic.memory.allocator import Stats, Storage  # noqa: E402
from cuda_magic.memory.torch.caching import TorchAllocator  # noqa: E402
from cuda_magic.memory.torch.parking.control import Control  # noqa: E402
from cuda_magic.rescue.guard import GuardRun  # noqa: E402

MIB = 1 << 20


class CardAllocator(TorchAllocator):
    """torch's allocator, whose one device is `card`."""

    def __init__(self, card):
        super().__init__()
        self.card, self.session = card, card.session()
        self.refused = ""

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
        found = Control(
            self.torch,
            lambda device: self.card.cap,
            candidates=lambda device: [
                s for w in self.card._live.values() if (s := torch.UntypedStorage._new_with_weak_ptr(w)) is not None
            ],
            used=self.session,
            figures=lambda device: self.card,
            kind="cpu",
        )
        found.page_refused = lambda device: self.refused
        return found


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
    error = cells.guard("got = train(lambda step: Cycle(20 * MIB))", without=("page",))
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
    assert cells.guard("work()", repeat=True, without=("page",)) is None
    assert len(cells.names["runs"]) == 2
    assert cells.report.attempts == 2
    assert sum(call.times for call in cells.report.calls) >= 1


def test_paged_at_the_call_what_is_live_leaves(cells, card, watched):
    """Nothing to collect: tensors leave for the host, the loop ends, all is back and the mode is off."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]; sums = []")  # 224 of 256 MiB
    code = "for i in range(3):\n    for t in ts:\n        sums.append(float((t * 2 + 1)[5])); t.add_(1)"
    assert cells.guard(code) is None
    assert cells.names["sums"] == [2.0 * (i + k) + 1 for k in range(3) for i in range(7)]
    assert card.broken == ""
    assert cells.report.status == "rescued"
    assert {how for call in cells.report.calls for how in call.how} == {"page"}
    assert cells.report.paged.left > 0
    assert not cells.allocator.session.on
    assert [float(t[0]) for t in cells.names["ts"]] == [float(i + 3) for i in range(7)]


def test_the_rung_page_lets_a_statement_run(cells, card):
    """One function needs more beside what lives: paged on the repeat, bitwise the same result."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    cells.plain("def f():\n    a = torch.arange(16.0 * MIB); b = a * 2\n    return float(b[7] + sum(t[0] for t in ts))")
    assert cells.guard("r = f()", repeat=True) is None
    assert cells.names["r"] == 14.0 + 21
    assert cells.rung("page").state == "on"
    assert cells.report.status == "rescued"
    assert not cells.allocator.session.on


@pytest.mark.parametrize("at_call", [True, False], ids=["at the call", "the rung"])
def test_what_is_paged_waits_on_the_card_that_is_named(cells, card, monkeypatch, request, at_call):
    """--park: the other card holds it and the host nothing, the report says so, and only for this cell."""
    from cuda_magic.memory.torch.parking import control
    from cuda_magic.memory.torch.parking.arena import Arena

    cells.repeat = True
    if at_call:
        request.getfixturevalue("watched")
    there, named = Arena(torch, pin=False, limit=1 << 30), []
    monkeypatch.setattr(control.neighbour, "place", lambda *named_as: named.append(named_as[1:]) or there)
    host = cells.allocator.session.store._place()
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    cells.plain("def f():\n    a = torch.arange(16.0 * MIB); b = a * 2\n    return float(b[7] + sum(t[0] for t in ts))")
    assert cells.guard("r = f()", park="cuda:1") is None
    assert (cells.names["r"], named) == (14.0 + 21, [("cuda:1", 0)])
    assert there.held > 0 == host.held
    assert cells.report.paged.place == "cuda:1"
    assert "to cuda:1" in str(cells.report)
    assert cells.guard("r = f()") is None
    assert host.held > 0
    assert cells.report.paged.place == "the host"


def test_a_card_that_is_not_there_pages_nothing(cells, card, watched):
    """At the call and by the rung: one sentence, and nothing goes to the host in its stead."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    cells.plain("def f():\n    a = torch.arange(16.0 * MIB); b = a * 2\n    return float(b[7] + sum(t[0] for t in ts))")
    cells.repeat = True
    assert cells.guard("r = f()", park="cuda:7") is not None
    assert any("nothing was paged at the call: --park: there is no cuda:7" in note for note in cells.report.notes)
    assert cells.guard("r = f()", only=("page",), park="cuda:7") is not None
    assert "--park: there is no cuda:7" in cells.rung("page").reason
    assert cells.allocator.session.store._place().held == 0
    assert not cells.allocator.session.on


def test_what_stays_parked_is_named_and_comes_back_later(cells, card, watched):
    """The cell's own result fills the card: a note and a line name what stays; a later cell has it back."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    assert cells.guard("new = torch.ones(24 * MIB)") is None
    assert cells.allocator.session.on
    assert any("tensors wait on the host" in note and "ts[" in note for note in cells.report.notes)
    assert any("tensors wait on the host" in line for line in cells.lines)
    cells.plain("got = [float(t[0] + 1) for t in ts]")  # a plain cell: safe to touch
    assert cells.names["got"] == [float(i + 1) for i in range(7)]
    assert card.broken == ""
    cells.plain("del new")
    assert cells.guard("pass") is None
    assert not cells.allocator.session.on
    assert all(s.nbytes() for s in storages(torch, cells.names["ts"]))


@pytest.mark.parametrize("options", [{"no_move": True}, {"without": ("page",)}, {"only": ("collect", "retry")}])
def test_nothing_is_paged_where_the_options_forbid_it(cells, card, watched, options):
    """--no-move, --without page and --only: the error is raised."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    error = cells.guard("new = torch.ones(24 * MIB)", **options)
    assert isinstance(error, torch.OutOfMemoryError)
    assert cells.allocator.session.store.nbytes == 0
    assert not cells.allocator.session.on


def test_a_refusal_is_told_and_the_users_error_is_the_one_that_shows(cells, card, watched):
    """Where a raw pointer may be remembered nothing leaves; the reason is in the report."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    cells.allocator.refused, cells.repeat = "cupy is loaded", True
    error = cells.guard("new = torch.ones(24 * MIB)")
    assert isinstance(error, torch.OutOfMemoryError)
    assert any("cupy is loaded" in note for note in cells.report.notes)
    assert cells.rung("page").reason == "cupy is loaded"
    assert not cells.allocator.session.on


def test_an_error_of_the_users_in_a_paged_cell_shows_and_all_comes_back(cells, card, watched):
    """ValueError at some step: raised as it is, nothing stays parked, the mode is off."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    code = "for t in ts:\n    y = t * 2\n    del y\n    if t[0] == 5: raise ValueError('mine')"
    error = cells.guard(code)
    assert str(error) == "mine"
    assert not cells.allocator.session.on
    assert cells.allocator.session.store.nbytes == 0


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
        error = cells.guard(f"r = {code}", repeat=True, without=("page",))
    assert error is None
    assert float(cells.names["r"]) == 2
    assert cells.report.attempts == 2
    assert cells.report.calls == ()
    assert cells.rung("collect").state == "ran"


def test_retry_can_be_left_out(cells, card, watched):
    """--without retry: no op is watched."""
    error = cells.guard("Cycle(200 * MIB)\nCycle(200 * MIB)", without=("retry", "page"), retries=0)
    assert isinstance(error, torch.OutOfMemoryError)
    assert not cells.report.calls


def test_what_the_user_named_comes_before_paging_at_the_call(cells, card, watched):
    """--shrink is given: the value is lowered by the ladder, and nothing was paged before."""
    cells.plain("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]; n = 32")  # 224 of 256 MiB
    code = "one = torch.ones(4096); new = torch.ones(n * MIB)[:5].clone(); u = [t[0] for t in ts]"
    assert cells.guard(code.replace("; ", "\n"), shrink=("n", 1)) is None
    assert cells.names["n"] < 32
    assert cells.report.paged is None
    assert cells.rung("shrink").state == "ran"


@pytest.fixture
def interrupted(cells, card, watched, loaded):
    """A shell whose guarded, paging cell was interrupted while what it made fills the card: much stays parked."""
    loaded.user_ns.update(torch=torch, MIB=MIB, gc=gc)
    loaded.run_cell("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    code = "%%cuda_guard\nnew = torch.ones(24 * MIB); ts[0].sum(); raise KeyboardInterrupt"
    assert isinstance(loaded.run_cell(code).error_in_exec, KeyboardInterrupt)
    assert cells.allocator.parked() > 0
    assert cells.allocator.session.on
    loaded.run_cell("1")
    assert cells.allocator.parked() > 0  # still no room
    return loaded


BACK = {
    "the next guarded cell": "%%cuda_guard\nnew = None",
    "the report": "new = None\n%cuda_guard",
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
    """What paging has taken of the host stays for the next time, within its limit, until %gpu_mem --free."""
    arena = cells.allocator.session.store._place()
    arena._limit = 256 * MIB
    loaded.user_ns.update(torch=torch, MIB=MIB)
    loaded.run_cell("ts = [torch.full((8 * MIB,), float(i)) for i in range(7)]")
    assert loaded.run_cell("%%cuda_guard\nfor t in ts: y = t * 2 + 1; del y").success
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
    error = cells.guard(code, without=("page",), retries=0)
    assert error is not None
    found, ours = error.__traceback__, []
    while found is not None:
        frame = found.tb_frame
        if "/cuda_magic/" in frame.f_code.co_filename and "__tracebackhide__" not in frame.f_code.co_varnames:
            ours.append(f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}")
        found = found.tb_next
    assert ours == []
