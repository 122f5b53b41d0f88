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
    n, held = 0, []
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


CLASSES = """
n, numbers, outside = 3, [1], [[1]]
def double(a):
    return 2 * a
class Plain:
    "Has nothing but its code."
    limit: int = 5
    def __init__(self, start):
        self.start = start
    def act(self, value):
        return double(value) + self.start + self.limit
    def count(self):
        self.start += 1
    def keep(self):
        numbers.append(self.start)
    def tell(self):
        double.count = self.start
    def drop(self):
        del self.start
    def __add__(self, other):
        self.added = other
        return self
    def __iter__(self):
        self.start += 1
        return iter(range(self.start))
class Derived(Plain):
    def act(self, value):
        return value
thing, derived = Plain(3), Derived(4)
class Bare: pass
"""

OF_THINGS = {
    "y = thing.act(n)": "thing",
    "y = derived.act(n) + thing.limit": "derived thing",
    "thing.count()": "thing",
    "thing.keep()": "thing",
    "thing.tell()": "thing",
    "derived.drop()": "derived",
    "thing + 5": "thing",
    "y = [a for a in derived]": "derived",
    "y = sum(thing) + n": "thing",
}

NOT_SO_PLAIN = {
    "another method reaches an object": "def f(self):\n    outside[0].append(1)\nBare.f = f",
    "an operator reaches an object": "def f(self, other):\n    return outside\nBare.__mul__ = f",
    "an attribute is heavy": "bare.held = [n]",
    "an attribute is a function": "bare.call = print",
    "an attribute of the class is a list": "Bare.held = []",
    "a property": "Bare.held = property(lambda self: outside)",
    "a class method": "Bare.make = classmethod(lambda cls: cls)",
    "a static method": "Bare.make = staticmethod(print)",
    "attributes from elsewhere": "def f(self, name):\n    return 1\nBare.__getattr__ = f",
    "an end of its own": "def f(self):\n    numbers.append(1)\nBare.__del__ = f",
    "a metaclass": "class Meta(type): pass\nclass Bare(metaclass=Meta): pass\nbare = Bare()",
    "a base of a library": "class Bare(dict): pass\nbare = Bare()",
    "an error": "class Bare(Exception): pass\nbare = Bare()",
    "slots": "class Bare:\n    __slots__ = ('held',)\nbare = Bare()",
    "super": "class Bare(Plain):\n    def keep(self):\n        super().keep()\nbare = Bare(1)",
    "a closure": "def make(held):\n    def f(self):\n        held.append(1)\n    return f\nBare.f = make(outside)",
    "defaults": "def f(self, held=outside):\n    held.append(1)\nBare.f = f",
    "a function with attributes": "def f(self): pass\nf.held = outside\nBare.f = f",
    "a method sets a global": "def f(self):\n    global n\n    n += 1\nBare.f = f",
    "another module's method": "import types\nBare.f = types.FunctionType(Plain.keep.__code__, {'numbers': outside})",
    "it sets attributes where a module is reached": "import math\ndef f(self):\n    math.pi = 3\nBare.f = f",
    "a descriptor": "class Held:\n    def __get__(self, *a):\n        return outside\nBare.held = Held()",
}


QUIET = ("y = thing.act(n)", "y = derived.act(n) + thing.limit")
"""Those that change nothing."""


@pytest.mark.parametrize("statement", OF_THINGS)
def test_a_plain_object_of_the_notebooks(statement):
    """It leads to its attributes, and to what any of its methods names."""
    names = {"__name__": "__main__"}
    exec(CLASSES, names)
    found = of(statement, names)
    assert found is not None
    assert set(found.boxes) == {"double", "numbers", *OF_THINGS[statement].split()}


@pytest.mark.parametrize("why", NOT_SO_PLAIN)
def test_an_object_that_may_lead_to_anything(why):
    """Whatever its class has beside light values and plain methods."""
    names = {"__name__": "__main__"}
    exec(CLASSES + "bare = Bare()", names)
    assert of("y = bare.act(1)", names) is not None
    exec(NOT_SO_PLAIN[why], names)
    assert of("y = bare.act(1)", names) is None


@pytest.mark.parametrize("statement", OF_THINGS)
def test_what_a_plain_object_changes_is_seen(statement):
    """Whatever of its methods runs: attributes, containers, and attributes of functions."""
    from cuda_magic.cells.rescuer import Step
    from cuda_magic.rescue.marker import Marker

    names = {"__name__": "__main__"}
    exec(CLASSES, names)
    node = ast.parse(statement).body[0]
    code = compile(ast.Module([node], []), "<cell>", "exec")
    marks = Marker().take(Step(0, statement, 1, 1, frozenset({"y"}), False, node, code), names, None)
    assert marks.little and marks.changed(names, None) == []
    exec(code, names)
    assert bool(marks.changed(names, None)) == (statement not in QUIET)


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
