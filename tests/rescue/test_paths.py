"""What the report calls a tensor that a name only leads to."""

from __future__ import annotations

import pytest

from cuda_magic.rescue.paths import readable


class Tensor:
    """Stands for a tensor."""


class Allocator:
    """Follows tensors alone."""

    def follows(self, value):
        return isinstance(value, Tensor)


NAMES = """
def closure():
    t, other = Tensor(), 3
    def f():
        return t, other
    return f
def two():
    t, u = Tensor(), Tensor()
    def f():
        return t, u
    return f
class Thing:
    pass
f, g = closure(), two()
def h(a=Tensor()): ...
d = Thing()
d.parts = {'x': [Thing(), Thing()]}
d.parts['x'][1].weight = Tensor()
known = Tensor()
k = Thing()
k.known = known
"""


@pytest.fixture
def names():
    """A notebook's variables."""
    found = {"Tensor": Tensor, "__name__": "notebook"}
    exec(NAMES, found)
    return found


@pytest.mark.parametrize(
    ("marked", "said"),
    [
        ("changed in place: (in f, 0)", "changed in place: f (closure: t)"),
        ("changed in place: (in f, 0)[2].weight", "changed in place: f (closure: t)[2].weight"),
        ("changed in place: (in h, 3)", "changed in place: h (default)[0]"),
        ("changed in place: (in d, 0), x", "changed in place: d.parts['x'][1].weight, x"),
        ("changed in place: (in g, 0), (in g, 1)", "changed in place: what g leads to"),
        ("the gradient of (in g, 0).bias grew", "the gradient of bias of what g leads to grew"),
        ("changed in place: (in k, 0)", "changed in place: what k leads to"),
        ("changed in place: (in gone, 0)", "changed in place: what gone leads to"),
        ("changed in place: x, y['(in)']", "changed in place: x, y['(in)']"),
    ],
)
def test_a_readable_way(names, marked, said):
    """The way from the name where there is one, else that the name leads to it; never the marks' own words."""
    assert readable([marked], names, Allocator()) == [said]


def test_without_an_allocator(names):
    """Nothing can be looked for then."""
    assert readable(["(in f, 0)"], names, None) == ["what f leads to"]
