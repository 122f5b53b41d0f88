"""A guarded cell that works on two cards."""

from __future__ import annotations

import pytest
from kernels import one_each

pytestmark = pytest.mark.two_gpus


@pytest.fixture
def kernel():
    yield from one_each()


def test_random_states_of_both_cards_go_back(kernel):
    """A rescued statement draws on each card what it would have drawn with enough memory, on the CPU too."""
    draw = "[torch.randn(1000, device=where) for where in ('cpu', 'cuda:0', 'cuda:1')]"
    kernel.ok(f"cap(3); torch.manual_seed(3); torch.cuda.manual_seed_all(4); want = {draw}")
    kernel.ok("torch.manual_seed(3); torch.cuda.manual_seed_all(4)")
    kernel.run("def f():\n    a = E(2); b = E(2)\nf()")
    report = kernel.guard(f"for _ in range(1):\n    got = {draw}; big = E(1.5)")
    assert (report["status"], report["attempts"]) == ("rescued", 2), report
    assert kernel.value("all(bool(torch.equal(a, b)) for a, b in zip(want, got))") == "True"
