"""An array is marked unless the statement's own text can neither write to it nor hand it on."""

from __future__ import annotations

import ast

import pytest

numpy = pytest.importorskip("numpy")

from cuda_magic.cells.rescuer import Step  # noqa: E402
from cuda_magic.rescue.arrays import only_read  # noqa: E402
from cuda_magic.rescue.depths import Depths  # noqa: E402


class Thing:
    """Of the notebook's: its operators get the array."""


READ = {
    "y = a + b": "ab",
    "y = a @ b > 3": "ab",
    "y = -a[2:5] * n": "a",
    "y = a.sum() + a.mean(0)": "a",
    "x, y = a.max(), b.shape": "ab",
    "y = numpy.exp(a)": "a",
    "y = numpy.where(a > 1, a, b)": "ab",
    "y = sum([a, b])": "ab",
    "y = float(a[0]) + len(b)": "ab",
    "y = [a, b]": "ab",
    "y = a.T + b.real": "ab",
}
WRITTEN = (
    *(
        "a[0] = 1",
        "a += 1",
        "a.sort()",
        "a.fill(1)",
        "a.partition(3)",
        "a.put(1, 2)",
        "y = a.view()",
        "y = a.reshape(2)",
    ),
    *(
        "y = a.sum(out=a)",
        "y = a.max(0, a)",
        "y = a.max(0, b)",
        "y = numpy.exp(a, a)",
        "y = numpy.add(a, 1, a)",
        "numpy.random.shuffle(a)",
    ),
    *("numpy.copyto(a, n)", "y = f(a)", "y = f() + a.sum()", "y = a + thing", "y = thing + a"),
    *(
        "y = sum([a, thing])",
        "y = numpy.stack([a, thing])",
        "y = a.dot(thing)",
        "y = [x for x in a]",
        "y = memoryview(a)",
    ),
    *("y = max(a, n)", "x[0] = a", "y = thing.act(a)", "y = a.flat", "y = a.data", "y = f'{a}'", "y = (lambda: a)()"),
    *("y = numpy.array(a, copy=False).sort()", "y = a.astype(float, copy=False).sort()", "y = a if n else b"),
    *(
        "for i in a: pass",
        "del a",
        "y = thing @ a",
        "y = numpy.frombuffer(a)",
        "y = a.ctypes",
        "y = print(a, file=thing)",
    ),
)


def names():
    return {
        "numpy": numpy,
        "a": numpy.ones(9),
        "b": numpy.ones(9),
        "n": 2,
        "thing": Thing(),
        "f": lambda *a: 1,
        "x": [],
    }


@pytest.mark.parametrize("statement", READ)
def test_what_is_only_read(statement):
    """Operators, items and methods that make new arrays."""
    assert only_read(ast.parse(statement).body[0], names(), ()) == set(READ[statement])


@pytest.mark.parametrize("statement", WRITTEN)
def test_what_may_be_written_to(statement):
    """In place, by ``out`` in whatever place, by objects that get the array, and by all that is not known."""
    assert "a" not in only_read(ast.parse(statement).body[0], names(), ())


@pytest.mark.parametrize(
    "setup",
    [
        "a = numpy.array([1, None], dtype=object)",
        "class A(numpy.ndarray): pass\na = numpy.ones(3).view(A)",
        "a = numpy.ma.masked_array([1, 2])",
    ],
)
def test_arrays_of_other_kinds_are_marked(setup):
    """Arrays of objects and of subclasses run code of their own."""
    found = names()
    exec(setup, found)
    assert only_read(ast.parse("y = a + 1").body[0], found, ()) == set()


@pytest.mark.torch
def test_a_copy_may_be_handed_on():
    """torch.tensor copies, torch.from_numpy does not; torch's own modules keep no array."""
    torch = pytest.importorskip("torch")
    found = names() | {"torch": torch, "model": torch.nn.Linear(2, 2), "t": torch.ones(2)}

    def of(statement):
        return only_read(ast.parse(statement).body[0], found, ())

    assert of("y = model(torch.tensor(a))") == of("y = torch.tensor(a + 1)") == of("y = t * a[0]") == {"a"}
    for statement in ("y = model(torch.from_numpy(a))", "y = torch.as_tensor(a).mean()", "y = (t.add_(1), a.sum())"):
        assert of(statement) == set(), statement


def depths(statement, found):
    node = ast.parse(statement).body[0]
    code = compile(ast.Module([node], []), "<cell>", "exec")
    return Depths(Step(0, statement, 1, 1, frozenset(), False, node, code), found, (), (), None)


def test_a_large_array_that_is_read_costs_no_checksum():
    """Nor is it kept alive; one that a function of the notebook's reads is marked."""
    found = names() | {"large": numpy.ones(100_000)}
    exec("def g():\n    large[0] += 1\n    return 1", found)
    marks = depths("y = large + thing", found)
    assert [name for name, *_ in marks.roots] == ["thing", "large"]
    marks = depths("y = large + 1", found)
    assert marks.roots == []
    marks = depths("y = g()", found)
    found["g"]()
    assert marks.changed(found) == ["large"]
    marks = depths("y = (large + 1, g())", found)
    found["g"]()
    assert "large" in marks.changed(found)
