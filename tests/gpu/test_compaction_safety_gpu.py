"""What forbids moving, on real cards: others that remember addresses, ranks of one job, another card that is full."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from children import ended, start

pytestmark = pytest.mark.gpu


ROWS = {
    # what is refused or why the tensor in the middle stays; does it move with --move-anyway
    "plain": ("", True),
    "dlpack": ("DLPack", True),
    "jax": ("DLPack", True),
    "cupy_dlpack": ("DLPack", True),
    "cupy_view": ("cupy or numba look at its memory", True),
    "numba_view": ("cupy or numba look at its memory", True),
    "ipc": ("not the caching allocator's alone", False),
    "received": ("not the caching allocator's alone", False),
    "graph": ("captured CUDA graph", True),
    "thread": ("another thread (training)", True),
    "group": ("2 ranks", True),
}


OTHERS = ("pool", "uncached", "cow", "work")


@pytest.fixture(scope="module")
def rows():
    """What each row's child process saw, run side by side."""
    children = {name: start("compaction_rows.py", name) for name in (*ROWS, *OTHERS)}
    results = {name: ended(child) for name, child in children.items()}
    for name, result in results.items():
        print(name, *result)
    return results


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_safety_table_on_the_card(rows, name):
    """Refused or left in place with the reason, and what --move-anyway does; the data is right in any case."""
    figures, wrong = rows[name]
    assert not wrong, wrong
    if "absent" in figures:
        pytest.skip(figures["absent"])
    words, moves = ROWS[name]
    first, second = figures["plain"], figures["anyway"]
    assert first["intact"] and second["intact"]
    assert words in first["refused"] + first["reason"], figures
    if words:
        assert not first["middle moved"]
    assert second["done"] == second["middle moved"] == moves, figures
    if first["the other side sees"] is not None:  # it does as long as the tensor stays: that is what the row is for
        assert first["the other side sees"]
        assert second["the other side sees"] == (not moves), figures


@pytest.mark.parametrize("name", OTHERS)
def test_memory_of_others_stays_and_pending_work_is_waited_for(rows, name):
    """A MemPool's block, uncached memory and copy-on-write clones keep their place; the rest is packed around them."""
    figures, wrong = rows[name]
    assert not wrong, wrong
    for one in (figures["plain"], figures["anyway"]):
        assert one["intact"] and one["the others stayed"] and not one["refused"], figures
        assert "stopped" not in one["said"], figures
    assert figures["plain"]["done"], figures
    if name == "cow":
        assert "not the caching allocator's alone" in figures["plain"]["reason"], figures


def test_a_live_cuda_graph_forbids_moving(card):
    """A captured graph replays with old addresses: nothing is moved, and the reason says so."""
    from cuda_magic.memory.torch import allocator

    static = card.zeros(1 << 20, device="cuda")
    graph = card.cuda.CUDAGraph()
    with card.cuda.graph(graph):
        out = static + 1
    assert "CUDA graph" in allocator().moving_refused(0)
    del graph, out, static


@pytest.mark.two_gpus
def test_ranks_of_one_job_are_not_moved_unless_asked(tmp_path):
    """Two ranks with NCCL: refused; with --move-anyway all moves, and collectives and a DDP step are bitwise right."""
    from record import record

    children = [start("compaction_ranks.py", rank, tmp_path / "meet") for rank in (0, 1)]
    results = [ended(child) for child in children]
    print(*results, sep="\n")
    assert not any(wrong for _, wrong in results), results
    for figures, _ in results:
        assert "2 ranks" in figures["refused"] and not figures["moved when refused"], figures
        assert figures["done"] and figures["moved"] > 5 and figures["intact"], figures
        assert figures["collectives right"] and figures["step bitwise the same"], figures
    record("compact_ranks", {"ranks": 2, "moved": [f["moved"] for f, _ in results]})


@pytest.mark.two_gpus
def test_the_device_that_is_full_is_compacted_while_another_is_current():
    """Blocks of cuda:1 are packed with cuda:0 current; nothing on cuda:0 moves."""
    code = """
import torch, json
from cuda_magic.memory.compaction import compact
from cuda_magic.memory.torch import allocator
M = 1 << 20
blocks = {}
for d in (0, 1):
    whole = torch.empty(640 * M, dtype=torch.uint8, device=f"cuda:{d}"); del whole
    made = [torch.full((16 * M,), i + 1, dtype=torch.uint8, device=f"cuda:{d}") for i in range(40)]
    blocks[d] = made[::2]; del made
    total = torch.cuda.get_device_properties(d).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved(d) / total, d)
before = [t.data_ptr() for t in blocks[0]]
outcome = compact(allocator(), 1, 300 * M)
for d in (0, 1): torch.cuda.set_per_process_memory_fraction(1.0, d)
right = all(bool((t == 2 * i + 1).all()) for d in (0, 1) for i, t in enumerate(blocks[d]))
print(json.dumps({"done": outcome.done, "reason": outcome.reason, "right": right,
                  "stayed": before == [t.data_ptr() for t in blocks[0]], "current": torch.cuda.current_device()}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures == {"done": True, "reason": "", "right": True, "stayed": True, "current": 0}
