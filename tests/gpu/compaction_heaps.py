"""Child process: random heaps on the card, compacted; every byte compared. Prints JSON; fails at the first wrong one.

python compaction_heaps.py KIND FIRST COUNT SECONDS, with the settings of that kind in PYTORCH_CUDA_ALLOC_CONF
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time

import torch
from capped import MIB, TOTAL, cap

from cuda_magic.memory.compaction import compact
from cuda_magic.memory.torch import allocator

OUT_OF_MEMORY = torch.OutOfMemoryError


class Heap:
    """Live tensors of random bytes, each with a copy in the one pattern; some are held by an autograd graph only."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        self.draw = draw = random.Random(f"{kind} {seed}")
        self.streams = [torch.cuda.Stream() for _ in range(2)] if kind == "streams" else []
        cap(TOTAL)
        torch.manual_seed(seed)
        self.pattern = torch.randint(0, 256, (72 * MIB,), dtype=torch.uint8, device="cuda")
        self.total = int(self.pattern.view(torch.int64).sum())
        gc.collect()
        torch.cuda.empty_cache()
        room = [32, 64, 128] if kind == "small" else [512, 1024, 2048]
        self.cap = draw.choice(room) * MIB + torch.cuda.memory_reserved()
        cap(self.cap)
        self.live: list[torch.Tensor] = []
        self.graphs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.build()

    def size(self) -> int:
        draw, kind = self.draw, self.kind
        small = [lambda: draw.randint(1, MIB), lambda: draw.choice([512, 4096, 100_000, 600_000, MIB])][self.choice % 2]
        large = [
            lambda: draw.randint(MIB + 1, 64 * MIB),
            lambda: 7 * MIB,
            lambda: draw.choice([2, 4, 8, 16, 32, 64]) * MIB,
            lambda: int(2 ** draw.uniform(20.1, 26)),
        ][self.choice // 2]
        if kind == "small" or (kind in {"mixed", "streams", "expandable"} and draw.random() < 0.5):
            return small()
        return large()

    def build(self) -> None:
        draw = self.draw
        self.choice = draw.randrange(8)
        if draw.random() < 0.5:
            room = self.cap - torch.cuda.memory_reserved()
            whole = torch.empty(int(draw.uniform(0.2, 0.5) * room), dtype=torch.uint8, device="cuda")
            del whole
        if self.kind == "fixed":
            for _ in range(draw.randint(1, 4)):
                leaf = torch.rand(draw.randint(1, 4) * MIB, device="cuda", requires_grad=True)
                self.graphs.append((leaf, leaf.exp().sum()))  # the result of exp lives in the graph only
        for _ in range(draw.randint(300, 900) if self.kind == "small" else draw.randint(30, 300)):
            stream = draw.choice([None, *self.streams])
            try:
                with torch.cuda.stream(stream):
                    self.live.append(torch.empty(self.size(), dtype=torch.uint8, device="cuda"))
            except OUT_OF_MEMORY:
                for _ in range(draw.randint(1, max(1, len(self.live) // 3))):
                    if self.live:
                        del self.live[draw.randrange(len(self.live))]
        share = draw.uniform(0.4, 0.9) if self.kind == "small" else draw.uniform(0.1, 0.8)
        self.live = [t for t in self.live if draw.random() > share]
        for i, tensor in enumerate(self.live):
            tensor.copy_(self.part(i, tensor))
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()

    def part(self, i: int, tensor: torch.Tensor) -> torch.Tensor:
        first = i * 7919 * 64 % (self.pattern.numel() - tensor.numel())
        return self.pattern[first : first + tensor.numel()]

    def wrong(self) -> list[str]:
        cap(TOTAL)  # comparing needs memory too
        found = []
        if int(self.pattern.view(torch.int64).sum()) != self.total:
            found.append("the pattern")
        same = [(t == self.part(i, t)).all() for i, t in enumerate(self.live)]
        if same and not bool(torch.stack(same).all()):
            found.append("a tensor's bytes")
        for leaf, result in self.graphs:
            result.backward()
            if not torch.equal(leaf.grad, leaf.detach().exp()):
                found.append("a tensor of an autograd graph")
        return found


def fits(nbytes: int) -> bool:
    try:
        torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    except OUT_OF_MEMORY:
        return False
    return True


def one(kind: str, seed: int) -> tuple[str, float, float, int]:
    heap = Heap(kind, seed)
    own = allocator()
    if kind == "older":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    stats = own.stats(0)
    free = own.memory_limit(0) - stats.allocated
    request = max(1, int(free * heap.draw.choice([0.5, 0.7, 0.85, 0.95])))
    state, seconds, planning, moves = "fits", 0.0, 0.0, 0
    if not fits(request):
        started = time.perf_counter()
        outcome = compact(own, 0, request)
        seconds, planning, moves = time.perf_counter() - started, outcome.planning, outcome.moves
        state = outcome.how if outcome.done else "none"
        good = fits(request)
        told = (kind, seed, request, outcome)
        assert "stopped" not in outcome.reason, ("diverged", *told)
        assert good or not outcome.done, ("mispredicted", *told)
        assert not outcome.reason or outcome.reason.startswith("no arrangement"), told
    wrong = heap.wrong()
    assert not wrong, (kind, seed, state, wrong)
    if kind == "older":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    return state, seconds, planning, moves


def main(kind: str, first: int, count: int, seconds: float) -> None:
    ends = time.monotonic() + seconds
    counts: dict[str, int] = {}
    times: list[float] = []
    plans: list[float] = []
    ran = 0
    for seed in range(first, first + count):
        if time.monotonic() > ends:
            break
        state, took, planning, _ = one(kind, seed)
        ran += 1
        counts[state] = counts.get(state, 0) + 1
        if state not in {"fits", "none"}:
            times.append(took)
            plans.append(planning)
        gc.collect()
        torch.cuda.empty_cache()
    times.sort()
    figures = {"kind": kind, "first seed": first, "heaps": ran, "results": counts}
    if times:
        figures |= {"median_s": round(times[len(times) // 2], 4), "worst_s": round(times[-1], 4)}
        figures["worst_plan_s"] = round(max(plans), 4)
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
