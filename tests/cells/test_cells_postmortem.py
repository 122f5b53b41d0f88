"""The frames of a failed attempt, made anew: what the debugger finds, and that nothing is kept alive by it."""

from __future__ import annotations

import gc
import sys
import traceback
import weakref

import pytest
from IPython.core.interactiveshell import InteractiveShell

from cuda_magic.cells.failure import Failure, forget
from cuda_magic.cells.postmortem import Gone, Noted


class Big:
    """Something that may hold memory."""


class Slotted:
    """It takes no weak reference."""

    __slots__ = ("held",)


def raised(function, *arguments):
    """The error of a call."""
    try:
        function(*arguments)
    except Exception as error:
        return error
    raise AssertionError("no error")


def noted(error, own=None):
    tb = error.__traceback__.tb_next  # without the frame of `raised`
    return Noted([(error, tb)], {} if own is None else own)


def again(error):
    """The frames that the error has, innermost first."""
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]


def test_frames_are_as_they_were():
    """Names, file, lines, caret and order; a debugger reads the plain values."""

    def inner(here, *, word="x"):
        return (here /
                0)  # fmt: skip

    def outer(n):
        return inner(n + 1, word="y")

    error = raised(outer, 3)
    plain = traceback.format_tb(error.__traceback__.tb_next)
    kept = noted(error)
    forget(error)
    assert error.__traceback__ is None
    kept.put_back()
    assert traceback.format_tb(error.__traceback__) == plain
    first, second = again(error)
    assert (first.f_code.co_name, second.f_code.co_name) == ("inner", "outer")
    assert first.f_globals is globals()
    assert dict(first.f_locals) == {"here": 4, "word": "y"}
    assert second.f_locals["n"] == 3


@pytest.mark.parametrize(
    "wrap",
    [
        lambda big: big,
        lambda big: [big, 1],
        lambda big: (1, (big,)),
        lambda big: {"a": {"b": [big]}},
        lambda big: {id(big): big},
        lambda big: {big},
        lambda big: [[[[[big]]]]],
        lambda big: [big] * 1000,
        lambda big: lambda: big,
        lambda big: (big for _ in range(2)),
        lambda big: iter([big]),
        lambda big: big.__init__,
        lambda big: vars(big),
    ],
)
def test_what_may_hold_memory_is_not_held(wrap):
    """However a variable leads to it, what died with the attempt stays dead, and a note stands for it."""

    def fail():
        big = Big()
        held = wrap(big)
        watch.append(weakref.ref(big))
        other = held
        return 1 / 0, other

    watch = []
    error = raised(fail)
    kept = noted(error)
    forget(error)
    gc.collect()
    assert watch[0]() is None
    kept.put_back()
    names = again(error)[0].f_locals
    assert isinstance(names["big"], Gone)
    assert repr(names["big"]) == "<Big, let go to make room>"
    assert "held" in names


def test_slots_without_a_weak_reference_are_a_note():
    """It cannot be known whether it lives on."""

    def fail():
        one = Slotted()
        one.held = Big()
        watch.append(weakref.ref(one.held))
        return 1 / 0

    watch = []
    error = raised(fail)
    kept = noted(error)
    forget(error)
    assert watch[0]() is None
    kept.put_back()
    assert repr(again(error)[0].f_locals["one"]) == "<Slotted, let go to make room>"


def test_what_lives_on_is_given_and_not_kept_alive():
    """A value that a variable of the notebook's has too; when that lets go, the debugger's note does not hold it."""
    mine = [Big()]

    def fail(self, method, things):
        return 1 / 0

    error = raised(fail, mine[0], mine[0].__repr__, [mine[0], {"k": mine[0]}])
    kept = noted(error)
    forget(error)
    kept.put_back()
    names = again(error)[0].f_locals
    assert names["self"] is mine[0]
    assert names["things"][0] is mine[0] and names["things"][1]["k"] is mine[0]
    watch = weakref.ref(mine.pop())
    gc.collect()
    assert watch() is None
    assert isinstance(names["self"], Gone) and isinstance(names["things"][0], Gone)


def test_a_bound_method_is_bound_again():
    """A weak reference to the method itself would be dead at once."""

    class Mine:
        def method(self):
            return 7

    one = Mine()

    def fail(method):
        return 1 / 0

    error = raised(fail, one.method)
    kept = noted(error)
    forget(error)
    kept.put_back()
    assert again(error)[0].f_locals["method"]() == 7


def test_hostile_values_are_passed_by():
    """Nothing that a value's class raises reaches anybody."""

    class Hostile:
        def __getattribute__(self, name):
            raise RuntimeError(name)

        __eq__ = __hash__ = __repr__ = __len__ = __bool__ = __iter__ = property(lambda self: 1 / 0)

    def fail(one, many):
        return 1 / 0

    one = Hostile()
    error = raised(fail, one, [one, {1: one}, (one,)])
    kept = noted(error)
    forget(error)
    kept.put_back()
    assert again(error)[0].f_locals["one"] is one
    assert again(error)[0].f_locals["many"][0] is one


def test_the_notebooks_variables_are_themselves():
    """The cell's own frame has the notebook's namespace, not a copy."""
    own = {"__name__": "__main__", "x": 1}
    error = raised(lambda: exec("y = 2\n1 / 0", own))
    tb = error.__traceback__.tb_next.tb_next
    kept = Noted([(error, tb)], own)
    forget(error)
    kept.put_back()
    assert again(error)[0].f_locals is own


def test_an_array_is_described():
    """Its shape, type and size are what one looks for after an out-of-memory error."""
    numpy = pytest.importorskip("numpy")

    def fail():
        lost = numpy.zeros((4, 8), numpy.float32)
        view = lost[:1]
        return 1 / 0, lost, view

    error = raised(fail)
    kept = noted(error)
    forget(error)
    kept.put_back()
    names = again(error)[0].f_locals
    assert repr(names["lost"]) == "<ndarray (4, 8) float32 of 128 bytes, let go to make room>"
    assert repr(names["view"]) == "<ndarray (1, 8) float32 of 32 bytes, let go to make room>"


def test_errors_that_it_came_from_have_theirs_too():
    """Each of a chain; and the error is not in a cycle with its own note."""

    def fail(here):
        try:
            return 1 / 0
        except ZeroDivisionError as error:
            raise ValueError(here) from error

    shell = InteractiveShell()
    error = raised(fail, 3)
    failure = Failure(error, shell)
    assert error.__traceback__ is None and error.__cause__.__traceback__ is None
    failure.attach(error)
    assert again(error.__cause__)[0].f_locals["here"] == 3
    assert again(error)[0].f_code.co_name == "fail"
    del failure
    watch = weakref.ref(again(error)[0].f_locals)
    gc.disable()
    try:
        del error
        assert watch() is None
    finally:
        gc.enable()


def test_the_frames_of_a_long_recursion():
    """As many frames as there were."""

    def deep(n):
        return 1 / 0 if n == 0 else deep(n - 1)

    limit = sys.getrecursionlimit()
    error = raised(deep, limit // 2)
    kept = noted(error)
    forget(error)
    kept.put_back()
    assert len(again(error)) == limit // 2 + 1
