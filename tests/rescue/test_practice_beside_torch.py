"""The practice GPU runs out of memory while torch's own tensors, of the CPU, change beside it."""

from __future__ import annotations

import gc

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

SETUP = """
def waste():
    held = [gpu.empty("20 GiB")]
    held.append(held)
def short(value):
    gpu.empty("10 GiB")
    return value
t = torch.zeros(2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
norm = torch.nn.BatchNorm1d(2)
x = torch.ones(4, 2)
def in_place():
    t.add_(1)
    return short(t)
def step():
    model(x).sum().backward()
    optimizer.step()
    return short(None)
def buffers():
    return short(norm(x))
def draws():
    return short(torch.rand(3))
def graded():
    model(x).sum().backward()
    return short([p.grad.clone() for p in model.parameters()])
"""


@pytest.fixture
def short(practice):
    """Cells with a card whose garbage must be collected before a statement fits."""
    practice.names["torch"] = torch
    practice.plain(SETUP)
    gc.disable()
    yield practice
    gc.enable()


@pytest.mark.parametrize("code", ["in_place()", "step()", "buffers()", "draws()", "graded()"])
def test_what_calls_a_function_is_not_repeated(short, code):
    """Whatever torch changed meanwhile was changed once."""
    short.plain("waste()")
    before = short.names["t"].clone()
    assert short.guard(f"r = {code}") is not None
    assert short.report.status == "refused"
    assert short.report.notes == (f"not repeated: {code} would run again",)
    assert float(short.names["t"][0] - before[0]) == (code == "in_place()")


def test_random_numbers_of_torch_are_drawn_again(short):
    """With --repeat the statement has the numbers of a run with enough memory."""
    torch.manual_seed(5)
    short.plain("wanted = draws(); after = torch.rand(2)")
    torch.manual_seed(5)
    short.plain("waste()")
    assert short.guard("got = draws()", repeat=True) is None and short.report.status == "rescued"
    short.plain("then = torch.rand(2)")
    assert torch.equal(short.names["got"], short.names["wanted"])
    assert torch.equal(short.names["then"], short.names["after"])
