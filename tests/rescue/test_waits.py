"""A failing cell walks the heap a few times, however many tensors there are; what has no memory yet is passed by."""

from __future__ import annotations

import gc
import time

import pytest

from cuda_magic.machine import machine
from cuda_magic.memory.variables import Root, Search, user_variables
from cuda_magic.memory.who import who
from cuda_magic.rescue.owners import MOST, Cycles, holders

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

MIB = 1 << 20


@pytest.fixture
def card(cells, monkeypatch):
    """A practice card of 64 MiB for torch's own tensors."""
    from cuda_magic.testing.torch_card import torch_card

    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    gc.collect()
    made = torch_card(practice="64 MiB")
    cells.names["torch"] = torch
    yield cells
    made.close()


class Walks:
    """Counts walks of the heap: at most one `get_referrers` of `most` objects is asked at once."""

    def __init__(self, monkeypatch) -> None:
        self.counts, self.most = dict.fromkeys(("get_objects", "get_referrers", "collect"), 0), 0
        for name in self.counts:
            monkeypatch.setattr(gc, name, self.watched(name, getattr(gc, name)))

    def watched(self, name, call):
        def count(*args, **kwargs):
            self.counts[name] += 1
            if name == "get_referrers":
                self.most = max(self.most, len(args))
            return call(*args, **kwargs)

        return count


FAIL = "y = torch.empty(12 << 20)"
CHEAP = ("holders", "collect", "caches")


def walks(cells, monkeypatch, tensors: int, setup: str) -> Walks:
    cells.plain(setup.format(tensors))
    with monkeypatch.context() as patch:
        found = Walks(patch)
        assert cells.guard(FAIL, only=CHEAP) is not None
    for name in ("held", "big"):
        cells.names.pop(name, None)
    gc.collect()
    return found


@pytest.mark.parametrize(
    "setup",
    [
        "held = [torch.empty(1024) for _ in range({0})]; big = torch.empty(8 << 20)",
        "kept = [[torch.empty(1024)] for _ in range({0})]; kept.append(kept); big = torch.empty(8 << 20); del kept",
    ],
    ids=["in a variable", "in a cycle"],
)
def test_walks_of_the_heap_do_not_grow_with_the_tensors(card, monkeypatch, setup):
    """Ten tensors and a thousand: as many walks, none asked of more than a few objects."""
    few, many = (walks(card, monkeypatch, count, setup) for count in (10, 1000))
    assert many.counts["collect"] == few.counts["collect"] <= 2
    for found in (few, many):
        assert found.counts["get_objects"] <= 9, found.counts  # one of each generation is one walk
        assert found.counts["get_referrers"] <= 5, found.counts
        assert found.most <= MOST


def test_what_no_variable_reaches_is_named_in_a_few_walks(card, monkeypatch):
    """A thousand tensors, each in a list of its own, in a cycle of one object: its type, though none is asked for."""
    card.plain(
        "class Owner: pass\n"
        "one = Owner(); one.me = one; one.parts = [[torch.empty(1024)] for _ in range(1000)]; del one"
    )
    gc.disable()
    try:
        with monkeypatch.context() as patch:
            found = Walks(patch)
            rows = holders(machine().allocator(), card.names, user_variables(card.names, None), 0)
        assert (found.counts["get_objects"] <= 4, found.most <= MOST) == (True, True)  # three generations are one walk
        assert found.counts["get_referrers"] <= 3
        assert sum(row.nbytes for row in rows) == 1000 * 4096
        assert rows[0].name in ("Owner", "1000 tensors in a list"), rows
        cycles = Cycles(machine().allocator(), 0)
        gc.collect()
        assert sum(cycles.freed().values()) == 1000 * 4096
    finally:
        gc.enable()


def test_no_weak_reference_stays_on_what_a_collection_left(card):
    """torch.utils.swap_tensors refuses tensors that have one."""
    one, other = torch.empty(1024), torch.empty(1024)
    cycles = Cycles(machine().allocator(), 0)
    gc.collect()
    assert cycles.freed() == {}
    torch.utils.swap_tensors(one, other)


def test_a_data_set_of_millions_does_not_hide_the_model_behind_it(card):
    """It stands first among the variables and leads to more than can be looked at; the search ends in time."""
    names = {"data": [{"a": [n], "b": (n, [n])} for n in range(200_000)], "model": torch.nn.Linear(1024, 64)}
    gc.collect()
    search = Search(machine().allocator(), names, 0)
    started = time.process_time()
    rows = search.held([Root("variable", name, value) for name, value in names.items()])
    assert time.process_time() - started < 1
    assert search.cut
    assert [row.name for row in rows] == ["model"]


def test_the_search_ends_where_everything_is_found(card):
    """With the bytes that there are in all, nothing is looked for behind the last of them."""
    names = {"model": torch.nn.Linear(1024, 64, bias=False), "data": [[n] for n in range(100_000)]}
    search = Search(machine().allocator(), names, 0, enough=256 << 10)
    rows = search.held([Root("variable", name, value) for name, value in names.items()])
    assert ([row.nbytes for row in rows], search.cut) == ([256 << 10], False)
    assert len(search._seen) < 100_000


def test_a_lazy_module_that_has_not_run_is_passed_by(card):
    """Its parameters have no storage: neither the report nor %gpu_mem --who fails, and what lies beside is found."""
    card.plain("lazy = torch.nn.LazyLinear(8); lazies = [torch.nn.LazyConv2d(4, 3)]; big = torch.empty(8 << 20)")
    assert card.guard(FAIL, only=CHEAP) is not None
    assert [(h.name, h.nbytes) for h in card.report.holders if h.kind == "variable"] == [("big", 32 * MIB)]
    assert [held.name for held in who(card.names).held] == ["big"]
    assert "big" in repr(card.report)


def test_a_subclass_is_asked_nothing_that_runs_its_code(card):
    """``__torch_function__`` of a class of the notebook's stays unasked."""
    card.plain(
        "ran = []\n"
        "class Loud(torch.Tensor):\n"
        "    @classmethod\n"
        "    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
        "        ran.append(func); return super().__torch_function__(func, types, args, kwargs or {})\n"
        "loud = torch.empty(8 << 20).as_subclass(Loud)\n"
        "ran.clear()"
    )
    rows = holders(machine().allocator(), card.names, user_variables(card.names, None), 0)
    assert [(h.name, h.nbytes) for h in rows] == [("loud", 32 * MIB)]
    Cycles(machine().allocator(), 0).freed()
    assert card.names["ran"] == []
