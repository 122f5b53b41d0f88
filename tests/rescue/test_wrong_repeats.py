"""A statement that did something before memory ran out is not run twice, whatever it did.

Each kind was seen to give other numbers after a repeat. Here the guarded statement ends as the plain one does: with the
same error, and with the same state.
"""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

OOM = """
n = 0
def oom():
    global n
    n += 1
    if n == 1:
        raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB')
"""
METER = """
class Meter:
    def __init__(self): self.total, self.kept, self.shift = 0, [], 1.5
    def update(self, x): self.total += x; self.kept.append(x)
default = Meter()
store = {}
"""
"""A library that is installed, as torchmetrics, sklearn or a store of parameters keeps what it was given."""


@pytest.fixture
def fails(cells, monkeypatch, tmp_path):
    """Runs statements with ``oom()``, which runs out of memory at its first call, beside a library ``meters``."""
    for name, code in (("fails_once", OOM), ("meters", METER)):
        module = ModuleType(name)
        exec(code, vars(module))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    return cells


def ends(cells, setup, code, state, guarded):
    """How a run of `code` ends: its error, and what `state` is then."""
    sys.modules["fails_once"].n = 0
    exec(METER, vars(sys.modules["meters"]))
    before = {name: cells.names[name] for name in ("__name__", "torch", "numpy", "pandas") if name in cells.names}
    cells.names.clear()
    cells.names |= {**before, "oom": sys.modules["fails_once"].oom, "meters": sys.modules["meters"]}
    cells.plain(setup)
    error = None
    if guarded:
        error = cells.guard(code)
        assert (cells.report.status, cells.report.attempts) == ("refused", 1)
    else:
        try:
            cells.plain(code)
        except RuntimeError as own:
            error = own
    return type(error), str(error), repr(eval(state, cells.names))


def same(cells, setup, code, state):
    """The guarded run ends as the plain run does, and a second run would have ended otherwise."""
    plain = ends(cells, setup, code, state, False)
    assert ends(cells, setup, code, state, True) == plain
    assert plain[0] is RuntimeError


THING = "class Thing:\n    n = 1000\n"
COUNT = "class C:\n    def __init__(s): s.n = 1000\n    def go(s): s.n += 1\n"
ADD = {
    "number in a nested dict": ("d = {'a': {'n': 1000}}", "d['a']['n'] += 1", "d"),
    "list four levels down": ("d = {'a': {'b': {'c': [1, 2]}}}", "d['a']['b']['c'].append(3)", "d"),
    "order of a nested list": ("d = [[2, 1], [3, 4]]", "d[0].reverse()", "d"),
    "list in a tuple": ("d = ([], {})", "d[0].append(1)", "d"),
    "item of a long list": ("d = list(range(5000))", "d[5] += 1", "d"),
    "-1 and -2 in a long list": ("d = [-1] * 5000", "d[5] = -2; d[6] = d[6] - 1", "d"),
    "item of a long dict": ("d = dict.fromkeys(range(5000), 0)", "d[5] += 1", "d"),
    "long set": ("d = set(range(5000))", "d.add(max(d) + 1); d.remove(min(d))", "d"),
    "long bytearray": ("d = bytearray(5000)", "d[3] += 1", "d"),
    "defaultdict of defaultdicts": (
        "from collections import defaultdict as D\nd = D(lambda: D(int)); d['a']['b'] = 1",
        "d['a']['b'] += 1",
        "d",
    ),
    "attribute of an attribute": (THING + "o = Thing(); o.p = Thing(); o.p.n = 1", "o.p.n += 1", "o"),
    "dict of an object": (THING + "o = Thing(); o.p = {'n': 1000}", "o.p['n'] += 1", "o"),
    "object in a list": (THING + "o = [Thing()]; o[0].n = 1", "o[0].n += 1", "o"),
    "slots": ("class S:\n    __slots__ = ('n',)\no = S(); o.n = 1000", "o.n += 1", "o"),
    "SimpleNamespace": ("from types import SimpleNamespace\no = SimpleNamespace(n=1)", "o.n += 1", "o"),
    "list of one's own class": ("class L(list): pass\no = L()", "o.append(1)", "o"),
    "dict of one's own class": ("class L(dict): pass\no = L()", "o['a'] = 1", "o"),
    "class attribute": (THING, "Thing.n += 1", "Thing"),
    "class attribute by a method": (THING + "    def f(s): Thing.n += 1\no = Thing()", "o.f()", "o"),
    "closure": (
        "def make():\n    n = 0\n    def f():\n        nonlocal n\n        n += 1\n    return f\nf = make()",
        "f()",
        "f",
    ),
    "default argument": ("def f(c=[]):\n    c.append(1)", "f()", "f"),
    "attribute of a function": ("def f():\n    f.n += 1\nf.n = 0", "f()", "f"),
    "bound method": (COUNT + "f = C().go", "f()", "f"),
    "partial": ("import functools\ndef g(c): c.append(1)\nf = functools.partial(g, [])", "f()", "f"),
    "array of numbers": ("import array\na = array.array('i', [1])", "a[0] += 1", "a"),
    "queue": ("import queue\nq = queue.Queue()", "q.put(1)", "q"),
    "ChainMap": ("import collections\nc = collections.ChainMap({})", "c['a'] = 1", "c"),
    "cached function": ("import functools\nd = [[1]]\n@functools.lru_cache\ndef f(): d[0].append(1)", "f()", "d"),
    "string that is run": ("d = [[1]]", "exec('d[0].append(1)')", "d"),
    "magic": ("d = [[1]]\ndef get_ipython(): d[0].append(1)", "get_ipython()", "d"),
    "property": ("d = [[1]]\nclass P:\n    @property\n    def go(s): d[0].append(1)\np = P()", "p.go", "d"),
    "private name by global": ("_n = 1000\ndef f():\n    global _n\n    _n += 1", "f()", "_n"),
    "zip read by a function": ("z = zip(range(9))\ndef f(): return next(z)", "f()", "z"),
    "generator in a list": ("z = [(i for i in range(9))]", "next(z[0])", "z"),
    "iterator of an object": (THING + "o = Thing(); o.i = iter([1, 2])", "next(o.i)", "o"),
}
NUMPY = {
    "array": ("a = numpy.zeros(3)", "a[0] += 1", "a"),
    "array by a function": ("a = numpy.zeros(3)\ndef f(): a[0] += 1", "f()", "a"),
    "array in a dict": ("a = {'x': numpy.zeros(3)}", "a['x'] += 1", "a"),
    "numbers spawned": ("a = numpy.random.default_rng(1)", "a.spawn(1)", "a"),
    "bit generator": ("a = numpy.random.PCG64(1)", "a.random_raw()", "a"),
    "array of objects": ("a = numpy.array([1, None], dtype=object)", "a[1] = 5", "a"),
    "shuffled large array": ("numpy.random.seed(0); a = numpy.arange(300_000)", "numpy.random.shuffle(a)", "a"),
    "large array in another order": ("a = numpy.zeros((600, 600), order='F')", "a += 1", "a"),
    "view of an array": ("b = numpy.zeros(9); a = b[::2]", "a[1] = 1", "a"),
}
PANDAS = {
    "item of a frame": ("a = pandas.DataFrame({'x': [1, 2]})", "a.loc[0, 'x'] += 1", "a"),
    "column of a frame": ("a = pandas.DataFrame({'x': [1, 2]})", "a['y'] = 1", "a"),
    "series": ("a = pandas.Series([1, 2])", "a.iloc[0] = 5", "a"),
}


LIBRARIES = {
    "an object of a library": ("m = meters.Meter()", "m.update(1)", "m.total, m.kept"),
    "a library's own store": ("", "meters.store.update(n=len(meters.store))", "meters.store"),
    "a library's default object": ("", "meters.default.update(2)", "meters.default.total"),
    "an attribute by getattr": ("m = meters.Meter()", "getattr(m, 'update')(1)", "m.total"),
    "by operator.methodcaller": (
        "import operator; m = meters.Meter()",
        "operator.methodcaller('update', 1)(m)",
        "m.total",
    ),
    "a name in the library": ("meters.n = 0", "setattr(meters, 'n', getattr(meters, 'n', 0) + 1)", "meters.n"),
    "a generator that has started": ("g = (i for i in range(9)); next(g)", "next(g)", "next(g)"),
    "a stream of a function": ("def f():\n    yield from range(9)\ng = f(); next(g)", "next(g)", "next(g)"),
    "a pipe of iterators": ("import itertools; g = itertools.count()", "next(map(int, g))", "next(g)"),
    "a random generator of one's own": (
        "import random\nclass R(random.Random): pass\nr = R(3)",
        "r.random()",
        "r.random()",
    ),
    "a file appended": ("open('f', 'w').close()", "open('f', 'a').write('x')", "open('f').read()"),
    "a database": (
        "import sqlite3; c = sqlite3.connect(':memory:'); c.execute('create table t(x)')",
        "c.execute('insert into t values(1)')",
        "list(c.execute('select * from t'))",
    ),
    "a log handler": (
        "import logging, io; out = io.StringIO()\n"
        "log = logging.Logger('x'); log.addHandler(logging.StreamHandler(out))",
        "log.warning('once')",
        "out.getvalue()",
    ),
    "another process": (
        "import subprocess, sys",
        "subprocess.run([sys.executable, '-c', \"open('p', 'a').write('x')\"])",
        "open('p').read() and open('p', 'w').close()",
    ),
    "the environment": ("import os; os.environ['N'] = '1'", "os.environ['N'] += '1'", "os.environ['N']"),
    "a queue": ("import queue; q = queue.Queue()", "q.put(1)", "q.qsize()"),
    "a simple queue": ("import queue; q = queue.SimpleQueue()", "q.put(1)", "q.qsize()"),
    "a context variable": (
        "import contextvars; v = contextvars.ContextVar('v', default=0)",
        "v.set(v.get() + 1)",
        "v.get()",
    ),
    "a thread's own": ("import threading; t = threading.local(); t.n = 1", "t.n += 1", "t.n"),
    "a weak dict": ("import weakref; k = meters.Meter(); d = weakref.WeakKeyDictionary({k: 1})", "d[k] += 1", "d[k]"),
    "a hash": ("import hashlib; h = hashlib.sha256()", "h.update(b'x')", "h.hexdigest()"),
    "memory of ctypes": ("import ctypes; c = ctypes.c_int(1)", "c.value += 1", "c.value"),
    "mapped memory": ("import mmap; m = mmap.mmap(-1, 16)", "m.write(b'x')", "m.tell()"),
    "a view of memory": ("b = bytearray(4); m = memoryview(b)", "m[0] += 1", "b"),
    "the 900th record": ("d = [{'n': 0} for _ in range(900)]", "d[899]['n'] += 1", "d[899]"),
    "the 1,500th object": ("d = [meters.Meter() for _ in range(1500)]", "d[-1].update(1)", "d[-1].total"),
    "100,000 counts": ("d = {i: 0 for i in range(100_000)}", "d[99_999] += 1", "d[99_999]"),
    "a name with an underscore": ("_seen = []", "_seen.append(1)", "_seen"),
    "an import with side effects": (
        "import sys; sys.path.insert(0, '.'); sys.modules.pop('counted', None)\n"
        "open('counted.py', 'w').write(\"open('c', 'a').write('x')\"); open('c', 'w').close()",
        "import counted; sys.modules.pop('counted')",
        "open('c').read()",
    ),
    "a question asked": ("asked = []\ndef input(text): asked.append(text)", "input('name?')", "asked"),
    "what is printed": ("import io, contextlib; out = io.StringIO()", "print('epoch 1', file=out)", "out.getvalue()"),
    "the second half of asyncio.gather": (
        "import asyncio; done = []\nasync def one(): done.append(1)\n"
        "async def two():\n    await asyncio.sleep(0)\n    oom()\nasync def both(): await asyncio.gather(one(), two())",
        "asyncio.run(both())",
        "done",
    ),
    "a cached property": (
        "import functools\nclass A:\n    n = 0\n    @functools.cached_property\n"
        "    def p(s): A.n += 1; return 1\na = A()",
        "a.p; del a.p",
        "A.n",
    ),
    "an operator of one's own": ("class A:\n    n = 0\n    def __matmul__(s, o): A.n += 1\na = A()", "a @ a", "A.n"),
    "model.eval() of the notebook's": (
        "class A:\n    n = 0\n    def eval(s): s.n += 1\nmodel = A()",
        "model.eval()",
        "model.n",
    ),
}
BY_NUMPY = {
    "np.vectorize": ("seen = []\nf = numpy.vectorize(seen.append, otypes=[object])", "f([1, 2])", "seen"),
    "a large array": ("a = numpy.zeros(3_000_000)", "a[2_999_999] += 1", "a[-1]"),
    "a subclassed random state": ("class R(numpy.random.RandomState): pass\nr = R(3)", "r.rand()", "r.rand()"),
}


def _statement(code):
    return f"for _ in range(1):\n    {code}; oom()"


@pytest.mark.parametrize("setup, code, state", LIBRARIES.values(), ids=LIBRARIES)
def test_what_no_list_of_changes_has(fails, setup, code, state):
    """Objects of libraries, files, generators, processes, names, questions: done once."""
    same(fails, setup, _statement(code), state)


@pytest.mark.parametrize("setup, code, name", ADD.values(), ids=ADD)
def test_what_lies_below_the_names(fails, setup, code, name):
    """Containers, objects, closures: changed once."""
    same(fails, setup, _statement(code), f"repr({name}).partition(' at 0x')[0]")


@pytest.mark.parametrize("setup, code, name", {**NUMPY, **BY_NUMPY}.values(), ids=[*NUMPY, *BY_NUMPY])
def test_what_an_array_holds(fails, setup, code, name):
    """By the statement, by a function that it calls, and by numpy's own functions."""
    fails.names["numpy"] = pytest.importorskip("numpy")
    same(fails, setup, _statement(code), f"repr({name}).partition(' at 0x')[0]")


@pytest.mark.parametrize("setup, code, name", PANDAS.values(), ids=PANDAS)
def test_what_a_frame_holds(fails, setup, code, name):
    """Items that are set and columns that are added."""
    fails.names["pandas"] = pytest.importorskip("pandas")
    same(fails, setup, _statement(code), name)


NET = "m = torch.nn.Linear(2, 1); x = torch.ones(4, 2)\n"
TORCH = {
    "a fused optimizer made in a function": (
        NET
        + "def f():\n    o = torch.optim.SGD(m.parameters(), lr=0.1, foreach=True); m(x).sum().backward(); o.step()",
        "f()",
        "m.weight",
    ),
    "gradients clipped by foreach": (
        NET + "m(x).sum().backward()",
        "torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1, foreach=True); m.weight.grad.mul_(2)",
        "m.weight.grad",
    ),
    "moving averages by list": (
        "w = [torch.zeros(2)]; v = [torch.ones(2)]",
        "torch._foreach_lerp_(w, v, 0.5)",
        "w",
    ),
    "buffers under inference_mode": (
        "m = torch.nn.BatchNorm1d(2)\n@torch.inference_mode()\ndef f(): m(torch.arange(8.0).reshape(4, 2))",
        "f()",
        "m.running_mean",
    ),
    "a tensor by its numpy view": ("t = torch.zeros(2); a = t.numpy()", "a[0] += 1", "t"),
    "a tensor by getattr": ("class A: t = torch.zeros(2)", "getattr(A, 't').add_(1)", "A.t"),
    "the 2,000th tensor of a list": ("ts = [torch.zeros(2) for _ in range(2000)]", "ts[-1].add_(1)", "ts[-1]"),
    "a Sobol engine": ("e = torch.quasirandom.SobolEngine(2)", "e.draw(1)", "e.num_generated"),
    "a generator of torch's in a module": (
        "m = torch.nn.Identity(); m.g = torch.Generator().manual_seed(3)",
        "torch.rand(2, generator=m.g)",
        "torch.rand(1, generator=m.g)",
    ),
    "training flags": ("m = torch.nn.Identity()", "m.train(not m.training)", "m.training"),
    "a loader's iterator": ("i = iter(torch.utils.data.DataLoader(list(range(8))))", "next(i)", "next(i)"),
    "tensor three levels down": ("t = {'a': {'b': {'c': torch.zeros(2)}}}", "t['a']['b']['c'].add_(1)", "t"),
    "moving averages in an object's dict": (
        THING + "e = Thing(); e.s = {'w': torch.zeros(2)}",
        "e.s['w'].add_(1)",
        "e",
    ),
    "object of an object": (THING + "e = Thing(); e.m = Thing(); e.m.t = torch.zeros(2)", "e.m.t.add_(1)", "e"),
    "tensor in a closure": (
        "def make():\n    t = torch.zeros(2)\n    def f(): t.add_(1)\n    return f\nf = make()",
        "f()",
        "f",
    ),
    "gradients in nested lists": (
        "m = [[[torch.nn.Linear(2, 1)]]]\ndef f(): m[0][0][0](torch.ones(1, 2)).sum().backward()\nf()",
        "f()",
        "m",
    ),
    "normalization in nested lists": ("m = [[[torch.nn.BatchNorm1d(2)]]]", "m[0][0][0](torch.randn(4, 2))", "m"),
    "learning rate": (
        "m = torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), lr=0.1)",
        "o.param_groups[0]['lr'] *= 0.5",
        "o",
    ),
    "scheduler": (
        "m = torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "s = torch.optim.lr_scheduler.ExponentialLR(o, 0.5); o.step()",
        "s.step()",
        "s",
    ),
    "counter of a module in a module": (
        "class N(torch.nn.Module):\n    n = 0\n    def forward(s, x):\n        s.n += 1\n        return x\n"
        "m = torch.nn.Sequential(N())",
        "m(1)",
        "m",
    ),
    "module without parameters": ("m = torch.nn.Sequential()\ndef f(): m.append(torch.nn.Tanh())", "f()", "m"),
    "mode of a module": ("m = torch.nn.Sequential()\ndef f(): m.train(not m.training)", "f()", "m"),
    "hook of a module": (
        "d = [[1]]; m = torch.nn.Identity(); h = m.register_forward_hook(lambda *a: d[0].append(1))",
        "m(1)",
        "d",
    ),
    "past the counter": ("m = torch.nn.Linear(2, 1)\ndef f(): m.weight.data.mul_(2)", "f()", ".data"),
    "data set": ("m = torch.nn.Linear(2, 1)\ndef f(): m.weight.data = m.weight.data * 2", "f()", ".data"),
    "loader that a function reads": (
        "i = iter(torch.utils.data.DataLoader(list(range(8))))\ndef f(): return next(i)",
        "f()",
        "i",
    ),
}


@pytest.mark.torch
@pytest.mark.parametrize("setup, code, name", TORCH.values(), ids=TORCH)
def test_what_torch_changes(fails, setup, code, name):
    """Optimizers, gradients, buffers, hooks, schedulers, and tensors that no name leads to."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    fails.names["torch"] = torch
    state = "m.weight" if name == ".data" else name
    same(fails, "torch.manual_seed(0)\n" + setup, _statement(code), f"repr({state}).partition(' at 0x')[0]")


def test_what_a_guarded_function_changes(fails):
    """By its closure, by an argument, or nothing: a function is repeated only with repeat=True."""
    import cuda_magic

    state = {"n": 1}
    oom = sys.modules["fails_once"].oom

    def closure():
        state["n"] += 1
        oom()

    with pytest.raises(RuntimeError, match="out of memory"):
        cuda_magic.guard(closure)()
    assert state == {"n": 2}
    sys.modules["fails_once"].n = 0
    cuda_magic.guard(repeat=True)(closure)()
    assert state == {"n": 4}


def test_an_attribute_is_no_constant(fails):
    """A property alone on a line may do anything."""
    fails.plain(
        "from fails_once import oom\nd = []\nclass P:\n    @property\n    def go(s): d.append(1); oom()\np = P()"
    )
    assert type(fails.guard("p.go")) is RuntimeError
    assert fails.names["d"] == [1]
