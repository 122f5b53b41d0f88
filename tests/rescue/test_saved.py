"""The report names what autograd saved by module and line, and what grows from iteration to iteration."""

from __future__ import annotations

import gc
import linecache

import pytest

from cuda_magic.machine import machine
from cuda_magic.memory.who import who

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

MIB = 1 << 20
NET = """
from torch import nn
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.act, self.c_proj = nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)
    def forward(self, x):
        return self.c_proj(self.act(self.c_fc(x)))
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.mlp = nn.LayerNorm(256), MLP()
    def forward(self, x):
        return x + self.mlp(self.ln(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList([Block() for _ in range(4)])
    def forward(self, x):
        for block in self.h:
            x = block(x)
        return x
torch.manual_seed(0)
model = Net()
"""
EVALUATE = """
def evaluate(rows):
    outputs, total = [], 0
    for _ in range(rows):
        with torch.no_grad():
            outputs.append(model(torch.randn(1000, 256)))
    return outputs
def losses(rows):
    total = 0
    for _ in range(rows):
        loss = model(torch.randn(300, 256)).square().mean()
        total = total + loss
    return total
"""
CHEAP = {"only": ("holders", "collect", "caches")}


@pytest.fixture
def net(cells, monkeypatch):
    """A model of four blocks on a practice card of 64 MiB; functions have their text, as in a notebook."""
    from cuda_magic.testing.torch_card import torch_card

    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    gc.collect()
    card = torch_card(practice="64 MiB")
    cells.names["torch"] = torch
    monkeypatch.setitem(linecache.cache, "<saved>", (len(EVALUATE), None, EVALUATE.splitlines(True), "<saved>"))
    cells.plain(NET)
    exec(compile(EVALUATE, "<saved>", "exec"), cells.names)
    yield cells
    card.close()


def rows(cells, kind: str) -> dict[str, object]:
    return {h.name: h for h in cells.report.holders if h.kind == kind}


def steps(cells) -> list[tuple[str, str]]:
    return [(step.why, step.line) for step in cells.report.next_steps]


def test_what_autograd_saved_is_named_by_module_and_line(net):
    """One forward pass that fails in the third block: each block that ran, its bytes, and the line of the call."""
    net.plain("x = torch.randn(2048, 256)")
    assert net.guard("# a comment\ny = model(x)", **CHEAP) is not None
    found = rows(net, "autograd")
    row = found["saved for backward by model.h.0.mlp"]
    # the norm's output, the input of gelu and its output; x itself is the variable's
    assert row.nbytes == 18 * MIB
    assert row.detail.startswith("2 x 8.00 MiB, 2.00 MiB")
    assert row.detail.endswith("called at line 2")
    assert found["saved for backward by model.h.1.mlp"].nbytes == 18 * MIB
    text = repr(net.report)
    assert "unknown" not in text and "dict" not in text
    assert rows(net, "variable")["model"].detail.startswith("24 tensors")
    named = sum(h.nbytes for h in net.report.holders if h.kind in ("autograd", "variable", "traceback"))
    assert named >= 0.95 * machine().allocator().stats(0).allocated


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("total += loss", "total += loss.item()"),
        ("total = total + loss / 2", "total = total + (loss / 2).item()"),
        ("losses_seen.append(loss)", "losses_seen.append(loss.detach())"),
        ("seen['sum'] = seen['sum'] + loss", "seen['sum'] = seen['sum'] + loss.item()"),
    ],
)
def test_the_leak_of_a_sum_is_told_first(net, line, advice):
    """Graphs of the earlier iterations, counted, by the name through which they are kept, and the line that ends it."""
    net.plain("total, losses_seen, seen = 0, [], {'sum': 0}")
    loop = f"for i in range(9):\n    loss = model(torch.randn(300, 256)).square().mean()\n    {line}"
    assert net.guard(loop, **CHEAP) is not None
    why, first = steps(net)[0]
    ran = net.names["i"]
    assert ran >= 3
    assert f"graphs of {ran} earlier iterations are kept through " in why
    assert first == advice
    patched = loop.replace(line, first)
    net.plain("total, losses_seen, seen, loss = 0, [], {'sum': 0}, None; import gc; gc.collect()")
    assert net.guard(patched, **CHEAP) is None  # the advice works


def test_a_leak_in_a_function_has_its_own_text(net):
    """The sum is a variable of a function of the notebook's."""
    assert net.guard("r = losses(9)", **CHEAP) is not None
    why, first = steps(net)[0]
    assert "earlier iterations are kept through total of losses" in why
    assert first == "total = total + loss.item()"


def test_a_sum_that_runs_backward_is_told_to_do_so_in_each_iteration(net):
    """Numbers alone would end the training: each part may run backward itself."""
    net.plain("total = 0")
    lines = ["for i in range(9):", "    loss = model(torch.randn(300, 256)).square().mean()", "    total += loss"]
    cell = "if True:\n" + "\n".join(f"    {line}" for line in [*lines, "total.backward()"])
    assert net.guard(cell, **CHEAP) is not None
    assert steps(net)[0][1] == "loss.backward()"


def test_a_loss_of_several_terms_is_no_leak(net):
    """Terms of one iteration share its graph."""
    net.plain("x = torch.randn(700, 256); y = model(x)")
    net.plain("loss = y.mean() + y.square().mean() + (y * 3).abs().mean(); del y")
    assert net.guard("z = torch.empty(12 << 20)", **CHEAP) is not None
    assert not any("iterations" in why for why, _ in steps(net))
    assert "kept through loss" in rows(net, "autograd")["saved for backward by model.h.0.mlp"].detail


@pytest.mark.parametrize(
    ("setup", "cell", "advice"),
    [
        ("", "outs = evaluate(90)", "outputs.append(model(torch.randn(1000, 256)).cpu())"),
        (
            "outs = []",
            "for i in range(90):\n    outs.append(model(torch.randn(100, 256)))",
            "outs.append(model(torch.randn(100, 256)).detach().cpu())",
        ),
        (
            "outs = {}",
            "for i in range(90):\n    outs[i] = torch.randn(1 << 20)",
            "outs[i] = torch.randn(1 << 20).cpu()",
        ),
    ],
    ids=["in a function", "with graphs", "a dict"],
)
def test_results_that_stay_on_the_card_are_to_be_moved(net, setup, cell, advice):
    """A list that the failed cell filled: its tensors and bytes, and the line with .cpu()."""
    net.plain(setup)
    assert net.guard(cell, **CHEAP) is not None
    why, first = steps(net)[0]
    assert why.startswith("each result stays on the card: out"), why
    assert first == advice


def test_what_gives_too_little_is_not_advised(net):
    """Two variables that are too small together are no way out; two that are enough are told together."""
    net.plain("one, two, three = (torch.empty(n << 18) for n in (2, 10, 12)); data = torch.empty(24 << 18)")
    assert net.guard("z = torch.empty(28 << 18), data", **CHEAP) is not None
    assert ("del three, two") in [line for _, line in steps(net)], steps(net)
    assert net.guard("z = torch.empty(60 << 18), data", **CHEAP) is not None
    assert not any(line.startswith("del ") for _, line in steps(net))


def test_a_name_whose_tensor_a_graph_keeps_is_not_to_be_deleted(net):
    """The graph behind loss holds x too: without loss, del x gives nothing."""
    net.plain("x = torch.randn(6 << 20); w = torch.zeros(1, requires_grad=True); loss = (w * x).sum()")
    assert net.guard("z = torch.empty(12 << 20)", **CHEAP) is not None
    assert rows(net, "variable")["x"].nbytes == 24 * MIB
    assert "del x" not in [line for _, line in steps(net)]
    net.plain("del loss")
    assert net.guard("z = torch.empty(12 << 20)", **CHEAP) is not None
    assert "del x" in [line for _, line in steps(net)]


def test_who_names_it_too(net):
    """`%gpu_mem --who` has the same words, and no code of a hook's runs for it."""
    net.plain(
        "unpacked = []\n"
        "def unpack(packed):\n"
        "    unpacked.append(packed); return packed[1]\n"
        "x = torch.randn(512, 256)\n"
        "with torch.autograd.graph.saved_tensors_hooks(lambda t: ('kept', t), unpack):\n"
        "    loss = model(x).square().mean()"
    )
    held = {h.name: h for h in who(net.names).held}
    assert held["saved for backward by model.h.3.mlp"].nbytes == 512 * (256 + 2 * 1024) * 4
    assert held["saved for backward by model.h.3.mlp"].largest == "through loss"
    assert net.names["unpacked"] == []
    net.plain("loss.backward()")
    assert not any(name.startswith("saved for") for name in (h.name for h in who(net.names).held))


def test_functions_of_the_users_own_and_released_graphs(net):
    """What is on a ctx counts; a graph that has run backward holds nothing."""
    net.plain(
        "class Double(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, a):\n"
        "        ctx.save_for_backward(a.clone()); ctx.mine = a.clone(); return a * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad): return grad * 2\n"
        "w = torch.zeros(1 << 20, requires_grad=True)\n"
        "out = Double.apply(w).sum()"
    )
    held = {h.name: h.nbytes for h in who(net.names).held}
    assert held["saved for backward by double"] == 8 * MIB
    net.plain("out.backward(); w.grad = None")
    assert {h.name for h in who(net.names).held if h.kind == "autograd"} <= {"saved for backward by double"}
