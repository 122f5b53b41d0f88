"""Who holds what, for the guard's report: rows of the one search, hostile objects, and the types of cycles."""

from __future__ import annotations

import gc
from functools import partial

import pytest

import cuda_magic.testing
from cuda_magic.machine import use
from cuda_magic.memory.variables import Root, user_variables, variables
from cuda_magic.rescue.owners import Cycles, Holder, holders

MIB = 1 << 20


@pytest.fixture
def gpu():
    yield cuda_magic.testing.gpu(["24 GiB", "8 GiB"], force=True)
    use(None)


def ends(self, *_):
    raise SystemExit("code of the user's ran")


def trap():
    """An object whose every hook, and whose class's every attribute, is a trap; pytest must not see the class."""

    class Meta(type):
        __mro__ = __dict__ = __module__ = __name__ = __flags__ = property(ends)
        __getattribute__ = __instancecheck__ = __subclasscheck__ = ends

    class Hostile(metaclass=Meta):
        __slots__ = ("__dict__", "slot")
        __class__ = property(ends)
        __eq__ = __bool__ = __iter__ = __len__ = __repr__ = __str__ = __getattribute__ = ends
        __hash__ = None

    return object.__new__(Hostile)


class Shadowed:
    """`__dict__` is the user's own property."""

    __dict__ = property(ends)


class Table(dict):
    """A dict whose methods are traps."""

    items = keys = values = __iter__ = __getitem__ = ends


class Failure(ValueError):
    """An exception whose attributes are traps."""

    args = __traceback__ = __cause__ = __context__ = property(ends)


def hostile(gpu, megabytes):
    made = trap()
    object.__setattr__(made, "x", gpu.empty(megabytes * MIB))
    return made


def raised(gpu, megabytes):
    kept = gpu.empty(megabytes * MIB)
    try:
        raise Failure(kept.nbytes)
    except Failure as error:
        return error


def test_both_answers_pass_hostile_objects_by(gpu):
    """Traps in metaclass, class, dict and exception: none is sprung, and what lies beside or inside is found."""
    table = Table()
    dict.__setitem__(table, "t", gpu.empty("8 MiB"))
    slots = trap()
    object.__setattr__(slots, "slot", gpu.empty("4 MiB"))
    names = {
        "first": hostile(gpu, 32),
        "shadowed": Shadowed(),
        "table": table,
        "slots": slots,
        "error": raised(gpu, 2),
        "Out": {},
        3: "no name",
    }
    wanted = {"first": 32 * MIB, "table": 8 * MIB, "slots": 4 * MIB, "error": 2 * MIB}
    assert {h.name: h.nbytes for h in variables(gpu.allocator, names)} == wanted
    rows = holders(gpu.allocator, names, user_variables(names, None), 0)
    assert {h.name: h.nbytes for h in rows} == wanted
    assert [h.detail for h in rows] == ["first.x", "table['t']", "slots.slot", "local kept of raised"]


def test_the_types_of_what_nobody_reaches_without_running_code(gpu):
    """Cycles of hostile objects and of plain ones are named by their types."""
    gc.collect()  # what earlier tests left
    one, other = hostile(gpu, 16), trap()
    object.__setattr__(other, "slot", gpu.empty("8 MiB"))
    for each in (one, other):
        object.__setattr__(each, "self", each)
    gc.disable()
    try:
        del one, other, each
        rows = holders(gpu.allocator, {}, [], 0)
        assert [(h.kind, h.name, h.nbytes) for h in rows] == [("unreached", "Hostile", 24 * MIB)]
        cycles = Cycles(gpu.allocator, 0)
        gc.collect()
        assert cycles.freed() == {"Hostile": 24 * MIB}
    finally:
        gc.enable()
        gc.collect()


def test_the_words_of_the_guards_rows(gpu):
    """One tensor: its path. More: how many, and the largest. Other devices and the namespace as a whole: not at all."""
    closed = gpu.empty("64 MiB")
    names = {
        "plain": gpu.empty("128 MiB"),
        "call": lambda: closed,
        "some": [gpu.empty("2 MiB"), {"a": gpu.empty("30 MiB")}],
        "part": partial(print, gpu.empty("16 MiB")),
        "far": gpu.empty("1 GiB", 1),
    }
    names["everything"] = names
    roots = [Root("variable", "everything", names), *user_variables(names, None)]
    assert holders(gpu.allocator, names, roots, 0) == [
        Holder("variable", "plain", 128 * MIB, 0, ""),
        Holder("variable", "call", 64 * MIB, 0, "closure closed"),
        Holder("variable", "some", 32 * MIB, 0, "2 tensors, the largest some[1]['a']"),
        Holder("variable", "part", 16 * MIB, 0, "part.args[0]"),
    ]
