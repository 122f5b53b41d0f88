"""torch's optimizers fail at any of their operations: what is marked tells whether the step had begun."""

from __future__ import annotations

import copy
import sys

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from cuda_magic.memory.torch import changes, optimizers  # noqa: E402


class FailsAt:
    """The call of this number from torch.optim into torch's own code runs out of memory, before it does anything.

    No mode of dispatch: inside one, torch's operations on lists count no changes on the CPU.
    """

    def __init__(self, number):
        self.left = number

    def __enter__(self):
        sys.setprofile(self._seen)

    def __exit__(self, *error):
        sys.setprofile(None)

    def _seen(self, frame, event, function):
        if event == "c_call" and "optim" in frame.f_code.co_filename and self._of_torch(function):
            self.left -= 1
            if self.left == 0:
                raise torch.OutOfMemoryError("CUDA out of memory.")

    def _of_torch(self, function):
        owner = getattr(function, "__self__", None)
        return isinstance(owner, torch.Tensor) or function.__name__.startswith(("_foreach", "_fused", "zeros", "full"))


def _made():
    found = {}
    for name, key in (
        ("SGD", {"momentum": 0.9}),
        ("SGD", {}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {}),
        ("NAdam", {}),
    ):
        found[f"{name} {key or ''}".strip()] = (name, {"lr": 0.1, **key})
    for name in ("RAdam", "Adamax", "Adadelta", "Adagrad", "Adafactor", "RMSprop", "Rprop", "ASGD"):
        if hasattr(torch.optim, name):
            found[name] = (name, {"lr": 0.1})
    return found


MADE = _made()
WAYS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def _ready(name, options, steps):
    """Parameters of two types in two groups, the first of them frozen, with gradients, after some steps."""
    torch.manual_seed(0)
    kinds = [torch.float32, torch.float64, torch.float32, torch.float64, torch.float32]
    weights = [torch.nn.Parameter(torch.randn(3, 2, dtype=kind)) for kind in kinds]
    groups = [{"params": weights[:4]}, {"params": weights[4:], "lr": 0.05}]
    optimizer = getattr(torch.optim, name)(groups, **options)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    weights[0].grad = None
    return weights, optimizer


def _whole(weights, optimizer):
    return [*(w.detach().clone() for w in weights), copy.deepcopy(optimizer.state_dict()["state"])]


def _same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _has(made, way):
    """Whether this release has such a step."""
    name, options = MADE[made]
    try:
        getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(1))], **options, **WAYS[way])
    except (TypeError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("made, way", [(made, way) for made in MADE for way in WAYS if _has(made, way)])
@pytest.mark.parametrize("steps", [0, 2], ids=["first step", "third step"])
def test_a_step_that_failed_is_repeated_only_if_it_had_not_begun(made, way, steps):
    """At each operation: where the marks say nothing the repeat gives what one step gives; most failures are told."""
    name, options = MADE[made]
    options = {**options, **WAYS[way]}
    weights, optimizer = _ready(name, options, steps)
    optimizer.step()
    wanted = _whole(weights, optimizer)
    told = silent = 0
    for number in range(1, 400):
        weights, optimizer = _ready(name, options, steps)
        one = optimizers.before_call(torch, optimizer, "step")
        assert isinstance(one, optimizers.Stepped)
        # what a function marks that only steps
        all_of_it = changes.watch(torch, {"o": optimizer}, steps=True)
        try:
            with FailsAt(number):
                optimizer.step()
        except torch.OutOfMemoryError:
            pass
        else:
            break
        said, also = one.changed(), changes.changed(all_of_it)
        assert bool(said) == bool(also), (number, said, also)
        told, silent = told + bool(said), silent + (not said)
        if not said:
            (one.undo if number % 2 else lambda mark=all_of_it: changes.undo(mark))()
            optimizer.step()
            assert _same(_whole(weights, optimizer), wanted), number
    assert told


def test_state_that_a_first_step_made_halfway_goes():
    """The repeat makes it anew: torch would take half of it for all of it."""
    weights, optimizer = _ready("Adam", {}, 0)
    mark = optimizers.before_call(torch, optimizer, "step")
    optimizer.state[weights[1]]["step"] = torch.tensor(0.0)
    mark.undo()
    optimizer.step()
    assert len(optimizer.state) == 4


def test_parameters_of_other_types_than_before_are_not_taken_for_the_same():
    """model.half() keeps the parameters: what leads is found anew after the failure."""
    weights, optimizer = _ready("SGD", {"lr": 0.1}, 1)
    mark = optimizers.before_call(torch, optimizer, "step")
    assert mark.changed() == []
    weights[3].grad, weights[3].data = None, weights[3].data.half()
    weights[3].grad = torch.ones(3, 2).half()
    assert "may have stepped" in mark.changed()[0]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_zeroed_twice_are_zero(set_to_none):
    """zero_grad() needs no marks, but where the parameters are of a class of their own."""
    weights, optimizer = _ready("Adam", {}, 1)
    mark = optimizers.before_call(torch, optimizer, "zero_grad")
    optimizer.zero_grad(set_to_none)
    assert mark.changed() == []

    class Own(torch.nn.Parameter):
        pass

    other = torch.optim.Adam([Own(torch.ones(2))])
    assert "not known" in optimizers.before_call(torch, other, "zero_grad").changed()[0]


def test_a_scheduler_around_the_step_is_torchs():
    """It counts the steps, and nothing else."""
    _, optimizer = _ready("Adam", {}, 1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    assert "step" in vars(optimizer)
    assert optimizers.before_call(torch, optimizer, "step") is not None
    del scheduler
