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
def test_one_engine_a_card(real):
    """Both engines see both cards: two rows, each with the tensors of its own engine, all alike for the doctor."""
    real.engines(1, "", CUDA_VISIBLE_DEVICES="0")
    real.engines(1, "", CUDA_VISIBLE_DEVICES="1")
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
