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


@pytest.mark.parametrize(
    "code, word",
    [
        ("in_place()", "changed in place: t"),
        ("step()", "parameters were updated"),
        ("buffers()", "buffers were updated"),
    ],
)
def test_what_torch_changed_forbids_the_repeat(short, code, word):
    """A repeat would do it twice."""
    short.plain("waste()")
    assert short.guard(f"r = {code}") is not None
    assert short.report.status == "refused"
    assert any(word in note for note in short.report.notes), short.report.notes


def test_random_numbers_of_torch_are_drawn_again(short):
    """The rescued statement has the numbers of a run with enough memory."""
    torch.manual_seed(5)
    short.plain("wanted = draws(); after = torch.rand(2)")
    torch.manual_seed(5)
    short.plain("waste()")
    assert short.guard("got = draws()") is None and short.report.status == "rescued"
    short.plain("then = torch.rand(2)")
    assert torch.equal(short.names["got"], short.names["wanted"])
    assert torch.equal(short.names["then"], short.names["after"])


def test_gradients_are_not_counted_twice(short):
    """What was not there before the failed attempt is taken away."""
    short.plain("wanted = graded(); optimizer.zero_grad(); waste()")
    assert short.guard("got = graded()") is None and short.report.status == "rescued"
    assert all(map(torch.equal, short.names["got"], short.names["wanted"]))
