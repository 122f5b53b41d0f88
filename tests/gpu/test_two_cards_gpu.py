"""--park cuda:1: a neighbouring card as the place where tensors wait, beside the host."""

from __future__ import annotations

import pytest
from kernels import GIB, one_each
from test_rescue_gpu import rung
from test_spill_gpu import child

pytestmark = pytest.mark.two_gpus


@pytest.fixture
def kernel():
    yield from one_each()


def test_idle_tensors_wait_on_the_neighbour(kernel):
    """The same equality as on the host; the neighbour is left as it was; it is used only where it is named."""
    from record import record

    kernel.run("cap(12); idle = [E(1/16) for _ in range(80)]\nfor i, t in enumerate(idle): t.fill_(i)\ndel t")
    first = kernel.guard("y = E(9).numel()")
    assert first["status"] == "rescued", first["rungs"]
    assert kernel.value("torch._C._cuda_hasPrimaryContext(1)") == "False"
    figures = {}
    for where in ("cuda:1", "cuda:1", "the host"):
        report = kernel.guard("y = E(9).numel()", "" if where == "the host" else f"--park {where}")
        assert report["status"] == "rescued", report["rungs"]
        spill = rung(report, "spill")
        assert spill["reason"] == f"{spill['moved_bytes'] / GIB:.2f} GiB wait on {where} (idle)"
        figures[where] = {"moved": spill["moved_bytes"], "s": spill["seconds"]}
    record("park_rung", figures)
    assert kernel.value("all(bool((t == i).all()) for i, t in enumerate(idle))") == "True"
    assert kernel.value("torch.cuda.memory_allocated(1)") == "0"


def test_wrong_names_are_one_sentence(kernel):
    """No such card is told at once; which card is full is known only then."""
    kernel.run("cap(4); idle = E(3)")
    output = kernel.run("%%cuda_guard --park cuda:9 --only spill\nran = True")
    assert [kind for kind, _ in output] == ["error"]
    assert "--park cuda:9: there is no such card, this kernel sees" in output[0][1]
    assert kernel.value("'ran' in globals()") == "False"
    report = kernel.guard("y = E(3).numel()", "--park cuda:0 --only spill")
    assert "cuda:0 is the card that is full" in rung(report, "spill")["reason"], report["rungs"]
    report = kernel.guard("y = E(3).numel()", "--park cuda:0 --only page,retry")
    assert any("cuda:0 is the card that is full" in note for note in report["notes"]), report["notes"]


def test_random_states_of_both_cards_go_back(kernel):
    """A rescued statement draws on each card what it would have drawn with enough memory, on the CPU too."""
    draw = "[torch.randn(1000, device=where) for where in ('cpu', 'cuda:0', 'cuda:1')]"
    kernel.ok(f"cap(3); torch.manual_seed(3); torch.cuda.manual_seed_all(4); want = {draw}")
    kernel.ok("torch.manual_seed(3); torch.cuda.manual_seed_all(4)")
    kernel.run("def f():\n    a = E(2); b = E(2)\nf()")
    report = kernel.guard(f"for _ in range(1):\n    got = {draw}; big = E(1.5)")
    assert (report["status"], report["attempts"]) == ("rescued", 2), report
    assert kernel.value("all(bool(torch.equal(a, b)) for a, b in zip(want, got))") == "True"


def test_rates_beside_the_host():
    """5 GiB in 80 tensors to the neighbour and back, and to the host and back, in one process; intact each time."""
    from record import record

    code = (
        "import torch, json, time\nfrom cuda_magic.memory.torch import allocator\n"
        "ts = [torch.full((1 << 24,), float(i), device='cuda') for i in range(80)]\na = allocator(); rows = {}\n"
        "sums = [float(t.sum(dtype=torch.float64)) for t in ts]\n"
        "for place in ('cuda:1', None) * 3:\n"
        "    found = [s for s in a.storages(0, doing='park') if s.nbytes == 1 << 26]\n"
        "    with a.watched():\n"
        "        torch.cuda.synchronize(); t0 = time.perf_counter(); n = a.park(found, place)\n"
        "        torch.cuda.synchronize(); torch.cuda.synchronize(1 if place else 0); t1 = time.perf_counter()\n"
        "    torch.cuda.synchronize(); t2 = time.perf_counter(); assert not a.parked()\n"
        "    assert sums == [float(t.sum(dtype=torch.float64)) for t in ts]\n"
        "    rows[place or 'host'] = [n, n / (t1 - t0) / 1e9, n / (t2 - t1) / 1e9]\n"
        "print(json.dumps(rows))"
    )
    rows = child(code)
    record("park_rates", {k: {"bytes": n, "out_GBps": out, "back_GBps": back} for k, (n, out, back) in rows.items()})
    assert rows["cuda:1"][1] > rows["host"][1]


def test_what_autograd_saves_waits_on_the_neighbour():
    """A step of 8 GiB of activations: bitwise the plain numbers, on each place; seconds and peak beside the host."""
    from record import record

    code = (
        "import torch, json, gc, time, contextlib\nfrom cuda_magic.memory.torch import parking\n"
        "from cuda_magic.errors import Refused\nG = 2**30\n"
        "torch.manual_seed(0); L, A = torch.nn.Linear, torch.nn.GELU\n"
        "net = torch.nn.Sequential(*[m for _ in range(16) for m in (L(1024, 1024), A())]).cuda()\n"
        "x = torch.randn(65536, 1024, device='cuda')\n"
        "def step(hooks):\n"
        "    net.zero_grad(set_to_none=True); gc.collect(); torch.cuda.empty_cache()\n"
        "    torch.cuda.reset_peak_memory_stats(); torch.cuda.synchronize(); t = time.perf_counter()\n"
        "    with hooks: loss = net(x).square().mean(); loss.backward()\n"
        "    torch.cuda.synchronize(); t = time.perf_counter() - t; peak = torch.cuda.max_memory_allocated() / G\n"
        "    return t, peak, [v.cpu() for v in (loss.detach(), *[p.grad for p in net.parameters()])]\n"
        "step(contextlib.nullcontext()); plain = step(contextlib.nullcontext()); rows = {}\n"
        "for place in ('cuda:1', None) * 3:\n"
        "    hooks = parking.hooks(torch, 0, 0, torch.cuda.get_device_properties(0).total_memory, place)\n"
        "    t, peak, found = step(hooks); out = hooks.moved['out']; del hooks; gc.collect()\n"
        "    rows.setdefault(place or 'host', []).append([t, peak, out / G,\n"
        "        all(torch.equal(a, b) for a, b in zip(found, plain[2]))])\n"
        "rows['plain'] = [plain[:2]]; rows['left'] = torch.cuda.memory_allocated(1)\n"
        "print(json.dumps(rows))"
    )
    rows = child(code)
    print(rows)
    record("park_activations", rows)
    assert rows["left"] == 0
    for place in ("cuda:1", "host"):
        assert all(equal and out > 7 and peak < 4 for _, peak, out, equal in rows[place])
    assert min(row[0] for row in rows["cuda:1"]) < min(row[0] for row in rows["host"])


def test_pages_wait_on_the_neighbour(kernel):
    """AdamW beyond the cap: bitwise the numbers of enough memory on each place; seconds beside the host."""
    from record import record

    kernel.ok(
        "import time\n"
        "def train(steps):\n    torch.manual_seed(0)\n"
        "    m = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, bias=False, device='cuda') for _ in range(12)])\n"
        "    o = torch.optim.AdamW(m.parameters(), foreach=False); x = torch.randn(64, 4096, device='cuda')\n"
        "    for _ in range(steps):\n        m(x).square().mean().backward(); o.step()\n"
        "        o.zero_grad(set_to_none=True)\n    return [p.detach().cpu() for p in m.parameters()]\n"
        "want = train(3); gc.collect(); torch.cuda.empty_cache(); cap(2.3)"
    )
    figures: dict[str, list] = {}
    for where in ("cuda:1", "the host") * 2:
        park = "" if where == "the host" else f"--park {where}"
        report = kernel.guard("t0 = time.perf_counter()\nr = train(3)\nt0 = time.perf_counter() - t0", f"{park}")
        assert report["raised"] is None, report
        assert report["paged"]["place"] == where
        assert kernel.value("all(torch.equal(a, b) for a, b in zip(r, want))") == "True"
        figures.setdefault(where, []).append([kernel.read("t0"), report["paged"]["in_bytes"] / GIB])
        kernel.ok("del r; gc.collect(); torch.cuda.empty_cache()")
    print(figures)
    record("park_page", figures)
    assert kernel.read("torch.cuda.memory_allocated(1)") == 0
