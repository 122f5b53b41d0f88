"""The guard on a real card: each scenario in a kernel of its own, as a user would run it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest
from kernels import GIB, one_each

pytestmark = pytest.mark.gpu
CHEAP = "--only holders,collect,caches"


@pytest.fixture
def kernel():
    yield from one_each()


def rung(report: dict, name: str) -> dict:
    return [r for r in report["rungs"] if r["id"] == name][-1]


def lines(report: dict) -> list[str]:
    return [step["line"] for step in report["next_steps"]]


def held(report: dict, kind: str) -> int:
    return sum(h["nbytes"] or 0 for h in report["holders"] if h["kind"] == kind)


@pytest.mark.parametrize("options", [CHEAP, ""], ids=["cheap", "full"])
def test_s1_an_earlier_traceback(kernel, options):
    """A failed cell's function holds 2 GiB of 3: the next cell is rescued, user variables stay."""
    from record import record

    kernel.run("cap(3); kept = E(.1)")
    assert kernel.run("def f():\n    a = E(2); b = E(2)\nf()")[-1][0] == "error"
    report = kernel.guard("x = E(1.5)", options)
    assert report["raised"] is None, report
    assert (report["status"], report["attempts"]) == ("rescued", 2)
    assert re.search(r": the traceback of In\[\d+\] \(2\.00 GiB\)$", rung(report, "holders")["reason"])
    assert kernel.value("x.numel() == int(1.5*G) and kept.numel()") == str(int(0.1 * GIB))
    record("guard_s1", {r["id"]: {"freed": r["freed_bytes"], "s": r["seconds"]} for r in report["rungs"]})


def test_s2_a_shown_value(kernel):
    """Out[n] holds 2 GiB: named and kept; let go with --free-outputs."""
    kernel.run("cap(3)")
    kernel.run("E(2)")
    report = kernel.guard("y = E(2)", CHEAP)
    assert report["status"] == "failed"
    assert any(h["kind"] == "output" and h["nbytes"] == 2 * GIB for h in report["holders"])
    assert "%%cuda_guard --free-outputs" in lines(report)
    assert kernel.guard("y = E(2)", f"{CHEAP} --free-outputs")["status"] == "rescued"


def test_s2_a_shown_value_waits_elsewhere_with_the_full_ladder(kernel):
    """Out[n] is idle: parked for the statement, kept, and the same bytes when it is looked at again."""
    kernel.run("cap(3); t = E(2); t.fill_(5); None")
    kernel.run("t")
    kernel.run("del t")
    report = kernel.guard("y = E(2); del y")
    assert report["status"] == "rescued", report
    assert rung(report, "spill")["state"] == "on"
    assert kernel.value("sum(int(part.sum()) for part in _.split(2**26)) == 5 * 2 * G") == "True"


def test_s3_fragmentation_with_the_cheap_rungs(kernel):
    """1.5 GiB free in pieces of 64 MiB: no smaller batch, the pieces and the restart line."""
    kernel.run("cap(3.2); x = E(3); del x; b = [E(.0625) for _ in range(48)]; k = b[::2]; del b")
    report = kernel.guard("y = E(.25)", CHEAP)
    assert report["status"] == "failed"
    assert report["largest_free"] == 64 << 20
    assert held(report, "fragmented") == 1536 << 20
    assert report["cached"] == 1536 << 20
    assert any(line.endswith("expandable_segments:True") for line in lines(report))
    assert not any("--shrink" in line for line in lines(report))


def test_s3_fragmentation_is_compacted(kernel):
    """The full ladder: compaction on the card, 256 MiB fit, every byte intact."""
    from record import record

    kernel.run("cap(3.2); x = E(3); del x; b = [E(.0625) for _ in range(48)]; k = b[::2]; del b")
    kernel.run("for i, t in enumerate(k): t.fill_(i)\ndel t")
    report = kernel.guard("y = E(.25)")
    assert report["status"] == "rescued", report
    assert rung(report, "compact")["moved_bytes"] > 0
    assert kernel.value("all(bool((t == i).all()) for i, t in enumerate(k))") == "True"
    record("guard_s3", {r["id"]: {"moved": r["moved_bytes"], "s": r["seconds"]} for r in report["rungs"]})


@pytest.mark.parametrize("options", [CHEAP, ""], ids=["cheap", "full"])
def test_s4_private_pools(kernel, options):
    """A captured graph holds 2 GiB of 3: said, the live graph named, nothing reset unasked."""
    kernel.run("cap(3); a = torch.zeros(1).cuda(); g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g): E(2).add_(1)")
    report = kernel.guard("y = E(2)", options)
    assert report["status"] == "failed"
    assert held(report, "private-pool") >= 2 * GIB
    assert "g.reset()" in lines(report)
    kernel.run("g.reset()")
    assert kernel.guard("y = E(2)", options)["raised"] is None


def test_s4_another_streams_cache_needs_no_rescue(kernel):
    """torch flushes it itself: the guard stays silent."""
    kernel.run("cap(4)\nwith torch.cuda.stream(torch.cuda.Stream()): E(3)")
    report = kernel.guard("y = E(3)")
    assert (report["status"], report["output"]) == ("ok", [])


def test_s5_shrink_a_batch(kernel):
    """65536 does not fit under 1 GiB: lowered, left at the good value, said; without the option no change."""
    kernel.run("cap(1); n = net(); bs = 65536")
    code = "n(torch.randn(bs, 1024, device='cuda')).sum().backward()"
    report = kernel.guard(code, "--without retry,activations")
    assert report["raised"]
    assert kernel.value("bs") == "65536"
    assert "%%cuda_guard --shrink bs" in lines(report)
    kernel.run("n.zero_grad(set_to_none=True); gc.collect()")
    report = kernel.guard(code, "--shrink bs=256")
    assert report["status"] == "rescued", report
    assert 256 <= int(kernel.value("bs")) < 16384
    assert "shrink: bs" in report["output"][0][1]


def _other(code: str) -> subprocess.Popen:
    """Another process that runs `code` on the card and says when it is ready."""
    head = "import torch, time, sys\nG = 2**30\n"
    child = subprocess.Popen(
        [sys.executable, "-c", head + code + "\nprint('ready', flush=True)\nsys.stdin.readline()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline().strip() == "ready"
    return child


HOG = "k = torch.empty(torch.cuda.mem_get_info()[0] - {}, dtype=torch.uint8, device='cuda'); torch.cuda.synchronize()"


def test_s6_another_process_holds_the_card(kernel):
    """Named, waited for, no advice on the batch; rescued once it has left."""
    kernel.run("own = E(.01); bs = 8")
    other = _other(HOG.format("2 * G"))
    try:
        report = kernel.guard("y = E(6 if bs else 0)", "--wait 1")
        assert (report["status"], report["kind"]) == ("failed", "other-process")
        assert rung(report, "wait")["state"] == "failed"
        assert any(h["kind"] == "process" and h["detail"] for h in report["holders"]), report["holders"]
        assert not any("--shrink" in line for line in lines(report))
        assert lines(report)[0] == "%gpu_mem --who"
        leaves = threading.Timer(2, other.communicate)  # its stdin is closed: it ends, and is waited for
        leaves.start()
        report = kernel.guard("y = E(6)", "--wait 60")
        assert report["status"] == "rescued", report
        leaves.join()
    finally:
        other.kill()
        other.wait()


def test_s7_the_first_allocation(kernel):
    """No room for the context: said so, not the batch; the same kernel works once the other has left."""
    other = _other(HOG.format("150 * 2**20"))
    try:
        report = kernel.guard("z = torch.zeros(1, device='cuda')")
        assert report["kind"] == "context", report
        assert report["attempts"] == 1
    finally:
        other.kill()
        other.wait()
    assert kernel.guard("z = torch.zeros(1, device='cuda')")["status"] == "ok"


@pytest.mark.parametrize("options", [CHEAP, ""], ids=["cheap", "full"])
def test_s8_a_library_handle(kernel, options):
    """cuBLAS finds no memory while torch caches everything: caches, one repeat."""
    kernel.run(
        "a = torch.randn(64, 64, device='cuda')\nhold = []\nsize = 64 * G\nwhile size >= 2 << 20:\n"
        "    try: hold.append(torch.empty(size, dtype=torch.uint8, device='cuda'))\n"
        "    except RuntimeError: size //= 2\ndel hold"
    )
    report = kernel.guard("r = (a @ a).sum().item()", options)
    assert report["status"] == "rescued", report
    assert report["attempts"] == 2
    assert rung(report, "caches")["freed_bytes"] > GIB


def test_s9_cycles(kernel):
    """Its own cycles, statement by statement: at most the allowed repeats, the type named, an end."""
    kernel.run("cap(3)\nclass N:\n    def __init__(s): s.x = E(.9); s.me = s\ngc.disable()")
    report = kernel.guard("[N() and 0 for _ in range(6)]", CHEAP)
    assert report["status"] == "failed"
    assert report["attempts"] <= 4
    assert any(name == "N" for r in report["rungs"] for name, _ in r["cycles"])
    assert "reference cycles of N" in rung(report, "collect")["reason"]
    assert "import gc; gc.collect()" in lines(report)


def test_s9_cycles_are_collected_at_the_very_call(kernel):
    """With the full ladder the repeat is watched: what the loop leaves is collected inside it, and it ends."""
    kernel.run("cap(3)\nclass N:\n    def __init__(s): s.x = E(.9); s.me = s\ngc.disable()")
    assert kernel.guard("[N() and 0 for _ in range(6)]")["status"] == "rescued"


@pytest.mark.parametrize("options", [CHEAP, ""], ids=["cheap", "full"])
def test_s10_inside_backward(kernel, options):
    """Larger than the card, inside backward: told, and not repeated."""
    kernel.run(
        "cap(2); torch.manual_seed(0); n = net(); x = torch.randn(64, 1024, device='cuda')\nn(x).sum().backward()\n"
        "h = n[8].register_full_backward_hook(lambda *a: E(100) and None)\n"
        "before = [p.grad.clone() for p in n.parameters()]"
    )
    report = kernel.guard("n(x).sum().backward()", options)
    assert report["raised"]
    assert (report["status"], report["attempts"]) == ("not-repeated", 1)


@pytest.mark.parametrize("options", [CHEAP, ""], ids=["cheap", "full"])
def test_s11_swallowed(kernel, options):
    """Handled by the cell itself: no repeat, one note."""
    kernel.run("cap(1); n = net()")
    report = kernel.guard(
        "for b in (65536, 1024):\n    try:\n        n(torch.randn(b, 1024, device='cuda')).sum().backward(); break\n"
        "    except RuntimeError: pass",
        options,
    )
    assert (report["status"], report["handled"], report["output"]) == ("ok", 1, [])


@pytest.mark.parametrize("options", [CHEAP, ""], ids=["cheap", "full"])
def test_s12_a_lost_context(kernel, options):
    """A device-side assert: one attempt, no rung, restart; our own readings raise nothing."""
    report = kernel.guard(
        "x = torch.zeros(3, device='cuda'); x[torch.tensor([10], device='cuda')]; torch.cuda.synchronize()",
        options,
    )
    assert report["kind"] == "lost-context"
    assert (report["attempts"], report["rungs"]) == (1, [])
    assert lines(report)[0] == "%cuda_env --restart"
    assert [k for k, _ in report["output"] if k != "stderr"] == ["error", "display_data"]


@pytest.mark.parametrize("options", [CHEAP, ""], ids=["cheap", "full"])
def test_s13_host_memory(kernel, options):
    """numpy and page-locked memory: the host, no rung."""
    kernel.run("import numpy as np; a = E(.01)")
    for code in ("np.zeros(2**50, np.uint8)", "torch.empty(2**44, dtype=torch.uint8, pin_memory=True)"):
        report = kernel.guard(code, options)
        assert report["kind"] == "host-memory", report
        assert report["rungs"] == []


def test_s14_another_librarys_allocation(kernel):
    """CuPy finds no room beside torch's cache: the cache is emptied and the statement passes (S14)."""
    pytest.importorskip("cupy")
    kernel.run("import cupy\nx = E(torch.cuda.mem_get_info()[0] / G - 4)\ndel x")
    report = kernel.guard("y = cupy.empty(8 * G, 'u1')", "--only holders,collect,caches")
    assert report["raised"] is None, report
    assert report["status"] == "rescued"
    assert kernel.value("y.nbytes // G") == "8"


def test_a_rescued_run_gives_the_numbers_of_one_with_enough_memory(kernel):
    """The statement's random numbers on the card are the same after a rescue."""
    kernel.run("cap(3); torch.cuda.manual_seed(3); want = torch.randn(1000, device='cuda')\ntorch.cuda.manual_seed(3)")
    kernel.run("def f():\n    a = E(2); b = E(2)\nf()")
    report = kernel.guard("for _ in range(1):\n    got = torch.randn(1000, device='cuda'); big = E(1.5)")
    assert report["status"] == "rescued", report
    assert kernel.value("bool(torch.equal(want, got))") == "True"


def test_the_peak_is_that_of_the_plain_cell(kernel):
    """Rebinding a name in a loop: the guard keeps no old value alive."""
    code = "torch.cuda.reset_peak_memory_stats()\nx = E(1)\nfor _ in range(3):\n    x = None\n    x = E(1)"
    kernel.run("cap(8)")
    kernel.run(code)
    plain = kernel.value("torch.cuda.max_memory_allocated()")
    kernel.run("del x")
    kernel.guard(code)
    assert kernel.value("torch.cuda.max_memory_allocated()") == plain


CONVOLUTION = """
import torch
torch.cuda.set_per_process_memory_fraction(1.0)
torch.backends.cudnn.benchmark = {bench}
torch.manual_seed(0)
conv = torch.nn.Conv2d({channels}, {channels}, {size}, padding={size} // 2).cuda()
x = torch.randn({batch}, {channels}, {side}, {side}, device='cuda', requires_grad={backward})
def step():
    y = conv(x)
    if {backward}: y.sum().backward()
    return y.detach()
step()
x.grad = conv.weight.grad = conv.bias.grad = None
gc.collect(); torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
base = torch.cuda.memory_allocated()
wanted = step()
most = torch.cuda.max_memory_allocated() - base
kept = x.numel() * 4
wanted = wanted.double().sum().item()
x.grad = conv.weight.grad = conv.bias.grad = None
gc.collect(); torch.cuda.synchronize(); torch.cuda.empty_cache()
work = most - kept * (3 if {backward} else 1)
cap((torch.cuda.memory_reserved() + most - work / 2) / G)
before = torch.cuda.memory_stats()['num_ooms']
"""


def test_a_convolution_that_goes_on_with_less_workspace_is_noted(kernel):
    """cuDNN's way out of a full card: the allocator counts it, the report says so and blames no code of the cell.

    Where the count did not rise, nothing is said.
    """
    from record import record

    seen = []
    for bench in (False, True):
        for batch, channels, side, size in ((64, 256, 56, 3), (32, 128, 112, 5), (16, 512, 64, 7)):
            for backward in (False, True):
                kernel.ok(
                    CONVOLUTION.format(
                        bench=bench, batch=batch, channels=channels, side=side, size=size, backward=backward
                    )
                )
                report = kernel.guard("got = step()", f"{CHEAP},retry")
                met = kernel.read("torch.cuda.memory_stats()['num_ooms'] - before")
                said = [note for note in report["notes"] if "cuDNN found no room" in note]
                row = {
                    "benchmark": bench,
                    "shape": [batch, channels, side, size],
                    "backward": backward,
                    "workspace": kernel.read("work"),
                    "errors": met,
                    "status": report["status"],
                    "handled": report["handled"],
                    "noted": len(said),
                }
                print(row)
                seen.append(row)
                if report["raised"] is None and report["status"] == "ok":
                    assert report["handled"] == 0, row
                    assert bool(said) == (met > 0), row
                kernel.run("got = None; x.grad = conv.weight.grad = conv.bias.grad = None; gc.collect()")
    assert any(row["errors"] and row["noted"] for row in seen), seen
    counting = kernel.read(
        "__import__('timeit').timeit(lambda: torch._C._cuda_memoryStats(0)['num_ooms'], number=2000) / 2000"
    )
    record("guard_convolution", {"rows": seen, "seconds of one count": counting})
