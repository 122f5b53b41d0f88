"""What only computes: torch's own modules without hooks, and operations on plain tensors that change none of them.

A statement of nothing else leaves all as it was, so nothing has to be marked before it. All of this is asked before the
statement runs, since what runs may take away the traces of itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ..parts import fields
from .tensors import Look, inside, look

__all__ = ["Computed", "before_computing", "is_torchs"]

METHODS = frozenset(
    (
        *(
            "abs",
            "add",
            "all",
            "amax",
            "amin",
            "any",
            "argmax",
            "argmin",
            "argsort",
            "bfloat16",
            "bmm",
            "bool",
            "chunk",
        ),
        *(
            "clamp",
            "clone",
            "contiguous",
            "cos",
            "cpu",
            "cuda",
            "cumsum",
            "detach",
            "dim",
            "div",
            "dot",
            "double",
            "eq",
        ),
        *("exp", "expand", "flatten", "float", "gather", "ge", "gt", "half", "int", "item", "le", "log", "log_softmax"),
        *("long", "lt", "masked_fill", "matmul", "max", "mean", "min", "mm", "mul", "ne", "neg", "norm", "numel"),
        *("permute", "pow", "prod", "relu", "repeat", "reshape", "round", "sigmoid", "sin", "size", "softmax", "sort"),
        *("split", "sqrt", "square", "squeeze", "std", "sub", "sum", "t", "tanh", "to", "tolist", "topk", "transpose"),
        *("tril", "triu", "unsqueeze", "var", "view"),
    )
)
"""Methods of a tensor that change no tensor."""
ATTRIBUTES = frozenset(("T", "device", "dtype", "mT", "ndim", "requires_grad", "shape"))
FUNCTIONS = frozenset(
    (
        *(
            "abs",
            "arange",
            "argmax",
            "bmm",
            "cat",
            "einsum",
            "empty",
            "exp",
            "eye",
            "full",
            "linspace",
            "log",
            "matmul",
        ),
        *("max", "mean", "min", "mm", "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like"),
        *("relu", "sigmoid", "softmax", "stack", "sum", "tanh", "tensor", "where", "zeros", "zeros_like"),
        *("cross_entropy", "gelu", "l1_loss", "layer_norm", "linear", "log_softmax", "mse_loss", "nll_loss", "one_hot"),
        *("binary_cross_entropy_with_logits", "pad", "scaled_dot_product_attention", "silu", "smooth_l1_loss"),
    )
)
"""Functions of torch and of torch.nn.functional that change no tensor without ``out=`` and ``inplace=``."""
DRAWS = frozenset(("rand", "rand_like", "randint", "randn", "randn_like", "scaled_dot_product_attention"))
_MODULES = (
    *("Linear", "Bilinear", "Identity", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "Flatten"),
    *("ConvTranspose3d", "LayerNorm", "GroupNorm", "Embedding", "Unflatten", "Sequential", "ReLU", "ReLU6", "GELU"),
    *("SiLU", "Mish", "ELU", "SELU", "CELU", "LeakyReLU", "PReLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax"),
    *("Softplus", "Hardswish", "Hardsigmoid", "Hardtanh", "MaxPool1d", "MaxPool2d", "MaxPool3d", "AvgPool1d"),
    *("AvgPool2d", "AvgPool3d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool2d"),
    *("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Upsample", "PixelShuffle", "ZeroPad2d", "RMSNorm"),
    *("CrossEntropyLoss", "MSELoss", "L1Loss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss", "SmoothL1Loss", "HuberLoss"),
)
_DROPS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout")
_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
_SETTINGS = (
    *("Embedding", "ReLU", "ReLU6", "SiLU", "Mish", "ELU", "SELU", "CELU", "LeakyReLU", "Hardswish", "Hardsigmoid"),
    "Hardtanh",
)
"""Those whose settings may let them change what they are given, or a weight."""
_GLOBAL = (
    *("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks"),
)
_module = vars(type)["__module__"].__get__

_known: dict[int, Any] = {}
"""By their ids: functions that are torch's own, with whatever they wrap."""
_MOST = 500


def is_torchs(function: Any) -> bool:
    """Whether a function is torch's own, and all that it wraps."""
    if function is not None and _known.get(id(function)) is function:
        return True
    home = str(Path(str(sys.modules["torch"].__file__)).parent) + os.sep
    inner, own = function, True
    while inner is not None and own:
        if type(inner) is BuiltinFunctionType:
            own = str(inner.__module__ or "torch").split(".", 1)[0] == "torch"
        else:
            code = getattr(inner, "__code__", None)
            own = (
                code is not None and code.co_filename.startswith(home) and inner.__module__.split(".", 1)[0] == "torch"
            )
        inner = getattr(inner, "__wrapped__", None)
    if own:  # one of the user's is not kept: it may hold memory
        if len(_known) >= _MOST:
            _known.clear()
        _known[id(function)] = function
    return own


class _Kinds:
    """torch's classes of modules that only compute."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        found = {name: getattr(torch.nn, name) for name in (*_MODULES, *_DROPS) if hasattr(torch.nn, name)}
        self.ids = frozenset(map(id, found.values()))
        self.drops = frozenset(id(found[name]) for name in _DROPS if name in found)
        self.settings = frozenset(id(found[name]) for name in (*_NORMS, *_DROPS, *_SETTINGS) if name in found)
        self.tensors = frozenset((id(torch.Tensor), id(torch.nn.Parameter)))
        self.parts = self.tensors | {id(type(None))}


_kinds: list[_Kinds] = []


def _of(torch: Any) -> _Kinds:
    if not _kinds or _kinds[0].torch is not torch:
        _kinds[:] = [_Kinds(torch)]
    return _kinds[0]


class Computed:
    """Before a statement that only computes."""

    __slots__ = ("draws", "torch")

    def __init__(self, torch: Any, draws: bool) -> None:
        self.torch, self.draws = torch, draws

    def changed(self) -> list[str]:
        """A sentence where torch's functions are not torch's."""
        for module in (self.torch.nn.functional, self.torch):
            for name, value in list(vars(module).items()):
                if type(value) is FunctionType and name in FUNCTIONS and not is_torchs(value):
                    return [f"what the statement changed is not known: {module.__name__}.{name} is another function"]
        return []

    def undo(self) -> None:
        """There is nothing to be put back."""


def before_computing(torch: Any, used: Iterable[Any], called: Iterable[Any], words: Iterable[tuple[Any, str]]) -> Any:
    """The mark before a statement of nothing but names, calls and operators; None where it may do more than compute.

    Parameters
    ----------
    torch
        The module.
    used
        The values of the names that are no light ones.
    called
        Those of them that are called.
    words
        Attributes: (the module whose member it is, or None, its name).
    """
    kinds = _of(torch)
    core = torch._C
    try:
        if core._len_torch_function_stack() or core._len_torch_dispatch_stack():
            return None
        if core._autograd._top_saved_tensors_default_hooks(True) is not None:
            return None
    except (AttributeError, TypeError):  # another release
        return None
    draws = False
    python = vars(torch.Tensor)
    for module, name in words:
        if module is not None:
            if (module is not torch and module is not torch.nn.functional) or name not in FUNCTIONS:
                return None
            if not is_torchs(vars(module).get(name)):
                return None
            draws = draws or name in DRAWS
        elif (name not in METHODS and name not in ATTRIBUTES) or (
            name in python and not (name in ATTRIBUTES or is_torchs(python[name]))
        ):
            return None
    modules = []
    for value in used:
        if id(type(value)) in kinds.tensors:
            if fields(value):
                return None
        elif id(type(value)) in kinds.ids:
            modules.append(value)
        elif type(value) is not ModuleType:
            return None
    for value in called:
        if id(type(value)) not in kinds.ids:
            return None
    if modules and not _modules_are_torchs(torch):
        return None
    for module in modules:
        found = look(module)
        if not _only_computes(kinds, found):
            return None
        draws = draws or not kinds.drops.isdisjoint(map(id, map(type, found.modules)))
    return Computed(torch, draws)


def _modules_are_torchs(torch: Any) -> bool:
    home = sys.modules.get("torch.nn.modules.module")
    if home is None or any(getattr(home, name, True) for name in _GLOBAL):
        return False
    mine = vars(torch.nn.Module)
    return all(is_torchs(mine.get(name)) for name in ("__call__", "_call_impl", "_wrapped_call_impl", "__getattr__"))


def _only_computes(kinds: _Kinds, found: Look) -> bool:
    types = {id(type(one)): one for one in found.modules}
    if not kinds.ids.issuperset(types) or any(map(any, found.hooks)):
        return False
    for dicts in (found.parameters, found.buffers):
        if not kinds.parts.issuperset(map(id, map(type, inside(dicts)))):
            return False
    if not all(is_torchs(type(one).forward) for one in types.values()):
        return False
    if any("forward" in own or "_call_impl" in own for own in found.owns):
        return False
    if kinds.settings.isdisjoint(types):
        return True
    for own, training in zip(found.owns, found.training, strict=True):
        if own.get("inplace") or own.get("max_norm") is not None or (training and own["_buffers"]):
            return False
    return True
