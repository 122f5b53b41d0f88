"""What is set on torch for the kernel's life is torch's own again afterwards; limits are taken over and given back."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

from cuda_magic.allocation import slots  # noqa: E402
from cuda_magic.memory.torch.room.install import Installed  # noqa: E402

pytestmark = pytest.mark.torch
GIB = 1 << 30


class FakeShim:
    free, malloc, release, create = 1001, 1002, 1003, 1004

    def __init__(self):
        self.limits, self.kept, self.handler, self.on = {}, [], "somebody", None

    def set_limit(self, device, nbytes):
        self.limits[device] = nbytes

    def set_handler(self, handler):
        self.handler = handler

    def set_chunks(self, on):
        self.on = on

    def chunks(self):
        return self.kept


@pytest.fixture
def here(monkeypatch):
    """A torch with one card of 80 GiB, of which nobody asks CUDA; `torchs` is the fraction that torch itself checks."""
    made = types.SimpleNamespace(torchs={}, reserved=0)

    def setter(fraction, device=None):
        """Set memory fraction for a process."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        made.torchs[0 if device is None else device] = fraction

    def getter(device=None):
        return made.torchs.get(0 if device is None else device, 1.0)

    for module in (torch.cuda, torch.cuda.memory):
        monkeypatch.setattr(module, "set_per_process_memory_fraction", setter)
        monkeypatch.setattr(module, "get_per_process_memory_fraction", getter)
    monkeypatch.setattr(torch.cuda.memory, "_get_device_index", lambda device, optional=False: device or 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: made.reserved)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(total_memory=80 * GIB)
    )
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: True, raising=False)
    made.setter, made.getter = setter, getter
    made.shim = FakeShim()
    made.installed = Installed(torch, made.shim)
    made.installed._wrap()
    yield made
    made.installed.remove()


def test_nothing_of_ours_is_left(here):
    """The functions of the limit in both modules, and the storages' sharing."""
    assert "_share_cuda_" in vars(torch.UntypedStorage)
    assert torch.cuda.set_per_process_memory_fraction is torch.cuda.memory.set_per_process_memory_fraction
    assert torch.cuda.set_per_process_memory_fraction is not here.setter
    assert torch.cuda.set_per_process_memory_fraction.__doc__ == here.setter.__doc__
    for _ in range(2):
        here.installed.remove()
    for module in (torch.cuda, torch.cuda.memory):
        assert module.set_per_process_memory_fraction is here.setter
        assert module.get_per_process_memory_fraction is here.getter
    assert "_share_cuda_" not in vars(torch.UntypedStorage)
    assert here.shim.handler is None
    assert here.shim.on is False


def test_a_limit_of_the_users_is_the_shims_while_a_cell_is_guarded(here):
    """torch would refuse before the driver is asked; what it tells stays the user's."""
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert here.torchs == {0: 0.25}
    here.installed.take_over_limits()
    assert here.torchs == {0: 1.0}
    assert here.shim.limits[0] == 20 * GIB
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    here.installed.give_back_limits()
    assert here.torchs == {0: 0.25}
    assert torch.cuda.get_per_process_memory_fraction() == 0.25


def test_a_limit_that_the_cell_itself_sets(here):
    """It holds in the cell and behind it; what is illegal is told in torch's words."""
    here.installed.take_over_limits()
    torch.cuda.set_per_process_memory_fraction(0.5, 0)
    assert (here.torchs[0], here.shim.limits[0]) == (1.0, 40 * GIB)
    with pytest.raises(ValueError, match="Invalid fraction value: 2"):
        torch.cuda.set_per_process_memory_fraction(2)
    assert here.shim.limits[0] == 40 * GIB
    here.installed.give_back_limits()
    assert here.torchs == {0: 0.5}


def test_the_smallest_limit_holds(here):
    """The user's fraction, what the cell asked for, and the kernel's."""
    torch.cuda.set_per_process_memory_fraction(0.5)
    here.installed.take_over_limits()
    here.installed.asked[0] = 30 * GIB
    here.installed.limit(0)
    assert here.shim.limits[0] == 30 * GIB
    here.installed.kernel = 10 * GIB
    here.installed.limit(0)
    assert here.shim.limits[0] == 10 * GIB
    here.installed.give_back_limits()
    assert here.shim.limits[0] == 10 * GIB  # what the cell asked for is over
    here.installed.kernel = None
    here.installed.limit(0)
    assert here.shim.limits[0] == 40 * GIB


def test_more_in_use_than_the_limit(here):
    """torch would refuse everything: the limit stays the shim's until there is less, and is told as the user's."""
    torch.cuda.set_per_process_memory_fraction(0.25)
    here.installed.take_over_limits()
    here.reserved = 30 * GIB
    here.installed.give_back_limits()
    assert here.torchs == {0: 1.0}
    assert here.shim.limits[0] == 20 * GIB
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    here.installed.take_over_limits()
    assert here.shim.limits[0] == 20 * GIB
    here.reserved = 10 * GIB
    here.installed.give_back_limits()
    assert here.torchs == {0: 0.25}


def test_unloading_loses_no_limit(here):
    """Whatever is in use: torch checks the user's limit again."""
    torch.cuda.set_per_process_memory_fraction(0.25)
    here.installed.take_over_limits()
    here.reserved = 30 * GIB
    here.installed.give_back_limits()
    here.installed.remove()
    assert here.torchs == {0: 0.25}


@pytest.mark.parametrize("kept", [False, True], ids=["", "with chunks"])
def test_the_slots_are_put_back(here, monkeypatch, kept):
    """But memory that is made of chunks is freed in no other way: that slot stays the shim's."""
    table = {1: FakeShim.free, 2: FakeShim.malloc, 3: FakeShim.release, 4: FakeShim.create}
    monkeypatch.setattr(slots, "read", table.get)
    monkeypatch.setattr(slots, "write", table.__setitem__)
    here.installed._before = [(1, 11), (2, 12)]
    here.installed._table = [(3, 13), (4, 14)]
    here.shim.kept = ["a chunk"] if kept else []
    here.installed.remove()
    assert table == {1: FakeShim.free if kept else 11, 2: 12, 3: FakeShim.release if kept else 13, 4: 14}
