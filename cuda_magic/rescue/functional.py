"""Calls that do nothing but make a new array: by name, and only those that stand in the library under that name.

Left out is what changes an argument, draws after it has allocated, calls back, or keeps anything: methods that end in
an underscore, ``out=``, modules, models, optimizers, and every function of anybody else's.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType
from typing import Any

__all__ = ["LIBRARIES", "array", "constant", "in_force", "is_function", "is_method", "is_size", "of_library"]

LIBRARIES = frozenset({"torch", "cupy", "jax", "jaxlib", "cuda_magic"})
"""Whose frames may stand below the call: nothing of them is the user's."""

_MAKE = (
    "arange as_tensor asarray empty empty_like empty_strided eye full full_like linspace logspace ones ones_like rand "
    "rand_like randint randint_like randn randn_like randperm tensor zeros zeros_like"
)
_METHODS = (
    "astype bfloat16 bool byte clone contiguous copy cpu cuda double expand expand_as float half int long "
    "masked_select new_empty new_full new_ones new_tensor new_zeros repeat short to type_as view view_as"
)
_BOTH = (
    "abs acos add addbmm addcdiv addcmul addmm addmv addr all amax amin any argmax argmin argsort array asin atan "
    "atan2 baddbmm bincount bmm broadcast_to bucketize cat cdist ceil chunk clamp clip column_stack concat concatenate "
    "conv1d conv2d conv3d cos cosh count_nonzero cross cummax cummin cumsum deg2rad diag diag_embed diagonal diff div "
    "divide dot dstack einsum eq erf erfc exp exp2 expm1 flatten flip floor floor_divide fmod frac gather ge gt histc "
    "hstack index_select inner isfinite isinf isnan kron kthvalue le lerp log log10 log1p log2 log_softmax logaddexp "
    "logical_and logical_not logical_or logical_xor logsumexp lt masked_fill matmul max maximum mean median min "
    "minimum mm moveaxis movedim mul multiply mv nan_to_num nanmean nansum narrow ne neg negative nonzero norm outer "
    "permute pow prod quantile reciprocal relu remainder repeat_interleave reshape roll rot90 round rsqrt searchsorted "
    "select sigmoid sign sin sinh softmax sort split sqrt square squeeze stack std sub subtract sum swapaxes t take "
    "take_along_dim tan tanh tensordot tile topk transpose tril triu true_divide trunc unbind unflatten unique "
    "unsqueeze var vstack where"
)
_OF_NN = (
    "adaptive_avg_pool2d avg_pool2d conv1d conv2d conv3d cosine_similarity cross_entropy gelu interpolate l1_loss "
    "linear log_softmax mse_loss normalize one_hot pad scaled_dot_product_attention sigmoid softmax softplus tanh"
)
_FUNCTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # module, names of functions in it
    ("torch", (*_MAKE.split(), *_BOTH.split())),
    ("torch.nn.functional", tuple(_OF_NN.split())),
    ("cupy", (*_MAKE.split(), *_BOTH.split())),
    ("jax.numpy", (*_MAKE.split(), *_BOTH.split())),
)
_NAMES = frozenset((*_METHODS.split(), *_BOTH.split()))
_PRACTICE = frozenset({"empty", "full"})
_CONSTANTS = frozenset({"Size", "device", "dtype", "layout", "memory_format"})
_ARRAYS = (("cupy", "ndarray"), ("jax", "Array"))

_module, _name, _mro, _dict = (vars(type)[n].__get__ for n in ("__module__", "__name__", "__mro__", "__dict__"))
"""These attributes of a class, past its metaclass."""


def of_library(space: dict[str, Any]) -> bool:
    """Whether a frame's globals are those of a module of one of the libraries."""
    name = space.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return module is not None and vars(module) is space and str(name).partition(".")[0] in LIBRARIES


def array(value: Any) -> str:
    """The library whose own array this is: exactly its class, since a subclass may do anything. Else empty."""
    kind = type(value)
    torch = sys.modules.get("torch")
    if torch is not None and (kind is vars(torch).get("Tensor") or kind is getattr(torch.nn, "Parameter", None)):
        return "torch"
    home = _module(kind)
    root = home.partition(".")[0] if type(home) is str else ""
    if root == "cupy" and kind is getattr(sys.modules.get("cupy"), "ndarray", None):
        return "cupy"
    return "jax" if root in ("jax", "jaxlib") and _name(kind) == "ArrayImpl" else ""


def constant(value: Any) -> bool:
    """Whether it is a dtype, a device or the like."""
    kind = type(value)
    name = _name(kind)
    return _module(kind) == "torch" and name in _CONSTANTS and kind is vars(sys.modules["torch"]).get(name)


def is_size(value: Any) -> bool:
    """Whether it is a tensor's shape."""
    return constant(value) and _name(type(value)) == "Size"


def is_function(value: Any) -> bool:
    """Whether it is a function of a library that makes a new array and does nothing else."""
    kind = type(value)
    for name, names in _FUNCTIONS:
        module = sys.modules.get(name)
        space = vars(module) if module is not None else {}
        if any(space.get(one) is value for one in names):
            return kind is not FunctionType or of_library(value.__globals__)  # else it was put there
    return False


def is_method(owner: Any, name: str) -> bool:
    """Whether ``owner.name`` is a method that makes a new array and does nothing else."""
    kind = type(owner)
    if _module(kind) in ("cuda_magic.testing.practice", "cuda_magic.testing.real"):
        return name in _PRACTICE and name not in vars(owner)
    if name not in _NAMES or not array(owner) or name in getattr(owner, "__dict__", ()):
        return False
    found = next((_dict(base)[name] for base in _mro(kind) if name in _dict(base)), None)
    if type(found) is FunctionType:
        return of_library(found.__globals__)
    return type(found) is MethodDescriptorType or type(found) is BuiltinFunctionType or array(owner) != "torch"


def in_force() -> str:
    """What of the user's torch calls around every operation: a mode, or hooks on what autograd saves; else empty."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    found: list[Any] = []
    for module, stack in (
        ("torch.overrides", "_get_current_function_mode_stack"),
        ("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"),
    ):
        read = getattr(sys.modules.get(module), stack, None)
        found += read() if read is not None else []
    for mode in found:
        if str(_module(type(mode))).partition(".")[0] not in LIBRARIES:
            return f"the mode {_name(type(mode))}"
    read = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # since torch 2.1
    hooks = (read(False) if read is not None else None) or ()
    return "" if all(map(_of_library, hooks)) else "hooks on what autograd saves"


def _of_library(function: Any) -> bool:
    """Whether it is a function or a method that one of the libraries has defined."""
    inner = function.__func__ if type(function) is MethodType else function
    return type(inner) is FunctionType and of_library(inner.__globals__)
