"""A training step whose activations wait on the host: seconds and peak by budget, and where the time goes.

    python benchmarks/activations.py benchmarks/results/activations_curve.json      one H200: about 30 seconds

The step: 16 x Linear(1024) + GELU, batch 65,536; autograd saves 8 GiB in storages of 256 MiB. Each row is one budget:
how many storages stay on the card, are on their way out, and lie on the card in the backward pass. Plain and
torch's own ``save_on_cpu`` run beside it. `host` is the time that the CPU needed to enqueue the step, `hooks` the part
of it inside the hooks; `waits` is how long the card's computing stream stood still for copies.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

import torch  # noqa: E402

from cuda_magic.memory.torch import offload  # noqa: E402
from cuda_magic.memory.torch.offload import pinned_memory  # noqa: E402
from cuda_magic.memory.torch.offload.activations import Activations  # noqa: E402
from cuda_magic.memory.torch.offload.budget import Budget  # noqa: E402
from cuda_magic.memory.torch.offload.host_pool import shared  # noqa: E402
from cuda_magic.memory.torch.offload.tensor_copies import Copies  # noqa: E402

GIB, ONE = 1 << 30, 256 << 20
ROWS = ((0, 2, 2), (1, 1, 2), (1, 1, 3), (1, 2, 3), (2, 1, 3), (2, 1, 4), (4, 1, 5), (12, 1, 13), (24, 1, 25))
"""Budgets: how many storages stay, are on their way out, and lie on the card in the backward pass."""
RUNS = 5


class Fixed(Budget):
    """A budget that does not learn."""

    stays = window = ahead = 0

    def __init__(self, stays: int, out: int, ahead: int) -> None:
        super().__init__()
        self.stays, self.window, self.ahead = stays * ONE, out * ONE, ahead * ONE

    def next_round(self) -> None:
        pass


class Timed(Copies):
    """Copies with a clock at each end, and one around each wait of the computing stream."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.times: dict[str, list[tuple[Any, Any, int]]] = {"out": [], "in": [], "wait": []}

    def _around(self, what: str, stream: Any, nbytes: int, do: Any) -> Any:
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        ends[0].record(stream)
        result = do()
        ends[1].record(stream)
        self.times[what].append((*ends, nbytes))
        return result

    def out(self, source: Any, buffer: Any, after: Any) -> Any:
        self.wait(self._out, (after, *buffer.events))
        return self._around("out", self._out, source.numel(), lambda: super(Timed, self).out(source, buffer, after))

    def back(self, buffer: Any, target: Any, stream: Any, after: Any) -> Any:
        self.wait(self._back, (stream.record_event(), after))
        do = lambda: super(Timed, self).back(buffer, target, stream, after)  # noqa: E731
        return self._around("in", self._back, target.numel(), do)

    def wait(self, stream: Any, events: Any) -> None:
        if stream in (self._out, self._back):
            return super().wait(stream, events)
        return self._around("wait", stream, 0, lambda: super(Timed, self).wait(stream, events))

    def figures(self) -> dict[str, float]:
        """Seconds and GB/s of each way: of the copies alone, and from the first to the last."""
        found = {}
        for what, times in self.times.items():
            busy = sum(a.elapsed_time(b) for a, b, _ in times) / 1e3
            found[f"{what}_s"] = busy
            if what != "wait" and times:
                nbytes = sum(n for _, _, n in times)
                found[f"{what}_span_s"] = times[0][0].elapsed_time(times[-1][1]) / 1e3
                found[f"{what}_GB_s"] = nbytes / 1e9 / busy
                found[f"{what}_GiB"] = nbytes / GIB
        return found


class Watched(Activations):
    """Hooks that count their own time."""

    spent = 0.0

    def _pack(self, tensor: Any) -> Any:
        start = time.perf_counter()
        try:
            return super()._pack(tensor)
        finally:
            self.spent += time.perf_counter() - start

    def _unpack(self, token: Any) -> Any:
        start = time.perf_counter()
        try:
            return super()._unpack(token)
        finally:
            self.spent += time.perf_counter() - start


def hooks(budget: Budget, timed: bool = False) -> Activations:
    limit = torch.cuda.get_device_properties(0).total_memory
    kind, copies = (Watched, Timed) if timed else (Activations, Copies)
    return kind(torch, copies(torch, 0, limit), shared(torch), budget)


def step(model: Any, within: Any = None) -> tuple[dict[str, float], list[Any]]:
    """One step: seconds, the peaks in GiB of the forward and of the backward pass; loss and gradients."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(1)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    start = time.perf_counter()
    with within or contextlib.nullcontext():
        x = torch.randn(65536, 1024, device="cuda")  # held while the step runs, as a batch is
        loss = model(x).square().mean()
        forward = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss.backward()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    backward = torch.cuda.max_memory_allocated()
    figures = {"s": seconds, "host_s": host, "forward_GiB": forward / GIB, "backward_GiB": backward / GIB}
    return figures, [loss.detach().cpu(), *[p.grad.cpu() for p in model.parameters()]]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def middle(runs: list[dict[str, float]]) -> dict[str, float]:
    """The run of median seconds, with the largest peak of all."""
    found = dict(sorted(runs, key=lambda r: r["s"])[len(runs) // 2])
    found["min_s"] = min(r["s"] for r in runs)
    found["peak_GiB"] = max(max(r["forward_GiB"], r["backward_GiB"]) for r in runs)
    return found


def first(model: Any) -> dict[str, float]:
    """The very first step with hooks, which makes the host memory too; how long that took."""
    offload.release()
    spent = {"touch_s": 0.0, "slab_s": 0.0}

    def clocked(name: str, do: Any) -> Any:
        def run(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return do(*args)
            finally:
                spent[name] += time.perf_counter() - start

        return run

    mapped, made = pinned_memory._mapped, pinned_memory.Slab.__init__
    pinned_memory._mapped, pinned_memory.Slab.__init__ = clocked("touch_s", mapped), clocked("slab_s", made)
    try:
        figures, _ = step(model, hooks(Budget(most=0)))
    finally:
        pinned_memory._mapped, pinned_memory.Slab.__init__ = mapped, made
    kinds = {one.kind for one in shared(torch)._slabs}
    return {**figures, **spent, "host_GiB": shared(torch).held / GIB, "kind": ", ".join(sorted(kinds))}


def main() -> None:
    from record import where

    torch.manual_seed(0)
    parts = [m for _ in range(16) for m in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
    model = torch.nn.Sequential(*parts).cuda()
    step(model)
    runs = [step(model) for _ in range(RUNS)]
    reference = runs[0][1]
    found: dict[str, Any] = {"where": where(), "plain": middle([r for r, _ in runs])}
    found["save_on_cpu"] = step(model, torch.autograd.graph.save_on_cpu(pin_memory=True))[0]
    gc.collect()
    found["first"] = first(model)
    found["first again"] = first(model)
    print(json.dumps(found, indent=1), flush=True)

    def row(budget: Any, name: str) -> None:
        seen, equal, moved = [], 0, {}
        for _ in range(RUNS):
            made = hooks(budget())
            figures, numbers = step(model, made)
            seen.append(figures)
            equal += same(numbers, reference)
            moved = {"out_GiB": made.moved["out"] / GIB, "in_GiB": made.moved["in"] / GIB, "late": made.moved["late"]}
        made = hooks(budget(), timed=True)
        figures, numbers = step(model, made)
        equal += same(numbers, reference)
        where_it_goes = {"s": figures["s"], "host_s": figures["host_s"], "hooks_s": made.spent}
        where_it_goes |= made._copies.figures()
        found[name] = {**middle(seen[1:]), **moved, "equal": f"{equal} of {RUNS + 1}", "timed": where_it_goes}
        print(name, json.dumps(found[name]), flush=True)

    row(lambda: Budget(most=0), "as it starts")
    for stays, out, ahead in ROWS:
        row(lambda s=stays, o=out, a=ahead: Fixed(s, o, a), f"stays {stays}, out {out}, ahead {ahead}")
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")
    ours = found["as it starts"]
    print(f"plain {found['plain']['s']:.3f} s, ours {ours['s']:.3f} s at {ours['peak_GiB']:.2f} GiB")


if __name__ == "__main__":
    main()
