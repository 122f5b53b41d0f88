"""What forbids moving, on real cards: others that remember addresses, ranks of one job, another card that is full."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from children import ended, start

pytestmark = pytest.mark.gpu


ROWS = {
    # what is refused or why the tensor in the middle stays
    "plain": "",
    "dlpack": "DLPack",
    "jax": "DLPack",
    "cupy_dlpack": "DLPack",
    "cupy_view": "cupy or numba look at its memory",
    "numba_view": "cupy or numba look at its memory",
    "ipc": "not the caching allocator's alone",
    "received": "not the caching allocator's alone",
    "graph": "captured CUDA graph",
    "thread": "another thread (training)",
    "group": "2 ranks",
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
    """Refused or left in place with the reason; the data is right in any case."""
    figures, wrong = rows[name]
    assert not wrong, wrong
    if "absent" in figures:
        pytest.skip(figures["absent"])
    assert figures["intact"]
    assert ROWS[name] in figures["refused"] + figures["reason"], figures
    assert not ROWS[name] or not figures["middle moved"]
    if figures["the other side sees"] is not None:  # it does as long as the tensor stays: that is what the row is for
        assert figures["the other side sees"]


@pytest.mark.parametrize("name", OTHERS)
def test_memory_of_others_stays_and_pending_work_is_waited_for(rows, name):
    """A MemPool's block, uncached memory and copy-on-write clones keep their place; the rest is packed around them."""
    figures, wrong = rows[name]
    assert not wrong, wrong
    assert figures["intact"] and figures["the others stayed"] and not figures["refused"], figures
    assert figures["done"] and "stopped" not in figures["said"], figures
    if name == "cow":
        assert "not the caching allocator's alone" in figures["reason"], figures


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
def test_ranks_of_one_job_are_not_moved(tmp_path):
    """Two ranks with NCCL: refused, and collectives and a DDP step are bitwise right."""
    children = [start("compaction_ranks.py", rank, tmp_path / "meet") for rank in (0, 1)]
    results = [ended(child) for child in children]
    print(*results, sep="\n")
    assert not any(wrong for _, wrong in results), results
    for figures, _ in results:
        assert "2 ranks" in figures["refused"] and not figures["moved when refused"], figures
        assert figures["intact"], figures
        assert figures["collectives right"] and figures["step bitwise the same"], figures


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
