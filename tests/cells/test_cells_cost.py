"""What a guarded cell that succeeds does, counted and not timed; benchmarks/guard_cost.py has its time."""

from __future__ import annotations

import builtins
import importlib.util
from collections import Counter
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "guard_cost.py"
spec = importlib.util.spec_from_file_location("guard_cost", PATH)
guard_cost = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard_cost)


@pytest.fixture
def loaded(shell):
    shell.run_line_magic("load_ext", "cuda_magic")
    yield shell
    shell.run_line_magic("unload_ext", "cuda_magic")


@pytest.mark.parametrize("name", guard_cost.BODIES)
def test_success_collects_and_imports_nothing(loaded, name):
    """The users' guard on a cell that succeeds; how long it takes is shown by the benchmark."""
    seen = guard_cost.measure(loaded, guard_cost.BODIES[name], rounds=20)
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


@pytest.mark.parametrize("name", guard_cost.BODIES)
def test_a_body_is_translated_and_parsed_as_often_as_by_time(loaded, monkeypatch, name, capsys):
    """Once each, beside the outer cell: a second time would cost more than all marks together."""
    body = guard_cost.BODIES[name]
    timed = counted(loaded, monkeypatch, "%%time", body)
    guarded = counted(loaded, monkeypatch, "%%cuda_guard", body)
    assert guarded["transform_cell"] == timed["transform_cell"] == 2
    assert guarded["ast_parse"] == timed["ast_parse"] == 2


def test_a_body_is_compiled_once(loaded, monkeypatch):
    """No more calls of the compiler than a plain cell takes, which are one a statement, and the outer cell's own."""
    body = guard_cost.BODIES["ten calls"]
    plain = counted(loaded, monkeypatch, "# plain", body)
    guarded = counted(loaded, monkeypatch, "%%cuda_guard", body)
    assert guarded["compile"] <= plain["compile"] + 2  # the outer cell: parsed, and compiled
    constants = counted(loaded, monkeypatch, "%%cuda_guard", guard_cost.BODIES["ten lines"])
    assert constants["compile"] <= guarded["compile"] - 9  # they run as one


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
