"""What a statement can lead to: little only where nothing else is possible."""

from __future__ import annotations

import ast

import pytest

from cuda_magic.rescue.reach import reach

SETUP = """
import math, random, sys, functools
n, text, pair = 3, "a", (1, 2)
numbers, table, nested = [1, 2], {"k": 1}, [[1], [2]]
class Thing:
    n = 0
    def act(self):
        numbers.append(1)
thing = Thing()
functions = [print]
def plain(a, b=2):
    return [x + n for x in range(a)] + [b]
def calls(a):
    return plain(a) + sorted(numbers, key=lambda x: -x)
def recursive(a):
    return 0 if a < 1 else recursive(a - 1)
def generator(a):
    yield from range(a)
def sets_global():
    global n
    n += 1
def imports():
    import thing_of_the_users
    thing_of_the_users.step()
def defines():
    class Inner: pass
    return Inner
def uses_thing():
    return thing.act()
def keeps(a, cache=[thing]):
    return cache
def outer():
    held = thing
    def inner():
        return held
    return inner
closed = outer()
def marked(): pass
marked.thing = thing
cached = functools.lru_cache(plain)
moving = iter([1, 2])
"""

LITTLE = {
    "y = plain(3)": (),
    "y = calls(2) + [recursive(3)]": ("numbers",),
    "total = sum(i * n for i in range(10))": (),
    "numbers.append(n)": ("numbers",),
    "table[text] = len(numbers) + max(pair)": ("numbers", "table"),
    "for i in generator(3): numbers[0] += i": ("numbers",),
    "print(f'{n:3d}', text.upper())": (),
    "x = math.sqrt(n)": (),
    "y = [a for a in numbers if isinstance(a, int)]": ("numbers",),
    "del n": (),
    "try:\n    plain(0)\nexcept (ValueError, KeyError) as error:\n    print(error)": (),
}

ANYTHING = (
    *("thing.act()", "nested.append(1)", "functions[0]()", "sets_global()", "imports()", "defines()", "uses_thing()"),
    *("keeps(1)", "closed()", "marked()", "cached(1)", "next(moving)", "exec(text)", "eval('thing')", "globals()['n']"),
    *("import os", "from os import path", "sys.modules", "plain.__globals__['thing']", "plain.__code__", "vars()"),
    *(
        "getattr(plain, text)",
        "setattr(thing, text, 1)",
        "random._inst",
        "Thing()",
        "Thing.n",
        "class A: pass",
        "input()",
    ),
    *("plain.cache = 1", "random.sys.modules", "math.os", "def f(x=thing): pass", "lambda: thing", "__builtins__"),
    *("unknown_builtin = __import__('os')", "[f() for f in functions]", "type(n)", "breakpoint()", "super()"),
)


@pytest.fixture
def names():
    found: dict = {"__name__": "__main__"}
    exec(SETUP, found)
    return found


def of(statement, names):
    return reach(compile(ast.parse(statement), "<cell>", "exec"), names)


@pytest.mark.parametrize("statement", LITTLE)
def test_little_is_reached(names, statement):
    """Light values, plain functions, builtins; the containers among them are named."""
    found = of(statement, names)
    assert found is not None and sorted(found.boxes) == list(LITTLE[statement])
    assert found.draws == ("math" in statement)


@pytest.mark.parametrize("statement", ANYTHING)
def test_anything_may_be_reached(names, statement):
    """Objects, what leads to the namespace, and whatever is not known."""
    assert of(statement, names) is None


def test_without_code_anything_may_be_reached(names):
    """A guarded function is one step, of which no code of a statement is known."""
    assert reach(None, names) is None


def test_a_builtin_of_that_name_only(names, monkeypatch):
    """Another function under a builtin's name is not that builtin."""
    import builtins

    names["len"] = names["thing"].act
    assert of("len(numbers)", names) is None
    monkeypatch.setattr(builtins, "abs", names["thing"].act)
    assert of("abs(n)", names) is None


def test_numpy_is_closed(names):
    """Arrays, numbers and generators of numpy's hold nothing of the user's, but arrays of objects do."""
    numpy = pytest.importorskip("numpy")
    names |= {"numpy": numpy, "array": numpy.ones(3), "rng": numpy.random.default_rng(0), "x": numpy.float64(1)}
    names["objects"] = numpy.array([names["thing"]], dtype=object)
    assert of("y = numpy.dot(array, array) + x", names) == ((), (), True)
    assert of("y = rng.normal(size=3)", names) == ((), (names["rng"],), True)
    assert of("numbers[0] = numpy.random.rand()", names) == (("numbers",), (), True)
    for statement in ("objects[0]", "numpy.load('f')", "numpy.sys.modules", "numpy.ctypeslib", "numpy.__dict__"):
        assert of(statement, names) is None, statement


def test_torch_is_not_closed(names):
    """Its hooks may lead to any model."""
    torch = pytest.importorskip("torch")
    names |= {"torch": torch, "tensor": torch.ones(2), "model": torch.nn.Linear(2, 2)}
    for statement in ("torch.rand(3)", "tensor + 1", "model(tensor)"):
        assert of(statement, names) is None
    assert of("y = plain(2)", names) == ((), (), False)


def test_a_rescue_of_a_statement_that_reaches_little(practice):
    """What it reaches is marked: a list that it changed is seen; one that it left alone is not in the way."""
    practice.names |= {"log": [1], "other": [2]}
    practice.plain("def fill(n):\n    return [0] * n\n")
    names = practice.names
    from cuda_magic.cells.rescuer import Step
    from cuda_magic.rescue.marker import Marker

    def marks(statement):
        node = ast.parse(statement).body[0]
        code = compile(ast.Module([node], []), "<cell>", "exec")
        return Marker().take(Step(0, statement, 1, 1, frozenset(), False, node, code), names, None), code

    taken, code = marks("log.append(fill(2)[0])")
    names["other"].append(3)  # by another thread
    assert taken.little and taken.changed(names, None) == []
    exec(code, names)
    assert taken.changed(names, None) == ["changed in place: log"]
