"""How long planning a compaction takes, on heaps of the practice GPU: no card is needed.

    python benchmarks/compaction.py [BLOCKS]

Prints one line a heap: blocks, the plan, its moves and operations, and the median and the least seconds of planning it.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from cuda_magic.memory.compaction.heap import Heap
from cuda_magic.memory.compaction.plan import plan
from cuda_magic.memory.compaction.replay import collector_paused
from cuda_magic.testing import gpu

MIB, GIB = 1 << 20, 1 << 30


def card(gib: int) -> Any:
    """A practice card of `gib` GiB with nothing on it."""
    one = gpu((f"{gib} GiB",), force=True)
    one.allocator.cards[0].reserved = one.allocator.cards[0].context_size = 0
    one.allocator.cards[0].start()
    return one


def strewn(blocks: int) -> tuple[Any, list[Any], int]:
    """One segment of 1.5 MiB blocks, every second one freed: half of it is free, in pieces of 1.5 MiB."""
    one = card(80)
    one.limit(3 * MIB // 2 * blocks * 2)
    whole = one.empty(3 * MIB // 2 * blocks * 2)
    del whole
    made = [one.empty(3 * MIB // 2) for _ in range(2 * blocks)]
    return one, made[::2], 2 * GIB


def rounding(blocks: int) -> tuple[Any, list[Any], int]:
    """Blocks of 7 MiB, two to a segment of 20 MiB, 80 MiB free: 6 MiB of each segment is lost."""
    one = card(400)
    one.limit(20 * MIB * (blocks // 2) + 80 * MIB)
    return one, [one.empty(7 * MIB) for _ in range(blocks)], GIB


def random_sizes(blocks: int, streams: tuple[int, ...] = (0,), expandable: bool = False) -> tuple[Any, list[Any], int]:
    """Sizes from 1 to 64 MiB in segments of all kinds, half of them freed at random."""
    draw = random.Random(1)
    one = card(900)
    one.allocator.caching[0].expandable = expandable
    live = []
    for i in range(2 * blocks):
        one.allocator.stream = streams[i % len(streams)]
        live.append(one.empty(int(2 ** draw.uniform(20.1, 26))))
    one.allocator.stream = streams[0]
    draw.shuffle(live)
    del live[blocks:]
    one.empty_cache()
    stats = one.allocator.stats(0)
    one.limit(stats.reserved + 64 * MIB)
    return one, live, int(0.2 * stats.cached)


def small(blocks: int) -> tuple[Any, list[Any], int]:
    """Blocks of 100 to 600 KiB in segments of 2 MiB, three of four freed."""
    draw = random.Random(1)
    one = card(40)
    live = [one.empty(draw.randint(100_000, 600_000)) for _ in range(4 * blocks)]
    live = [t for t in live if draw.random() < 0.25]
    one.empty_cache()
    one.limit(one.allocator.stats(0).reserved + 64 * MIB)
    return one, live, GIB


def fixed(blocks: int) -> tuple[Any, list[Any], int]:
    """The same sizes; one in fifty blocks may not be moved."""
    one, live, request = random_sizes(blocks)
    draw = random.Random(2)
    kept = {s.key for s in one.allocator.storages(0) if draw.random() < 0.02}
    plain = one.allocator.storages

    def storages(device: int, **options: Any) -> list[Any]:
        return [s._replace(reason="held" if s.key in kept else "") for s in plain(device, **options)]

    one.allocator.storages = storages
    return one, live, request


def streams(blocks: int) -> tuple[Any, list[Any], int]:
    """The same sizes in the pools of three streams."""
    return random_sizes(blocks, (0, 7, 9))


def expandable(blocks: int) -> tuple[Any, list[Any], int]:
    """The same sizes in expandable segments."""
    return random_sizes(blocks, expandable=True)


def tight(blocks: int) -> tuple[Any, list[Any], int]:
    """Every hole is smaller than every block, and nothing else is free: only the host can help."""
    one = card(4000)
    size = 160 * MIB * blocks
    one.limit(size)
    one.empty(size)
    made = [one.empty(n * MIB) for _ in range(blocks) for n in (96, 64)]
    return one, made[::2], 700 * MIB


HEAPS = ("strewn", "rounding", "random_sizes", "small", "fixed", "streams", "expandable", "tight")


def timed(name: str, blocks: int, built: Any, turn: Any) -> dict[str, Any]:
    """Plan the heap of that name five times, once all are built and alone."""
    one, live, request = globals()[name](blocks)
    found = one.allocator.survey(0)

    def make() -> Heap:
        return Heap.of(found.segments, found.storages, found.free, found.rules)

    gc.collect()
    built.wait()
    times = []
    with turn:
        for _ in range(5):
            with collector_paused():  # as compaction does
                started = time.process_time()
                chosen = plan(make, request, host=lambda: 64 * GIB)
                times.append(time.process_time() - started)
    return {
        "blocks": len(live),
        "plan": chosen.how if chosen else None,
        "moves": chosen.moves if chosen else 0,
        "operations": len(chosen.ops) if chosen else 0,
        "seconds": round(statistics.median(times), 4),
        "best": round(min(times), 4),
    }


def main(blocks: int) -> dict[str, Any]:
    """Plans for each heap, five times. Heaps are built side by side, which takes longer than planning."""
    with multiprocessing.Manager() as shared, ProcessPoolExecutor(len(HEAPS)) as pool:
        built, turn = shared.Barrier(len(HEAPS)), shared.Lock()
        jobs = {name: pool.submit(timed, name, blocks, built, turn) for name in HEAPS}
        results = {name: job.result() for name, job in jobs.items()}
    for name, figures in results.items():
        print(name, figures)
    return results


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    main(count)
