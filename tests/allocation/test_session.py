"""A guarded cell as the handler sees it: what it reaches, how it begins and ends, limits, and when unloading waits."""

from __future__ import annotations

import gc
import types

import pytest

from cuda_magic.allocation import session as sessions
from cuda_magic.allocation.reach import Reach
from cuda_magic.allocation.session import Session
from cuda_magic.errors import Refused, UserError
from cuda_magic.machine import machine, use

GIB = 1 << 30


@pytest.fixture
def gpu():
    """A practice card of 24 GiB, and nothing of a limit afterwards."""
    import cuda_magic.testing

    yield cuda_magic.testing.gpu(["24 GiB"], force=True)
    assert sessions.running() is None
    sessions.close()
    use(None)
    gc.collect()


@pytest.fixture
def notebook(loaded, gpu):
    loaded.user_ns["gpu"] = gpu
    yield loaded
    loaded.user_ns.clear()


def code(text: str) -> types.CodeType:
    return compile(text, "<cell>", "exec")


# -- what a cell reaches


def reach(text: str, **names) -> Reach:
    made = Reach(names)
    made.codes.append(code(text))
    return made


def test_names_of_the_code_are_reached():
    """Those that it reads or binds, in functions and comprehensions too; not its attributes' owners' others."""
    found = reach("y = [a.b for _ in range(3)]\ndef f(): return lambda: c", a=1, b=2, c=3, d=4, y=5)
    assert found.names() == {"a", "b", "c", "y"}
    assert set(found.reached()) == {1, 2, 3, 5}
    assert set(found.idle()) == {4}


def test_functions_and_classes_of_the_notebook_are_followed():
    """What they name is reached through them; functions of libraries reach nothing of the notebook."""
    space: dict = {"__name__": "__main__", "big": 1, "small": 2, "other": 3, "gc": gc}
    exec(
        "def g(): return big\ndef f(): return g()\nclass Net:\n    def __call__(self): return small\nnet = Net()", space
    )
    made = Reach(space)
    made.codes.append(code("f()\nnet()\ngc.collect()"))
    assert made.names() & {"big", "small", "other"} == {"big", "small"}


def test_a_recursion_ends():
    """Functions that name each other."""
    space: dict = {"__name__": "__main__"}
    exec("def f(): g()\ndef g(): f()", space)
    made = Reach(space)
    made.codes.append(code("f()"))
    assert made.names() == {"f", "g"}


def test_shown_values_are_idle_and_the_shells_names_are_not():
    """Out is the user's data that the cell does not name; In, get_ipython and names of IPython's lead to everything."""
    found = reach("x", x=1, _oh={1: "shown"}, _="last", In=["a"], get_ipython=2, _i="text")
    assert list(found.idle()) == [{1: "shown"}]


# -- a session


def test_it_listens_while_it_is_on(gpu):
    """From begin to end, and once: calling either twice does no harm."""
    space = {"big": gpu.empty("16 GiB")}
    session = Session(space)
    for _ in range(2):
        session.begin(machine().allocator(), code("x"))
    assert sessions.running() is session
    x = gpu.empty("16 GiB")
    assert session.handler.requests == 1
    assert x.nbytes == 16 * GIB
    for _ in range(2):
        session.end()
    assert sessions.running() is None
    assert session.out_bytes >= 8 * GIB
    y = gpu.empty("2 GiB")  # while something waits on the host later cells find room too
    assert y.nbytes and session.handler.requests == 1
    del space["big"], x, y
    sessions.left()
    full = gpu.empty("20 GiB")
    with pytest.raises(RuntimeError, match="out of memory"):
        gpu.empty("16 GiB")
    assert full.nbytes and session.handler.requests == 1


def test_a_session_inside_another_does_nothing(gpu):
    """The outer one's handler serves, and stays when the inner one ends."""
    held = gpu.empty("16 GiB")
    outer, inner = Session({"held": held}), Session({})
    outer.begin(machine().allocator())
    inner.begin(machine().allocator())
    assert inner.handler is None
    x = gpu.empty("16 GiB")
    del x
    inner.end()
    assert sessions.running() is outer
    x = gpu.empty("18 GiB")
    outer.end()
    assert outer.handler.requests == 2
    del x


def test_a_library_that_an_earlier_statement_imports(gpu):
    """There is no allocator before; the next statement arms."""
    session = Session({})
    session.begin(None, code("import torch"))
    assert session.room is None
    session.begin(machine().allocator(), code("x = 1"))
    assert session.room is not None
    session.end()


def test_it_holds_nobody_when_it_is_over(gpu):
    """A guard that held it is freed with its last reference."""
    import weakref

    from cuda_magic.rescue.guard import GuardRun
    from cuda_magic.rescue.options import GuardOptions

    run = GuardRun(GuardOptions(), None, lambda line: None)
    gc.collect()
    gc.disable()
    try:
        run.session = Session({}, errors=run._errors, say=run._say_room)
        run.session.begin(machine().allocator())
        run.session.end()
        known = weakref.ref(run)
        del run
        assert known() is None
    finally:
        gc.enable()


def test_switched_off_nothing_is_met(notebook):
    """%config CudaMagic.at_allocation = False: the error comes, and what is done after it is done."""
    notebook.run_cell("held = gpu.empty('16 GiB')\n%config CudaMagic.at_allocation = False")
    try:
        cell = "%%cuda_guard --report report --only holders,collect,caches\nx = gpu.empty('16 GiB')"
        assert notebook.run_cell(cell).error_in_exec is not None
        assert "report" in notebook.user_ns
        notebook.run_cell("%config CudaMagic.at_allocation = True")
        assert notebook.run_cell("%%cuda_guard --report report\nx = gpu.empty('16 GiB')").success
        assert notebook.user_ns["report"].status == "rescued"
    finally:
        sessions.switch(True)


# -- limits


def test_a_limit_of_a_cell(notebook):
    """As on a smaller card, while the cell runs."""
    assert notebook.run_cell("a = gpu.empty('4 GiB')").success
    cell = "%%cuda_guard --limit 6GiB --no-move\nb = gpu.empty('4 GiB')"
    assert "out of memory" in str(notebook.run_cell(cell).error_in_exec)
    cell = "%%cuda_guard --limit 6GiB --report report\nb = gpu.empty('4 GiB')"
    assert notebook.run_cell(cell).success
    assert notebook.user_ns["report"].status == "rescued"
    assert notebook.run_cell("c = gpu.empty('8 GiB')").success  # plain, and behind the cell


def test_a_limit_inside_a_guarded_cell(notebook):
    """It is held while the inner block runs, by the outer one's handler, and ends with it."""
    cell = (
        "%%cuda_guard --report report\n"
        "from cuda_magic import guard\n"
        "a = gpu.empty('4 GiB')\n"
        "with guard(limit='6GiB'):\n"
        "    b = gpu.empty('4 GiB')\n"
        "    from cuda_magic.allocation import session\n"
        "    moved = session.running().room.left()\n"
        "c = gpu.empty('6 GiB')\n"
        "behind = session.running().room.left()\n"
    )
    result = notebook.run_cell(cell)
    assert result.success
    assert notebook.user_ns["moved"] > 0
    assert notebook.user_ns["behind"] == 0  # 14 of 16 GiB: nothing else was in the way
    assert notebook.user_ns["report"].status == "rescued"


def test_a_limit_of_the_kernel(notebook):
    """For every cell from then on, guarded or not, until 0 ends it."""
    notebook.run_cell("%cuda_guard --limit 6GiB")
    notebook.run_cell("a = gpu.empty('4 GiB')")
    assert "out of memory" in str(notebook.run_cell("b = gpu.empty('4 GiB')").error_in_exec)
    assert notebook.run_cell("%%cuda_guard\nb = gpu.empty('4 GiB')").success
    notebook.run_cell("%cuda_guard --limit 0")
    assert notebook.run_cell("c = gpu.empty('12 GiB')").success


BAD = {
    "%cuda_guard --limit 2GiB": "cuda_guard: --limit: 4.00 GiB are in use already, more than 2.00 GiB.",
    "%cuda_guard --limit 6": "cuda_guard: --limit 6: that is next to nothing; a size has a unit, as in 1GiB.",
    "%cuda_guard --limit lots": "cuda_guard: --limit takes a size such as 2GiB or 512MiB, not 'lots'.",
    "%%cuda_guard --limit 6\nran = 1": "cuda_guard: --limit 6: that is next to nothing; a size has a unit, as in 1GiB.",
    "%%cuda_guard --limit lots\nran = 1": "cuda_guard: --limit takes a size such as 2GiB or 512MiB, not 'lots'.",
}


@pytest.mark.parametrize("line", BAD)
def test_a_limit_that_is_a_mistake(notebook, line):
    """One sentence, nothing runs, and no limit is in force."""
    notebook.run_cell("a = gpu.empty('4 GiB')")
    error = notebook.run_cell(line).error_in_exec
    assert isinstance(error, (UserError, Refused))
    assert str(error) == BAD[line]
    assert "ran" not in notebook.user_ns
    assert notebook.run_cell("c = gpu.empty('16 GiB')").success


# -- unloading


def test_unloading_waits_while_tensors_are_on_the_host(notebook):
    """Refused in one sentence with what to do; that done, it unloads, and a plain error is torch's again."""
    notebook.run_cell("a = gpu.full('16 GiB', 3)")
    assert notebook.run_cell("%%cuda_guard\nb = gpu.empty('16 GiB')").success
    assert sessions.left() >= 8 * GIB
    with pytest.raises(
        Refused, match=r"stays loaded: \d+\.\d\d GiB of this kernel's tensors are on the host"
    ) as refused:
        notebook.run_line_magic("unload_ext", "cuda_magic")
    assert "%gpu_mem --free" in str(refused.value)
    assert notebook.run_line_magic("cuda_guard", "") is not None  # still there
    assert notebook.run_cell("total = a.sum()").success
    assert notebook.user_ns["total"] == 3 * 16 * GIB
    notebook.run_cell("del b\n_ = get_ipython().run_line_magic('gpu_mem', '--free')")
    assert sessions.left() == 0
    notebook.run_line_magic("unload_ext", "cuda_magic")
    assert "out of memory" in str(notebook.run_cell("c = gpu.empty('23 GiB')").error_in_exec)
    notebook.run_line_magic("load_ext", "cuda_magic")


def test_after_the_cell_what_fits_comes_back(notebook):
    """Then nothing is left, and unloading is no question."""
    notebook.run_cell("a = gpu.full('16 GiB', 3)")
    assert notebook.run_cell("%%cuda_guard\nn = gpu.empty('16 GiB').nbytes").success
    assert sessions.left() == 0
    assert notebook.run_cell("total = a.sum()").success
    assert notebook.user_ns["total"] == 3 * 16 * GIB
