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
    """No such card, the full card itself, and what is no card."""
    kernel.run("cap(4); idle = E(3)")
    for name, said in (
        ("cuda:9", "there is no cuda:9: this kernel sees"),
        ("cuda:0", "cuda:0 is the card that is full"),
    ):
        report = kernel.guard("y = E(3).numel()", f"--park {name} --only spill")
        assert said in rung(report, "spill")["reason"], report["rungs"]


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
