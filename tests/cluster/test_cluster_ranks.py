"""Ranks of one job under %%px: what would change one rank alone, or enter a collective twice, is refused."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch

START = """
import torch, torch.distributed as dist
from datetime import timedelta
from cuda_magic.testing import gpu as practice
gpu = practice(['8 GiB'])
rank = {rank}
dist.init_process_group('gloo', init_method='file://{meet}', rank=rank, world_size=2, timeout=timedelta(seconds=60))
get_ipython().run_line_magic('load_ext', 'cuda_magic')
def fail():
    a = gpu.empty('3 GiB')
    b = gpu.empty('6 GiB')
def total(size):
    t = torch.full((1,), float(size))
    dist.all_reduce(t)
    return t.item()
"""
HOLD = "if rank == 0:\n    fail()"
"""Rank 0's traceback holds 3 GiB: its next 5 GiB do not fit at once."""


@pytest.fixture
def ranks(other, tmp_path):
    """Two engines that are ranks 0 and 1 of one job; gives (run a cell on both, its AsyncResult)."""
    client = other.client
    engines = sorted(client.ids)
    jobs = [
        client[e].execute(START.format(rank=i, meet=tmp_path / "meet"), silent=False) for i, e in enumerate(engines)
    ]
    for job in jobs:
        job.get(timeout=90)

    def run(code):
        return [client[e].execute(code, silent=False) for e in engines]

    yield run


def outcome(job):
    """The error's words of one rank, empty where there was none, and what it said besides."""
    try:
        job.get(timeout=40)
        error = ""
    except Exception as caught:
        error = str(caught)
    job.wait_for_output(10)
    shown = "".join(o["data"].get("text/plain", "") for one in [job.outputs] for o in one if "data" in o)
    return error, (job.stderr or "") + shown


def test_ranks_are_rescued_alone_or_not_at_all(ranks):
    """One job, four cells: room made before a collective, refused behind one, nothing shrunk on one rank alone."""
    # the statement of rank 0 runs out of memory before it enters a collective: room is made, while rank 1 waits for it
    [outcome(job) for job in ranks(HOLD)]
    before, after = ranks("%%cuda_guard\nx = gpu.empty('5 GiB'); s = total(x.nbytes >> 30)\nprint('sum', s)")
    (error, said), (other_error, _) = outcome(before), outcome(after)
    assert not error and not other_error
    assert "room was made" in said and before.stdout.strip() == after.stdout.strip() == "sum 10.0"
    ranks("del x")
    # met after the error, rank 0 runs out of memory behind a collective: repeating it would enter that twice
    [outcome(job) for job in ranks("%config CudaMagic.at_allocation = False")]
    [outcome(job) for job in ranks(HOLD)]
    code = "def step(size):\n    s = total(1)\n    x = gpu.empty(size)\n    return s, x"
    [outcome(job) for job in ranks(code)]
    zero, one = ranks("%%cuda_guard --repeat\ny = step('5 GiB' if rank == 0 else '1 GiB')\nprint(y[0])")
    (error, said), (other_error, _) = outcome(zero), outcome(one)
    assert "CUDA out of memory" in error and not other_error and one.stdout.strip() == "2.0"
    assert "rank 0 of 2 entered 1 collective with the other ranks, which would not repeat them" in said
    assert "rank 0 of 2 left the statement: the others wait for it in their next collective" in said
    assert "until its timeout (1 min)" in said and "--repeat" not in said
    # the job is as it was: the next collective meets its own kind
    zero, one = ranks("print(total(rank))")
    assert not outcome(zero)[0] and not outcome(one)[0] and zero.stdout.strip() == one.stdout.strip() == "1.0"
    # a smaller batch on one rank alone
    [outcome(job) for job in ranks("n = 9 if rank == 0 else 1")]
    zero, one = ranks("%%cuda_guard --shrink n=1 --else n=1\nz = gpu.empty(f'{n} GiB')")
    (error, said), (other_error, _) = outcome(zero), outcome(one)
    assert "CUDA out of memory" in error and not other_error
    zero, _ = ranks("print(n, get_ipython().run_line_magic('cuda_guard', ''))")
    outcome(zero)
    assert zero.stdout.startswith("9 ")
    assert "shrink, else (rank 0 of 2 alone would compute something else than the others" in zero.stdout
