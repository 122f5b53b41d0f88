"""Random heaps on the model of the allocator: sizes, streams, settings and expandable segments, all from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from cuda_magic.memory.compaction import Outcome, Rules, compact, predict
from cuda_magic.testing import gpu

MIB = 1 << 20
KINDS = ("large", "small", "mixed", "streams", "fixed", "max split", "roundup", "large segment", "expandable", "older")


@dataclass
class Result:
    """What came of one heap. `state`: fits, done, none (no plan)."""

    kind: str
    state: str
    outcome: Outcome
    wrong: list[str] = field(default_factory=list)


def rules(kind: str, draw: random.Random) -> Rules:
    """Settings for a heap of that kind."""
    if kind == "max split":
        return Rules(max_split=draw.choice([20, 32, 64, 200]) * MIB)
    if kind == "roundup":
        return Rules(divisions=tuple(draw.choice([1, 2, 4, 8, 16]) for _ in range(16)))
    if kind == "large segment":
        large = draw.choice([11, 12, 32, 64]) * MIB
        return Rules(large_segment=large, non_split_rounding=large)
    return Rules(expandable=kind in {"expandable", "older"})


def sizes(kind: str, draw: random.Random):
    small = [lambda: draw.randint(1, MIB), lambda: draw.choice([512, 4096, 100_000, 600_000, MIB])]
    large = [
        lambda: draw.randint(MIB + 1, 64 * MIB),
        lambda: 7 * MIB,
        lambda: draw.choice([2, 4, 8, 16, 32, 64]) * MIB,
        lambda: int(2 ** draw.uniform(20.1, 26)),
    ]
    if kind == "small":
        return draw.choice(small)
    one, other = draw.choice(large), draw.choice(small)
    if kind in {"mixed", "streams", "expandable"}:
        return lambda: one() if draw.random() < 0.5 else other()
    return one


def strewn(card: Any, kind: str, draw: random.Random) -> list[Any]:
    """Live tensors with holes between them."""
    allocator = card.allocator
    total = allocator.memory_limit(0) or allocator.cards[0].free
    streams = [0, 7, 9] if kind == "streams" else [0]
    if draw.random() < 0.5:
        card.empty(int(draw.uniform(0.3, 0.6) * total))  # leaves one large cached segment
    size = sizes(kind, draw)
    live: list[Any] = []
    for _ in range(draw.randint(30, 500 if kind != "small" else 3000)):
        allocator.stream = draw.choice(streams)
        try:
            live.append(card.empty(size()))
        except RuntimeError:
            for _ in range(draw.randint(1, max(1, len(live) // 3))):
                if live:
                    del live[draw.randrange(len(live))]
    share = draw.uniform(0.1, 0.8)
    live = [t for t in live if draw.random() > share]
    allocator.stream = draw.choice(streams)
    return live


def one(seed: int, kind: str, host: int = 64 << 30) -> Result:
    """Build a heap, ask for more than fits as it is, and compare what was promised with what came."""
    draw = random.Random(f"{kind} {seed}")
    card = gpu((f"{draw.choice([512, 1024, 2048])} MiB",), force=True)
    allocator = card.allocator
    allocator.cards[0].reserved = allocator.cards[0].context_size = 0
    allocator.cards[0].start()
    allocator.host = host
    allocator.caching[0].rules = rules(kind, draw)
    if draw.random() < 0.3:
        card.limit(f"{draw.choice([256, 480])} MiB")
    live = strewn(card, kind, draw)
    if kind == "older":
        allocator.caching[0].expandable = False
    allocator.empty_cache()
    for i, tensor in enumerate(live):
        tensor.fill_(1 + i % 250)
    sums = [t.sum() for t in live]
    if kind == "fixed":
        some = draw.choice([0.02, 0.1])
        kept = {s.key for s in allocator.storages(0) if draw.random() < some}
        plain = type(allocator).storages

        def storages(device: int, **options: Any) -> list[Any]:
            return [
                s.__class__(s.key, s.device, s.address, s.nbytes, s.handle, "held elsewhere" if s.key in kept else "")
                for s in plain(allocator, device, **options)
            ]

        allocator.storages = storages  # type: ignore[method-assign]
        before = {s.key: s.address for s in allocator.storages(0) if s.reason}
    limit = allocator.memory_limit(0)
    stats = allocator.stats(0)
    free = min(allocator.driver_memory(0)[0], (limit or 1 << 62) - stats.reserved) + stats.cached
    request = max(1, int(free * draw.choice([0.3, 0.5, 0.7, 0.85, 0.95])))
    promised = predict(allocator, 0, request)
    outcome = compact(allocator, 0, request)
    result = Result(kind, "none" if not outcome.done else "fits" if outcome.how == "fits" else "done", outcome)
    wrong = result.wrong
    if "stopped" in outcome.reason:
        wrong.append(f"diverged: {outcome.reason}")
    if outcome.done != (promised is not None):
        wrong.append("promised otherwise")
    if [t.sum() for t in live] != sums:
        wrong.append("data lost")
    spans = sorted((b.address, b.address + b.size) for s in allocator.segments(0) for b in s.blocks)
    if any(a[1] > b[0] for a, b in zip(spans, spans[1:], strict=False)):
        wrong.append("blocks overlap")
    if kind == "fixed" and before != {s.key: s.address for s in allocator.storages(0) if s.reason}:
        wrong.append("a fixed block moved")
    if allocator.host != host:
        wrong.append("something stayed on the host")
    if outcome.done:
        try:
            card.empty(request)
        except RuntimeError:
            wrong.append(f"mispredicted: {request} bytes do not fit after {outcome.how}")
    return result
