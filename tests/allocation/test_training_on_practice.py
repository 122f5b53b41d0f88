"""Training that does not fit, on the practice card: losses and parameters are those of a card that is large enough.

Each loop fails plain. Guarded it ends, nothing is repeated, and every bit is the same; what autograd saved left the
card by hooks, which are gone afterwards.
"""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cuda_magic.allocation.session import Session  # noqa: E402
from cuda_magic.machine import machine  # noqa: E402
from cuda_magic.testing.torch_card import torch_card  # noqa: E402

pytestmark = pytest.mark.torch
SAVED = torch.autograd.graph.saved_tensors_hooks
WIDTH, ROWS, DEPTH = 128, 1024, 10
LAYER = WIDTH * ROWS * 4
"""Bytes of one activation: 512 KiB."""


def mlp(*between, depth=DEPTH, norm=False):
    """Layers with an activation of 512 KiB each, and what comes between."""
    torch.manual_seed(0)
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), *([nn.BatchNorm1d(WIDTH)] if norm else []), *(make() for make in between)]
    return nn.Sequential(*layers)


def data(step):
    torch.manual_seed(100 + step)
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def trained(model, step_of, steps=3):
    """Losses of some steps, and the parameters and buffers at the end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        x, y = data(step)
        optimizer.zero_grad(set_to_none=True)
        loss = step_of(model, x, y)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses, [t.detach().clone() for t in (*model.parameters(), *model.buffers())]


def plainly(model, x, y):
    return functional.mse_loss(model(x), y)


# -- the loops: each gives (figures, tensors)


def loop():
    """Linear layers and GELU."""
    return trained(mlp(nn.GELU), plainly)


def in_place():
    """ReLU in place behind BatchNorm: versions count."""
    return trained(mlp(lambda: nn.ReLU(inplace=True), norm=True), plainly)


def dropout():
    """The generator goes on as in the plain run."""
    return trained(mlp(nn.Tanh, lambda: nn.Dropout(0.3)), plainly)


def hooks_of_the_users():
    """A pair of saved_tensors_hooks of the user's around half of the layers."""

    def step(model, x, y):
        for i, layer in enumerate(model):
            if i % 4 < 2:
                with SAVED(lambda t: (t * 1, t._version), lambda kept: kept[0]):
                    x = layer(x)
            else:
                x = layer(x)
        return functional.mse_loss(x, y)

    return trained(mlp(nn.GELU), step)


def hooks_around_the_loop():
    """The user's pair stands around everything: ours goes beside what it sees."""
    with SAVED(lambda t: t, lambda t: t):
        return trained(mlp(nn.GELU), plainly)


def _checkpointed(reentrant):
    def step(model, x, y):
        x = x.requires_grad_()
        for i in range(0, len(model), 4):
            x = checkpoint(model[i : i + 4], x, use_reentrant=reentrant)
        return functional.mse_loss(x, y)

    return trained(mlp(nn.GELU, nn.Tanh, nn.Sigmoid, lambda: nn.Dropout(0.1), depth=12), step)


def checkpoints():
    """Parts are computed anew, without reentrance."""
    return _checkpointed(False)


def checkpoints_with_reentrance():
    """Parts are computed anew, as older code does."""
    return _checkpointed(True)


def func_in_the_middle():
    """grad, vjp, vmap and jacrev of torch.func between the layers, while hooks are on."""

    def step(model, x, y):
        small = torch.linspace(0, 1, 8)
        grad = torch.func.grad(lambda t: (t**3).sum())
        for i, layer in enumerate(model):
            x = layer(x)
            if i % 6 == 5:
                scale = grad(small).sum() + torch.func.vmap(lambda t: t * 2)(small).sum()
                _, back = torch.func.vjp(torch.sin, small)
                scale = scale + back(small)[0].sum() + torch.func.jacrev(torch.cos)(small).sum()
                x = x * (1 + scale.item() / 1e3)
        return functional.mse_loss(x, y)

    return trained(mlp(nn.GELU), step)


def double_backward():
    """A penalty on the gradient: create_graph."""

    def step(model, x, y):
        x = x.requires_grad_()
        loss = functional.mse_loss(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + 10 * slope.pow(2).sum()

    return trained(mlp(nn.Tanh), step)


def retained():
    """Backward twice through one graph."""

    def step(model, x, y):
        loss = functional.mse_loss(model(x), y)
        loss.backward(retain_graph=True)
        return loss

    return trained(mlp(nn.GELU), step)


def graphs_kept():
    """total += loss keeps each iteration's graph until the end."""
    model, total = mlp(nn.GELU, depth=5), 0.0
    for step in range(4):
        total = total + plainly(model, *data(step))
    total.backward()
    return [total.item()], [p.grad.clone() for p in model.parameters()]


class Cube(torch.autograd.Function):
    """A function of the user's that saves an input and an output."""

    @staticmethod
    def forward(ctx, x):
        y = x**3
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * 3 * x**2 + 0 * y


def functions_of_the_users():
    """torch.autograd.Function with save_for_backward."""

    def step(model, x, y):
        for layer in model:
            x = Cube.apply(torch.tanh(layer(x)))
        return functional.mse_loss(x, y)

    return trained(mlp(depth=8), step)


def two_optimizers():
    """A GAN: two models, two optimizers with state."""
    make, judge = mlp(nn.GELU, depth=8), mlp(nn.GELU, depth=8)
    first, second = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (make, judge))
    losses = []
    for step in range(3):
        x, real = data(step)
        fake = make(x)
        second.zero_grad()
        loss = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake.detach())).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        other = functional.softplus(-judge(fake)).mean()
        other.backward()
        first.step()
        losses += [loss.item(), other.item()]
        del fake, loss, other
    return losses, [p.detach().clone() for p in (*make.parameters(), *judge.parameters())]


def accumulated():
    """Gradients of four batches before a step."""
    model = mlp(nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(4):
        loss = plainly(model, *data(step)) / 4
        loss.backward()
        losses.append(loss.item())
    optimizer.step()
    return losses, [p.detach().clone() for p in model.parameters()]


def recurrent():
    """An LSTM and its head."""
    torch.manual_seed(0)
    model = nn.LSTM(64, 128, num_layers=2, batch_first=True)

    def step(model, x, y):
        return functional.mse_loss(model(x.view(64, -1, 64))[0].mean(1)[:, :64], y[:64, :64])

    return trained(model, step, steps=2)


def several_in_one():
    """Slices, views and a tensor that is saved twice."""

    def step(model, x, y):
        for layer in model:
            x = layer(x)
            a, b = x.chunk(2, dim=1)
            x = torch.cat([a * torch.sigmoid(b), b * torch.tanh(a)], dim=1)
        return functional.mse_loss(x, y)

    return trained(mlp(depth=6), step)


LOOPS = (
    *(loop, in_place, dropout, several_in_one, functions_of_the_users, recurrent, two_optimizers, accumulated),
    *(hooks_of_the_users, hooks_around_the_loop, checkpoints, checkpoints_with_reentrance),
    *(func_in_the_middle, double_backward, retained, graphs_kept),
)
BY_PAGES = (hooks_around_the_loop, checkpoints)
"""Where hooks of the user's or of checkpoint see everything that is saved: that is left to them."""


class Card:
    """A practice card on which `run` is a guarded cell."""

    def __init__(self):
        gc.collect()
        self.card = torch_card(practice="1 GiB")
        self.count = self.card._count
        self.handler = self.session = None

    def measured(self, work, share=0.75):
        """What `work` gives where there is enough; from then on there is room for so much of its peak."""
        before, self.count.peak = self.count.used(), 0
        want = work()
        peak = self.count.peak - before
        gc.collect()
        self.count.cap = self.count.used() + int(share * peak)
        return want

    def run(self, work):
        session = self.session = Session({})
        session.begin(machine().allocator())
        try:
            return work()
        finally:
            session.end()
            self.handler = session.handler
            assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None

    def helped(self):
        return [done.id for done in self.handler.helped()]


@pytest.fixture
def practice(monkeypatch):
    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    made = Card()
    yield made
    made.card.close()


def same(got, want):
    assert got[0] == want[0]
    assert all(torch.equal(a, b) for a, b in zip(got[1], want[1], strict=True))


@pytest.mark.parametrize("work", LOOPS, ids=lambda work: work.__name__)
def test_every_bit_is_that_of_a_card_that_is_large_enough(practice, work):
    """It fails plain; guarded every loss, parameter and buffer is the same, and no request failed."""
    want = practice.measured(work)
    with pytest.raises(torch.OutOfMemoryError):
        work()
    gc.collect()
    same(practice.run(work), want)
    assert practice.handler.requests > 0
    assert practice.handler.failed == 0
    assert practice.handler.broken is None
    assert ("saved" in practice.helped()) is (work not in BY_PAGES)


def model_and_step():
    """A model, and a function that runs its step number n and gives the loss."""
    model = mlp(nn.GELU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(n):
        optimizer.zero_grad(set_to_none=True)
        loss = plainly(model, *data(n))
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, step


def test_a_change_of_what_was_saved_is_torchs_own_error(practice):
    """In place, after it was saved: the words are those of the plain run, wherever the bytes were by then."""

    def work():
        model = mlp(nn.Tanh)
        x, kept = data(0)[0], []
        for layer in model:
            x = layer(x)
            kept.append(x)
        kept[3].mul_(2)  # a Tanh's result
        x.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        practice.measured(work, 1)
    practice.count.cap = practice.count.used() + 5 * LAYER
    with pytest.raises(RuntimeError, match="modified by an inplace operation: .*is at version 1; expected version 0"):
        practice.run(work)
    assert practice.handler.requests > 0


def test_an_error_of_the_users_in_forward(practice):
    """It is theirs, the hooks are gone, and the next cell trains."""
    model, step = model_and_step()
    practice.measured(lambda: step(0))

    def fails():
        x = data(0)[0]
        for layer in model:
            x = layer(x)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        practice.run(fails)
    assert practice.run(lambda: step(1)) > 0


def test_a_loss_that_outlives_the_cell(practice):
    """Its graph has left the card in part: backward in a later, plain cell gives the same gradients."""
    model = mlp(nn.GELU)
    practice.measured(lambda: plainly(model, *data(0)).backward())
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    loss = practice.run(lambda: plainly(model, *data(0)))
    assert practice.helped() == ["saved"]
    with practice.card.enough():
        loss.backward()
    assert all(torch.equal(p.grad, one) for p, one in zip(model.parameters(), want, strict=True))


def test_a_second_guarded_cell_runs_the_backward_pass(practice):
    """Of a graph that the first one made, where there is no room for it either."""
    model = mlp(nn.GELU)
    practice.measured(lambda: plainly(model, *data(0)).backward())
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    loss = practice.run(lambda: plainly(model, *data(0)))
    practice.run(loss.backward)
    assert all(torch.equal(p.grad, one) for p, one in zip(model.parameters(), want, strict=True))


def test_torch_func_alone(practice):
    """No hooks can be on: gradients of a functional step are the same, by pages."""
    model = mlp(nn.GELU)
    parameters = dict(model.named_parameters())
    x, y = data(0)

    def loss(parameters):
        return functional.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    def work():
        return [], [g.detach() for g in torch.func.grad(loss)(parameters).values()]

    want = practice.measured(work)
    with pytest.raises(torch.OutOfMemoryError):
        work()
    same(practice.run(work), want)
    assert practice.helped() == ["pages"]


def test_what_does_not_run_out_is_left_alone(practice):
    """No hook, no request, nothing to tell."""
    _, step = model_and_step()
    with practice.card.enough():
        practice.run(lambda: step(0))
    assert (practice.handler.requests, practice.handler.done) == (0, {})


def test_without_moving_the_error_is_torchs(practice):
    """moves=False: it fails as the plain run does, and the hooks were never on."""
    _, step = model_and_step()
    practice.measured(lambda: step(0))
    session = Session({}, moves=False)
    session.begin(machine().allocator())
    with pytest.raises(torch.OutOfMemoryError):
        step(1)
    session.end()
    assert session.handler.failed == 1
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_torchs_own_functions_are_back(practice):
    """Those that make way for torch.func are put back with the hooks."""
    autograd = torch._C._autograd
    before = autograd._saved_tensors_hooks_disable, autograd._saved_tensors_hooks_enable
    _, step = model_and_step()
    practice.measured(lambda: step(0))
    seen = []
    practice.run(lambda: (step(1), seen.append(autograd._saved_tensors_hooks_disable)))
    assert practice.helped() == ["saved"]
    assert seen[0] is not before[0]
    assert (autograd._saved_tensors_hooks_disable, autograd._saved_tensors_hooks_enable) == before
