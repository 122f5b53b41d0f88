"""What a guarded cell that succeeds does, counted and not timed; benchmarks/guard_cost.py has its time."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "guard_cost.py"
spec = importlib.util.spec_from_file_location("guard_cost", PATH)
guard_cost = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard_cost)


BODIES = {name: body for name, (setup, body) in guard_cost.ROWS.items() if not setup}


@pytest.mark.parametrize("name", guard_cost.ROWS)
def test_success_collects_and_imports_nothing(loaded, name):
    """The users' guard on a cell that succeeds; how long it takes is shown by the benchmark."""
    setup, body = guard_cost.ROWS[name]
    if "import" in setup:
        pytest.importorskip("torch" if "torch" in setup else "numpy")
    exec(setup, loaded.user_ns)
    seen = guard_cost.measure(loaded, body, rounds=20)
    assert (seen.collections, seen.imports) == (0, [])


def counted(shell, monkeypatch, magic, body):
    """How often parts of IPython and Python's compiler are called for one cell."""
    calls = Counter()

    def count(patched, owner, name):
        real = getattr(owner, name)

        def called(*args, **options):
            calls[name] += 1
            return real(*args, **options)

        patched.setattr(owner, name, called)

    shell.run_cell(f"{magic}\n{body}")  # what is loaded with the first cell is loaded
    with monkeypatch.context() as patched:
        count(patched, shell.input_transformer_manager, "transform_cell")
        count(patched, shell.compile, "ast_parse")
        count(patched, builtins, "compile")
        shell.run_cell(f"{magic}\n# edited\n{body}")
    return calls


@pytest.mark.parametrize("name", BODIES)
def test_a_cell_is_translated_and_parsed_as_often_as_the_plain_one(loaded, monkeypatch, name, capsys):
    """Once each: the line is taken off before IPython reads the cell. Below `%%time` it is twice."""
    body = BODIES[name]
    plain = counted(loaded, monkeypatch, "# plain", body)
    guarded = counted(loaded, monkeypatch, "%%cuda_guard", body)
    assert guarded["transform_cell"] == plain["transform_cell"] == 1
    assert guarded["ast_parse"] == plain["ast_parse"] == 1


def test_a_cell_is_compiled_once(loaded, monkeypatch):
    """No more calls of the compiler than a plain cell takes, which are one a statement; constants run as one."""
    body = BODIES["ten calls"]
    plain = counted(loaded, monkeypatch, "# plain", body)
    guarded = counted(loaded, monkeypatch, "%%cuda_guard", body)
    assert guarded["compile"] <= plain["compile"]
    constants = counted(loaded, monkeypatch, "%%cuda_guard", BODIES["ten lines"])
    assert constants["compile"] <= guarded["compile"] - 9


def calls(shell, text):
    """How many functions of Python's are called for one cell that runs for the third time, and how many of C's."""
    found = Counter()

    def count(frame, event, argument):
        found[event] += event in ("call", "c_call")

    for _ in range(2):
        shell.run_cell(text)
    sys.setprofile(count)
    try:
        shell.run_cell(text)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(
    "setup, statement, most",
    [
        ("def f(a):\n    return a", "y{} = f({})", 12),
        ("import numpy\na = numpy.ones(3)", "y{} = a + {}", 14),
        (guard_cost.CROWD, "y{} = double({})", 12),
        (guard_cost.CROWD + "\nclass Thing: pass\nthing = Thing()\nthing.a = {}", "y{} = len([thing, {}])", 75),
        (guard_cost.TRAINING, "y{} = abs({})", 12),
        (guard_cost.TRAINING, "y{} = inputs + {}", 130),
    ],
    ids=["a call", "numpy", "300 names", "300 names and an object", "a model in reach of none", "a model"],
)
def test_a_statement_that_acts_costs_few_calls(loaded, setup, statement, most):
    """Calls of Python functions that ten more statements take beyond what the plain cell takes for them."""
    if "import" in setup:
        pytest.importorskip("torch" if "torch" in setup else "numpy")
    exec(setup, loaded.user_ns)
    cells = ["\n".join(statement.format(i, i) for i in range(n)) for n in (2, 12)]
    guarded = [calls(loaded, f"%%cuda_guard\n{cell}")["call"] for cell in cells]
    plain = [calls(loaded, f"# plain\n{cell}")["call"] for cell in cells]
    assert (guarded[1] - guarded[0]) - (plain[1] - plain[0]) <= 10 * most, (guarded, plain)


def test_no_cuda_call_and_no_collection(loaded, monkeypatch):
    """A statement is marked without one call of CUDA's, or of torch.cuda's that waits for the card."""
    torch = pytest.importorskip("torch")
    import gc

    called = []
    for name in ("synchronize", "memory_stats", "mem_get_info", "empty_cache", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, lambda *a, name=name, **o: called.append(name))
    monkeypatch.setattr(gc, "collect", lambda *a: called.append("collect"))
    loaded.run_cell("%%cuda_guard\nimport torch\nt = torch.zeros(3)\nm = torch.nn.Linear(2, 2)\nt + 1\nabs(2)")
    assert called == []
