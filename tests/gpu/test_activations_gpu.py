"""Activations on the host, on a real card: bitwise equality, speed beside plain and save_on_cpu, cells, interrupts."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import statistics
import sys
import threading
import time
from pathlib import Path

import pytest
from kernels import one_each

sys.path.insert(0, str(Path(__file__).parent))
pytestmark = pytest.mark.gpu
GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture(autouse=True)
def clean():
    """Nothing cached, no cap, no peaks of an earlier test."""
    import torch

    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def hooks(keep=0, window=None):
    import torch

    from cuda_magic.memory.torch import offload
    from cuda_magic.memory.torch.offload.budget import Budget

    made = offload.hooks(torch, 0, 0, torch.cuda.get_device_properties(0).total_memory)
    budget = Budget if window is None else type("Small", (Budget,), {"window": property(lambda self: window)})
    made.budget = budget(most=keep)
    made.budget.keep = keep
    return made


def models():
    """Name: (model, input, autocast)."""
    import torch
    from torch.utils.checkpoint import checkpoint

    nn = torch.nn
    torch.manual_seed(0)

    def mlp():
        return nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(512, 512), nn.GELU())])

    def cnn():
        return nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(inplace=True), nn.Dropout(0.3),
            nn.Conv2d(128, 128, 3, padding=1, stride=2), nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(128, 10),
        )  # fmt: skip

    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(mlp(), nn.Dropout(0.2)) for _ in range(3)])
            self.reentrant = reentrant

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            return x

    class Lstm(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(256, 256, 2, dropout=0.2, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]

    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(256, 768)

        def forward(self, x):
            q, k, v = self.w(x).chunk(3, -1)
            a = torch.softmax(q @ k.transpose(-1, -2) / 16, -1)
            z = torch.zeros_like(v)
            z[:, ::2] = (a @ v)[:, ::2]
            z.mul_(1.5)
            at = torch.randperm(z.shape[1], device=z.device)
            return z[:, at].exp().clamp(max=50) * x.mean(-1, keepdim=True).expand_as(z)

    images = torch.randn(64, 3, 64, 64)
    last = torch.channels_last
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.1)
    return {
        "mlp": (mlp(), torch.randn(16384, 512), False),
        "cnn, batch norm, dropout": (cnn(), images, False),
        "cnn, channels last, bf16": (cnn().to(memory_format=last), images.contiguous(memory_format=last), True),
        "encoder, bf16, dropout": (nn.TransformerEncoder(layer, 4), torch.randn(16, 256, 512), True),
        "lstm": (Lstm(), torch.randn(64, 128, 256), False),
        "checkpoint": (Checkpointed(False), torch.randn(8192, 512), False),
        "checkpoint, reentrant": (Checkpointed(True), torch.randn(8192, 512, requires_grad=True), False),
        "views, in place": (Views(), torch.randn(16, 512, 256), False),
    }


def step(model, x, within=None, amp=False):
    """(loss, gradients, buffers, random states) after one step from a fixed start, and its peak in bytes."""
    import torch

    for p in (*model.parameters(), x):
        p.grad = None
    kept = {k: v.clone() for k, v in model.named_buffers()}
    torch.manual_seed(3)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    with within or contextlib.nullcontext(), torch.autocast("cuda", torch.bfloat16, enabled=amp):
        loss = model(x).float().square().mean()
        loss.backward()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - base
    out = [loss.detach().clone(), *[p.grad.clone() for p in (*model.parameters(), x) if p.requires_grad]]
    out += [*[v.clone() for v in model.buffers()], torch.cuda.get_rng_state(), torch.get_rng_state()]
    for name, buffer in model.named_buffers():
        buffer.copy_(kept[name])
    return out, peak


def same(one, other):
    import torch

    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def kernel():
    yield from one_each()


SETUP = (
    "torch.manual_seed(0); n = net(); x = torch.randn(65536, 1024, device='cuda')\n"
    "def step():\n    loss = n(x).square().mean(); loss.backward(); return loss.detach()\n"
    "def grads(): return [p.grad.cpu() for p in n.parameters()]\n"
    "def clear():\n    for p in n.parameters(): p.grad = None\n"
    "ref = step(); want = grads(); clear(); gc.collect(); torch.cuda.empty_cache(); cap(4)"
)
ALONE = "--without retry"
SAME = "all(torch.equal(a, b) for a, b in zip(grads(), want)) and torch.equal(loss.detach(), ref)"


def test_guarded_cells(kernel):
    """A step, a step in two statements, a backward pass that fails half way, a loop: rescued by the rung, equal."""
    from record import record

    assert not [o for o in kernel.run(SETUP) if o[0] == "error"]
    figures = {}

    def told(report, name):
        found = [r for r in report["rungs"] if r["id"] == "activations"]
        figures[name] = {
            "status": report["status"], "attempts": report["attempts"], "notes": report["notes"],
            "rung": {k: found[-1][k] for k in ("state", "reason", "seconds")} if found else None,
        }  # fmt: skip
        print(name, report["raised"], figures[name], [(r["id"], r["state"], r["reason"]) for r in report["rungs"]])
        return report["status"] == "rescued" and bool(found) and found[-1]["state"] == "on"

    ok = [told(kernel.guard("loss = step()", ALONE), "one statement") and kernel.value(SAME) == "True"]
    kernel.run("clear(); loss = None")
    ok.append(
        told(kernel.guard("loss = n(x).square().mean()\nloss.backward()", ALONE), "two")
        and kernel.value(SAME) == "True"
    )
    kernel.run("clear(); loss = None; gc.collect(); torch.cuda.empty_cache(); cap(11)")
    kernel.run("def ask(*a):\n    E(5)\nhandle = n[28].register_full_backward_hook(ask)")
    ok.append(told(kernel.guard("loss = step()", ALONE), "in the backward pass") and kernel.value(SAME) == "True")
    kernel.run("handle.remove(); clear(); loss = None; gc.collect(); torch.cuda.empty_cache(); cap(80)")
    kernel.run(
        "start = [p.detach().cpu() for p in n.parameters()]\n"
        "def train():\n    o = torch.optim.AdamW(n.parameters())\n    for _ in range(5):\n"
        "        o.zero_grad(); loss = step(); o.step()\n    return loss\n"
        "def weights(): return [p.detach().cpu() for p in n.parameters()]\n"
        "train(); after = weights(); clear()\n"
        "with torch.no_grad():\n    for p, s in zip(n.parameters(), start): p.copy_(s)\n"
        "gc.collect(); torch.cuda.empty_cache(); cap(5)"
    )
    ok.append(
        told(kernel.guard("last = train()", ALONE), "loop")
        and kernel.value("all(torch.equal(a, b) for a, b in zip(weights(), after))") == "True"
    )
    kernel.run("clear(); loss = last = None; gc.collect(); torch.cuda.empty_cache(); cap(4)")
    for name, code, words in (
        ("no grad", "with torch.no_grad():\n    y = [n(x) for _ in range(40)]", "recorded no graph"),
        ("graph", "g = torch.cuda.CUDAGraph()\nloss = step()", "CUDA graph"),
    ):
        report = kernel.guard(code, ALONE)
        found = [r for r in report["rungs"] if r["id"] == "activations"]
        figures[name] = found[-1]["reason"] if found else None
        ok.append(words in str(figures[name]))
        print(name, report["status"], report["raised"], [(r["id"], r["state"], r["reason"]) for r in report["rungs"]])
    shown = [t for k, t in kernel.run("%gpu_mem --free") if k == "execute_result"]
    print(shown)
    record("activations_cells", figures | {"ok": ok})
    assert all(ok), ok
    assert "host memory kept for parking" in shown[0]


def net():
    import torch

    torch.manual_seed(0)
    parts = [m for _ in range(16) for m in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
    return torch.nn.Sequential(*parts).cuda()


def test_the_step_of_8_gib_of_activations():
    """16 x Linear(1024)+GELU, batch 65,536: seconds and peak beside plain and save_on_cpu, bitwise equal."""
    import torch
    from record import record

    model = net()

    def run(within=None, steps=1):
        model.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        with within or contextlib.nullcontext():
            for _ in range(steps):
                model.zero_grad(set_to_none=True)
                torch.manual_seed(1)
                x = torch.randn(65536, 1024, device="cuda")  # held while the step runs, as a batch is
                loss = model(x).square().mean()
                loss.backward()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        return (
            seconds / steps,
            torch.cuda.max_memory_allocated() / GIB,
            [t.cpu() for t in (loss.detach(), *[p.grad for p in model.parameters()])],  # not on the card: it counts
        )

    run()
    plain = [run() for _ in range(3)]
    reference = plain[0][2]
    theirs = [run(torch.autograd.graph.save_on_cpu(pin_memory=True))[:2] for _ in range(1)]
    figures = {
        "plain_s": min(p[0] for p in plain), "plain_peak_GiB": plain[0][1],
        "save_on_cpu_s": [t[0] for t in theirs], "save_on_cpu_peak_GiB": theirs[-1][1],
    }  # fmt: skip
    ours, equal, moved = [], 0, None
    for _ in range(6):
        made = hooks()
        seconds, peak, found = run(made)
        ours.append((seconds, peak))
        equal += same(found, reference)
        moved = dict(made.moved)
    later = [s for s, _ in ours[1:]]
    figures |= {
        "first_s": ours[0][0], "median_s": statistics.median(later), "min_s": min(later),
        "peak_GiB": max(p for _, p in ours), "equal": f"{equal} of 6",
        "out_GiB": moved["out"] / GIB, "in_GiB": moved["in"] / GIB, "late": moved.get("late", 0),
    }  # fmt: skip
    total = torch.cuda.get_device_properties(0).total_memory
    for cap in (2.35,):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(cap * GIB / total)
        try:
            seconds, peak, found = run(hooks(), 4)
            figures[f"4 steps, cap {cap} GiB"] = {"s": seconds, "peak_GiB": peak, "equal": same(found, reference)}
        except torch.cuda.OutOfMemoryError as error:
            figures[f"4 steps, cap {cap} GiB"] = str(error)[:90]
        torch.cuda.set_per_process_memory_fraction(1.0)
    record("activations_step", figures)
    assert equal == 6
    assert figures["peak_GiB"] <= 2
    assert figures["median_s"] < figures["save_on_cpu_s"][-1]


def test_compiled_code_is_refused_with_the_reason(kernel):
    """torch.compile(mode="reduce-overhead") would need more memory, not less: skipped, and the report says why."""
    from record import record

    made = kernel.run(
        "m = torch.compile(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).cuda(),"
        " mode='reduce-overhead')\nx = torch.randn(64, 256, device='cuda')\nfor _ in range(3):\n"
        "    torch.compiler.cudagraph_mark_step_begin(); m.zero_grad(); m(x).sum().backward()"
    )
    if any(kind == "error" for kind, _ in made):
        pytest.skip(f"nothing can be compiled here: {made[-1][1][:200]}")
    kernel.run("n = net(); b = torch.randn(65536, 1024, device='cuda'); cap(3)")
    report = kernel.guard("n(b).sum().backward()", ALONE)
    found = [r for r in report["rungs"] if r["id"] == "activations"]
    record("compiled with reduce-overhead", {k: found[-1][k] for k in ("state", "reason")})
    assert found[-1]["state"] == "skipped"
    assert "torch.compile is in use" in found[-1]["reason"] or "CUDA graph" in found[-1]["reason"]


def test_bitwise_the_plain_numbers():
    """Loss, gradients, buffers and random state of 10 runs each, two budgets; where plain itself is repeatable."""
    import torch
    from record import record

    torch.backends.cudnn.deterministic = True
    figures, wrong = {}, []
    for name, (model, x, amp) in models().items():
        model, x = model.cuda(), x.detach().cuda().requires_grad_(x.requires_grad)
        reference, plain_peak = step(model, x, None, amp)
        repeatable = all(same(step(model, x, None, amp)[0], reference) for _ in range(3))
        for keep, window, runs in ((0, 8 * MIB, 10), (32 * MIB, 16 * MIB, 3)):
            equal, late, out, peak = 0, 0, 0, 0
            for _ in range(runs):
                made = hooks(keep, window)
                found, peak = step(model, x, made, amp)
                equal += same(found, reference)
                out, late = made.moved["out"], late + made.moved["late"]
            gc.collect()
            made.settle()
            left = len(made._records)
            figures[f"{name}; keep {keep // MIB} MiB"] = {
                "plain repeatable": repeatable, "equal": f"{equal} of {runs}", "plain peak MiB": plain_peak // MIB,
                "peak MiB": peak // MIB, "out MiB": out // MIB, "late": late, "left": left,
            }  # fmt: skip
            if (repeatable and equal < runs) or left:
                wrong.append((name, keep, equal, left))
    record("activations_equal", figures)
    assert not wrong, wrong


def test_200_interrupts():
    """SIGINT at random moments: it shows or the step ends, hooks off, weights intact, the next step bitwise right."""
    import torch
    from record import record

    torch.manual_seed(0)
    parts = [m for _ in range(8) for m in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
    model, x = torch.nn.Sequential(*parts).cuda(), torch.randn(8192, 1024, device="cuda")
    guard = torch.arange(64 * MIB, device="cuda", dtype=torch.int32)  # what a stray copy would overwrite
    reference, _ = step(model, x)
    weights = [p.detach().clone() for p in model.parameters()]
    start = time.perf_counter()
    for _ in range(3):
        step(model, x, hooks(0, 32 * MIB))
    length = (time.perf_counter() - start) / 3
    rng, arrived, right = random.Random(7), 0, 0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    top = torch._C._autograd._top_saved_tensors_default_hooks
    try:
        for number in range(200):
            made = hooks(0, 32 * MIB)
            timer = threading.Timer(rng.random() * length, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                step(model, x, made)
                timer.join()
                time.sleep(0)
            except KeyboardInterrupt:
                arrived += 1
            timer.join()
            made.off()
            assert top(True) is None
            if number % 20 == 19:
                right += same(step(model, x, hooks(0, 32 * MIB))[0], reference)
    finally:
        signal.signal(signal.SIGINT, before)
    intact = same([p.detach() for p in model.parameters()], weights)
    intact = intact and bool((guard == torch.arange(64 * MIB, device="cuda", dtype=torch.int32)).all())
    record("activations_interrupts", {"sent": 200, "arrived": arrived, "right": f"{right} of 10", "intact": intact})
    assert intact
    assert right == 10
    assert arrived > 100


def test_what_stays_grows_in_a_loop():
    """Under a cap of 6 GiB later steps keep a part on the card: faster, bitwise equal."""
    import torch
    from record import record

    from cuda_magic.memory.torch import offload

    model = net()
    total = torch.cuda.get_device_properties(0).total_memory

    def run(within, steps):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        seconds = []
        with within or contextlib.nullcontext():
            for _ in range(steps):
                torch.cuda.synchronize()
                start = time.perf_counter()
                optimizer.zero_grad()
                model(torch.randn(65536, 1024, device="cuda")).square().mean().backward()
                optimizer.step()
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
        return seconds

    state = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(2)
    plain = run(None, 6)
    reference = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(state)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(6 * GIB / total)
    made = offload.hooks(torch, 0, 256 * MIB, 6 * GIB)
    torch.manual_seed(2)
    ours = run(made, 6)
    figures = {"plain_s": plain, "s": ours, "kept_GiB": made.most_kept / GIB, "moved": dict(made.moved)}
    record("activations_loop", figures)
    assert all(torch.equal(a, b) for a, b in zip([p.detach() for p in model.parameters()], reference, strict=True))
    assert made.most_kept > 0


def test_the_arena_is_registered_and_fast():
    """4 GiB: made, filled, read back; given back afterwards. Bytes intact."""
    import torch
    from record import record

    from cuda_magic.memory import host
    from cuda_magic.memory.torch import offload
    from cuda_magic.memory.torch.offload.host_pool import shared

    x = torch.arange(GIB // 4, dtype=torch.int64, device="cuda")  # 2 GiB
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    arena = shared(torch)
    offload.release()
    assert arena.held == 0
    room = arena.room()
    start = time.perf_counter()
    arena.reserve(4 * GIB)
    made = time.perf_counter() - start
    buffer = arena.take(2 * GIB)
    figures = {"host_available": host.available(), "room": room, "kind": buffer.slab.kind, "make_GiB_s": 4 / made}
    there = buffer.data.view(torch.int64)
    for name, target, source in (("out", there, x), ("in", y, there)):
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        figures[f"{name}_GB_s"] = 2 * GIB / 1e9 / (time.perf_counter() - start)
    assert torch.equal(x, y)
    arena.give(buffer)
    kind = buffer.slab.kind
    del buffer, there, target, source
    start = time.perf_counter()
    assert offload.release() >= 4 * GIB
    figures["release_s"] = time.perf_counter() - start
    record("arena", figures)
    assert kind == "registered"
    assert arena.held == 0
