"""Child process: SIGINT at random moments of a compaction, on the card and over the host. Prints JSON."""

from __future__ import annotations

import gc
import json
import random
import signal
import sys
import time

import torch
from capped import MIB, TOTAL, cap, strewn

from cuda_magic.memory.compaction import compact
from cuda_magic.memory.torch import allocator


def heap(host: bool) -> tuple[list[torch.Tensor], int]:
    """Blocks with holes between them; where every hole is smaller than every block only the host can help."""
    cap(TOTAL)
    gc.collect()
    torch.cuda.empty_cache()
    live = strewn(20, (24 if host else 16) * MIB, 16 * MIB)
    for i, tensor in enumerate(live):
        tensor[-1] = 200 + i
    torch.cuda.synchronize()
    cap(torch.cuda.memory_reserved())
    return live, 200 * MIB


def intact(live: list[torch.Tensor]) -> bool:
    cap(TOTAL)
    return all(bool((t[:-1] == i + 1).all()) and int(t[-1]) == 200 + i for i, t in enumerate(live))


def main(count: int, seconds: float, seed: int) -> None:
    draw = random.Random(seed)
    signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    ends = time.monotonic() + seconds
    took = {}
    for host in (False, True, False, True):
        live, request = heap(host)
        started = time.perf_counter()
        outcome = compact(allocator(), 0, request)
        took[host] = time.perf_counter() - started
        assert outcome.done and (outcome.parked > 0) == host, outcome
        assert intact(live)
        del live
    counts = {"interrupted": 0, "done first": 0, "ran": 0}
    for i in range(count):
        if time.monotonic() > ends:
            break
        host = bool(i % 2)
        live, request = heap(host)
        own = allocator()
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0003, 1.1 * took[host]))
                compact(own, 0, request)
                counts["done first"] += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                counts["interrupted"] += 1
        except KeyboardInterrupt:
            counts["interrupted"] += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert intact(live), i
        reserved = torch.cuda.memory_allocated() - sum(t.numel() for t in live)
        assert reserved < 2 * MIB, (i, "something holds memory", reserved)
        counts["ran"] += 1
        del live
    print(json.dumps(counts | {"seconds": {"card": round(took[False], 4), "host": round(took[True], 4)}}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
