"""Marks that are taken again and again say what marks say that are taken for the first time."""

from __future__ import annotations

import ast
import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_magic.cells.rescuer import Step
from cuda_magic.rescue import marker
from cuda_magic.rescue.marker import Marker


class Thing:
    """As a class of the notebook's."""

    def __init__(self):
        self.n = 0
        self.part = [0]


Thing.__module__ = "__main__"


class Value:
    """Of a library: known by a weak reference."""


def step(code: str, namespace=None) -> Step:
    node = ast.parse(code).body[0]
    compiled = compile(ast.Module([node], []), "<cell>", "exec") if namespace is not None else None
    return Step(0, code, 1, 1, frozenset(), False, node, compiled)


ACTIONS = {
    "number": lambda n, a, i: n.__setitem__(a, i),
    "long text": lambda n, a, i: n.__setitem__(a, "x" * (20_000 + i)),
    "list": lambda n, a, i: n.__setitem__(a, [i, 1.5]),
    "dict": lambda n, a, i: n.__setitem__(a, {"k": i}),
    "thing": lambda n, a, i: n.__setitem__(a, Thing()),
    "value": lambda n, a, i: n.__setitem__(a, Value()),
    "iterator": lambda n, a, i: n.__setitem__(a, iter([1, 2, 3])),
    "values": lambda n, a, i: n.__setitem__(a, [Value(), i, [Value()]]),
    "delete": lambda n, a, i: n.pop(a, None),
    "append": lambda n, a, i: n[a].append(i) if type(n.get(a)) is list else None,
    "replace": lambda n, a, i: n[a].__setitem__(0, n[a][0]) if type(n.get(a)) is list and n[a] else None,
    "renew": lambda n, a, i: n[a].__setitem__(0, float(i) * 1.5) if type(n.get(a)) is list and n[a] else None,
    "key": lambda n, a, i: n[a].__setitem__(f"k{i}", i) if type(n.get(a)) is dict else None,
    "attribute": lambda n, a, i: setattr(n[a], "n", i) if type(n.get(a)) is Thing else None,
    "inner": lambda n, a, i: n[a].part.append(i) if type(n.get(a)) is Thing else None,
    "same again": lambda n, a, i: n.__setitem__(a, n.get(a)),
    "next": lambda n, a, i: next(n[a], None) if type(n.get(a)) is type(iter([])) else None,
}
MOVES = st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from("abcd"), st.integers(0, 3))


def said(marks, namespace):
    """What the marks are, and what they say of the namespace."""
    return (
        dict(marks.light),
        sorted(marks.others),
        {name: (box.size, box.ids, box.lengths, box.light) for name, box in marks.boxes.items()},
        marks.iterators,
        marks.changed(namespace, None),
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(MOVES, max_size=3), min_size=1, max_size=8),
    st.lists(MOVES, max_size=3),
    st.sets(st.integers(0, 7)),
)
def test_marks_taken_again_are_as_new(statements, failing, ends):
    """After any statements, in any cells, the marks are those of a marker that has seen nothing, and find the same."""
    names = {"a": 1, "b": [1], "c": {"k": 1}, "d": Value()}
    kept = Marker()
    node = step("f(a)")
    for i, moves in enumerate(statements):
        kept.take(node, names, None)
        for action, name, number in moves:
            ACTIONS[action](names, name, number)
        if i in ends:
            kept.rest(None)
    again, new = kept.take(node, names, None), Marker().take(node, names, None)
    assert said(again, names) == said(new, names)
    assert said(again, names)[-1] == []
    for action, name, number in failing:
        ACTIONS[action](names, name, number)
    assert said(again, names)[-1] == said(new, names)[-1]


@pytest.mark.parametrize(
    "before, again",
    [
        ({"total": [1.5]}, "total[0] = total[0] + 0.25"),
        ({"kept": {"a": Value()}}, "kept['a'] = type(kept['a'])()"),
        ({"thing": Thing()}, "thing.n = thing.n + 1000.5"),
        ({"value": Value()}, "globals()['value'] = type(value)()"),
    ],
    ids=["a number in a list", "a value in a dict", "an attribute", "a name"],
)
def test_what_was_replaced_twice_is_seen_although_its_address_is_the_same(before, again):
    """The second object often lies where the first one lay: an id proves nothing."""
    names = dict(before)
    marks = Marker().take(step("f()"), names, None)
    for _ in range(2):
        exec(again, names)
    names.pop("__builtins__")
    assert marks.changed(names, None) != []


def test_marks_keep_nothing_alive():
    """Neither before the next statement nor after the cell: values, items, attributes, what functions close over."""
    names = {"value": Value(), "box": [Value(), 1], "thing": Thing(), "functions": []}
    names["thing"].part = Value()
    held = Value()
    names["functions"] = [lambda held=held: held]
    gone = [weakref.ref(x) for x in (names["value"], names["box"][0], names["thing"], names["thing"].part, held)]
    del held
    kept = Marker()
    marks = kept.take(step("f()"), names, None)
    names.clear()
    gc.collect()
    assert [ref() for ref in gone] == [None] * 5
    assert marks.changed(names, None) != []


def test_long_strings_are_let_go_when_the_cell_has_ended():
    """What is kept for the next cell holds no memory worth naming."""
    names = {"text": "x" * 50_000, "texts": ["y" * 50_000], "n": 3, "short": "z", "few": ["a"]}
    kept = Marker()
    kept.take(step("f()"), names, None)
    kept.rest(None)
    assert set(kept._light) == {"n", "short"} and kept._boxes.marks["texts"].held == []
    marks = kept.take(step("f()"), names, None)
    assert set(marks.light) == {"text", "n", "short"} and marks.changed(names, None) == []


def test_a_marker_rests_with_its_shell():
    """The next cell of the same shell takes it up; two at the same time have one each."""
    shell = Value()
    first = marker.take_up(shell)
    assert marker.take_up(shell) is not first
    first.rest(shell)
    assert marker.take_up(shell) is first and marker.take_up(None) is not first
    first.rest(shell)
    marker.forget()
    assert marker.take_up(shell) is not first
