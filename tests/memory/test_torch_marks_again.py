"""Marks of tensors that build on the last ones never say less than new ones; no more where modules are walked."""

from __future__ import annotations

import random
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from cuda_magic.memory.torch import changes, tensors  # noqa: E402


def setup():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2, bias=False))
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "x": torch.randn(4, 2),
        "held": {"a": [torch.zeros(2)]},
        "leaf": torch.ones(2, requires_grad=True),
    }


def forward(n):
    n["out"] = n["model"](n["x"])


def backward(n):
    n["model"](n["x"]).sum().backward()


def step(n):
    n["optimizer"].step()


def replace_buffer(n):
    n["model"][1].running_mean = n["model"][1].running_mean * 0.9


def replace_parameter(n):
    n["model"][2].weight = torch.nn.Parameter(n["model"][2].weight * 2)


def add_module(n):
    n["model"].add_module(f"more{random.random()}".replace(".", ""), torch.nn.Identity())
    n["model"][0].register_buffer("extra", torch.zeros(1))


ACTIONS = {
    "forward": forward,
    "backward": backward,
    "step": step,
    "zero": lambda n: n["optimizer"].zero_grad(),
    "zero in place": lambda n: n["optimizer"].zero_grad(set_to_none=False),
    "buffer": replace_buffer,
    "parameter": replace_parameter,
    "modules": add_module,
    "in place": lambda n: n["x"].add_(1),
    "held": lambda n: n["held"]["a"][0].mul_(2),
    "held anew": lambda n: n["held"].__setitem__("a", [torch.zeros(2)]),
    "leaf": lambda n: n["leaf"].sum().backward(),
    "new name": lambda n: n.__setitem__("y", torch.zeros(2)),
    "new model": lambda n: n.__setitem__("model", setup()["model"]),
    "inference": lambda n: n.__setitem__("z", _inference()),
    "load": lambda n: n["optimizer"].load_state_dict(n["optimizer"].state_dict()),
    "drop state": lambda n: n["optimizer"].state.clear(),
    "freeze": lambda n: n["model"][0].requires_grad_(False),
    "nothing": lambda n: None,
}


def _inference():
    with torch.inference_mode():
        return torch.zeros(2)


def kinds(sentences):
    return {sentence.partition(":")[0] for sentence in sentences}


def grads(names):
    found = [p.grad for p in (*names["model"].parameters(), names["leaf"])]
    return [None if g is None else g.clone() for g in found]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.booleans()), max_size=7),
    st.lists(st.sampled_from(sorted(ACTIONS)), max_size=2),
)
def test_built_on_the_last_marks_they_say_no_less(finished, failing):
    """After any statements. Where every statement was followed by a walk they say the same but of optimizers' state."""
    names, last, walked = setup(), None, True
    for action, walk in finished:
        last = changes.watch(torch, names, last, walk)
        walked = walked and walk
        ACTIONS[action](names)
    again, new = changes.watch(torch, names, last, walked), changes.watch(torch, names)
    if walked:
        assert kinds(changes.changed(again)) <= {"an optimizer stepped", "an optimizer's state was replaced"}
    assert changes.changed(new) == []
    before = grads(names)
    for action in failing:
        ACTIONS[action](names)
    told = kinds(changes.changed(again))
    assert kinds(changes.changed(new)) <= told
    if "parameters were replaced" in told:  # no repeat, so nothing is taken away
        return
    if "new model" not in (*failing, *(action for action, _ in finished)) and "parameter" not in failing:
        changes.undo(again)
        for old, now in zip(before, grads(names), strict=True):
            assert old is not None or now is None  # what was not there is gone
            # what a statement before has left is there, but for what the failed one took away itself
            assert old is None or now is not None or {"zero", "parameter"} & set(failing)


EDITS = st.lists(
    st.tuples(st.sampled_from(["move", "drop", "new", "none", "share", "hook"]), *[st.integers(0, 9)] * 3), max_size=8
)


def edit(root, how, a, b, name):
    """Change where modules lead, or what one holds."""
    modules = list(root.modules())
    one, other = modules[a % len(modules)], modules[b % len(modules)]
    children = list(one._modules)
    if how == "new":
        one._modules[f"m{name}"] = torch.nn.Linear(1, 1)
    elif how == "none":
        one._modules[f"m{name}"] = None
    elif how == "share":
        other._modules[f"m{name}"] = one
    elif how == "hook":
        one._buffers[f"b{name}"] = torch.zeros(1)
    elif children:
        child = one._modules.pop(children[name % len(children)])
        if how == "move":
            other._modules[f"m{name}"] = child


@settings(max_examples=150, deadline=None)
@given(EDITS, EDITS)
def test_a_tree_that_is_compared_is_the_one_that_is_searched(first, then):
    """Modules that moved, left, came or were replaced at the same place: the same tensors are found, in any order."""
    root = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.BatchNorm1d(1)))
    for one in first:
        edit(root, *one)
    tensors.of_module(root)
    tree = tensors._trees[id(root)]
    tensors.of_module(root)
    assert tensors._trees[id(root)] is tree
    for one in then:
        edit(root, *one)
    found, modules = tensors.of_module(root), tensors.modules(root)
    tensors._trees.clear()
    assert list(map(id, modules)) == list(map(id, tensors.modules(root)))
    assert {*map(id, modules)} == {*map(id, root.modules())}
    assert [list(map(id, part)) for part in found] == [list(map(id, part)) for part in tensors.of_module(root)]


def test_another_module_at_the_address_of_one_that_has_gone():
    """It is searched: an id proves nothing."""
    root = torch.nn.Sequential(torch.nn.Linear(1, 1))
    for _ in range(50):
        tensors.of_module(root)
        root._modules.clear()
        root._modules["0"] = torch.nn.Linear(1, 1)
        assert list(map(id, tensors.of_module(root)[0])) == list(map(id, root.parameters()))


def test_a_tensor_that_becomes_a_leaf_is_one():
    """detach_() changes no version; from then on its gradient counts."""
    weight = torch.ones(2, requires_grad=True)
    names = {"weight": weight, "x": weight * 2}
    last = changes.watch(torch, names)
    names["x"].detach_().requires_grad_()
    names["x"].sum().backward()
    again = changes.watch(torch, names, last, False)
    names["x"].sum().backward()
    assert changes.changed(again) == changes.changed(again) == ["gradients were accumulated: x"]


@pytest.mark.parametrize("failing", ["buffer", "parameter", "modules"])
def test_parts_that_were_replaced_or_added_are_named(failing):
    """A module that has other tensors than before would not start from the same state."""
    names = setup()
    for mark in (changes.watch(torch, names), changes.watch(torch, names, changes.watch(torch, names), False)):
        ACTIONS[failing](names)
        assert "replaced" in changes.changed(mark)[0]


def test_a_new_model_under_the_name_is_no_change():
    """The cell puts names back; the old model's parameters have gone with it."""
    names = setup()
    mark = changes.watch(torch, {"model": names["model"]})
    names["optimizer"] = None
    names["model"] = setup()["model"]
    assert changes.changed(mark) == []


def test_an_object_that_holds_a_model_is_followed():
    """A trainer's model and optimizer, though they have no names of their own."""

    class Trainer:
        pass

    trainer = Trainer()
    trainer.model, trainer.optimizer = setup()["model"], None
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    from cuda_magic.memory.torch import allocator

    assert allocator().follows(trainer) and not allocator().follows(Trainer())
    mark = changes.watch(torch, {"trainer": trainer})
    trainer.model(torch.randn(4, 2)).sum().backward()
    trainer.optimizer.step()
    assert "parameters were updated: trainer.model.0.weight" in " ".join(changes.changed(mark))


def test_gradients_of_the_statement_alone_are_taken_away():
    """Those that a finished statement made stay, though the marks build on older ones."""
    names = setup()
    first = changes.watch(torch, names)
    names["leaf"].sum().backward()
    second = changes.watch(torch, names, first, False)
    backward(names)
    assert "gradients were accumulated" not in " ".join(changes.changed(second))
    changes.undo(second)
    assert names["leaf"].grad is not None and all(p.grad is None for p in names["model"].parameters())


def test_marks_of_many_statements_hold_nothing():
    """Nor does the last of them hold the ones before."""
    names = setup()
    gone = [weakref.ref(names["model"][0].weight), weakref.ref(names["x"])]
    mark = None
    for _ in range(3):
        mark = changes.watch(torch, names, mark)
    names.clear()
    import gc

    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert changes.changed(mark) == []
