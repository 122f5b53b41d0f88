"""Child process: the same requests to torch on the card and to the practice model; prints JSON, fails at a difference.

The model chooses everything but where the driver puts a new segment: those addresses are the card's own.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys

import torch

from cuda_magic.memory.allocator import largest_free
from cuda_magic.memory.torch.caching import TorchAllocator
from cuda_magic.testing.practice import PracticeGpu

MIB = 1 << 20


class Pair:
    def __init__(self, cap: int, own_addresses: bool) -> None:
        torch.cuda.init()
        total = torch.cuda.get_device_properties(0).total_memory
        self.real = TorchAllocator()
        self.gpu = PracticeGpu([total])
        card = self.gpu.machine.cards[0]
        card.reserved = card.context_size = 0
        if not own_addresses:
            card.place = self.place
        self.model = self.gpu.allocator
        torch.cuda.set_per_process_memory_fraction(cap / total, 0)
        self.gpu.limit(cap)
        self.kept: list[tuple[object, object]] = []

    def place(self, nbytes: int) -> int:
        """Where the card put the segment that the model needs now."""
        taken = self.gpu.machine.cards[0]._ranges
        for segment in self.real.segments(0):
            wanted = segment.expandable if nbytes > self.gpu.machine.cards[0].capacity else segment.size == nbytes
            if wanted and not any(a <= segment.address < b for a, b in taken):
                return segment.address
        raise AssertionError(f"the model takes a segment of {nbytes} bytes, the card did not")

    def ask(self, nbytes: int) -> tuple[bool, bool]:
        results: list[object] = []
        for make in (
            lambda: torch.empty(nbytes, dtype=torch.uint8, device="cuda"),
            lambda: self.gpu.empty(nbytes),
        ):
            try:
                results.append(make())
            except RuntimeError as error:
                if type(error).__name__ != "OutOfMemoryError":
                    raise
                results.append(None)
        if results[0] is not None and results[1] is not None:
            self.kept.append((results[0], results[1]))
        return results[0] is not None, results[1] is not None

    def figures(self, allocator: object) -> dict[str, int]:
        s = allocator.stats(0)
        return {
            "allocated": s.allocated,
            "reserved": s.reserved,
            "largest free": largest_free(allocator.segments(0)),
            "peak allocated": s.peak_allocated,
            "peak reserved": s.peak_reserved,
            "ooms": s.ooms,
            "retries": s.retries,
            "device mallocs": s.device_mallocs,
            "inactive split": s.inactive_split,
        }


def size(rng: random.Random, kind: str) -> int:
    if kind == "small":
        return rng.randint(1, MIB)
    if kind == "large":
        return rng.randint(MIB + 1, 300 * MIB)
    if kind == "edges":
        base = rng.choice([512, MIB, 10 * MIB, 20 * MIB, 64 * MIB])
        return max(1, base + rng.choice([-513, -512, -1, 0, 1, 512]))
    return size(rng, rng.choice(["small", "large", "edges"]))


def replay(seed: int, kind: str, cap: int, steps: int, *, expandable: str, own_addresses: bool) -> dict[str, int]:
    rng = random.Random(f"{seed} {kind} {cap}")
    pair = Pair(cap, own_addresses)
    done = {"steps": 0, "failures": 0, "requests": 0}
    for step in range(steps):
        now = expandable == "all" or (expandable == "later" and step >= steps // 2)
        with contextlib.ExitStack() as stack:
            if now:
                stack.enter_context(pair.real.with_expandable())
                stack.enter_context(pair.model.with_expandable())
            what = rng.random()
            if what < 0.6 or not pair.kept:
                nbytes = size(rng, kind)
                real, model = pair.ask(nbytes)
                done["requests"] += 1
                done["failures"] += not real
                assert real == model, f"step {step}: {nbytes} bytes: card {real}, model {model}"
            elif what < 0.98:
                del pair.kept[rng.randrange(len(pair.kept))]
            else:
                pair.real.empty_cache()
                pair.model.empty_cache()
        real, model = pair.figures(pair.real), pair.figures(pair.model)
        if expandable != "no":  # torch counts mappings differently from release to release
            for key in ("device mallocs", "inactive split"):
                del real[key], model[key]
        assert real == model, f"step {step}: card {real}, model {model}"
        if not own_addresses:
            mine = {(s.address, s.size, s.pool, s.blocks) for s in pair.real.segments(0)}
            theirs = {(s.address, s.size, s.pool, s.blocks) for s in pair.model.segments(0)}
            assert mine == theirs, f"step {step}: segments differ: {mine ^ theirs}"
        done["steps"] += 1
    return done


if __name__ == "__main__":
    seed, kind, cap, steps, expandable, own = sys.argv[1:]
    print(json.dumps(replay(int(seed), kind, int(cap), int(steps), expandable=expandable, own_addresses=own == "own")))
