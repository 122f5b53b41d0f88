"""What is not marked before a statement cannot have changed: hooks, patches, modes and subclasses get past nothing."""

from __future__ import annotations

import sys
import weakref

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

BASE = """
import torch
torch.manual_seed(0)
log, nested = [], [[0]]
w = torch.zeros(2)
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
optimizer = torch.optim.Adam(model.parameters())
x = torch.ones(4, 2)
model(x).sum().backward()
optimizer.step()
loss = model(x).square().sum()
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 1
    @staticmethod
    def backward(ctx, g):
        oom()
        return g
def hook(*a):
    w.add_(1); oom()
"""


@pytest.fixture
def fails(fails):
    """What a case replaces in torch is torch's again afterwards."""
    kept = [
        (torch.nn.Linear, "forward", torch.nn.Linear.forward),
        (torch.nn.Module, "__call__", torch.nn.Module.__call__),
    ]
    kept += [(torch.nn.functional, "mse_loss", torch.nn.functional.mse_loss), (torch, "stack", torch.stack)]
    kept += [(torch.optim.Adam, name, getattr(torch.optim.Adam, name)) for name in ("step", "zero_grad")]
    had = {name for _, name, _ in kept if name in vars(torch.optim.Adam)}
    yield fails
    for owner, name, value in kept:
        if owner is torch.optim.Adam and name not in had:
            if name in vars(owner):
                delattr(owner, name)
        elif getattr(owner, name) is not value:
            setattr(owner, name, value)
    for hooks in ("_global_forward_hooks", "_global_forward_pre_hooks"):
        getattr(torch.nn.modules.module, hooks).clear()
    home = sys.modules["torch.optim.optimizer"]
    home._global_optimizer_pre_hooks.clear()
    home._global_optimizer_post_hooks.clear()
    for name in ("square", "mean"):
        if name in vars(torch.Tensor):
            delattr(torch.Tensor, name)


CHANGES = {
    # -- forward passes
    "forward hook": ("model[0].register_forward_hook(hook)", "y = model(x)"),
    "forward pre-hook": ("model[2].register_forward_pre_hook(hook)", "y = model(x)"),
    "hook that takes itself away": (
        "def once(*a):\n    handle.remove(); w.add_(1); oom()\nhandle = model[0].register_forward_hook(once)",
        "y = model(x)",
    ),
    "hook put in by hand": ("model[0]._forward_hooks[5] = hook", "y = model(x)"),
    "hook of all modules": ("torch.nn.modules.module.register_module_forward_hook(hook)", "y = model(x)"),
    "pre-hook of all modules": ("torch.nn.modules.module.register_module_forward_pre_hook(hook)", "y = model(x)"),
    "forward of one module": (
        "old = model[0].forward\ndef forward(a):\n    w.add_(1); oom(); return old(a)\nmodel[0].forward = forward",
        "y = model(x)",
    ),
    "forward that takes itself away": (
        "def forward(a):\n    del model[0].forward; w.add_(1); oom(); return a\nmodel[0].forward = forward",
        "y = model(x)",
    ),
    "forward of a class": (
        "old = torch.nn.Linear.forward\ndef forward(s, a):\n    w.add_(1); oom(); return old(s, a)\n"
        "torch.nn.Linear.forward = forward",
        "y = model(x)",
    ),
    "forward of a class that puts the old one back": (
        "old = torch.nn.Linear.forward\ndef forward(s, a):\n    torch.nn.Linear.forward = old; w.add_(1); oom()\n"
        "torch.nn.Linear.forward = forward",
        "y = model(x)",
    ),
    "call of every module": (
        "old = torch.nn.Module.__call__\ndef call(s, *a):\n    w.add_(1); oom(); return old(s, *a)\n"
        "torch.nn.Module.__call__ = call",
        "y = model(x)",
    ),
    "wrapped forward of a class": (
        "import functools\nold = torch.nn.Linear.forward\n@functools.wraps(old)\ndef forward(s, a):\n"
        "    w.add_(1); oom(); return old(s, a)\ntorch.nn.Linear.forward = forward",
        "y = model(x)",
    ),
    "module of the notebook's": (
        "class N(torch.nn.Module):\n    def forward(s, a):\n        w.add_(1); oom(); return a\nmodel.append(N())",
        "y = model(x)",
    ),
    "class made from one of torch's": (
        "class L(torch.nn.Linear):\n    def forward(s, a):\n        w.add_(1); oom(); return a\nmodel.append(L(2, 2))",
        "y = model(x)",
    ),
    "parametrization": (
        "class P(torch.nn.Module):\n    def forward(s, a):\n        w.add_(1); oom(); return a\n"
        "from torch.nn.utils import parametrize\nparametrize.register_parametrization(model[0], 'weight', P())",
        "y = model(x)",
    ),
    "activation in place": (
        "model = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Identity())\n"
        "x = -torch.ones(4, 2)\nmodel[1].register_forward_hook(lambda *a: oom())",
        "y = model(x)",
    ),
    "training BatchNorm": (
        "model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))\n"
        "model[1].register_forward_hook(lambda *a: oom())",
        "y = model(x)",
    ),
    "embedding that renews its weight": (
        "model = torch.nn.Embedding(4, 2, max_norm=0.1)\nx = torch.tensor([1, 2])\n"
        "model.register_forward_hook(lambda *a: oom())",
        "y = model(x)",
    ),
    "lazy module": (
        "model = torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.Identity())\n"
        "model[1].register_forward_hook(hook)",
        "y = model(x)",
    ),
    "checkpointed module": (
        "from torch.utils.checkpoint import checkpoint\nclass N(torch.nn.Module):\n    def forward(s, a):\n"
        "        return checkpoint(s.inner, a, use_reentrant=False)\n    def inner(s, a):\n"
        "        w.add_(1); oom(); return a\nmodel.append(N())",
        "y = model(x)",
    ),
    # -- tensors
    "subclass of a tensor": (
        "class T(torch.Tensor):\n    @classmethod\n    def __torch_function__(c, f, t, a=(), k=None):\n"
        "        w.add_(1); oom(); return super().__torch_function__(f, t, a, k or {})\nx = x.as_subclass(T)",
        "y = x.square()",
    ),
    "subclass among the parameters": (
        "class T(torch.nn.Parameter):\n    @classmethod\n    def __torch_function__(c, f, t, a=(), k=None):\n"
        "        with torch._C.DisableTorchFunctionSubclass():\n"
        "            w.add_(1); oom(); return f(*a, **(k or {}))\n"
        "model[0].weight = T(torch.ones(2, 2))",
        "y = model(x)",
    ),
    "method of one tensor": ("def f():\n    w.add_(1); oom()\nx.square = f", "y = x.square()"),
    "method of all tensors": ("def f(s):\n    w.add_(1); oom()\ntorch.Tensor.square = f", "y = x.square()"),
    "function of torch": (
        "old = torch.stack\ndef f(a):\n    w.add_(1); oom(); return old(a)\ntorch.stack = f",
        "y = torch.stack([x, x])",
    ),
    "function of torch.nn.functional": (
        "F = torch.nn.functional\nold = F.mse_loss\ndef f(*a):\n    w.add_(1); oom(); return old(*a)\nF.mse_loss = f",
        "y = F.mse_loss(x, x)",
    ),
    "object with a property": (
        "class O:\n    @property\n    def shape(s):\n        w.add_(1); oom(); return 1\no = O()",
        "y = o.shape",
    ),
    "operator of an object": ("class O:\n    def __radd__(s, a):\n        w.add_(1); oom()\no = O()", "y = 1 + o"),
    "item of an object": ("class O:\n    def __getitem__(s, i):\n        w.add_(1); oom()\no = O()", "y = o[0]"),
    "output that is given": ("", "y = (torch.add(w, 1, out=w), oom())"),
    "method with an underscore": ("", "y = (w.add_(1), oom())"),
    "function of the notebook's": ("def f(a):\n    w.add_(1); oom(); return a", "y = f(x).square()"),
    "item of a container": ("d = {'f': hook}", "y = d['f']()"),
    "hooks of what is saved": (
        "def pack(a):\n    w.add_(1); oom(); return a\n"
        "hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda a: a); hooks.__enter__()",
        "y = model(x)",
    ),
    "mode of functions": (
        "from torch.overrides import TorchFunctionMode\nclass M(TorchFunctionMode):\n"
        "    def __torch_function__(s, f, t, a=(), k=None):\n"
        "        with torch._C.DisableTorchFunction():\n            w.add_(1); oom(); return f(*a, **(k or {}))\n"
        "mode = M(); mode.__enter__()",
        "y = x.square()",
    ),
    "mode of operations": (
        "from torch.utils._python_dispatch import TorchDispatchMode\nclass M(TorchDispatchMode):\n"
        "    def __torch_dispatch__(s, f, t, a=(), k=None):\n"
        "        log.append(1); oom(); return f(*a, **(k or {}))\n"
        "mode = M(); mode.__enter__()",
        "y = x.square()",
    ),
    "name that is changed by a function": (
        "count = 0\ndef hook(*a):\n    global count\n    count += 1; oom()\nmodel[0].register_forward_hook(hook)",
        "y = model(x)",
    ),
    # -- optimizers
    "subclass of an optimizer": (
        "class A(torch.optim.Adam):\n    def step(s):\n        w.add_(1); oom()\noptimizer = A(model.parameters())",
        "optimizer.step()",
    ),
    "zero_grad of a subclass": (
        "class A(torch.optim.Adam):\n    def zero_grad(s):\n        w.add_(1); oom()\n"
        "optimizer = A(model.parameters())",
        "optimizer.zero_grad()",
    ),
    "hook before the step": ("optimizer.register_step_pre_hook(hook)", "optimizer.step()"),
    "hook behind the step": ("optimizer.register_step_post_hook(hook)", "optimizer.step()"),
    "hook of all optimizers": (
        "torch.optim.optimizer = __import__('sys').modules['torch.optim.optimizer']\n"
        "torch.optim.optimizer.register_optimizer_step_pre_hook(hook)",
        "optimizer.step()",
    ),
    "step of one optimizer": ("optimizer.step = hook", "optimizer.step()"),
    "zero_grad of one optimizer": ("optimizer.zero_grad = hook", "optimizer.zero_grad()"),
    "step of a class": ("torch.optim.Adam.step = hook", "optimizer.step()"),
    "zero_grad of a class": ("torch.optim.Adam.zero_grad = hook", "optimizer.zero_grad()"),
    "wrapped step": (
        "import functools\nold = optimizer.step\n@functools.wraps(old)\ndef step():\n    w.add_(1); oom()\n"
        "optimizer.step = step",
        "optimizer.step()",
    ),
    "step that says it is a scheduler's": (
        "hook._wrapped_by_lr_sched = True\noptimizer.step = hook",
        "optimizer.step()",
    ),
    "scheduler around a step of its own": (
        "old = torch.optim.Adam.step\ndef step(s):\n    w.add_(1); oom()\ntorch.optim.Adam.step = step\n"
        "s = torch.optim.lr_scheduler.ConstantLR(optimizer)\ntorch.optim.Adam.step = old",
        "optimizer.step()",
    ),
    "object with such a name": (
        "class O:\n    def step(s):\n        w.add_(1); oom()\noptimizer = O()",
        "optimizer.step()",
    ),
    # -- backward
    "hook of a parameter": ("model[0].weight.register_hook(hook)", "loss.backward()"),
    "hook of a gradient that is there": (
        "model[0].weight.register_post_accumulate_grad_hook(hook)",
        "loss.backward()",
    ),
    "step inside backward": (
        "def step(*a):\n    optimizer.step(); oom()\nmodel[0].weight.register_post_accumulate_grad_hook(step)",
        "loss.backward()",
    ),
    "function of autograd's": (
        "class B(Fails):\n    @staticmethod\n    def backward(ctx, g):\n        w.add_(1); oom(); return g\n"
        "loss = B.apply(model(x)).sum()",
        "loss.backward()",
    ),
    "gradients that grow": ("loss = (model[2](Fails.apply(model[0](x)))).sum()", "loss.backward()"),
    "list that a hook fills": (
        "def hook(*a):\n    log.append(1); oom()\nmodel[0].weight.register_hook(hook)",
        "loss.backward()",
    ),
    # -- what changes an optimizer's state without a step
    "state in place": (
        "def f():\n    optimizer.state[model[2].bias]['exp_avg'].mul_(2); oom()",
        "f()",
    ),
    "state by a name": ("def f():\n    getattr(optimizer, 'state')[model[2].bias]['exp_avg'].mul_(2); oom()", "f()"),
    "state by a library": (
        "import types\nlib = types.ModuleType('lib')\n"
        "exec('def f(o, p):\\n    o.state[p][\"exp_avg\"].mul_(2)', vars(lib))",
        "y = (lib.f(optimizer, model[2].bias), oom())",
    ),
}


@pytest.mark.parametrize("setup, code", CHANGES.values(), ids=CHANGES)
def test_what_changes_something_is_not_repeated(fails, setup, code):
    """One attempt: each of them changes something and then runs out of memory, where nothing looks like it."""
    sys.modules["fails_once"].n = 10  # not while it is set up
    fails.plain(BASE + setup)
    sys.modules["fails_once"].n = 0
    try:
        error = fails.guard(code)
    finally:
        for name in ("mode", "hooks"):
            if name in fails.names:
                fails.names[name].__exit__(None, None, None)
    assert type(error) is RuntimeError, fails.report
    assert (fails.report.status, fails.report.attempts) == ("refused", 1)


def test_a_function_that_is_not_torchs_is_not_kept():
    """It may hold memory in its closure."""
    from cuda_magic.memory.torch.pure import is_torchs

    def patch(held):
        return lambda *given: held

    held = torch.zeros(2)
    function, gone = patch(held), weakref.ref(held)
    assert not is_torchs(function) and is_torchs(torch.nn.Linear.forward)
    del held, function
    assert gone() is None
