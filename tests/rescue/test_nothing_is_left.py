"""What the guard is not noticed by: nothing stays on the user's objects, and no object breaks a guarded cell."""

from __future__ import annotations

import copy
import gc

import pytest


@pytest.mark.torch
def test_nothing_is_left_on_tensors(cells):
    """swap_tensors refuses tensors with weak references: it works after a guarded cell, and inside one."""
    torch = pytest.importorskip("torch")
    cells.names["torch"] = torch
    assert cells.guard("t1 = torch.arange(2)\nt2 = torch.arange(3)\nboth = [t1, t2]\nt3 = t1 + 1") is None
    assert cells.guard("torch.utils.swap_tensors(t1, t2)") is None
    torch.utils.swap_tensors(cells.names["t1"], cells.names["t2"])
    assert torch.equal(cells.names["t1"], torch.arange(2))


@pytest.mark.torch
def test_a_module_of_wrapped_tensors_can_be_moved_afterwards(cells):
    """module.to(dtype) swaps parameters of a wrapper subclass: nobody else may refer to them."""
    torch = pytest.importorskip("torch")
    cells.names["torch"] = torch
    cells.plain(
        "from torch.utils._pytree import tree_map\n"
        "class Wrapped(torch.Tensor):\n"
        "    @staticmethod\n"
        "    def __new__(cls, inner):\n"
        "        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)\n"
        "        made.inner = inner\n"
        "        return made\n"
        "    @classmethod\n"
        "    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):\n"
        "        unwrap = lambda x: x.inner if type(x) is cls else x\n"
        "        wrap = lambda x: cls(x) if type(x) is torch.Tensor else x\n"
        "        return tree_map(wrap, func(*tree_map(unwrap, args), **(kwargs or {})))\n"
    )
    make = "m = torch.nn.Linear(2, 2)\nm.weight = torch.nn.Parameter(Wrapped(m.weight.detach()))"
    assert cells.guard(f"{make}\nx = m.weight.shape") is None
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        cells.names["m"].to(torch.float64)
        assert cells.guard("m.to(torch.float32)") is None
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def test_functions_that_are_compiled_by_cython(cells, capsys):
    """Their __module__ is a descriptor of their class's: a guarded call says nothing of ours, and is rescued as any."""
    pytest.importorskip("pandas")
    cells.plain("from pandas.api.types import is_scalar")
    assert cells.guard("print(is_scalar(3))") is None
    assert capsys.readouterr() == ("True\n", "")
    cells.plain(
        "n = []\ndef f():\n    n.append(1)\n    if len(n) == 1: raise RuntimeError('CUDA out of memory. Tried to "
        "allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB')\n    return is_scalar(n)"
    )
    assert cells.guard("got = f()", repeat=True) is None
    assert cells.names["got"] is False
    assert capsys.readouterr().err == ""


@pytest.mark.torch
def test_a_lazy_module_that_has_not_run(cells, capsys, monkeypatch):
    """Anywhere in the namespace: the statement is rescued, or its own error shows, and none of ours."""
    torch = pytest.importorskip("torch")
    from cuda_magic.machine import use
    from cuda_magic.testing.torch_card import torch_card

    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    cells.names["torch"] = torch
    gc.collect()
    card = torch_card(practice="8 MiB")
    try:
        cells.plain(
            "lazy = torch.nn.LazyLinear(4)\nnet = torch.nn.Sequential(torch.nn.LazyConv2d(4, 3))\n"
            "def waste():\n    held = [torch.empty(3 << 18)]; held.append(held)\nwaste()"
        )
        for options in ({}, {"repeat": True}):
            assert cells.guard("x = torch.empty(6 << 18)", **options) is None
            assert cells.report.status == "rescued"
            cells.plain("del x; waste()")
            assert isinstance(cells.guard("x = torch.empty(9 << 18)", **options), torch.OutOfMemoryError)
            assert isinstance(cells.guard("y = [torch.empty(9 << 18) for _ in range(2)]", **options), RuntimeError)
            cells.plain("waste()")
    finally:
        card.close()
        use(None)
    assert "an error of its own" not in capsys.readouterr().err


def test_eval_of_a_model_is_not_pythons(cells):
    """model.eval() beside an iterator of the notebook's that the statement does not touch."""
    cells.plain(
        "it = iter(range(9))\nclass Model:\n    n = 0\n    def eval(s): return s\n"
        "    def __call__(s):\n        s.n += 1\n        if s.n == 1: raise RuntimeError('CUDA out of memory. Tried to "
        "allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB')\n        return s.n\nmodel = Model()"
    )
    assert cells.guard("y = model.eval()()", repeat=True) is None
    assert cells.names["y"] == 2
    assert next(cells.names["it"]) == 0
    cells.plain("model = Model()")
    assert cells.guard("y = model.eval()()") is not None
    assert cells.report.notes == ("not repeated: __call__() would run again",)


def test_what_is_advised_works(cells):
    """The line of the report, run as it stands, is not refused again; a failed attempt's prints do not come twice."""
    cells.plain(
        "n, out = [], []\ndef train():\n    out.append('epoch 1')\n    n.append(1)\n"
        "    if len(n) == 1: raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 24.00 GiB')"
    )
    assert cells.guard("for _ in range(2): train()") is not None
    assert cells.names["out"] == ["epoch 1"]
    lines = [step.line for step in cells.report.next_steps]
    assert lines[-1] == "%%cuda_guard --repeat"
    assert not any("--checkpoint" in line for line in lines)
    again = copy.copy(cells.names["n"])
    assert again == [1]
    cells.plain("n.clear(); out.clear()")
    assert cells.guard("for _ in range(2): train()", repeat=True) is None
    assert cells.report.status == "rescued"
