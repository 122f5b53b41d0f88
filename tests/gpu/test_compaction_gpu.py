"""Compaction on a real card: predicted before anything moves, every byte intact."""

from __future__ import annotations

import gc
import os
import random
import time

import pytest
from children import ended, start

pytestmark = pytest.mark.gpu
MIB, GIB = 1 << 20, 1 << 30


def empty(torch, size: int):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def fits(torch, size: int) -> bool:
    try:
        empty(torch, size)
    except torch.OutOfMemoryError:
        return False
    return True


def intact(live) -> bool:
    return all(bool((t == i % 251).all()) for i, t in enumerate(live))


def test_the_fragmented_heap_that_collect_and_retry_cannot_help(card):
    """56 blocks of 64 MiB strewn over 7 GiB, 1 GiB free: 3 GiB fit after compaction, data and views right."""
    from record import record

    from cuda_magic.memory.compaction import compact
    from cuda_magic.memory.torch import allocator

    times = []
    for _ in range(3):
        card.cap(8 * GIB)
        whole = empty(card, 7 * GIB)
        del whole
        blocks = [empty(card, 64 * MIB) for _ in range(112)]
        live = blocks[::2]
        del blocks
        for i, tensor in enumerate(live):
            tensor.fill_(i % 251)
        views = [tensor[5:9] for tensor in live]
        gc.collect()
        card.cuda.empty_cache()
        assert not fits(card, 3 * GIB)
        card.cuda.synchronize()
        started = time.perf_counter()
        outcome = compact(allocator(), 0, 3 * GIB)
        card.cuda.synchronize()
        times.append(time.perf_counter() - started)
        assert outcome.done, outcome
        assert fits(card, 3 * GIB)
        assert intact(live)
        assert all(int(v[0]) == i % 251 for i, v in enumerate(views))
        del live, views, tensor
        gc.collect()
        card.cuda.empty_cache()
    record("compact_heap_A", {"seconds": times, "moves": outcome.moves, "moved_bytes": outcome.moved,
                              "planning_s": outcome.planning})  # fmt: skip


def test_the_first_compaction_of_a_process_takes_no_longer():
    """Three guarded cells in a new process, each on such a heap: all are rescued, the first rung as quick as later."""
    from record import record

    figures, wrong = ended(start("compaction_first.py", "guard"))
    assert not wrong, wrong
    print(*figures["rows"], sep="\n")
    assert [row["status"] for row in figures["rows"]] == ["rescued"] * 3
    seconds = [row["rungs"]["compact"] / 1000 for row in figures["rows"]]
    record("compact_in_a_guarded_cell", {"seconds": seconds, "cells_s": [row["ms"] / 1000 for row in figures["rows"]],
                                         "objects": figures["objects"]})  # fmt: skip
    assert seconds[0] < 3 * max(seconds[1:]), seconds


@pytest.mark.parametrize("kind", ["one segment", "small"])
def test_a_heap_of_twenty_thousand_blocks(card, kind):
    """20,000 blocks of 1.5 MiB in one segment, and 20,000 small ones in 2 MiB segments: planned, done, every byte."""
    from record import record

    from cuda_magic.memory.compaction import compact
    from cuda_magic.memory.torch import allocator

    if card.cuda.mem_get_info()[0] < 70 * GIB:
        pytest.skip("the card has less than 70 GiB free")
    draw = random.Random(1)
    card.cap(card.cuda.get_device_properties(0).total_memory)
    if kind == "small":
        made = [empty(card, draw.randint(100_000, 600_000)) for _ in range(80_000)]
        live, request = [t for t in made if draw.random() < 0.25], GIB
    else:
        whole = empty(card, 60_000 * MIB)
        del whole
        made = [empty(card, 3 * MIB // 2) for _ in range(40_000)]
        live, request = made[::2], 2 * GIB
    del made
    for i, tensor in enumerate(live):
        tensor.fill_(i % 251)
    gc.collect()
    card.cuda.empty_cache()
    card.cap(card.cuda.memory_reserved() + 64 * MIB)
    assert not fits(card, request)
    card.cuda.synchronize()
    started = time.perf_counter()
    outcome = compact(allocator(), 0, request)
    card.cuda.synchronize()
    seconds = time.perf_counter() - started
    record(f"compact_20000_{kind.replace(' ', '_')}", {"seconds": seconds, "planning_s": outcome.planning,
           "how": outcome.how, "moves": outcome.moves, "moved_bytes": outcome.moved, "blocks": len(live)})  # fmt: skip
    assert outcome.done, outcome
    assert fits(card, request)
    card.cap(card.cuda.get_device_properties(0).total_memory)
    wrong = sum((t != i % 251).any().int() for i, t in enumerate(live))
    assert not int(wrong)


HEAPS = {
    "large": "",
    "small": "",
    "mixed": "",
    "streams": "",
    "fixed": "",
    "max split": "max_split_size_mb:32",
    "roundup": "roundup_power2_divisions:[4:2,16:4,64:8,>:2]",
    "large segment": "large_segment_size_mb:32",
    "expandable": "expandable_segments:True",
    "older": "expandable_segments:True",
}
"""Kind of heap, settings."""


def test_random_heaps_are_never_mispredicted():
    """A plan that was made comes true, nothing diverges, every byte is intact: heaps of all kinds, side by side."""
    from record import record

    first = int(os.environ.get("HEAPS_FIRST", "0"))
    count, seconds = os.environ.get("HEAPS", "60"), os.environ.get("HEAPS_TIME", "15")
    # the small pool has many blocks and few moves: three processes, so that many heaps need work there too
    runs = [(kind, kind, first) for kind in HEAPS] + [(f"small {n}", "small", first + n * 10_000) for n in (1, 2)]
    children = {
        name: start("compaction_heaps.py", kind, seed, count, seconds, settings=HEAPS[kind])
        for name, kind, seed in runs
    }
    results = {kind: ended(child) for kind, child in children.items()}
    for kind, (figures, wrong) in results.items():
        print(kind, figures, wrong)
    record(
        "compact_random_heaps",
        {
            "heaps": sum(f.get("heaps", 0) for f, _ in results.values()),
            "wrong": sum(bool(w) for _, w in results.values()),
            "kinds": {kind: figures for kind, (figures, _) in results.items()},
        },
    )
    for kind, (figures, wrong) in results.items():
        assert not wrong, (kind, wrong)
        worked = sum(n for how, n in figures["results"].items() if how not in {"fits", "none"})
        assert worked >= 2, (kind, figures)


def test_interrupts_at_any_moment_lose_no_byte():
    """SIGINT at 200 random moments, on the card and over the host: data intact, nothing left behind."""
    from record import record

    children = [start("compaction_interrupts.py", 120, 20, seed) for seed in range(3)]
    results = [ended(child) for child in children]
    figures = {key: sum(f.get(key, 0) for f, _ in results) for key in ("ran", "interrupted", "done first")}
    record("compact_interrupts", {**figures, "seconds": results[0][0].get("seconds")})
    assert not any(wrong for _, wrong in results), results
    assert figures["interrupted"] >= 20


def test_where_the_time_goes(card):
    """The parts of a compaction, with the objects of a kernel that has torch, numpy and pandas imported."""
    import pandas  # noqa: F401
    import torch._dynamo  # noqa: F401
    from record import record

    from cuda_magic.memory.torch import allocator, gc_objects, snapshot

    own = allocator()
    live = [empty(card, 64 * MIB) for _ in range(56)]
    gc.collect()

    def best(call) -> float:
        times = []
        for _ in range(7):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        return round(min(times), 5)

    wanted = [card.Tensor, card.nn.Parameter, card.cuda.CUDAGraph, card.cuda.Stream]
    record(
        "compact_parts",
        {
            "objects": len(gc.get_objects()),
            "get_objects": best(gc.get_objects),
            "reach": best(lambda: gc_objects.reach(card)),
            "get_referrers, 4 classes": best(lambda: gc.get_referrers(*wanted)),
            "snapshot": best(lambda: snapshot.read(card)),
            "synchronize": best(lambda: own.healthy(0)),
            "empty_cache": best(own.empty_cache),
            "survey": best(lambda: own.survey(0)),
            "host_room": best(own.host_room),
        },
    )
    assert live
