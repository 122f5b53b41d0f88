"""A statement that changed something below the names is not run twice: what is not put back is refused."""

from __future__ import annotations

import sys

import pytest

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
    "shuffled large array": ("a = numpy.arange(300_000)", "numpy.random.shuffle(a)", "a"),
    "large array in another order": ("a = numpy.zeros((600, 600), order='F')", "a += 1", "a"),
    "view of an array": ("b = numpy.zeros(9); a = b[::2]", "a[1] = 1", "a"),
}
PANDAS = {
    "item of a frame": ("a = pandas.DataFrame({'x': [1, 2]})", "a.loc[0, 'x'] += 1", "a"),
    "column of a frame": ("a = pandas.DataFrame({'x': [1, 2]})", "a['y'] = 1", "a"),
    "series": ("a = pandas.Series([1, 2])", "a.iloc[0] = 5", "a"),
}


def _refused(cells, setup, code, name):
    cells.plain(setup)
    error = cells.guard(f"for _ in range(1):\n    {code}; oom()")
    assert type(error) is RuntimeError
    assert cells.report.status == "refused"
    assert cells.report.attempts == 1
    assert name in str(cells.text.notes)


@pytest.mark.parametrize("setup, code, name", ADD.values(), ids=ADD)
def test_what_lies_below_the_names_is_seen(fails, setup, code, name):
    """One attempt; the variable that leads there is named."""
    _refused(fails, setup, code, name)


@pytest.mark.parametrize("setup, code, name", NUMPY.values(), ids=NUMPY)
def test_what_an_array_holds_is_seen(fails, setup, code, name):
    """Changed in place by the statement, or by a function that it calls."""
    fails.names["numpy"] = pytest.importorskip("numpy")
    _refused(fails, setup, code, name)


@pytest.mark.parametrize("setup, code, name", PANDAS.values(), ids=PANDAS)
def test_what_a_frame_holds_is_seen(fails, setup, code, name):
    """Items that are set and columns that are added."""
    fails.names["pandas"] = pytest.importorskip("pandas")
    _refused(fails, setup, code, name)


TORCH = {
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
def test_what_torch_changes_below_the_names_is_seen(fails, setup, code, name):
    """Tensors that no name leads to within two steps, and what schedulers and optimizers keep as numbers."""
    fails.names["torch"] = pytest.importorskip("torch")
    _refused(fails, setup, code, name)


def test_random_generators_inside_objects_go_back(fails):
    """In a dict, an object, a default argument: the repeat draws what a run with enough memory draws."""
    numpy = pytest.importorskip("numpy")
    fails.names["numpy"] = numpy
    fails.plain(
        "import random\nclass T: pass\no = T(); o.r = numpy.random.default_rng(1); d = {'r': random.Random(2)}\n"
        "def f(r=numpy.random.default_rng(3)): return r.random()"
    )
    assert fails.guard("for _ in range(1):\n    x = (o.r.random(), d['r'].random(), f()); oom()") is None
    assert fails.report.attempts == 2
    import random

    wanted = (numpy.random.default_rng(1).random(), random.Random(2).random(), numpy.random.default_rng(3).random())
    assert fails.names["x"] == wanted


def test_what_only_is_read_forbids_no_repeat(fails):
    """Nested containers, objects, arrays and closures that the statement reads."""
    fails.names["numpy"] = pytest.importorskip("numpy")
    fails.plain(
        THING + "o = Thing(); o.p = Thing(); o.p.n = [1]; d = {'a': {'n': 5}}; a = numpy.arange(500_000)\n"
        "def make():\n    kept = [o]\n    def f(): return kept[0].p.n[0] + d['a']['n'] + int(a[3])\n    return f\n"
        "f = make()"
    )
    assert fails.guard("for _ in range(2):\n    x = f(); oom()") is None
    assert fails.names["x"] == 9
    assert fails.report.attempts == 2


def test_what_a_guarded_function_changes_is_seen(fails, monkeypatch):
    """By its closure, by its globals, by an argument; one that only reads is repeated."""
    import cuda_magic

    state, table = {"a": {"n": 1}}, {"a": {"n": 1}}
    oom = fails.names["oom"]

    def closure():
        state["a"]["n"] += 1
        oom()

    def argument(given):
        given["a"]["n"] += 1
        oom()

    def reads(given):
        oom()
        return given["a"]["n"] + state["a"]["n"]

    again = sys.modules["fails_once"]
    for function, given in ((closure, ()), (argument, (table,))):
        again.n = 0
        with pytest.raises(RuntimeError, match="out of memory"):
            cuda_magic.guard(function)(*given)
    assert (state, table) == ({"a": {"n": 2}}, {"a": {"n": 2}})
    again.n = 0
    assert cuda_magic.guard(reads)(table) == 4


def test_an_attribute_is_no_constant(fails):
    """A property alone on a line may do anything."""
    fails.plain("d = [[1]]\nclass P:\n    @property\n    def go(s):\n        d[0].append(1)\n        oom()\np = P()")
    assert type(fails.guard("p.go")) is RuntimeError
    assert fails.names["d"] == [[1, 1]]


def test_a_generator_of_the_system_has_no_state(fails, capsys):
    """random.SystemRandom cannot be put back and is not asked for its state."""
    fails.plain("import random\nr = random.SystemRandom()")
    assert fails.guard("x = (r.random() > 2, oom())") is None
    assert capsys.readouterr().err == ""
