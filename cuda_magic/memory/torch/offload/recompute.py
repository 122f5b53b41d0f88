"""What autograd saved and one or a few cheap operations give again, from what it saved anyway: it need not be copied.

A GELU written out saves five tensors, and four of them come from the fifth. Their operations are read from the graph
(``next_functions``, ``_raw_saved_*``, ``_saved_*``), nothing is watched. Elementwise operations only; and each kind,
with its sizes and layout, is tried once on the spot: it is used only if every byte came out the same.

What such a tensor is computed from must not change until then: it is a saved tensor that nobody but autograd holds, a
number, or a small copy of ours. Where the graph does not keep a number it cannot be done (``1 + x``, the eps of a layer
norm): one that was found out by trial would only be known to be right for the values that it was tried with.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from .saved_tensor import Kept, Token
from .storage_copies import quiet

__all__ = ["LEAST", "Recipe", "Recipes"]

LEAST = 1 << 20
"""Bytes below which a copy is as cheap as looking."""
_MOST = 8
"""Operations for one tensor."""
_SMALL = 64 << 10
"""Bytes up to which an operand that stays on the card is copied there, so that it is nobody's but ours."""
_VIEWS = re.compile(
    r"(View|UnsafeView|ReshapeAlias|Expand|Transpose|T|Permute|Unsqueeze|Squeeze|Alias|Detach)Backward\d$"
)
_RESULTS = re.compile(r"(Tanh|Sigmoid|Exp|Rsqrt|Sqrt|Softmax|LogSoftmax)Backward\d$")
"""Operations that save their own result."""
_ONE = {"TanhBackward0": "tanh", "SigmoidBackward0": "sigmoid", "ExpBackward0": "exp", "NegBackward0": "neg"}
_TWO = {"MulBackward0": "mul", "DivBackward0": "div"}
_SUMS = {"AddBackward0": "add", "SubBackward0": "sub"}


@cache
def _is(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name) is not None


class Recipe:
    """An operation and its operands: tokens of saved tensors, other recipes, small tensors, numbers."""

    __slots__ = ("args", "call", "count", "name")

    def __init__(self, name: str, call: Callable[..., Any], *args: Any) -> None:
        self.name, self.call, self.args = name, call, args
        self.count: int = 1 + sum(one.count for one in args if type(one) is Recipe)

    def tokens(self) -> Iterator[Token]:
        """The saved tensors that it is computed from."""
        for one in self.args:
            if type(one) is Token:
                yield one
            elif type(one) is Recipe:
                yield from one.tokens()

    def compute(self, read: Callable[[Token], Any]) -> Any:
        """The result anew; `read` gives the tensor of a token."""
        found = []
        for one in self.args:
            kind = type(one)
            found.append(read(one) if kind is Token else one.compute(read) if kind is Recipe else one)
        return self.call(*found)

    def signature(self) -> tuple[Any, ...]:
        """Equal for two that compute in the same way."""
        parts: list[Any] = [self.name]
        for one in self.args:
            if type(one) is Token:
                parts.append((one.dtype, one.size, one.stride, one.offset))
            elif type(one) is Recipe:
                parts.append(one.signature())
            elif hasattr(one, "dtype"):
                number = one.item() if one.dim() == 0 and one.device.type == "cpu" else None
                parts.append((one.dtype, one.size(), one.stride(), number))
            else:
                parts.append(one)
        return tuple(parts)


class Recipes:
    """Which saved tensors can be computed again, for the graphs that one thread builds.

    Parameters
    ----------
    torch
        The imported torch.
    device
        The torch.device of the tensors.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._thread = threading.get_ident()
        self._made: weakref.WeakValueDictionary[tuple[int, int], Token] = weakref.WeakValueDictionary()
        """{(number of the operation, which of its results): the result, where it was saved}"""
        self._right: dict[tuple[Any, ...], bool] = {}
        """Whether every byte came out the same, for each signature that was tried."""
        self.found: list[Any] = []
        """Records that have got a recipe since this was emptied."""
        self._ready = hasattr(torch._C._autograd.SavedTensor, "data") and hasattr(torch._C, "_ExcludeDispatchKeyGuard")
        """Releases whose saved tensors cannot be read so are left alone."""

    def saved(self, tensor: Any, token: Token) -> None:
        """`tensor` was saved, as `token`: remember it, and find its recipe."""
        node = tensor.grad_fn
        if node is None or not self._ready or threading.get_ident() != self._thread:
            return
        with self._torch._C.DisableTorchFunction():
            self._made.setdefault((node._sequence_nr(), tensor.output_nr), token)
            record = token.record
            if record.recipe is not None or record.nbytes < LEAST:
                return
            for _ in range(8):
                if not _is(_VIEWS, node.name()):
                    break
                node = node.next_functions[0][0]
                if node is None:
                    return
            self._give(record, self._recipe(node, tensor.dtype))

    def _give(self, record: Any, recipe: Recipe | None) -> None:
        if recipe is None or recipe.count > _MOST or any(one.record is record for one in recipe.tokens()):
            return
        if self._same(record, recipe):
            record.recipe = recipe
            self.found.append(record)

    def _same(self, record: Any, recipe: Recipe) -> bool:
        """Whether it gives every byte of the record: computed and compared, once for each signature."""
        key = (*recipe.signature(), record.nbytes)
        known = self._right.get(key)
        if known is not None:
            return known
        if any(one.record.gpu is None for one in recipe.tokens()):
            return False  # not now
        torch = self._torch
        with again(torch):
            made = recipe.compute(_here(torch, self._device)).untyped_storage()
            same: bool = made.nbytes() == record.nbytes and torch.equal(
                _as_integers(torch, made), _as_integers(torch, record.gpu.untyped_storage())
            )
        self._right[key] = same
        return same

    # -- reading the graph
    def _recipe(self, node: Any, dtype: Any = None) -> Recipe | None:
        """How the result of `node` is computed; `dtype`: of the result, where that is known."""
        torch, name = self._torch, node.name()
        if name in _TWO:
            operands = self._operand(node, "self", 0), self._operand(node, "other", 1)
            return None if None in operands else Recipe(name, getattr(torch, _TWO[name]), *operands)
        if name in _SUMS:
            call, alpha = getattr(torch, _SUMS[name]), node._saved_alpha
            results = [self._result(child, number) for child, number in node.next_functions]
            if None in results or len(results) != 2:
                return None  # a number that is added is not kept in the graph
            return Recipe(f"{name} {alpha}", lambda a, b: call(a, b, alpha=alpha), *results)
        if name in _ONE:
            result = self._result(*node.next_functions[0])
            return None if result is None else Recipe(name, getattr(torch, _ONE[name]), result)
        if name == "PowBackward0":
            return self._of_self(node, "pow", torch.pow, node._saved_exponent)
        if name == "MulBackward1":
            result = self._result(*node.next_functions[0])
            return None if result is None else Recipe(name, torch.mul, result, node._saved_other)
        if name == "GeluBackward0":
            how = node._saved_approximate
            gelu = torch.nn.functional.gelu
            return self._of_self(node, f"gelu {how}", lambda x: gelu(x, approximate=how))
        if name == "SiluBackward0":
            return self._of_self(node, "silu", torch.nn.functional.silu)
        if name == "NativeDropoutBackward0":
            return self._dropout(node)
        if name == "ToCopyBackward0" and dtype is not None:
            result = self._result(*node.next_functions[0])
            return None if result is None else Recipe(f"to {dtype}", lambda x: x.to(dtype), result)
        return None

    def _dropout(self, node: Any) -> Recipe | None:
        """As the fused kernel computes it (aten/src/ATen/native/cuda/Dropout.cu): the value, the mask, the scale."""
        torch = self._torch
        value, mask, p = self._result(*node.next_functions[0]), self._token(node, "result1"), node._saved_p
        if value is None or mask is None or not 0 < p < 1:
            return None
        kept = torch.tensor(1 - p, dtype=torch.float32)
        scale = float(1 / kept)  # in single precision, as there
        return Recipe(f"dropout {p}", lambda x, m: x * m * scale, value, mask)

    def _of_self(self, node: Any, name: str, call: Callable[..., Any], *rest: Any) -> Recipe | None:
        operand = self._operand(node, "self", 0)
        return None if operand is None else Recipe(name, call, operand, *rest)

    def _token(self, node: Any, name: str) -> Any:
        """What a node saved under a name: a token, a number that was an operand, a small copy; else None."""
        raw = getattr(node, f"_raw_saved_{name}", None)
        data = raw.data if raw is not None else None
        if type(data) is Token:
            return data
        if type(data) is Kept:
            here = data.data
            small = here.numel() * here.element_size() <= _SMALL
            if small and not here.requires_grad and here._version == data.version:
                return here.clone()
            return None
        if data is not None and type(data) is self._torch.Tensor and data.dim() == 0 and data.device.type == "cpu":
            return data
        return None

    def _operand(self, node: Any, name: str, index: int) -> Any:
        child, number = node.next_functions[index]
        if child is not None and child.name() == "torch::autograd::AccumulateGrad":
            found = self._token(node, name)
            return None if type(found) is Token else found
        found = self._token(node, name)
        if found is None and child is not None:
            found = self._result(child, number)
        elif child is not None:
            self._look(child)
        return found

    def _result(self, node: Any, number: int) -> Token | Recipe | None:
        """The result of an operation: as it was saved, or how it is computed."""
        if node is None:
            return None
        known = self._made.get((node._sequence_nr(), number))
        if known is not None:
            there, version = known.record.gpu, known.record.version
            # what has left may have been changed by its owner before the operation read it
            return known if there is not None and there._version == version else None
        if number == 0:
            known = self._look(node)
            return known if known is not None else self._recipe(node)
        return None

    def _look(self, node: Any) -> Token | None:
        """The result that the operation itself saved, whose recipe is found now: it has a node only after that."""
        if not _is(_RESULTS, node.name()):
            return None
        token = self._token(node, "result")
        if type(token) is not Token:
            return None
        record = token.record
        if record.recipe is None and record.nbytes >= LEAST:
            self._give(record, self._recipe(node))
        return token


class again:  # noqa: N801 - used as a word
    """Operations of ours: seen by no mode, no autograd, and cast by no autocast."""

    __slots__ = ("_cast", "_inner", "_torch")

    def __init__(self, torch: Any) -> None:
        self._torch, self._inner = torch, quiet(torch)

    def __enter__(self) -> None:
        c = self._torch._C
        self._inner.__enter__()
        keys = c.DispatchKeySet(c.DispatchKey.AutocastCUDA) | c.DispatchKeySet(c.DispatchKey.AutocastCPU)
        self._cast = c._ExcludeDispatchKeyGuard(keys)
        self._cast.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._cast.__exit__(*error)
        self._inner.__exit__(*error)


def _here(torch: Any, device: Any) -> Callable[[Token], Any]:
    """Reads a token whose storage is still where it was."""

    def read(token: Token) -> Any:
        return token.on(torch, device, token.record.gpu.untyped_storage())

    return read


def _as_integers(torch: Any, storage: Any) -> Any:
    """A storage as whole numbers, as wide as its size allows."""
    nbytes = storage.nbytes()
    dtype, width = (torch.int64, 8) if nbytes % 8 == 0 else (torch.uint8, 1)
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, (nbytes // width,), (1,))
