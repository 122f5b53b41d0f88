"""Where the time of a paged training step goes, on a card: traffic, waiting and Python, by phase.

    python benchmarks/paging.py train [LAYERS WIDTH]     a step of AdamW under a cap: parameters, gradients, state / 1.3
    python benchmarks/paging.py order                    paging at the call beside the rung activations, one cell

Prints one JSON line. `train` is bitwise compared with enough memory.
"""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "tests" / "gpu")]

import torch  # noqa: E402

from cuda_magic.machine import machine  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20
PHASES = ("zero", "forward", "backward", "step")


def cap(nbytes: int | None) -> None:
    """Let this process reserve so many bytes of the card."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if nbytes is None else nbytes / total)


def link() -> dict[str, float]:
    """GB/s of 1 GiB copies of pinned memory: in, out, and both ways at once (the sum)."""
    host = [torch.empty(GIB, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    card = [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    ways = {"in": [(card[0], host[0])], "out": [(host[1], card[1])]}
    best: dict[str, float] = {}
    for name, pairs in {**ways, "both": ways["in"] + ways["out"]}.items():
        for _ in range(3):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for stream, (to, source) in zip(streams, pairs, strict=False):
                with torch.cuda.stream(stream):
                    to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best[name] = max(best.get(name, 0.0), len(pairs) * GIB / 1e9 / (time.perf_counter() - started))
    return best


def small_costs() -> dict[str, float]:
    """Microseconds of what is asked often."""

    def us(call: Any, count: int = 300) -> float:
        call()
        started = time.perf_counter()
        for _ in range(count):
            call()
        return round((time.perf_counter() - started) / count * 1e6, 1)

    stream, side = torch.cuda.current_stream(), torch.cuda.Stream()

    def switch() -> None:
        with torch.cuda.device(0), torch.cuda.stream(side):
            pass

    def fails() -> None:
        try:
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass

    from cuda_magic.memory.torch.parking.lane import quiet
    from cuda_magic.memory.torch.parking.parked import held_interrupts

    def enter(make: Any) -> None:
        with make():
            pass

    held = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    storage = held.untyped_storage()

    def again() -> None:
        storage.resize_(0)
        storage.resize_(64 * MIB)

    return {
        "memory stats": us(lambda: torch._C._cuda_memoryStats(0)),
        "event": us(stream.record_event),
        "wait for an event": us(lambda: stream.wait_event(side.record_event())),
        "device and stream": us(switch),
        "quiet": us(lambda: enter(lambda: quiet(torch))),
        "interrupts held": us(lambda: enter(held_interrupts)),
        "emptied and given memory": us(again),
        "an allocation that fails": us(fails, 20),
    }


class Clock:
    """Seconds of a pager's functions without those that they call, and how often, by phase."""

    NAMES = (
        "begin",
        "done",
        "_leave",
        "_save_next",
        "_judge",
        "_bring",
        "_bring_ahead",
        "_keep_free",
        "_come",
        "make_room",
    )

    def __init__(self, *owners: Any) -> None:
        self.phase = ""
        self.seconds: Counter[tuple[str, str]] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self._inner = [0.0]
        for owner in owners:
            for name in self.NAMES:
                if hasattr(owner, name):
                    setattr(owner, name, self._timed(name, getattr(owner, name)))

    def _timed(self, name: str, call: Any) -> Any:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            self._inner.append(0.0)
            try:
                return call(*arguments, **named)
            finally:
                whole = time.perf_counter() - started
                self.seconds[self.phase, name] += whole - self._inner.pop()
                self._inner[-1] += whole
                self.calls[self.phase, name] += 1

        return timed

    def told(self, phase: str, steps: int) -> dict[str, list[float]]:
        return {
            name: [round(1e3 * s / steps, 2), round(self.calls[p, name] / steps, 1)]
            for (p, name), s in self.seconds.items()
            if p == phase
        }


def start(layers: int, width: int) -> tuple[Any, Any]:
    torch.manual_seed(0)
    parts: list[Any] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width, device="cuda"), torch.nn.GELU(), torch.nn.Dropout(0.0)]
    net = torch.nn.Sequential(*parts)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=False)


def step(net: Any, opt: Any, number: int, width: int, phase: Any = lambda name: None) -> float:
    torch.manual_seed(number)
    phase("zero")
    x = torch.randn(256, width, device="cuda")
    opt.zero_grad()
    phase("forward")
    loss = net(x).square().mean()
    phase("backward")
    loss.backward()
    phase("step")
    opt.step()
    phase("")
    return float(loss.detach())


def digest(tensors: Any) -> list[float]:
    return [float(t.double().sum()) for t in tensors] + [float(t.double().square().sum()) for t in tensors]


def busy(events: list[tuple[int, int]]) -> int:
    """ns that at least one of (start, end) covers."""
    covered = until = 0
    for begin, end in sorted(events):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered


def traced(run: Any) -> dict[str, Any]:
    """What the card did in one step, by the driver's own trace: ms of copies and kernels, by phase."""
    marks: list[tuple[int, str]] = []

    def phase(name: str) -> None:
        torch.cuda.synchronize()
        marks.append((time.time_ns(), name))

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run(phase)
    kinds: dict[str, list[tuple[int, int]]] = {"in": [], "out": [], "kernels": []}
    for event in profile.profiler.kineto_results.events():
        if "CUDA" not in str(event.device_type()):
            continue
        name, begin = event.name(), event.start_ns()
        kind = "in" if "HtoD" in name else "out" if "DtoH" in name else "kernels"
        kinds[kind].append((begin, begin + event.duration_ns()))
    told: dict[str, Any] = {}
    for (begin, name), (end, _) in itertools.pairwise(marks):
        inside = {k: [(max(a, begin), min(b, end)) for a, b in v if b > begin and a < end] for k, v in kinds.items()}
        row = {k: round(busy(v) / 1e6, 2) for k, v in inside.items()}
        row["link"] = round(busy(inside["in"] + inside["out"]) / 1e6, 2)
        row["anything"] = round(busy([e for v in inside.values() for e in v]) / 1e6, 2)
        told[name] = {**row, "whole": round((end - begin) / 1e6, 2)}
    return told


def train(layers: int, width: int, steps: int = 6) -> dict[str, Any]:
    from cuda_magic.memory.torch.parking.session import session

    told: dict[str, Any] = {"link GB/s": link(), "us": small_costs()}
    cap(None)
    net, opt = start(layers, width)
    plain = []
    want = []
    for number in range(steps + 4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        want.append(step(net, opt, number, width))
        plain.append(time.perf_counter() - started)
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    wanted = digest(net.parameters())
    del net, opt
    held = int(4 * size / 1.3)
    cap(held)
    told |= {"GiB": 4 * size / GIB, "cap GiB": held / GIB, "plain s": min(plain)}
    found = session(torch)
    store = found.store
    allocator = machine().allocator()
    assert allocator is not None
    ops = allocator.ops()
    assert ops is not None
    net, opt = start(layers, width)
    got, rows = [], []

    def state() -> Counter[str]:
        pager = found.watcher.pager
        assert pager is not None
        return Counter(
            {
                "in": store.in_bytes,
                "out": store.out_bytes,
                "faults": pager.faults,
                "ahead": pager.ahead,
                "left": pager.evictions,
                "errors": store.errors,
                "ooms": allocator.ooms(0),
            }
        )

    with ops.paging(0):
        pager = found.watcher.pager
        for number in range(steps):
            before = state()
            torch.cuda.synchronize()
            started = time.perf_counter()
            got.append(step(net, opt, number, width))
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            now = state()
            rows.append({k: now[k] - before[k] for k in now} | {"s": seconds})
        told["steps"] = rows
        told["copied both ways GB/s"] = [round((r["in"] + r["out"]) / 1e9 / r["s"], 1) for r in rows]
        clock = Clock(pager, pager._victims, found.watcher.retry.rescue)
        phases: dict[str, Counter[str]] = {name: Counter() for name in PHASES}
        last: list[Any] = ["", 0.0, state()]

        def phase(name: str) -> None:
            issued = time.perf_counter() - last[1]
            torch.cuda.synchronize()
            if last[0]:
                now = state()
                phases[last[0]].update({k: now[k] - last[2][k] for k in now})
                phases[last[0]]["issued us"] += int(1e6 * issued)
                phases[last[0]]["whole us"] += int(1e6 * (time.perf_counter() - last[1]))
            clock.phase = name
            last[:] = [name, time.perf_counter(), state()]

        for number in range(steps, steps + 2):
            got.append(step(net, opt, number, width, phase))
        told["phases, a step"] = {
            name: {k: v / 2 for k, v in phases[name].items()} | {"python, ms and calls": clock.told(name, 2)}
            for name in PHASES
        }
        try:
            told["the card, ms"] = traced(lambda phase: got.append(step(net, opt, steps + 2, width, phase)))
        except Exception as error:  # no trace on this machine
            told["the card, ms"] = repr(error)
        if len(got) == steps + 2:
            got.append(step(net, opt, steps + 2, width))
        cap(None)
        told["equal"] = got == want[: len(got)]
        while len(got) < len(want):
            got.append(step(net, opt, len(got), width))
    told["weights equal"] = digest(net.parameters()) == wanted
    return told


CELLS = (
    ("plain", None, ""),
    ("activations", 4.0, "--repeat --only activations"),
    ("page at the call", 4.0, "--repeat"),
    ("the ladder without page", 4.0, "--repeat --without page"),
    ("as it comes", 4.0, "--repeat"),
    ("activations", 2.5, "--repeat --only activations"),
    ("page at the call", 2.5, "--repeat"),
    ("the ladder without page", 2.5, "--repeat --without page"),
    ("as it comes", 2.5, "--repeat"),
)


def order() -> dict[str, Any]:
    """Steps of 16 x Linear(1024) and GELU, batch 65,536, four in one statement, guarded under a cap, each twice."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "cuda_magic")
    names = shell.user_ns
    torch.manual_seed(0)
    linear = torch.nn.Linear
    names["net"] = net = torch.nn.Sequential(
        *[m for _ in range(16) for m in (linear(1024, 1024, device="cuda"), torch.nn.GELU())]
    )
    names |= {"x": torch.randn(65536, 1024, device="cuda"), "torch": torch, "now": time.perf_counter}
    shell.run_cell(
        "def steps():\n    told = []\n    for _ in range(4):\n        net.zero_grad(set_to_none=True)\n"
        "        loss = net(x).square().mean()\n        loss.backward()\n        torch.cuda.synchronize()\n"
        "        told.append((float(loss), now()))\n        del loss\n    return told"
    )
    told: dict[str, Any] = {}
    want: Any = None
    for name, limit, options in CELLS:
        for number in range(2):
            net.zero_grad(set_to_none=True)
            cap(None if limit is None else int(limit * GIB))
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
            started = time.perf_counter()
            head = f"%%cuda_guard --report report {options}\n" if limit is not None else ""
            with io.StringIO() as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                result = shell.run_cell(f"{head}r = steps()")
                said = quiet.getvalue()
            seconds = time.perf_counter() - started
            r = names.get("r") or []
            got = [[loss for loss, _ in r], digest(p.grad for p in net.parameters())] if result.success else None
            want = want or got
            report = names.get("report")
            told[f"{name}, {limit} GiB, {number}"] = {
                "s": round(seconds, 3),
                "steps": [round(b - a, 3) for a, b in itertools.pairwise([started, *(at for _, at in r)])],
                "peak GiB": round(torch.cuda.max_memory_allocated() / GIB, 2),
                "equal": got == want,
                "rungs": [[x.id, x.state, x.reason, x.attempt] for x in report.rungs] if report is not None else [],
                "calls": [[c.op, c.times, c.how, c.backward] for c in report.calls] if report is not None else [],
                "paged": repr(report.paged) if report is not None else "",
                "said": said if result.success else said[-600:],
            }
            result = report = None
            names.pop("r", None)
            names.pop("report", None)
            with io.StringIO() as quiet, contextlib.redirect_stdout(quiet):
                shell.run_cell("1/0", silent=True)
    return told


def main() -> None:
    what, sizes = sys.argv[1], [int(word) for word in sys.argv[2:]]
    found = order() if what == "order" else train(*(sizes or [24, 4096]))
    print(json.dumps(found))
    from record import record

    record(f"paging_{what}", found)


if __name__ == "__main__":
    main()
