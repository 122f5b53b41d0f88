"""Engines of a real cluster on real cards: each card once, each engine's tensors, readings while it works."""

from __future__ import annotations

import time

import pytest
from cluster.conftest import Real, until
from record import record

from cuda_magic.cluster import command
from cuda_magic.cluster.connect import connect
from cuda_magic.cluster.feed import Feed

GIB = 1 << 30
HOLD = "import builtins, torch; builtins.held = torch.empty({} << 30, dtype=torch.uint8, device='cuda')"
WORK = """
import time, torch
a = torch.rand(4096, 4096, device='cuda')
end = time.monotonic() + {}
while time.monotonic() < end:
    for _ in range(20):
        a = (a @ a).clamp(-1, 1)
    torch.cuda.synchronize()
"""


@pytest.fixture
def real(tmp_path):
    pytest.importorskip("ipyparallel")
    one = Real(tmp_path / "profile_cards", "cards", practice=False)
    yield one
    one.stop()


def watch(real, interval=0.25):
    return Feed(connect(str(real.file)), interval, 95)


def hold(real):
    """3 GiB on the first engine and 5 GiB on the second; both import torch at the same time."""
    jobs = [real.client[i].apply_async(exec, HOLD.format(size), {}) for i, size in enumerate((3, 5))]
    for job in jobs:
        job.get(timeout=60)


def follow(feed, true, seconds=10):
    """Tick as the panel does, until `true()`."""

    def one():
        feed.tick()
        return true()

    return until(one, seconds, 0.1)


@pytest.mark.two_gpus
def test_one_engine_a_card(real, tmp_path):
    """Both engines see both cards: two rows, each with the tensors of its own engine, all alike for the doctor."""
    real.engines(1, "", CUDA_VISIBLE_DEVICES="0", NCCL_NVLS_ENABLE="0")
    real.engines(1, "", CUDA_VISIBLE_DEVICES="1", NCCL_NVLS_ENABLE="0")
    by_card = [real.on(i, "__import__('os').environ['CUDA_VISIBLE_DEVICES']") for i in (0, 1)]
    hold(real)
    table = command.once(str(real.file), None, 95)
    print(table)
    assert len(table.hosts) == 1 and len(table.devices) == 2
    live = {d.index: d.live for d in table.devices}
    assert live == {by_card[0]: 3 * GIB, by_card[1]: 5 * GIB}
    assert all(d.engines == (0, 1) for d in table.devices)
    found = command.doctor(str(real.file), None, False, False)
    print(found)
    assert found.verdict in ("healthy", "findings") and len(found.engines) == 2
    assert {tuple(e.cards) for e in found.engines} == {found.engines[0].cards}
    feed = watch(real)
    try:
        assert follow(feed, lambda: len(feed.state.rows) == 2)
        assert follow(feed, lambda: {e.state for e in feed.state.engines.values()} == {"live"})
        record("cluster: engines and rows on two cards", {"engines": 2, "rows": len(feed.state.rows)})
    finally:
        feed.close()
    set_ = command.environment(str(real.file), None, ["CUDA_LAUNCH_BLOCKING=1"], unset=[], force=False, restart=False)
    print(set_)
    assert {v.state for v in set_.variables} == {"after a kernel restart"}
    _ranks(real, tmp_path)


RANK = """
import torch, torch.distributed as dist
from cuda_magic.memory.torch import distributed
rank = {rank}
torch.cuda.set_per_process_memory_fraction(8 * 2**30 / torch.cuda.mem_get_info()[1])
dist.init_process_group('nccl', init_method='file://{meet}', rank=rank, world_size=2)
t = torch.ones(1, device='cuda')
dist.all_reduce(t)
get_ipython().run_line_magic('load_ext', 'cuda_magic')
def E(size): return torch.empty(size << 30, dtype=torch.uint8, device='cuda')
def fail():
    a = E(3)
    b = E(6)
def total(size):
    t = torch.full((1,), float(size), device='cuda')
    dist.all_reduce(t)
    return t.item()
counts = [distributed.position()[0][1]]
total(1)
counts.append(distributed.position()[0][1])
print('counts', counts)
"""


def _ranks(real, tmp_path):
    """The two engines as ranks of one NCCL job: collectives are counted; repeated before one, refused behind one."""

    def run(code):
        jobs = [real.client[i].execute(code(i) if callable(code) else code, silent=False) for i in (0, 1)]
        said = []
        for job in jobs:
            try:
                job.get(timeout=30)
                error = ""
            except Exception as caught:
                error = str(caught).splitlines()[0]
            job.wait_for_output(5)
            shown = "".join(o["data"].get("text/plain", "") for o in job.outputs)
            said.append((error, job.stdout.strip(), job.stderr + shown))
        return said

    for i in (0, 1):
        real.do(i, "import builtins; builtins.held = None")
    made = run(lambda i: RANK.format(rank=i, meet=tmp_path / "meet"))
    print(made)
    assert [error for error, _, _ in made] == ["", ""]
    before, after = (int(n.strip(" []")) for n in made[0][1].removeprefix("counts").split(","))
    assert after == before + 1
    run("if rank == 0:\n    fail()")
    zero, one = run("%%cuda_guard\nx = E(5); s = total(x.numel() >> 30)\nprint(s)")
    print(zero, one)
    assert zero[:2] == one[:2] == ("", "10.0") and "room was made" in zero[2]
    run("del x")
    run("if rank == 0:\n    fail()")
    run("def step(size):\n    s = total(1)\n    x = E(size)\n    return s, x")
    zero, one = run("%%cuda_guard\ny = step(5 if rank == 0 else 1)\nprint(y[0])")
    print(zero, one)
    assert "out of memory" in zero[0] and one[:2] == ("", "2.0")
    assert "rank 0 of 2 entered 1 collective with the other ranks" in zero[2]
    zero, one = run("print(total(rank))")
    assert zero[1] == one[1] == "1.0"
    record(
        "cluster: NCCL ranks on two cards", {"counted by one all_reduce": after - before, "repeated": 1, "refused": 1}
    )


@pytest.mark.gpu
def test_two_engines_on_one_card_are_one_row(real):
    """The tensors of both, and neither is another process; a working engine goes on telling."""
    real.engines(2, "", CUDA_VISIBLE_DEVICES="0")
    hold(real)
    table = command.once(str(real.file), None, 95)
    print(table)
    card = table.devices[0]
    assert len(table.hosts) == 1 and card.engines == (0, 1)
    assert card.live == 8 * GIB
    if card.context is not None:  # where the driver's list names the engines' processes
        assert (card.others or 0) + (card.kernels or 0) < 1 * GIB
    feed = watch(real)
    try:
        assert follow(feed, lambda: {e.state for e in feed.state.engines.values()} == {"live"})
        busy = real.client[0].apply_async(exec, WORK.format(4), {})
        time.sleep(0.5)
        before, began = feed.state.engines[0].number, time.monotonic()
        while time.monotonic() - began < 2.5:
            feed.tick()
            time.sleep(0.1)
        heard = feed.state.engines[0].number - before
        assert not busy.ready()
        assert heard >= 3, heard
        busy.get()
        record("cluster: readings in 2.5 s of an engine that multiplies, asked every 0.25 s", {"readings": heard})
    finally:
        feed.close()
