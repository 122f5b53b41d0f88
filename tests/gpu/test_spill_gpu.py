"""Spill, and settings put back, on a real card: real guarded cells in kernels of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from kernels import GIB, PATHS, Kernel
from test_rescue_gpu import rung

pytestmark = pytest.mark.gpu
MIB = 1 << 20
LONGEST = 12


def child(code: str, **env: str) -> dict:
    """What `code`, run in a process of its own, prints last as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": PATHS, **env},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


CHILDREN = {
    "bare": "import torch, json\nt = torch.ones(1 << 20, device='cuda'); u = torch.ones(3, device='cuda')\n"
    "t.untyped_storage().resize_(0)\n"
    "try:\n    t + 1; torch.cuda.synchronize(); u.sum().item(); print(json.dumps('fine'))\n"
    "except Exception as e: print(json.dumps('lost'))\n"
    "import os, sys; sys.stdout.flush(); os._exit(0)",
    "ours": "import torch, json\nfrom cuda_magic.memory.torch import allocator\n"
    "t = torch.arange(1 << 20, device='cuda'); a = allocator()\n"
    "with a.watched():\n"
    "    a.park(a.storages(0, doing='park'))\n"
    "    parked = a.parked(); s = (t + 1).sum().item()\n"
    "print(json.dumps([parked >= t.nbytes, s == sum(range(1, (1 << 20) + 1)), a.parked()]))",
    "interrupts": "import torch, json, os, signal, random, threading, time\n"
    "from cuda_magic.memory.torch import allocator\n"
    "ts = [torch.full((1 << 22,), float(i), device='cuda') for i in range(32)]\na = allocator(); random.seed(0)\n"
    "sums = [float(t.sum(dtype=torch.float64)) for t in ts]\n"
    "def go():\n"
    "    found = [s for s in a.storages(0, doing='park') if s.nbytes == 1 << 24]\n"
    "    with a.watched(): a.park(found)\n"
    "for _ in range(3): t0 = time.perf_counter(); go(); torch.cuda.synchronize(); long = time.perf_counter() - t0\n"
    "came = 0\n"
    "for i in range(200):\n"
    "    due = random.random() * long\n"
    "    timer = threading.Timer(due, os.kill, (os.getpid(), signal.SIGINT)); timer.start()\n"
    "    try:\n"
    "        go()\n"
    "        while timer.is_alive(): time.sleep(.0005)\n"
    "        time.sleep(.002)\n"
    "    except KeyboardInterrupt: came += 1\n"
    "    timer.join()\n"
    "    try: left = a.settle()\n"
    "    except KeyboardInterrupt: came += 1; left = a.settle()\n"
    "    assert left == 0, left\n"
    "    assert sums == [float(t.sum(dtype=torch.float64)) for t in ts], i\n"
    "from cuda_magic.memory.torch.offload import session_if_any\n"
    "print(json.dumps([came, long, session_if_any().on]))",
    "limits": "import torch, json\nfrom cuda_magic.memory.torch import allocator\nG = 2**30\n"
    "def E(g): return torch.empty(int(g*G), dtype=torch.uint8, device='cuda')\n"
    "def fits(f):\n"
    "    try: f(); return True\n"
    "    except torch.cuda.OutOfMemoryError: return False\n"
    "torch.cuda.init(); a = allocator()\n"
    "torch.cuda.set_per_process_memory_fraction(4*G/torch.cuda.get_device_properties(0).total_memory)\n"
    "E(.01); r = a.reserve(G); big = E(2.9)\n"
    "same = fits(lambda: E(.5)); served = 0\n"
    "def other():\n"
    "    with torch.cuda.stream(torch.cuda.Stream()): E(.5)\n"
    "stream = fits(other); small = []\n"
    "small_ok = fits(lambda: [small.append(E(.5/1024)) for _ in range(600)]); n = len(small); small.clear()\n"
    "k = E(.5); served = r.served(); left = r.release(); v = r.active\n"
    "print(json.dumps(dict(same=same, stream=stream, small=n, served=served, left=left, active=v)))",
    "settings": "import torch, json\nfrom cuda_magic.memory.torch import allocator, settings\n"
    "torch.ones(1, device='cuda'); a = allocator()\n"
    "def now(): return settings.live(torch)\n"
    "before = now()\n"
    "with a.with_expandable(): inside = now()\n"
    "print(json.dumps([before, inside, now()], default=str))",
}
"""Programs of their own; they run side by side."""


@pytest.fixture(scope="module")
def children():
    """Gives what the program of that name prints last, as JSON; all of them are started at the first use."""
    conf = "max_split_size_mb:200,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": PATHS,
                **({"PYTORCH_CUDA_ALLOC_CONF": conf} if name == "settings" else {}),
            },
        )
        for name, code in CHILDREN.items()
    }

    def result(name):
        out, err = started[name].communicate(timeout=40)
        assert started[name].returncode == 0, out[-2000:] + err[-3000:]
        return json.loads(out.strip().splitlines()[-1])

    yield result
    for process in started.values():
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def shared():
    """One kernel for the module. A cell that takes longer than LONGEST fails its test and is interrupted."""
    made = Kernel(patience=LONGEST)
    yield made
    made.close()


@pytest.fixture
def kernel(shared):
    """The module's kernel, emptied: its own names are gone, the card is free."""
    shared.run("cap(139)")
    yield shared
    shared.run(
        "for n in [n for n in globals() if not n.startswith('_') and n not in KEEP]: del globals()[n]\n"
        "gc.collect(); torch.cuda.empty_cache()"
    )


@pytest.fixture(scope="module", autouse=True)
def keep(shared):
    shared.run("KEEP = set(globals()) | {'KEEP', 'state'}")
    shared.run(
        "def state():\n"
        "    from cuda_magic.memory.torch.offload import session_if_any\n"
        "    s = session_if_any()\n"
        "    return [s.store.nbytes, s.on] if s else [0, False]"
    )


def parked(kernel: Kernel) -> list:
    return json.loads(kernel.value("json.dumps(state())"))


def test_idle_tensors_wait_and_come_back(kernel):
    """5 GiB in 80 tensors idle under 12 GiB, 9 GiB asked: rescued twice, every byte intact, nothing left parked."""
    from record import record

    kernel.run("cap(12); idle = [E(1/16) for _ in range(80)]\nfor i, t in enumerate(idle): t.fill_(i)\ndel t")
    figures = {}
    for name in ("first", "again"):
        report = kernel.guard("y = E(9).numel()")
        assert report["status"] == "rescued", (report["rungs"], report["notes"])
        spill = rung(report, "spill")
        assert spill["reason"].endswith("wait on the host (idle)"), spill
        assert 2 * GIB <= spill["moved_bytes"] <= 2.2 * GIB
        figures[name] = {"moved": spill["moved_bytes"], "s": spill["seconds"]}
        assert parked(kernel) == [0, False]
    assert kernel.value("all(bool((t == i).all()) for i, t in enumerate(idle))") == "True"
    record("spill_rung", figures)


def test_too_full_afterwards(kernel):
    """They stay parked, said; an elementwise kernel on one keeps the context; back when there is room."""
    kernel.run("cap(10); a, b = E(3).fill_(1), E(3).fill_(2)")
    report = kernel.guard("y = E(6).fill_(3)")
    assert report["status"] == "rescued", (report["rungs"], report["notes"])
    assert parked(kernel) == [3 * GIB, True]
    assert "still wait elsewhere" in report["notes"][-1]
    # touched where there is no room: torch's own error, inside a plain cell, and nothing is lost
    assert "out of memory" in kernel.run("a.add_(1); b.add_(1)")[-1][1]
    kernel.run("del y")
    assert parked(kernel) == [0, False]
    assert kernel.value("bool((a <= 2).all()) and bool((a == a[0]).all()) and bool((b == b[0]).all())") == "True"
    kernel.run("a.fill_(1); b.fill_(2); gc.collect(); torch.cuda.empty_cache()")
    kernel.guard("y = E(6).fill_(3)")
    assert parked(kernel) == [3 * GIB, True]
    kernel.run("cap(139); a.add_(1); b.mul_(3); torch.cuda.synchronize()")  # the pager brings back what is named
    assert kernel.value("bool((a == 2).all()) and bool((b == 6).all()) and bool((y == 3).all())") == "True"
    assert parked(kernel) == [0, False]


BREAK = {
    "the host has no room": (
        "from cuda_magic.memory.torch.offload.host_pool import shared\n"
        "arena = shared(torch); arena.release(); old = arena._limit; arena._limit = 1 << 30",
        "arena._limit = old",
    ),
    "the host fails to give memory": (
        "from cuda_magic.memory.torch.offload import host_pool as A\n"
        "A.shared(torch).release(); old = A.Slab\n"
        "def no(*a): raise MemoryError('none left')\nA.Slab = no",
        "A.Slab = old",
    ),
    "the second copy fails": (
        "from cuda_magic.memory.torch.offload.storage_copies import CudaLane\nold = CudaLane.out; n = []\n"
        "def out(*a):\n    n.append(1)\n    if len(n) == 2: raise RuntimeError('copy failed')\n    return old(*a)\n"
        "CudaLane.out = out",
        "CudaLane.out = old",
    ),
}


@pytest.mark.parametrize("what", BREAK)
def test_a_failure_half_way_leaves_everything_as_it_was(kernel, what):
    """The cell fails with its own error, the report says why spill did not help, every byte is intact."""
    begin, end = BREAK[what]
    kernel.run("cap(8); idle = [E(1) for _ in range(5)]\nfor i, t in enumerate(idle): t.fill_(i)\ndel t")
    kernel.run(begin)
    report = kernel.guard("y = E(6).numel()", "--only holders,collect,caches,spill")
    kernel.run(end)
    assert report["raised"].startswith("OutOfMemoryError"), report
    assert rung(report, "spill")["state"] == "failed", report
    print(what, "->", rung(report, "spill")["reason"])
    assert parked(kernel) == [0, False]
    assert kernel.value("all(bool((t == i).all()) for i, t in enumerate(idle))") == "True"
    assert kernel.guard("y = E(6).numel()", "--only holders,collect,caches,spill")["status"] == "rescued"


def test_plain_cuda_malloc_for_a_cell_and_its_memory_returns_to_the_driver(kernel):
    """15 MiB left, 5 asked: a segment of 20 does not fit, cudaMalloc does; when it dies the driver has it."""
    kernel.run("torch.zeros(1, device='cuda').fill_(2); k = E(1); torch.cuda.empty_cache()")
    kernel.run("cap(torch.cuda.memory_reserved() / G + 15/1024)")
    report = kernel.guard("y = torch.empty(5 << 20, dtype=torch.uint8, device='cuda')", "--only caches,cudamalloc")
    assert report["status"] == "rescued", (report["rungs"], report["notes"])
    assert rung(report, "cudamalloc")["state"] == "on"
    assert kernel.value("torch._C._has_Standard_Deleter(y.untyped_storage()._cdata)") == "False"
    kernel.run(
        "torch.cuda.synchronize(); held = torch.cuda.mem_get_info()[0]; del y; gc.collect(); torch.cuda.synchronize()"
    )
    back = int(kernel.value("torch.cuda.mem_get_info()[0] - held"))
    print("returned to the driver:", back / MIB, "MiB")
    assert back >= 5 * MIB


def test_two_models_in_one_notebook(kernel):
    """The first one, with gradients and AdamW's state, waits while the second trains; both end bitwise as plain."""
    setup = (
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    m = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(6)]).cuda()\n"
        "    return m, torch.optim.AdamW(m.parameters())\n"
        "def step(m, o, x):\n"
        "    o.zero_grad(set_to_none=True); m(x).square().mean().backward(); o.step()\n"
        "x = torch.ones(64, 4096, device='cuda')\n"
        "def end(*models): return [p.detach().cpu() for m in models for p in m.parameters()]\n"
    )
    kernel.run(
        setup + "a, oa = make(); step(a, oa, x); b, ob = make(); step(b, ob, x); step(a, oa, x)\nref = end(a, b)"
    )
    kernel.run("del a, oa, b, ob; gc.collect(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()")
    kernel.run("a, oa = make(); step(a, oa, x)")
    print("one model:", kernel.value("[torch.cuda.memory_allocated() / G, torch.cuda.max_memory_allocated() / G]"))
    kernel.run("gc.collect(); torch.cuda.empty_cache(); cap(2.6)")
    options = "--only holders,collect,caches,spill"
    report = kernel.guard("b, ob = make()\nstep(b, ob, x)", options)
    for r in report["rungs"]:
        print({k: r[k] for k in ("attempt", "id", "state", "reason", "freed_bytes", "moved_bytes")})
    print(report["status"], report["notes"], report["raised"], report["output"])
    assert report["status"] == "rescued"
    waits = rung(report, "spill")["reason"]
    assert "wait on the host (" in waits and "a, oa" in waits, report
    kernel.run("cap(139); step(a, oa, x)")
    assert kernel.value("all(torch.equal(p, q) for p, q in zip(ref, end(a, b)))") == "True"
    assert parked(kernel) == [0, False]


def test_parking_on_a_card_that_is_full():
    """Under 40 MiB left for all: no streams are made, what leaves is intact, and comes back."""
    code = (
        "import torch, json\nfrom cuda_magic.memory.torch import allocator\n"
        "from cuda_magic.memory.torch.offload.host_pool import shared\nM = 1 << 20\n"
        "def free(): return torch.cuda.mem_get_info()[0]\n"
        "def E(n): return torch.empty(n, dtype=torch.uint8, device='cuda')\n"
        "def sums(): return [float(t.sum()) for t in ts]\n"
        "ts = [torch.full((1 << 24,), float(i), device='cuda') for i in range(4)]; want = sums()\n"
        "hog = [E(free() - (1 << 30))]\n"
        "for size in (256 * M, 32 * M, 20 * M):\n"
        "    while free() >= size + 20 * M: hog.append(E(size))\n"
        "a = allocator(); seen = [free()]\n"
        "found = [s for s in a.storages(0, doing='park') if s.nbytes == 1 << 26]\n"
        "with a.watched():\n"
        "    for s in found[:2]: a.park([s]); a.empty_cache(); seen.append(free())\n"
        "    kinds = [s.kind for s in shared(torch)._slabs]; inside = sums() == want\n"
        "again = [a.parked(), sums() == want, shared(torch).free, len(shared(torch)._slabs)]\n"
        "del hog; a.empty_cache()\n"
        "found = [s for s in a.storages(0, doing='park') if s.nbytes == 1 << 26]\n"
        "with a.watched(): a.park(found); later = [s.kind for s in shared(torch)._slabs]\n"
        "print(json.dumps(dict(seen=seen, kinds=kinds, inside=inside, again=again, later=later, end=sums() == want)))"
    )
    seen = child(code)
    print(seen)
    assert seen["seen"][0] < 40 * MIB
    assert seen["seen"][2] - seen["seen"][0] >= 124 * MIB
    assert seen["inside"] and seen["again"][:2] == [0, True]
    assert set(seen["later"]) == {"registered"}
    assert seen["end"]


def test_rates_on_a_warm_arena():
    """5 GiB in 80 tensors, out and back, three times in one process; intact each time."""
    from record import record

    code = (
        "import torch, json, time\nfrom cuda_magic.memory.torch import allocator\n"
        "ts = [torch.full((1 << 24,), float(i), device='cuda') for i in range(80)]\na = allocator(); rows = []\n"
        "sums = [float(t.sum(dtype=torch.float64)) for t in ts]\n"
        "for _ in range(2):\n"
        "    found = [s for s in a.storages(0, doing='park') if s.nbytes == 1 << 26]\n"
        "    with a.watched():\n"
        "        torch.cuda.synchronize(); t0 = time.perf_counter(); n = a.park(found); torch.cuda.synchronize()\n"
        "        t1 = time.perf_counter()\n"
        "    torch.cuda.synchronize(); t2 = time.perf_counter(); assert not a.parked()\n"
        "    assert sums == [float(t.sum(dtype=torch.float64)) for t in ts]\n"
        "    rows.append([n, t1 - t0, t2 - t1])\n"
        "print(json.dumps(rows))"
    )
    rows = child(code)
    rates = [{"bytes": n, "out_s": out, "back_s": back, "out_GBps": n / out / 1e9, "back_GBps": n / back / 1e9}
             for n, out, back in rows]  # fmt: skip
    record("spill_rates", {"first": rates[0], "again": rates[-1]})
    assert max(r["out_GBps"] for r in rates[1:]) > 40
    assert max(r["back_GBps"] for r in rates[1:]) > 40


def test_a_parked_tensor_without_the_mode_loses_the_context_and_ours_does_not(children):
    """The same elementwise kernel: on a storage emptied by hand the context is lost; parked by us it is right."""
    assert children("bare") == "lost"
    assert children("ours") == [True, True, 0]


def test_200_interrupts_lose_no_byte(children):
    """SIGINT at 200 random moments of parking and bringing back: delivered, all bytes intact, the mode off."""
    from record import record

    came, long, on = children("interrupts")
    record("spill_interrupts", {"sent": 200, "raised": came, "s_each": long})
    assert came == 200
    assert not on


def test_expandable_segments_keep_the_other_settings(children):
    """Inside only that option and the text differ; afterwards the allocator tells exactly what it told before."""
    before, inside, after = children("settings")
    print(before, inside)
    assert after == before
    differ = {"expandable_segments", "PYTORCH_CUDA_ALLOC_CONF"}
    assert {k: v for k, v in inside.items() if k not in differ} == {k: v for k, v in before.items() if k not in differ}
    assert (before["expandable_segments"], inside["expandable_segments"]) == (False, True)
    assert before["max_split_size"] == 200 * MIB
