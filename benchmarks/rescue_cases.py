"""The cases of `rescue.py`: a cause of running out of GPU memory each, as the cells of a notebook.

Every case ends in one `request` that does not fit. Memory is limited with torch's own per-process limit, or by a
plain allocation outside torch, so that a case takes seconds. Cases with ``practice`` need only the words of the
prelude (`cap`, `E`, `fill`, `holds`, `touch`, `hog`), which the practice GPU has too.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CASES", "PRACTICE", "PRELUDE", "Case"]

PRELUDE = r"""
import gc, json, os, signal, subprocess, sys, threading, time
import torch
G, M = 2**30, 2**20
forget = torch.cuda.empty_cache

def cap(g):
    "Let this process reserve at most `g` GiB; None lifts the limit."
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if g is None else g * G / total)

def E(g): return torch.empty(int(g * G), dtype=torch.uint8, device="cuda")
def fill(t, v): t.fill_(v)
def holds(t, v): return all(bool((part == v).all()) for part in t.split(G))
def last(t): return int(t[-1])

HOG = '''
import ctypes, sys, time
ctypes.CDLL(None).prctl(1, 9)  # ends with the kernel
cuda = ctypes.CDLL("libcuda.so.1")
free, total, p, ctx = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_void_p()
def ask(name, *args):
    if code := getattr(cuda, name)(*args): sys.exit(f"{name}: {code}")
ask("cuInit", 0); ask("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), 0); ask("cuCtxSetCurrent", ctx)
ask("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
ask("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t((free.value - int(sys.argv[1])) // 2**21 * 2**21))
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
'''

def hog(leave, seconds):
    "Another process takes all but `leave` GiB of the card for so many seconds."
    global other
    line = [sys.executable, "-c", HOG, str(int(leave * G)), str(seconds)]
    other = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "ready\n"

def net(layers=16):
    L, A = torch.nn.Linear, torch.nn.GELU
    return torch.nn.Sequential(*[m for _ in range(layers) for m in (L(1024, 1024), A())]).cuda()

def grads(n): return [p.grad.cpu() for p in n.parameters()]
def sums(n): return [int(p.detach().view(torch.int32).sum()) for p in n.parameters()]
def same(a, b): return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))
"""

PRACTICE = """
import gc, json, os, sys, threading, time
from cuda_magic.testing import gpu
gpu, G, M = gpu(["24 GiB"], force=True), 2**30, 2**20
forget = gpu.empty_cache
def cap(g): gpu.limit(None if g is None else int(g * G))
def E(g): return gpu.empty(int(g * G))
def fill(t, v): t.fill_(v)
def holds(t, v): return t.sum() == v * t.nbytes
def last(t): return t.sum() // t.nbytes
def hog(leave, seconds): gpu.other_process(gpu.machine.cards[0].free - int(leave * G), seconds=seconds)
"""

_WORK = """
UNIT = {unit}
def work(n):
    x = E(n * UNIT); fill(x, 7)
    return n * last(x) // 7
"""


@dataclass(frozen=True)
class Case:
    """One row. `setup` are cells; one that begins with ``# fails`` is expected to raise."""

    id: str
    what: str
    setup: tuple[str, ...]
    request: str
    options: str = ""
    """What a user would write behind ``%%cuda_guard``."""
    wanted: int | None = None
    """Value of ``bs``. `request` is then ``r = work(bs)``, which the finders of a batch size can run too."""
    right: str = "rescued"
    """``rescued``, ``ok`` (nothing to rescue) or ``told``: no tool can or may, the guard must say why at once."""
    told: str = "True"
    """Of the guard's ``report``: what makes it the right answer."""
    result: str = "True"
    """What the request's result must fulfil."""
    intact: str = "True"
    """What must hold for the data that lived before, whatever happened."""
    again: bool = True
    """Whether the request can run again: its author knows, and says ``--repeat``."""
    practice: bool = False
    alone: bool = False
    """Needs the card without other processes."""
    needs: str = ""
    damage: str = "data lost"
    """What it is called when `intact` does not hold."""
    note: str = ""


def _batch(unit: str, *cells: str, wanted: int, **more: object) -> dict:
    """The common part of cases whose request is ``r = work(bs)`` with `unit` GiB for each of the batch."""
    setup = (*cells, _WORK.format(unit=unit) + f"bs = {wanted}")
    return {"setup": setup, "request": "r = work(bs)", "wanted": wanted, "result": "r == bs", **more}


_KEPT = "holds(kept, 5)"
_KEEP = "kept = E(.05); fill(kept, 5)"

CASES = (
    # -- the causes of the measured table
    Case(
        "cycle",
        "a reference cycle holds 5 of 8 GiB, 5 wanted",
        **_batch(
            "1/8",
            f"cap(8); {_KEEP}\nclass N:\n    def __init__(self): self.x = E(5); self.me = self\n"
            "gc.disable()\nN() and None",
            wanted=40,
        ),
        intact=_KEPT,
        practice=True,
    ),
    Case(
        "traceback",
        "an earlier cell's traceback holds 5 of 8 GiB, 5 wanted",
        **_batch("1/8", f"cap(8); {_KEEP}", "# fails\ndef f():\n    a = E(5); b = E(5)\nf()", wanted=40),
        intact=_KEPT,
        practice=True,
    ),
    Case(
        "fragmentation",
        "56 live blocks of 64 MiB strewn over 7 of 8 GiB, 3 wanted",
        **_batch(
            "1/8",
            "cap(8); w = E(1e-6); whole = E(7); del whole\nb = [E(1/16) for _ in range(112)]; live = b[::2]; del b\n"
            "for i, t in enumerate(live): fill(t, i)\ndel t",
            wanted=24,
        ),
        intact="all(holds(t, i) for i, t in enumerate(live))",
        practice=True,
    ),
    Case(
        "rounding",
        "408 tensors of 7 MiB, two to a segment of 20 MiB: 1.7 of 4.5 GiB free, 1 wanted",
        **_batch(
            "1/8",
            "cap(4.5); live = [E(7/1024) for _ in range(408)]\nfor i, t in enumerate(live): fill(t, i % 251)\ndel t",
            wanted=8,
        ),
        intact="all(holds(t, i % 251) for i, t in enumerate(live))",
        practice=True,
    ),
    Case(
        "idle",
        "an idle tensor of 5 of 8 GiB, 5 wanted",
        **_batch("1/8", "cap(8); old = E(5); fill(old, 3)", wanted=40),
        intact="holds(old, 3)",
    ),
    Case(
        "handle",
        "a matmul needs a cuBLAS handle, 20 MiB free, the rest held by idle tensors",
        (
            "hog(4, 300); a = torch.ones(64, 64, device='cuda')\nlive = []\n"
            "for size in (256 * M, 32 * M, 20 * M):\n"
            "    while torch.cuda.mem_get_info()[0] >= size + 20 * M: live.append(E(size / G))\n"
            "for i, t in enumerate(live): fill(t, i)\ndel t; torch.cuda.synchronize()",
        ),
        "r = (a @ a).sum().item()",
        result="r == 64**3",
        intact="all(holds(t, i) for i, t in enumerate(live))",
        alone=True,
    ),
    Case(
        "larger",
        "12 GiB wanted, 8 allowed",
        **_batch("1/8", f"cap(8); {_KEEP}", wanted=96, options="--shrink bs"),
        intact=_KEPT,
        practice=True,
    ),
    Case(
        "shrinkable",
        "a function whose largest batch is 64 of 256",
        (
            f"cap(2.06); {_KEEP}",
            "def work(n):\n    kept_for_backward = [E(n / 512) for _ in range(16)]\n"
            "    for x in kept_for_backward: fill(x, 7)\n    return n * last(kept_for_backward[-1]) // 7\nbs = 256",
        ),
        "r = work(bs)",
        "--shrink bs",
        256,
        result="r == bs",
        intact=_KEPT,
        practice=True,
    ),
    # -- S1 to S14
    Case(
        "S1",
        "an earlier traceback holds 2 of 3 GiB, 1.5 wanted",
        **_batch("1/16", f"cap(3); {_KEEP}", "# fails\ndef f():\n    a = E(2); b = E(2)\nf()", wanted=24),
        intact=_KEPT,
        practice=True,
    ),
    Case(
        "S2",
        "Out[n] holds 2 of 3 GiB, 2 wanted",
        **_batch("1/16", "cap(3)", "E(2)", wanted=32, options="--free-outputs"),
        practice=True,
        note="asked for with --free-outputs: Out is the user's data",
    ),
    Case(
        "S3",
        "24 live blocks of 64 MiB strewn over 3 GiB, 0.25 wanted",
        **_batch(
            "1/16",
            "cap(3.2); x = E(3); del x\nb = [E(1/16) for _ in range(48)]; live = b[::2]; del b\n"
            "for i, t in enumerate(live): fill(t, i)\ndel t",
            wanted=4,
        ),
        intact="all(holds(t, i) for i, t in enumerate(live))",
        practice=True,
    ),
    Case(
        "S4a",
        "a live CUDA graph holds 2 of 3 GiB, 2 wanted",
        **_batch(
            "1/16",
            "cap(3); a = torch.zeros(1).cuda(); g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g): E(2).add_(1)",
            wanted=32,
        ),
        right="told",
        told="any(s.line == 'g.reset()' for s in report.next_steps)",
        note="only the user may reset the graph",
    ),
    Case(
        "S4b",
        "a live MemPool holds 2 of 3 GiB, 2 wanted",
        **_batch(
            "1/16", "cap(3); p = torch.cuda.MemPool()\nwith torch.cuda.use_mem_pool(p): x = E(2); del x", wanted=32
        ),
        right="told",
        told="any(h.kind == 'private-pool' for h in report.holders)",
        note="only the user may drop the pool",
    ),
    Case(
        "S4c",
        "3 of 4 GiB cached by another stream, 3 wanted",
        **_batch("1/16", "cap(4)\nwith torch.cuda.stream(torch.cuda.Stream()): x = E(3); del x", wanted=48),
        right="ok",
        note="torch flushes that cache itself",
    ),
    Case(
        "S5",
        "a training step, batch 65,536 under 1 GiB",
        (
            "cap(1); torch.manual_seed(0); n = net(); bs = 65536\n"
            "def work(bs):\n    n.zero_grad(set_to_none=True)\n"
            "    n(torch.randn(bs, 1024, device='cuda')).sum().backward()\n    return bs",
        ),
        "r = work(bs)",
        "--shrink bs=256",
        65536,
        result="r == bs and all(p.grad is not None for p in n.parameters())",
    ),
    Case(
        "S6",
        "another process leaves 2 GiB, goes after 3 s; 6 wanted",
        **_batch("1/8", "first = E(.01)\nhog(2, 3)", wanted=48, options="--wait 30"),
        practice=True,
        alone=True,
    ),
    Case(
        "S7",
        "another process leaves 150 MiB, goes after 3 s; the first tensor",
        ("hog(150 / 1024, 3)",),
        "r = torch.zeros(1, device='cuda')",
        "--wait 30",
        result="r.item() == 0",
        alone=True,
    ),
    Case(
        "S8",
        "torch caches the whole card, a matmul needs a cuBLAS handle",
        (
            "hog(4, 300); a = torch.ones(64, 64, device='cuda')\nhold, size = [], 2 * G\nwhile size >= 2 * M:\n"
            "    try: hold.append(E(size / G))\n    except RuntimeError: size //= 2\ndel hold",
        ),
        "r = (a @ a).sum().item()",
        result="r == 64**3",
        alone=True,
    ),
    Case(
        "S9",
        "a loop leaves cycles of 0.9 GiB each, 3 allowed",
        (
            f"cap(3); {_KEEP}\nclass N:\n    def __init__(self): self.x = E(.9); self.me = self\ngc.disable()\n"
            "def leak():\n    for i in range(6): N()\n    return i",
        ),
        "r = leak()",
        result="r == 5",
        intact=_KEPT,
    ),
    Case(
        "S10",
        "inside backward a hook asks for 100 of 2 GiB, gradients partly there",
        (
            "cap(2); torch.manual_seed(0); n = net(); x = torch.randn(64, 1024, device='cuda')\nn(x).sum().backward()\n"
            "h = n[8].register_full_backward_hook(lambda *a: E(100) and None)",
        ),
        "n(x).sum().backward()",
        right="told",
        again=False,
        damage="gradients half added",
        note="a repeat would add to the gradients once more",
    ),
    Case(
        "backward",
        "inside backward a hook asks for 1 of 2 GiB, a cycle holds 1.2",
        (
            "torch.manual_seed(0); n = net(); x = torch.randn(64, 1024, device='cuda')\n"
            "def step():\n    n.zero_grad(set_to_none=True)\n    n(x).sum().backward()\n"
            "step(); want = grads(n)",
            "h = n[8].register_full_backward_hook(lambda *a: fill(E(1), 1))\nclass N:\n"
            "    def __init__(self): self.x = E(1.2); self.me = self\ngc.disable()\nforget(); cap(2); N() and None",
        ),
        "step()",
        result="same(grads(n), want)",
    ),
    Case(
        "S11",
        "the cell handles the error itself",
        ("cap(1); n = net()",),
        "for b in (65536, 1024):\n    try:\n        n(torch.randn(b, 1024, device='cuda')).sum().backward(); break\n"
        "    except RuntimeError: pass",
        right="ok",
        told="report.handled == 1",
    ),
    Case(
        "S12",
        "a device-side assert: the context is lost",
        ("x = torch.zeros(3, device='cuda')",),
        "x[torch.tensor([10], device='cuda')]; torch.cuda.synchronize()",
        right="told",
        told="report.kind == 'lost-context' and report.attempts == 1",
        note="nothing can be repeated: restart",
    ),
    Case(
        "S13",
        "page-locked host memory: 16 TiB",
        (f"cap(8); {_KEEP}",),
        "torch.empty(2**44, dtype=torch.uint8, pin_memory=True)",
        right="told",
        told="report.kind == 'host-memory' and not report.rungs",
        intact=_KEPT,
        note="the host's memory, not the card's",
    ),
    Case(
        "S14",
        "CuPy asks for 8 GiB, torch caches all but 4",
        ("import cupy\nx = E(torch.cuda.mem_get_info()[0] / G - 4); del x",),
        "r = cupy.empty(8 * G, 'u1')",
        result="r.nbytes == 8 * G",
        alone=True,
        needs="cupy",
    ),
    # -- what notebooks meet besides
    Case(
        "lengths",
        "growing sequence lengths: a large buffer each, and a result of half its size is kept; 2.2 GiB",
        (
            f"cap(2.2); {_KEEP}\ndef encode(lengths):\n    out = {{}}\n    for n in lengths:\n"
            "        buffer = E(n / 100); fill(buffer, n); del buffer\n"
            "        out[n] = E(n / 200); fill(out[n], n)\n    return out",
        ),
        "r = encode(range(1, 25))",
        result="len(r) == 24 and all(holds(t, n) for n, t in r.items())",
        intact=_KEPT,
    ),
    Case(
        "lengths-train",
        "the same while training with AdamW",
        (
            "torch.manual_seed(0); n = net(2); initial = [p.detach().cpu() for p in n.parameters()]\n"
            "def train(n, steps):\n    o = torch.optim.AdamW(n.parameters()); hidden = {}\n"
            "    g = torch.Generator('cuda').manual_seed(1)\n    for s in range(1, steps):\n"
            "        buffer = E(s / 100); fill(buffer, s); del buffer\n"
            "        hidden[s] = E(s / 200); fill(hidden[s], s)\n"
            "        n(torch.randn(64, 1024, device='cuda', generator=g)).square().mean().backward(); o.step()\n"
            "        o.zero_grad(set_to_none=True)\n"
            "    return hidden",
            "train(n, 25); want = [p.detach().cpu() for p in n.parameters()]\nwith torch.no_grad():\n"
            "    for p, i in zip(n.parameters(), initial): p.copy_(i)\ndel p, i; gc.collect(); forget(); cap(2.3)",
        ),
        "r = train(n, 25)",
        again=False,
        result="same([p.detach().cpu() for p in n.parameters()], want) and all(holds(t, s) for s, t in r.items())",
    ),
    Case(
        "activations",
        "a training step of 9.4 GiB under 2.5 GiB, the batch as it is",
        (
            "torch.manual_seed(0); n = net(); x = torch.randn(65536, 1024, device='cuda'); bs = 65536\n"
            "def work(bs):\n    n.zero_grad(set_to_none=True)\n    n(x[:bs]).sum().backward()\n    return bs",
            "work(bs); want = grads(n); n.zero_grad(set_to_none=True); forget(); cap(2.5)",
        ),
        "r = work(bs)",
        wanted=65536,
        result="r == bs and same(grads(n), want)",
    ),
    Case(
        "inference",
        "a model of 1.5 GiB runs under 1 GiB",
        (
            "torch.manual_seed(0); w = [torch.randn(4096, 4096, device='cuda').cpu() for _ in range(24)]\n"
            "x = torch.randn(8, 4096); bs = 8\n"
            "def work(bs):\n    here, y = [t.cuda() for t in w], x[:bs].cuda()\n    for _ in range(2):\n"
            "        for t in here: y = torch.tanh(y @ t)\n    return y.cpu()",
            "want = work(bs); gc.collect(); forget(); cap(1)",
        ),
        "r = work(bs)",
        wanted=8,
        result="torch.equal(r, want)",
    ),
    Case(
        "training",
        "weights, gradients and AdamW's state of 3 GiB under 2.3 GiB (foreach=False)",
        (
            "def train(steps):\n    torch.manual_seed(0); m = net(0)\n"
            "    for _ in range(12): m.append(torch.nn.Linear(4096, 4096, bias=False, device='cuda'))\n"
            "    o = torch.optim.AdamW(m.parameters(), foreach=False); x = torch.randn(64, 4096, device='cuda')\n"
            "    for _ in range(steps):\n        m(x).square().mean().backward(); o.step()\n"
            "        o.zero_grad(set_to_none=True)\n    return [p.detach().cpu() for p in m.parameters()]",
            "want = train(3); gc.collect(); forget(); cap(2.3)",
        ),
        "r = train(3)",
        result="same(r, want)",
    ),
    Case(
        "two models",
        "an idle model of 4 GiB, another one trains with 5 of 8 GiB",
        (
            "torch.manual_seed(0)\nidle = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192, bias=False, device='cuda')"
            " for _ in range(16)])\nbefore = sums(idle)\nn = net(); bs = 32768\n"
            "x = torch.randn(bs, 1024, device='cuda')\n"
            "def work(bs):\n    n.zero_grad(set_to_none=True)\n    n(x[:bs]).sum().backward()\n    return bs",
            "work(bs); want = grads(n); n.zero_grad(set_to_none=True); gc.collect(); forget(); cap(8)",
        ),
        "r = work(bs)",
        wanted=32768,
        result="r == bs and same(grads(n), want)",
        intact="sums(idle) == before",
    ),
)
"""All rows, in the order of the table."""
