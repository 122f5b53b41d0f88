"""What a failed attempt changed in place is named; what it only read is not."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def watch(torch, names):
    from cuda_magic.memory.torch import changes

    return changes.watch(torch, names)


def changed(mark):
    from cuda_magic.memory.torch import changes

    return " | ".join(changes.changed(mark))


def test_reading_changes_nothing(torch):
    """A forward pass in evaluation mode leaves no trace."""
    model = torch.nn.Linear(3, 3)
    x = torch.ones(2, 3)
    mark = watch(torch, {"model": model, "x": x})
    (model(x) + 1).sum()
    assert changed(mark) == ""


def test_an_optimizer_step_is_named(torch):
    """Parameters and the optimizer's state are followed."""
    model = torch.nn.Linear(3, 3)
    opt = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    opt.step()
    mark = watch(torch, {"model": model, "opt": opt})
    opt.step()
    text = changed(mark)
    assert "parameters were updated: model.weight" in text
    assert "an optimizer stepped" in text


def test_a_backward_that_accumulated_is_named(torch):
    """Gradients that grow count; those that were not there before go away again."""
    from cuda_magic.memory.torch import changes

    model = torch.nn.Linear(3, 3)
    mark = watch(torch, {"model": model})
    model(torch.ones(2, 3)).sum().backward()
    assert changed(mark) == ""
    changes.undo(mark)
    assert model.weight.grad is None and model.bias.grad is None
    model(torch.ones(2, 3)).sum().backward()
    mark = watch(torch, {"model": model})
    model(torch.ones(2, 3)).sum().backward()
    assert "gradients were accumulated" in changed(mark)
    kept = model.weight.grad
    changes.undo(mark)
    assert model.weight.grad is kept


def test_buffers_and_tensors_in_containers_are_named(torch):
    """BatchNorm's running numbers, and a tensor in a list in a dict."""
    norm = torch.nn.BatchNorm1d(3)
    kept = {"a": [torch.zeros(2)]}
    mark = watch(torch, {"norm": norm, "kept": kept})
    norm(torch.randn(4, 3))
    kept["a"][0].add_(1)
    text = changed(mark)
    assert "buffers were updated: norm.num_batches_tracked" in text  # running_mean changes without a new _version
    assert "changed in place: kept['a'][0]" in text


def test_a_mark_holds_no_tensor_alive(torch):
    """A tensor that the statement drops is freed although it was watched."""
    import weakref

    x = torch.zeros(3)
    gone = weakref.ref(x)
    mark = watch(torch, {"x": x})
    del x
    assert gone() is None
    assert changed(mark) == ""


def test_the_cpu_random_state_comes_back(torch):
    """The same numbers are drawn again."""
    from cuda_magic.memory.torch import randomness

    state = randomness.take(torch)
    first = torch.rand(4)
    randomness.put_back(torch, state)
    assert torch.equal(first, torch.rand(4))


def test_without_cuda_every_reading_is_empty_and_nothing_starts(torch):
    """On a CPU build the protocol answers with nothing, and CUDA is not started."""
    from cuda_magic.memory.torch import allocator

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is already up in this process")
    real = allocator()
    assert real is not None
    assert not real.started()
    assert real.devices() == ()
    assert real.segments(0) == ()
    assert real.storages(0) == []
    assert real.stats(0).reserved == 0
    assert real.driver_memory(0) is None
    assert real.healthy(0)
    real.empty_cache()
    assert real.clear_workspaces() == []
    assert not torch.cuda.is_initialized()


def test_no_torch_no_allocator(monkeypatch):
    """Where torch is not imported there is no allocator, and asking does not import it."""
    from cuda_magic.memory.torch import allocator

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert allocator() is None
    assert "torch" not in sys.modules


def test_options_of_a_configuration_are_split_outside_brackets():
    """A list in brackets stays one option."""
    from cuda_magic.memory.torch.settings import _options

    assert _options("a:1,roundup_power2_divisions:[256:1,512:2],b:2,") == [
        "a:1",
        "roundup_power2_divisions:[256:1,512:2]",
        "b:2",
    ]
