"""The practice card for torch's tensors: what finds no room when a cell has ended is said, and comes back."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from cuda_magic.rescue.guard import GuardRun  # noqa: E402
from cuda_magic.testing.torch_card import torch_card  # noqa: E402

CELL = "%%cuda_guard --repeat --only page\nkept = [torch.full((1 << 18,), float(i)) for i in range(8)]"


@pytest.fixture
def card(loaded, monkeypatch):
    """A practice card of 4 MiB, in the notebook too."""
    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    made = torch_card(practice="4 MiB")
    loaded.user_ns["torch"] = torch
    yield made
    loaded.user_ns.pop("kept", None)
    gc.collect()
    made.machine.allocator().settle(ended=True)
    made.close()


def test_who_names_what_holds_the_card(loaded, card):
    """%gpu_mem --who: variables with their paths, views counted once."""
    loaded.run_cell("x = torch.ones(1 << 18)\ny = {'view': x[5:], 'own': torch.zeros(1 << 17)}")
    rows = [row for row in loaded.run_line_magic("gpu_mem", "--who").rows() if row["what"] != "process"]
    assert [(row["name"], row["bytes"], row["device"]) for row in rows] == [("x", 1 << 20, 0), ("y", 1 << 19, 0)]
    loaded.run_cell("%%cuda_guard --only holders,collect,caches --report report\nz = torch.zeros(3 << 18)")
    assert [(h.name, h.nbytes) for h in loaded.user_ns["report"].holders[:2]] == [("x", 1 << 20), ("y", 1 << 19)]


def _watched(patch):
    """Each op is watched from the first attempt on, as else on a repeat."""
    during = GuardRun.during

    def from_the_start(self, step):
        self.trial.attempts += 1
        try:
            return during(self, step)
        finally:
            self.trial.attempts -= 1

    patch.setattr(GuardRun, "during", from_the_start)


def test_a_convolution_that_went_on_with_less_workspace_is_noted(loaded, card):
    """As cuDNN does it: an error inside the op that the op itself deals with. Said; not taken for the cell's own."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class LessWorkspace(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default):
                card._count.errors += 1
            return func(*args, **(kwargs or {}))

    loaded.run_cell("conv = torch.nn.Conv2d(2, 2, 3)\nx = torch.ones(1, 2, 8, 8)")
    with LessWorkspace():
        with pytest.MonkeyPatch.context() as patch:
            _watched(patch)
            loaded.run_cell("%%cuda_guard --report report\nfor _ in range(2): conv(x).sum().backward()")
        watched = loaded.user_ns["report"]
        loaded.run_cell("%%cuda_guard --report report\nconv(x)")
        unwatched = loaded.user_ns["report"]
        object.__setattr__(card.machine, "label", "")  # as on a real card, where there is a cuDNN
        loaded.run_cell("%%cuda_guard --report report\nconv(x)")
        object.__setattr__(card.machine, "label", "PRACTICE")
        real = loaded.user_ns["report"]
    assert (watched.status, watched.handled) == ("ok", 0)
    assert [note.partition(" and ")[0] for note in watched.notes] == [
        "aten.convolution: cuDNN found no room for the workspace that it wanted (2 times)",
        "aten.convolution_backward: cuDNN found no room for the workspace that it wanted (2 times)",
    ]
    assert (unwatched.handled, unwatched.notes) == (1, ())  # unwatched nobody can tell whose it was
    assert real.handled == 1
    assert [note.partition(",")[0] for note in real.notes] == ["cuDNN goes on from out of memory too"]
    loaded.run_cell("%%cuda_guard --report report\nconv(x)")
    assert loaded.user_ns["report"].notes == ()


def test_the_kernel_is_the_process_on_the_card(loaded, card):
    """%gpu_mem --who has it with the card's bytes, and nothing is held by nobody."""
    loaded.run_cell("x = torch.ones(1 << 18)")
    rows = [row for row in loaded.run_line_magic("gpu_mem", "--who").rows() if row["what"] == "process"]
    assert [(row["this"], row["bytes"]) for row in rows] == [(True, 1 << 20)]
    assert "held by nobody" not in repr(loaded.run_line_magic("gpu_mem", "--who"))
