"""Spill: what a statement cannot reach waits elsewhere while it runs. On a card made of the CPU, with real torch."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "memory"))

from offload_doubles import Card, CardMode  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode  # noqa: E402

from cuda_magic.errors import Refused  # noqa: E402
from cuda_magic.machine import use  # noqa: E402
from cuda_magic.memory.allocator import Stats  # noqa: E402
from cuda_magic.memory.torch import safety, scan  # noqa: E402
from cuda_magic.memory.torch.caching import TorchAllocator  # noqa: E402
from cuda_magic.memory.torch.offload import session as sessions  # noqa: E402
from cuda_magic.memory.torch.offload import unreferenced as unused_module  # noqa: E402
from cuda_magic.rescue.rungs.spill import choose  # noqa: E402

MIB = 1 << 20


class CpuCard(TorchAllocator):
    """torch's allocator, its card a cap on CPU storages."""

    label = ""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.card, self.refusal, self.places = card, "", {}

    def started(self):
        return True

    def devices(self):
        return (0,)

    def stats(self, device):
        used = self.card.used()
        return Stats(used, used)

    def ooms(self, device):
        return self.card.errors

    def absorbed(self):
        return 0

    def segments(self, device):
        return ()

    def driver_memory(self, device):
        return self.card.cap - self.card.used(), self.card.cap

    def memory_limit(self, device):
        return None

    def empty_cache(self):
        pass

    def clear_workspaces(self):
        return []

    def owners(self, found=None):
        return iter(())

    def moving_refused(self, device, *, doing="move"):
        return self.refusal if doing == "park" else ""

    def unused(self, device, idle):
        return unused_module.unused(self.torch, None, idle)

    def random_state(self):
        return self.torch.get_rng_state()

    def set_random_state(self, state):
        self.torch.set_rng_state(state)


class Machine:
    label = ""

    def __init__(self, allocator):
        self._allocator = allocator

    def allocator(self):
        return self._allocator

    def devices(self):
        raise OSError("no NVML here")


def usable(torch, found):
    """What the scan takes for CUDA tensors: all of them."""
    for tensor in found:
        yield tensor
        if tensor.is_leaf and tensor.grad is not None:
            yield tensor.grad


@pytest.fixture
def card(cells, monkeypatch):
    """A card of 100 MiB: `cells` run on it. ``E(n)`` is a tensor of n MiB, filled with its own serial number."""
    gc.collect()  # what an earlier test left in cycles is not of this card
    gc.freeze()  # the search takes a quarter of a second else
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    made = Card(100 * MIB, least=MIB)
    monkeypatch.setattr(scan, "_usable", usable)
    monkeypatch.setattr(torch._C, "_has_Standard_Deleter", lambda cdata: True, raising=False)
    here = made.session()
    sessions._sessions[:] = [here]
    allocator = CpuCard(made)
    allocator.here = here
    use(Machine(allocator))
    made.allocator, made.cells, made.here = allocator, cells, here
    cells.repeat = True
    count = iter(range(1, 100))
    cells.names.update(torch=torch, E=lambda n: torch.full((int(n) * MIB // 4,), float(next(count))), gc=gc)
    with CardMode(made):
        yield made
        made.cap *= 10
        here.settle(ended=True)  # its mode is above the card's while anything waits
    assert _get_current_dispatch_mode() is None
    assert made.broken == "", "an op met an emptied storage"
    cells.names.clear()
    sessions._sessions.clear()
    gc.unfreeze()


def whole(tensor, value):
    return bool((tensor == value).all())


def test_a_tensor_that_the_statement_does_not_name_waits_and_comes_back(card):
    """60 of 100 MiB idle, 50 asked: rescued, the data intact, nothing parked afterwards."""
    cells = card.cells
    cells.plain("big = E(60)")
    assert cells.guard("x = E(50).numel()") is None
    assert cells.report.status == "rescued"
    spill = cells.rung("spill")
    assert (spill.state, spill.moved_bytes, spill.reason) == ("on", 60 * MIB, "60.00 MiB wait on the host (big)")
    assert card.allocator.parked() == 0
    assert not card.here.on
    assert whole(cells.names["big"], 1)


def test_no_more_than_needed_leaves_and_the_smallest_that_is_enough(card):
    """Of 30, 20 and 10 MiB the one of 20 leaves for 15 missing."""
    cells = card.cells
    cells.plain("a, b, c = E(30), E(20), E(10)")
    assert cells.guard("x = E(55).numel()") is None
    assert cells.rung("spill").reason == "20.00 MiB wait on the host (b)"
    assert [whole(cells.names[n], i) for n, i in (("a", 1), ("b", 2), ("c", 3))] == [True] * 3


def test_what_the_statement_reads_never_leaves(card):
    """A function, a closure and a container use it: nothing is idle, and that is the reason."""
    cells = card.cells
    cells.plain("big = E(60)\ndef f(): return big[0] + E(50)[0]")
    assert cells.guard("f()") is not None
    assert cells.rung("spill").reason == "no tensor is idle that may be parked"


def test_a_doubt_is_the_reason(card):
    """eval() may name any variable."""
    cells = card.cells
    cells.plain("big = E(60)")
    assert cells.guard("eval('E(50)')") is not None
    assert cells.rung("spill").reason == "everything may be in use: eval() may name any variable"


def test_too_little_is_idle(card):
    """Said with both sizes; nothing moves."""
    cells = card.cells
    cells.plain("big, small = E(60), E(5)")
    assert cells.guard("y = big[0] + E(50)[0]") is not None
    assert cells.rung("spill").reason == "5.00 MiB is idle; 15.00 MiB is missing"


def test_an_idle_model_with_gradients_and_optimizer(card):
    """Everything of it leaves and comes back; a training step afterwards is bitwise that of a run without."""

    def run(guarded):
        torch.manual_seed(0)
        cells = card.cells
        cells.plain(
            "model = torch.nn.Linear(1200, 1200)\nopt = torch.optim.AdamW(model.parameters())\n"
            "def step():\n  opt.zero_grad(); model(torch.ones(2, 1200)).square().mean().backward(); opt.step()\n"
            "step()"
        )
        if guarded:
            assert cells.guard("x = E(90).numel()") is None
            assert cells.report.status == "rescued"
            assert cells.rung("spill").reason.endswith("(model, opt)")
        cells.plain("step()")
        return [p.detach().clone() for p in cells.names["model"].parameters()]

    plain = run(False)
    for name in ("model", "opt", "step"):
        del card.cells.names[name]
    gc.collect()
    assert all(torch.equal(a, b) for a, b in zip(plain, run(True), strict=True))


def test_two_models_in_one_notebook(card):
    """Another model trains in the room of 1.06 of it: each failure tells one request, three repeats are enough."""
    cells, whole_card = card.cells, card.cap
    card.cap = 1 << 40
    cells.plain(
        "def make():\n    torch.manual_seed(0)\n"
        "    m = torch.nn.Sequential(*[torch.nn.Linear(600, 600) for _ in range(6)])\n"
        "    return m, torch.optim.AdamW(m.parameters(), foreach=True)\n"
        "def step(m, o, x):\n"
        "    o.zero_grad(set_to_none=True); m(x).square().mean().backward(); o.step()\n"
        "def end(*models): return [p.detach().numpy().copy() for m in models for p in m.parameters()]\n"
        "x = torch.ones(64, 600)\na, oa = make(); step(a, oa, x); b, ob = make(); step(b, ob, x); step(a, oa, x)\n"
        "want = end(a, b); del a, oa, b, ob; gc.collect()\na, oa = make(); step(a, oa, x); gc.collect()"
    )
    card.cap = int(2.06 * card.used())
    both = "for _ in range(1):\n    b, ob = make(); step(b, ob, x)"  # a repeat makes the model anew
    assert cells.guard(both, only=("holders", "collect", "caches", "spill")) is None
    assert cells.report.status == "rescued"
    assert cells.report.attempts <= 4
    card.cap = 1 << 40
    cells.plain("step(a, oa, x); got = end(a, b)")
    assert all((one == two).all() for one, two in zip(cells.names["got"], cells.names["want"], strict=True))
    card.cap = whole_card


def test_an_idle_tensor_that_is_touched_after_all_comes_back_first(card, monkeypatch):
    """The analysis is wrong (it is made so): the op that names it brings it back, and its numbers are right."""
    cells = card.cells
    cells.plain("big, other = E(30), E(40)")
    monkeypatch.setattr("cuda_magic.rescue.idle.Reach.idle", lambda self, value: True)
    cells.plain("hidden = [big]")
    assert cells.guard("total = E(40).numel() + float(hidden[0].sum())") is None
    assert cells.names["total"] == 40 * MIB // 4 + 30 * MIB // 4


def test_where_the_card_is_too_full_they_stay_safe_and_come_back_at_the_next_chance(card):
    """The statement keeps what it made: said; a touch and the next cell bring them back."""
    cells = card.cells
    cells.plain("a, b = E(30), E(30)")
    assert cells.guard("x = E(60)") is None
    assert card.allocator.parked() == 30 * MIB
    assert card.here.on
    assert cells.report.notes[-1].startswith("30.00 MiB of this kernel's tensors wait on the host")
    assert cells.report.handled == 0  # the user's own code has handled none
    with pytest.raises(torch.OutOfMemoryError):  # no room, said by torch's own error: the data is still there
        cells.plain("a.sum(), b.sum()")
    cells.plain("del x")
    cells.plain("total = float(a.sum()), float(b.sum())")  # not guarded: the mode is on
    assert cells.names["total"] == (30 * MIB // 4, 2 * 30 * MIB // 4)
    assert cells.guard("y = 1") is None
    assert card.allocator.parked() == 0
    assert not card.here.on


def test_unloading_brings_back_or_says_so(card, capsys):
    """With room: back and the mode off. Without: one line, and still safe."""
    from cuda_magic.rescue import waiting

    cells = card.cells
    cells.plain("a, b = E(30), E(30)")
    assert cells.guard("x = E(60)") is None
    waiting.bring_back()
    assert "30.00 MiB of tensors still wait elsewhere" in capsys.readouterr().err
    cells.plain("del x")
    waiting.bring_back()
    assert capsys.readouterr().err == ""
    assert card.allocator.parked() == 0


def test_free_brings_back_what_waits(card):
    """%gpu_mem --free has a row for it."""
    from cuda_magic.memory.free import free

    cells = card.cells
    cells.plain("a, b = E(30), E(30)")
    assert cells.guard("x = E(60)") is None
    assert any("30.00 MiB still wait: no room" in step.detail for step in free().steps)
    cells.plain("del x")
    assert any(step.detail == "30.00 MiB came back to the card" for step in free().steps)
    assert not any("wait" in step.cause for step in free().steps)


def test_a_real_cell_and_the_old_value_of_a_name_that_it_binds(card, loaded):
    """In IPython: x = E(50) does not read x, so the old x leaves; it dies while parked and its copy is given back."""
    loaded.user_ns.update(E=card.cells.names["E"], torch=torch)
    loaded.run_cell("x = E(60)")
    done = loaded.run_cell("%%cuda_guard --repeat --report report\nx = E(50)")
    print(loaded.user_ns["report"])
    assert done.success
    report = loaded.user_ns["report"]
    assert report.status == "rescued"
    assert [r.reason for r in report.rungs if r.id == "spill"] == ["60.00 MiB wait on the host (x)"]
    assert whole(loaded.user_ns["x"], 3)
    assert card.allocator.parked() == 0


def test_a_cell_that_is_not_guarded_brings_back_what_an_earlier_one_left(card, loaded):
    """After each cell it is tried again, until it is done; then nothing of ours is registered any more."""
    loaded.user_ns.update(E=card.cells.names["E"], torch=torch)
    callbacks = loaded.events.callbacks["post_execute"]
    before = len(callbacks)
    loaded.run_cell("a, b = E(30), E(30)")
    assert loaded.run_cell("%%cuda_guard --repeat\nx = E(60)").success
    assert card.allocator.parked() == 30 * MIB
    loaded.run_cell("1")
    assert card.allocator.parked() == 30 * MIB
    assert len(callbacks) == before + 1
    loaded.run_cell("x = 1")
    assert card.allocator.parked() == 0
    assert len(callbacks) == before
    assert whole(loaded.user_ns["a"], 1) and whole(loaded.user_ns["b"], 2)


def test_a_repeat_that_fails_for_another_reason_leaves_everything_in_place(card):
    """The memory error is raised, what the repeat raised is said, and the tensors are back."""
    cells = card.cells
    cells.plain("big = E(60)")
    error = cells.guard("x = E(50).numel() / 0")
    assert isinstance(error, torch.OutOfMemoryError)
    assert "the repeat ended with ZeroDivisionError: division by zero" in cells.report.notes
    assert card.allocator.parked() == 0
    assert whole(cells.names["big"], 1)


def test_the_host_has_no_room(card):
    """Said with what the host can take; nothing moved."""
    cells = card.cells
    card.here.store._place = lambda: None
    cells.plain("big = E(60)")
    card.allocator.park_room = lambda device, place=None: 10 * MIB
    assert cells.guard("x = E(50)") is not None
    said = "60.00 MiB is idle, and the host can take 10.00 MiB; 10.00 MiB is missing"
    assert cells.rung("spill").reason == said
    assert card.allocator.parked() == 0


@pytest.mark.parametrize("fails", ["take", "copy"])
def test_a_host_that_fails_half_way(card, fails):
    """The second buffer, or the second copy, fails: what left comes back, the error is the statement's own."""
    cells = card.cells
    cells.plain("a, b, c = E(20), E(20), E(20)")
    calls = []
    arena = card.here.store._place()
    lane = card.here.store.lane(("cpu", None))

    def failing(real):
        def call(*arguments):
            calls.append(1)
            if len(calls) == 2:
                raise Refused("the host gave no memory") if fails == "take" else RuntimeError("the copy failed\nmore")
            return real(*arguments)

        return call

    if fails == "take":
        arena.take = failing(arena.take)
    else:
        lane.out = failing(lane.out)
    error = cells.guard("x = E(70)", without=("activations",))
    assert isinstance(error, torch.OutOfMemoryError)
    assert cells.rung("spill").state == "failed"
    assert "\n" not in cells.rung("spill").reason
    assert card.allocator.parked() == 0
    assert [whole(cells.names[n], i) for n, i in (("a", 1), ("b", 2), ("c", 3))] == [True] * 3


def test_a_copy_back_that_fails_leaves_it_parked_and_safe(card):
    """The second copy back fails once: said, still safe to touch; at the next chance it is back with all its bytes."""
    cells = card.cells
    cells.plain("a, b = E(30), E(30)")
    lane = card.here.store.lane(("cpu", None))
    real, calls = lane.back, []

    def back(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the copy failed")
        return real(*arguments)

    lane.back = back
    assert cells.guard("x = E(90).numel()", only=("spill",)) is None
    assert len(calls) >= 2
    cells.plain("total = float(a.sum()), float(b.sum())")
    assert cells.names["total"] == (30 * MIB // 4, 2 * 30 * MIB // 4)
    assert cells.guard("y = 1") is None
    assert card.allocator.parked() == 0
    assert not card.here.on


def test_a_guarded_function_of_a_script(card):
    """Globals that it does not read leave; what it reads, and its arguments, stay."""
    from cuda_magic import UserError, guard

    cells = card.cells
    cells.plain("big, own, given = E(30), E(10), E(10)\ndef f(t): return E(60).numel() + t[0] + own[0]")
    guarded = guard(repeat=True, quiet=True, without=("activations",))
    function = guarded(cells.names["f"])
    assert int(function(cells.names["given"])) > 0
    assert guarded.report.status == "rescued"
    spill = [r for r in guarded.report.rungs if r.id == "spill"]
    assert [r.reason for r in spill] == ["30.00 MiB wait on the host (big)"]
    assert card.allocator.parked() == 0
    with pytest.raises(UserError, match="park is gone: what has to wait waits on the host"):
        guard(park="cuda:1")
    with pytest.raises(UserError, match="'much' is not a size"):
        guard(limit="much")


def test_what_forbids_parking_is_the_reason(card):
    """Skipped with the reason; with --no-move it never asks."""
    cells = card.cells
    cells.plain("big = E(60)")
    card.allocator.refusal = "another thread (loader) may use CUDA meanwhile"
    assert cells.guard("x = E(50).numel()") is not None
    assert cells.rung("spill").reason == card.allocator.refusal
    assert cells.guard("x = E(50).numel()", no_move=True) is not None
    assert cells.rung("spill").reason == "--no-move was given"


@pytest.mark.parametrize("row", safety.PROCESS, ids=lambda row: row.id)
def test_each_row_about_the_process_forbids(card, monkeypatch, row):
    """Rows of the table that forbid parking, one by one: skipped with the reason."""
    cells = card.cells
    cells.plain("big = E(60)")
    quiet = tuple(replace(r, look=(lambda p: "it is so") if r is row else (lambda p: "")) for r in safety.PROCESS)
    monkeypatch.setattr(safety, "PROCESS", quiet)
    card.allocator.moving_refused = lambda device, **how: safety.refusals(torch, device, **how)
    assert safety.PARK in row.forbids
    assert cells.guard("x = E(50).numel()") is not None
    assert cells.rung("spill").reason == "it is so"
    assert whole(cells.names["big"], 1)


@pytest.mark.parametrize("row", safety.STORAGE, ids=lambda row: row.id)
def test_each_row_about_a_storage_forbids(card, monkeypatch, row):
    """The one storage stays and its bytes and reason are said."""
    cells = card.cells
    cells.plain("big = E(60)")
    quiet = tuple(replace(r, look=(lambda f: "it is so") if r is row else (lambda f: "")) for r in safety.STORAGE)
    monkeypatch.setattr(safety, "STORAGE", quiet)
    assert cells.guard("x = E(50).numel()") is not None
    assert cells.rung("spill").reason == "no tensor is idle that may be parked: 60.00 MiB is idle, but it is so"


def test_autograds_graph_holds_it(card):
    """What an unused graph saved is not moved: C++ may reach it."""
    cells = card.cells
    cells.plain("w = torch.ones(40 * 2**18, requires_grad=True)\nloss = w.sin().sum()")
    gc.collect()
    assert cells.guard("x = E(70).numel()") is not None
    assert "autograd's graph or a library holds it" in cells.rung("spill").reason


@given(st.lists(st.integers(1, 100), max_size=12), st.integers(1, 500))
def test_choose_takes_enough_and_nothing_that_could_stay(sizes, missing):
    """Enough where there is enough; without any one of them it would not be."""
    sizes = sorted(sizes, reverse=True)
    chosen = [sizes[i] for i in choose(sizes, missing)]
    assert sum(chosen) >= min(missing, sum(sizes))
    if sum(sizes) >= missing:
        assert sum(chosen) - min(chosen) < missing


def test_a_library_that_finds_no_room_for_its_handle(card):
    """cuBLAS does not say how much it needs: what is idle leaves, the statement passes, and all is back."""
    cells = card.cells
    cells.names.update(used=card.used, cap=card.cap)
    cells.plain(
        "a, b = E(60), E(20)\ndef handle():\n  if cap - used() < 30 * 2**20:\n"
        "    raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`')\n"
        "  return 7"
    )
    assert cells.guard("r = handle()") is None
    assert cells.report.status == "rescued"
    assert cells.rung("spill").moved_bytes == 80 * MIB
    assert cells.names["r"] == 7
    assert card.allocator.parked() == 0
    assert whole(cells.names["a"], 1)
    assert whole(cells.names["b"], 2)
