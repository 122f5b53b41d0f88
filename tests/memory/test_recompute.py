"""What is computed again instead of being copied: the numbers of the plain run, whatever is done to what was saved."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch")
from test_activations import KIB, made, one_thread  # noqa: E402, F401

from cuda_magic.memory.torch.offload import recompute  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(recompute, "LEAST", 1)


class WrittenGelu(nn.Module):
    """As GPT-2 has it in transformers: five tensors are saved, four of them follow from the first."""

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64))

    def forward(self, x):
        kind, x = x.dtype, x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(kind)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Tight(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x).exp() - torch.tanh(x) / (x * x + 2)


KINDS = {
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU(approximate="tanh"),
    "written gelu": WrittenGelu,
    "silu": nn.SiLU,
    "rms norm": RmsNorm,
    "layer norm": lambda: nn.LayerNorm(64, eps=1e-6),
    "gated": Gated,
    "several": Tight,
    "dropout": lambda: nn.Dropout(0.2),
}


def net(kind, depth=4):
    torch.manual_seed(0)
    return nn.Sequential(*[part for _ in range(depth) for part in (nn.Linear(64, 64), KINDS[kind]())])


def gradients(model, x, amp=False):
    torch.manual_seed(1)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        loss = model(x).float().square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def same(ones, others):
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_bit_for_bit(kind, amp):
    """Step after step; and what one operation gives again does not cross the link."""
    model, x = net(kind), torch.randn(8, 16, 64)
    want = gradients(model, x, amp)
    with made(window=66 * KIB) as hooks:
        assert all(same(want, gradients(model, x, amp)) for _ in range(4))
    assert not any(hooks._bytes.values())
    assert hooks.moved["computed"] or kind in ("several", "dropout", "layer norm")
    assert hooks.moved["dropped"] <= hooks.moved["computed"]


def test_less_crosses_the_link():
    """A GELU written out: 3 of 5 need not (the number in ``1 + tanh`` is not kept in the graph)."""
    model, x = net("written gelu"), torch.randn(8, 16, 64)
    with made(window=66 * KIB) as hooks:
        for _ in range(3):
            gradients(model, x)
        with_recipes = hooks.moved["out"]
    with made(window=66 * KIB) as hooks:
        hooks._recipes._ready = False
        for _ in range(3):
            gradients(model, x)
    assert with_recipes < 0.7 * hooks.moved["out"]


@pytest.mark.parametrize("change", ["in place", "without a gradient", "by .data", "through a view"])
def test_what_it_is_computed_from_is_changed(change):
    """While somebody holds the input it may change under the graph: then the result itself is kept."""
    weight = torch.randn(64, 64, requires_grad=True)

    def run():
        torch.manual_seed(2)
        u = torch.randn(128, 64, requires_grad=True) * 1.5
        h = nn.functional.gelu(u)
        y = h @ weight
        for _ in range(3):  # what is saved later pushes the others out
            y = nn.functional.gelu(y) @ weight
        if change == "in place":
            with torch.no_grad():
                u.mul_(3)
        elif change == "without a gradient":
            u.detach().add_(1)
        elif change == "by .data":
            u.data.add_(1)
        else:
            u.detach()[3:].zero_()
        (found,) = torch.autograd.grad(y.sum(), weight)
        return found, u

    want, _ = run()
    with made(window=40 * KIB) as hooks:
        got, _ = run()
    assert torch.equal(want, got)
    assert hooks.moved["saved"]


def test_an_input_that_is_another_by_then():
    """The value that an operation reads is not always the one that an earlier operation saved."""
    weight = torch.randn(64, 64, requires_grad=True)

    def run():
        torch.manual_seed(2)
        u = torch.randn(128, 64, requires_grad=True) * 1.5
        a = torch.exp(u) + torch.pow(u, 2)  # saves u
        with torch.no_grad():
            u.add_(1)
        h = torch.tanh(u + a)  # reads another one
        y = h @ weight
        for _ in range(3):
            y = torch.tanh(y) @ weight
        return torch.autograd.grad(y.sum(), weight)[0]

    want = run()
    for _ in range(2):
        with made(window=40 * KIB):
            assert torch.equal(run(), want)


def test_twice_through_a_graph():
    """retain_graph, parts of a graph, and the gradient of a gradient."""
    model, x = net("written gelu"), torch.randn(8, 16, 64)
    parameters = list(model.parameters())

    def run():
        loss = model(x).square().mean()
        first = torch.autograd.grad(loss, parameters[-1], retain_graph=True)
        again = torch.autograd.grad(loss, parameters, retain_graph=True)
        slopes = torch.autograd.grad(loss, parameters[:2], create_graph=True)
        return [*first, *again, *torch.autograd.grad(sum(s.square().sum() for s in slopes), parameters)]

    want = run()
    with made(window=66 * KIB) as hooks:
        assert same(want, run())
        assert same(want, run())
    assert not any(hooks._bytes.values())


def test_another_kernel_would_be_noticed(monkeypatch):
    """A recipe that gives other bytes is never used: each is tried on the spot first."""
    real = torch.nn.functional.gelu
    monkeypatch.setattr(
        torch.nn.functional, "gelu", lambda x, approximate="none": real(x, approximate=approximate) + 1e-7
    )
    u = torch.randn(128, 64, requires_grad=True) * 1.5
    weight = torch.randn(64, 64, requires_grad=True)
    with made(window=40 * KIB) as hooks:
        y = real(u) @ weight
        for _ in range(3):
            y = real(y) @ weight
        y.sum().backward()
    assert hooks.moved["dropped"] == 0
    assert False in hooks._recipes._right.values()


def test_what_users_hold_stays(monkeypatch):
    """A result that the user has a name for frees nothing by being let go of."""
    u = torch.randn(128, 64, requires_grad=True) * 1.5
    weight = torch.randn(64, 64, requires_grad=True)
    held = []
    with made(window=40 * KIB) as hooks:
        y = u
        for _ in range(4):
            held.append(nn.functional.gelu(y))
            y = held[-1] @ weight
        assert hooks.moved["dropped"] == 0
        y.sum().backward()


F = nn.functional
ONE = (
    *(F.gelu, F.silu, torch.tanh, torch.sigmoid, F.relu, F.leaky_relu, torch.neg),
    *(lambda x: x.exp().clamp(max=5), lambda x: x * 1.7, lambda x: 0.5 * x, lambda x: x + 1.0, lambda x: x / 1.3),
    *(lambda x: torch.pow(x, 3.0) * 0.01, lambda x: x * x, lambda x: F.dropout(x, 0.3), lambda x: torch.softmax(x, -1)),
    *(lambda x: x.to(torch.bfloat16).float(), lambda x: x.transpose(0, 1).clone().transpose(0, 1)),
    *(lambda x: x[:, :].view(x.shape), lambda x: x.clone().mul_(1.1), lambda x: torch.rsqrt(x.pow(2) + 1e-3)),
)
TWO = (
    *(torch.add, torch.sub, torch.mul, torch.maximum, lambda a, b: a / (b.abs() + 1)),
    *(lambda a, b: torch.add(a, b, alpha=0.3), lambda a, b: a * b.mean(-1, keepdim=True)),
)


class Drawn(nn.Module):
    """A graph drawn by a seed: operations on earlier results, products, layer norms of two eps, weights."""

    def __init__(self, seed):
        super().__init__()
        draw, self.width = random.Random(seed), random.Random(seed).choice([16, 32, 48])
        self.weights, self.norms, self.steps = nn.ParameterList(), nn.ModuleList(), []
        for count in range(1, draw.randint(7, 23)):
            kind, at = draw.choice(("one", "one", "one", "two", "two", "product", "norm", "weight")), range(count)
            if kind == "one":
                self.steps.append((draw.choice(ONE), (draw.choice(at),)))
            elif kind == "two":
                self.steps.append((draw.choice(TWO), (draw.choice(at), draw.choice(at))))
            elif kind == "norm":
                self.norms.append(nn.LayerNorm(self.width, eps=draw.choice([1e-5, 1e-6])))
                self.steps.append((self.norms[-1], (draw.choice(at),)))
            else:
                size = (self.width, self.width) if kind == "product" else (self.width,)
                self.weights.append(nn.Parameter(torch.randn(size) / math.sqrt(self.width)))
                weight, call = self.weights[-1], torch.matmul if kind == "product" else torch.mul
                self.steps.append((lambda x, w=weight, call=call: call(x, w), (draw.choice(at),)))
        self.first = nn.Parameter(torch.randn(self.width, self.width) / math.sqrt(self.width))

    def forward(self, x):
        values = [x @ self.first]
        for call, at in self.steps:
            values.append(call(*(values[i] for i in at)))
        return sum(value.tanh().mean() for value in values[-4:])


def backward(model, x, amp, way):
    """Loss and gradients; `way`: once, twice through the graph, or through a gradient's gradient."""
    torch.manual_seed(5)
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        loss = model(x)
    if way == "twice":
        loss.backward(retain_graph=True)
    if way == "a gradient's":
        found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True, allow_unused=True)
        loss = loss + sum(g.square().sum() for g in found if g is not None)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def test_graphs_that_are_drawn():
    """150 of them, step after step, under several budgets: the numbers of the plain run."""
    dropped = 0
    for seed in range(650, 800):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        model, amp = Drawn(seed), draw.random() < 0.3
        x, way = torch.randn(draw.choice([32, 64]), model.width), draw.choice(["once", "once", "twice", "a gradient's"])
        want = backward(model, x, amp, way)
        with made(window=draw.choice([6000, 12_000, 30_000]), keep=draw.choice([0, 0, 20_000])) as hooks:
            for _ in range(3):
                got = backward(model, x, amp, way)
                equal = (torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(want, got, strict=True))
                assert all(equal), seed
        assert not any(hooks._bytes.values()), seed
        dropped += hooks.moved["dropped"]
    assert dropped > 1 << 20
