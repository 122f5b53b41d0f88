"""Room that is made where memory is asked for, on a real card: what the scenes of allocation_scenes.py found.

Six processes run side by side, each with 2 GiB of the card at the most.
"""

from __future__ import annotations

import children
import pytest
from record import record

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
MIB, GIB = 1 << 20, 1 << 30
PROCESSES = ("main", "interrupts", "distributed", "queue", "unload", "expandable")


@pytest.fixture(scope="module")
def scene():
    """``scene(process, name)``: what it found; the processes begin with the first question."""
    settings = {"expandable": "expandable_segments:True"}
    running = {
        name: children.start("allocation_scenes.py", name, settings=settings.get(name, "")) for name in PROCESSES
    }
    found: dict = {}

    def of(process, name=None):
        if process not in found:
            found[process] = children.ended(running[process], 200)
        results, error = found[process]
        assert not error, error
        one = results[name or process]
        assert "broken" not in one, one["broken"]
        return one

    yield of
    for process in running.values():
        if process.poll() is None:
            process.kill()


def test_slots_are_found_and_large_segments_are_chunks(scene):
    """In a process as it is; what arming costs is measured."""
    found = scene("main", "slots")
    assert found["inside"]
    record("allocation_ready", {name: found[name] for name in ("ready_us", "ready_again_us")})


@pytest.mark.parametrize("where", ["host", "card"])
def test_a_live_tensor_keeps_its_address_and_its_bytes(scene, where):
    """Views, a product of cuBLAS and a replayed graph too; on the host, and back on the card."""
    found = scene("main", "live")
    assert found[f"to {where}"] > 512 * MIB
    assert found[where] == dict.fromkeys(("addresses", "bytes", "views", "cublas", "graph"), True)


def test_more_than_the_card_has_is_met_by_pages(scene):
    """Nothing fails or changes, the limit holds, and what fits comes back."""
    found = scene("main", "pages")
    assert found["bytes"] and found["same"] and found["within"]
    assert found["failed"] == 0
    assert "pages" in found["helped"]
    assert found["left"] > 0
    assert found["left_behind"] == 0
    assert abs(found["limit"] - 2 * GIB) < 64 * MIB


def test_a_limit_of_the_cells_own(scene):
    """As on a smaller card, while it runs."""
    found = scene("main", "limit")
    assert found["within"] and found["bytes"]
    assert found["failed"] == 0


@pytest.mark.parametrize("process", ["main", "expandable"])
def test_training_that_fails_plain(scene, process):
    """Bit for bit that of a card that is large enough; with expandable segments too."""
    found = scene(process, "training")
    assert found["plain"] == "out of memory"
    assert found["losses"] and found["parameters"] and found["hooks"]
    assert found["failed"] == 0
    assert found["helped"] or (process == "expandable" and found["host"])  # there the shim decides by itself
    record(f"allocation_training_{process}", {"seconds": found["seconds"], "helped": found["helped"]})


def test_where_another_thread_may_start_kernels(scene):
    """No page is exchanged, and the reason is kept; segments on the host and saved tensors still help."""
    found = scene("main", "threads")
    assert "another thread (worker)" in found["refused"]
    assert "pages" not in found["helped"]
    assert {"saved", "host"} <= {*found["helped"]}
    assert found["bytes"] and found["loss"]


def test_a_forked_child(scene):
    """It ends, and the parent goes on to make room."""
    found = scene("main", "fork")
    assert found["status"] == 0
    assert found["bytes"]


def test_a_step_that_never_runs_out(scene):
    """Its cost is measured: armed against plain, and what a cell pays to arm."""
    found = scene("main", "cost")
    record("allocation_cost", {name: found[name] for name in ("ratio", "arming_us")})
    assert found["ratio"] < 1.5


def test_while_a_graph_is_captured(scene):
    """The error is torch's, and the handler did nothing."""
    found = scene("main", "capture")
    assert "OutOfMemoryError" in found["error"]
    assert found["reasons"] == ["a CUDA graph is being captured"]
    assert found["done"] == []
    assert found["bytes"]


def test_interrupts_at_random_moments(scene):
    """50 of them, or CUDA_MAGIC_INTERRUPTS: all bytes there, nothing stays on the host, no session is left on."""
    found = scene("interrupts")
    assert found["came"] == found["times"]
    assert found["wrong"] == 0
    assert found["left"] == 0
    assert not found["running"]


def test_one_rank_of_nccl(scene):
    """Its numbers, wherever the memory is; new segments are plain once a group is there."""
    found = scene("distributed")
    assert {name: found[name] for name in ("on_host", "on_card", "plain", "bytes")} == dict.fromkeys(
        ("on_host", "on_card", "plain", "bytes"), True
    )


def test_tensors_in_a_queue_to_another_process(scene):
    """In a guarded cell and in a later one."""
    found = scene("queue")
    assert found["guarded"] and found["later"] and found["bytes"]


def test_unloading(scene):
    """Refused while tensors are on the host, with what to do; then all is torch's own."""
    found = scene("unload")
    assert found["ok"]
    assert found["on_host"] > 0
    assert found["refused"].startswith("Refused: cuda_magic stays loaded")
    assert "%gpu_mem --free" in found["refused"]
    assert found["left"] == 0
    assert found["shared"] == [True, False]
    assert found["module"] == "torch.cuda.memory"
    assert found["plain"] == "OutOfMemoryError"
    assert found["bytes"]
