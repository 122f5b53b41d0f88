"""What a statement can reach: compared with what it really touches when it runs."""

import ast
import atexit
import functools
import gc
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuda_magic.rescue.doubts import ATTRIBUTES, GLOBALS, MEMBERS
from cuda_magic.rescue.idle import reach


@pytest.fixture(autouse=True)
def fewer_objects(monkeypatch):
    """What lived before the test is left out of the search, which takes a quarter of a second else."""
    gc.freeze()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    yield
    gc.unfreeze()


ROOT = Path(__file__).resolve().parents[2]


class Thing:
    """Stands for a tensor: `touch` notes that it was reached."""

    touched: set = set()

    def __init__(self, name):
        self.name = name

    def touch(self):
        Thing.touched.add(self.name)
        return self


def namespace(setup="", **values):
    """A notebook's namespace with a Thing for each of a, b, c, d, after `setup` ran in it."""
    made = {"__name__": "__main__", "__builtins__": __builtins__, "Thing": Thing, "print": print}
    exec(compile("a, b, c, d = map(Thing, 'abcd')", "<setup>", "exec"), made)
    made.update(values)
    exec(compile(setup, "<setup>", "exec"), made)
    return made


def idle(code, names, **more):
    """Names of a, b, c, d that the one statement `code` cannot reach; and the doubt."""
    found = reach(ast.parse(code).body[0], names, **more)
    return {n for n in "abcd" if found.idle(names[n])}, found.doubt


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("x = a", "a"),
        ("a.touch()", "a"),
        ("x = [a, b]", "ab"),
        ("x = f'{a}'", "a"),
        ("x = (lambda: a)()", "a"),
        ("x = [t for t in (a, b)]", "ab"),
        ("if c: x = d", "cd"),
        ("a = Thing('n')", ""),
        ("del a", ""),
        ("a += 1", "a"),
        ("for a in range(3): pass", ""),
        ("x = {'k': b}['k']", "b"),
        ("def later(t=a): return t", "a"),
        ("def later(): return a", "a"),
        ("class K:\n  t = b", "b"),
        ("class K:\n  def m(self): return b", "b"),
        ("with open('/dev/null') as f: print(d, file=f)", "d"),
        ("x: int = c", "c"),
        ("try: a\nexcept NameError: b", "ab"),
        ("x = eval2 if False else a", "a"),
        ("frame.query('x > @b')", "b"),
        ("import math", ""),
        ("x = 1 if __name__ == '__main__' else a", "a"),
    ],
)
def test_the_names_of_the_statement(code, used):
    """What the statement's own text names is in use, every other variable is idle."""
    names = namespace(eval2=None, frame=None)
    assert idle(code, names) == (set("abcd") - set(used), "")


@pytest.mark.parametrize(
    ("setup", "code", "used"),
    [
        ("def f(): return a", "f()", "a"),
        ("def f(): return g()\ndef g(): return h()\ndef h(): return a", "f()", "a"),
        ("def f(): return a\ndef g(): return b", "g()", "b"),
        ("def f(x=a): return x", "f()", "a"),
        ("def f(*, x=a): return x", "f()", "a"),
        ("def outer():\n  t = a\n  return lambda: t\nf = outer()", "f()", "a"),
        ("from functools import partial\nf = partial(print, a)", "f()", "a"),
        ("class K:\n  def m(self): return a\nk = K()", "k.m()", "a"),
        ("class K:\n  t = a\nk = K()", "k.t", "a"),
        ("class K:\n  @property\n  def t(self): return a\nk = K()", "k.t", "a"),
        ("class K:\n  @staticmethod\n  def t(): return a\nk = K()", "k", "a"),
        ("class K:\n  __slots__ = ('t',)\nk = K(); k.t = a", "k", "a"),
        ("class K: pass\nk = K(); k.t = [{'x': (a,)}]", "k", "a"),
        ("class K: pass\nk = K(); k.t = a; m = k.__dict__", "m", "a"),
        ("class P:\n  def m(self): return a\nclass K(P): pass\nk = K()", "k", "a"),
        ("class M(type):\n  def __call__(cls): return a\nclass K(metaclass=M): pass", "K()", "a"),
        ("x = [a]\ny = {'x': x}", "y", "a"),
        ("x = [a]; x.append(x)", "x", "a"),
        ("s = {a}; t = frozenset([b])", "s, t", "ab"),
        ("from collections import deque\nq = deque([a])", "q", "a"),
        ("import weakref\nw = weakref.ref(a)", "w()", "a"),
        ("import weakref\nw = weakref.WeakValueDictionary(k=a)", "w['k']", "a"),
        ("g = (t for t in [a])", "next(g)", "a"),
        ("def gen():\n  yield\n  yield a\ng = gen(); next(g)", "next(g)", "a"),
        ("i = iter([a, b])", "next(i)", "ab"),
        ("m = a.touch", "m()", "a"),
        ("m = map(lambda t: b, [a])", "list(m)", "ab"),
        ("import functools\nf = functools.lru_cache(lambda: a)", "f()", "a"),
        ("import functools\n@functools.wraps(print)\ndef f(): return a", "f()", "a"),
        ("def deco(g):\n  def inner(): return g()\n  return inner\n@deco\ndef f(): return a", "f()", "a"),
        ("calls = [lambda: a, lambda: b]", "calls[0]()", "ab"),
        ("import types\nmod = types.ModuleType('mod'); mod.t = a", "mod.t", "a"),
        ("import types\no = types.SimpleNamespace(t=a)", "o.t", "a"),
        ("def f():\n  def g(): return a\n  return g", "f()", "a"),
        ("def f(): 'of a'", "f()", "a"),
        ("class K:\n  def __del__(self): a\nk = K()", "k = 1", "a"),
        ("a.other = b", "a", "ab"),
    ],
)
def test_what_the_names_lead_to(setup, code, used):
    """Functions, methods, classes, closures, defaults, containers, slots, iterators, weak references."""
    names = namespace(setup)
    found, doubt = idle(code, names)
    assert doubt == ""
    assert found == set("abcd") - set(used)


def test_numpys_array_of_objects():
    """The collector does not see into it: what it holds is in use where the array is."""
    numpy = pytest.importorskip("numpy")
    names = namespace()
    names["x"] = numpy.array([names["a"], None], dtype=object)
    assert "a" not in idle("x[0]", names)[0]


@pytest.mark.parametrize(
    ("setup", "code", "used"),
    [
        ("calls = {}\nimport atexit\ndef f(): return a\natexit.register(f)", "x = 1", "a"),
        ("import sys, types\nmod = types.ModuleType('elsewhere'); sys.modules['elsewhere'] = mod; mod.t = b", "1", "b"),
        ("import weakref\nclass K: pass\nk = K(); fin = weakref.finalize(k, print, c)", "x = 1", "c"),
        ("import signal\nold = signal.signal(signal.SIGUSR2, lambda *x: d)", "x = 1", "d"),
    ],
)
def test_what_others_refer_to_is_in_use(setup, code, used):
    """A registry of Python's or of a module's refers to it: the statement may reach it by a way that it names not."""
    names = namespace(setup)
    found, doubt = idle(code, names)
    import signal

    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    sys.modules.pop("elsewhere", None)
    if "f" in names:
        atexit.unregister(names["f"])
    assert (found, doubt) == (set("abcd") - set(used), "")


def test_a_running_frame_holds_it():
    """A local variable of a caller is seen by the count of references alone."""
    names = namespace()
    held = names["a"]
    assert idle("x = 1", names)[0] == set("bcd")
    assert held.name == "a"


@pytest.mark.parametrize(
    "code",
    [
        "globals()['a']",
        "locals()",
        "vars()",
        "eval('a')",
        "exec('a')",
        "x = __import__('x')",
        "breakpoint()",
        "get_ipython().run_line_magic('time', 'a')",
        "f.__globals__",
        "import __main__",
        "from __main__ import q",
        "import sys; sys.modules",
        "import builtins",
        "from sys import path, _getframe",
        "import gc\ngc.get_objects()",
        "sys.modules['x']",
        "gc.get_objects()",
        "sys._getframe(0)",
        "inspect.stack()",
        "e('a')",
        "objects()",
        "await q",
        "async with q: pass",
        "x = [y async for y in q]",
        "importlib.import_module('__main__').a",
        "f.user_ns",
        "shell.x",
        "pandas.eval('1')",
    ],
)
def test_doubts(code):
    """Where the code has a way to every variable, everything is in use, and the reason is one clause."""
    import importlib
    import inspect

    from IPython.core.interactiveshell import InteractiveShell

    pandas = types.ModuleType("pandas")
    shell = InteractiveShell.__new__(InteractiveShell)
    names = namespace("def f(): pass\ne = eval", sys=sys, gc=gc, inspect=inspect, objects=gc.get_objects)
    names.update(importlib=importlib, shell=shell, pandas=pandas, q=None)
    tree = ast.parse(code).body
    found = reach(tree[0] if len(tree) == 1 else ast.If(ast.Constant(True), tree, []), names)
    assert found.doubt
    assert not any(found.idle(names[n]) for n in "abcd")
    assert "." not in found.doubt[-1]


@pytest.mark.parametrize(
    "code", ["gc.collect()", "model.eval()", "x = sys.path", "torch.stack([a])", "model.modules()", "re.compile('x')"]
)
def test_what_only_looks_like_a_doubt(code):
    """Methods of the same names, and harmless members of the modules in the table."""
    names = namespace(sys=sys, gc=gc, model=None, torch=types.ModuleType("torch"), re=__import__("re"))
    found, doubt = idle(code, names)
    assert doubt == ""
    assert found >= set("bcd")


def test_a_doubt_in_a_function_that_may_be_called():
    """The reason names the function; a function that nobody can call raises no doubt."""
    names = namespace("def f(): return eval('a')\ndef g(): return b")
    assert idle("f()", names)[1] == "f() may be called: eval() may name any variable"
    assert idle("g()", names) == (set("acd"), "")


def test_every_doubt_is_a_clause():
    """The tables hold one clause a row."""
    assert all(reason and not reason.endswith(".") for reason in (*GLOBALS.values(), *ATTRIBUTES.values()))
    assert all(isinstance(members, frozenset) for members in MEMBERS.values())


def test_another_thread_that_runs_code_of_the_notebook():
    """Its frame has the variables at hand: everything is in use."""
    names = namespace("import threading\ngo, up = threading.Event(), threading.Event()")
    exec("def wait(): up.set(); go.wait()", names)
    thread = threading.Thread(target=names["wait"])
    thread.start()
    names["up"].wait()
    try:
        assert idle("x = 1", names)[1] == "another thread runs code of this namespace"
    finally:
        names["go"].set()
        thread.join()


def test_the_shells_own_references(shell):
    """A shown value is idle unless the statement names Out or _; Out itself counts as a variable."""
    shell.run_cell("class T: pass\nt = T()", store_history=True)
    shell.run_cell("t", store_history=True)
    names = shell.user_ns
    assert reach(ast.parse("x = 1").body[0], names, shell=shell).variables()[id(names["t"])] == "t"
    assert reach(ast.parse("x = 1").body[0], names, shell=shell).idle(names["t"])
    for code in ("_", "Out", "_2", "_oh[2]", "t"):
        assert not reach(ast.parse(code).body[0], names, shell=shell).idle(names["t"]), code


def test_a_function_of_a_script():
    """With the function and its arguments for roots: what it reads and what it was given is in use."""
    names = namespace("def f(t): return a\ndef other(): return c")
    found = reach(None, names, (names["f"], names["b"]))
    assert {n for n in "abcd" if found.idle(names[n])} == set("cd")


def test_hostile_objects_run_no_code():
    """Properties, __getattr__, __eq__, __hash__ and metaclasses that raise are passed by."""
    setup = (
        "class Bad:\n"
        "  def __getattribute__(self, name): raise SystemExit\n"
        "  def __eq__(self, other): raise SystemExit\n"
        "  def __len__(self): raise SystemExit\n"
        "  __hash__ = None\n"
        "  @property\n"
        "  def __class__(self): raise SystemExit\n"
        "bad = Bad()"
    )
    assert idle("x = a", namespace(setup)) == (set("bcd"), "")


def test_a_frozen_heap_is_a_doubt(monkeypatch):
    """gc.freeze() hides objects from the search; those that Python 3.12 starts with are none of the user's."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 60_000)
    assert "frozen" in idle("x = 1", namespace())[1]
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    assert idle("x = 1", namespace())[1] == ""


def test_a_plain_interpreter_is_no_doubt():
    """In a process of its own, as it starts: the variables that the statement does not name are idle."""
    code = (
        "import ast, sys\nfrom cuda_magic.rescue.idle import reach\nclass T: pass\nt, u = T(), T()\n"
        "found = reach(ast.parse('t').body[0], globals())\n"
        "print(found.doubt, found.idle(t), found.idle(u))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "False True", done.stdout + done.stderr


def test_too_many_objects_are_a_doubt(monkeypatch):
    """Beyond the budget nothing is idle."""
    monkeypatch.setattr("cuda_magic.rescue.idle.BUDGET", 20)
    names = namespace("x = [[i, []] for i in range(100)]")
    found, doubt = idle("x = 1", names)
    assert not found
    assert "more objects than can be looked through" in doubt


# -- random programs, compared with a run that notes what it touches
HOLD = [
    "v{i} = [{x}]",
    "v{i} = {{'k': {x}}}",
    "v{i} = ({x}, 1)",
    "v{i} = functools.partial(lambda t: t, {x})",
    "v{i} = (lambda t: (lambda: t))({x})",
    "v{i} = types.SimpleNamespace(t={x})",
    "def v{i}(t={x}): return t",
    "def v{i}(): return {x}",
    "class v{i}:\n  t = {x}",
    "class V{i}:\n  def m(self): return {x}\nv{i} = V{i}()",
    "v{i} = iter([{x}])",
    "v{i} = ({x} for _ in range(1))",
    "v{i} = {x}",
    "v{i} = weakref.WeakKeyDictionary()\nv{i}[Key()] = {x}\nv{i}k = {x}",
]
USE = ["touch({x})", "y = [{x}]; touch(y)", "touch((lambda: {x})())", "y = {x}", "touch([t for t in [{x}]])"]


def touch(value, depth=8):
    """Touch every Thing that a value gives, as code that uses it fully would."""
    if depth == 0:
        return
    if isinstance(value, Thing):
        value.touch()
    elif isinstance(value, dict):
        for part in value.values():
            touch(part, depth - 1)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            touch(part, depth - 1)
    elif isinstance(value, functools.partial):
        touch(value.args, depth - 1)
        touch(value(), depth - 1)
    elif isinstance(value, (types.FunctionType, types.MethodType)):
        try:
            touch(value(), depth - 1)
        except TypeError:
            pass
    elif isinstance(value, type):
        touch(vars(value).get("t"), depth - 1)
    elif isinstance(value, (types.SimpleNamespace, types.GeneratorType)) or hasattr(value, "__next__"):
        touch(list(vars(value).values()) if hasattr(value, "__dict__") else list(value), depth - 1)
    elif hasattr(value, "m"):
        touch(value.m(), depth - 1)
    elif isinstance(value, weakref.WeakKeyDictionary):
        touch(list(value.values()), depth - 1)


class Key:
    """A key that is kept weakly."""


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.integers(0, len(HOLD) - 1), st.integers(0, 30)), min_size=1, max_size=9),
    st.integers(0, len(USE) - 1),
    st.integers(0, 30),
)
def test_random_programs_touch_nothing_that_was_said_to_be_idle(holds, how, at):
    """For any web of holders and any use: what the run touches is disjoint from what was idle."""
    lines, known = [], list("abcd")
    for i, (kind, which) in enumerate(holds):
        lines.append(HOLD[kind].format(i=i, x=known[which % len(known)]))
        known.append(f"v{i}")
    names = namespace("", functools=functools, types=types, weakref=weakref, touch=touch, Key=Key)
    exec(compile("\n".join(lines), "<setup>", "exec"), names)
    code = USE[how].format(x=known[at % len(known)])
    body = ast.parse(code).body
    node = body[0] if len(body) == 1 else ast.If(ast.Constant(True), body, [])
    found = reach(ast.fix_missing_locations(node), names)
    assert found.doubt == ""
    said = {n for n in "abcd" if found.idle(names[n])}
    del found
    Thing.touched.clear()
    exec(compile(code, "<cell>", "exec"), names)
    assert not said & Thing.touched, ("\n".join(lines), code)
    assert said, "one statement does not use all of four"


def test_what_python_itself_has_frozen_is_no_doubt(monkeypatch):
    """Python 3.12 starts with 375 frozen objects, none of them a variable's."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    assert idle("x = a", namespace()) == ({"b", "c", "d"}, "")
