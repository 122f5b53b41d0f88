"""Retry at the call, over torch's own list of operations: each op that may be repeated runs, fails once, runs again.

    python benchmarks/retry_ops.py benchmarks/results/retry_ops.json --device cuda      one H200: about a minute
    python benchmarks/retry_ops.py OUT.json --every 12                                   on the CPU, each 12th of them

Forward and backward of each sample input are compared bit by bit with a plain run: results, gradients, the inputs
themselves and the random states afterwards. A sample whose plain runs differ among themselves is left out. Where an
idle dispatch mode alone gives other numbers, torch itself takes another way under a mode, and the name is listed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import time
import types
import unittest
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

from cuda_magic.memory.torch.offload.op_retry import Retry  # noqa: E402
from cuda_magic.memory.torch.offload.session import session  # noqa: E402

LEFT_OUT = ("empty", "new_empty")
"""Their contents are whatever was there."""

ODD = ("differs under an idle mode", "differs now and then", "differs")
"""Not the plain numbers: nor are they under a mode that does nothing; in one run and not in the next; always."""


def listed() -> list[Any]:
    """torch's list of operations with sample inputs. It wants a package for tests, of which one name is used."""
    with contextlib.suppress(ImportError):
        import expecttest  # noqa: F401
    if "expecttest" not in sys.modules:
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if not info.name.startswith(LEFT_OUT)]


class Idle(TorchDispatchMode):
    """Changes nothing."""

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class FailsOnce(TorchDispatchMode):
    """Each call of an op that may be repeated runs, and then raises; its repeat gives the result."""

    def __init__(self, retry: Retry) -> None:
        super().__init__()
        self.retry, self.failed, self.names = retry, False, set()

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.retry.repeatable(func, kinds):
            self.failed = not self.failed
            if self.failed:
                self.names.add(str(func))
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")
        return out


class Room:
    """There is always room."""

    def judge(self, error: BaseException) -> Any:
        return error if isinstance(error, torch.OutOfMemoryError) else None

    def make_room(self, problem: Any) -> bool:
        return True


def tensors(value: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def fresh(value: Any) -> Any:
    def one(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(one, value)


def same(one: Any, other: Any) -> bool:
    """Bit by bit."""
    a, b = tensors(one), tensors(other)
    if [(t.shape, t.dtype, t.layout) for t in a] != [(t.shape, t.dtype, t.layout) for t in b]:
        return False
    return all(torch.equal(bits(x), bits(y)) for x, y in zip(a, b, strict=True))


def bits(tensor: Any) -> Any:
    plain = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return plain.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def run(info: Any, sample: Any, device: str, *modes: Any) -> list[Any]:
    """Results, gradients, the inputs afterwards, the random states."""
    given = fresh((sample.input, sample.args, sample.kwargs))
    torch.manual_seed(5)
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        out = info.op(given[0], *given[1], **given[2])
        grads: Any = []
        if info.supports_autograd:
            ends = [t for t in tensors(out) if t.requires_grad and t.dtype.is_floating_point]
            starts = [t for t in tensors(given) if t.requires_grad and t.is_leaf]
            if ends and starts:
                grads = torch.autograd.grad([t.sum() for t in ends], starts, allow_unused=True)
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if device == "cuda" else [])]
    return [out, [g for g in grads if g is not None], given, states]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--samples", type=int, default=2, help="of each op, at most")
    parser.add_argument("--every", type=int, default=1, help="take each n-th of the list")
    parser.add_argument("--seconds", type=float, default=1000, help="stop after this time")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    watched = session(torch)
    retry = Retry(torch, Room())
    started, names, samples, seen = time.perf_counter(), set(), 0, 0
    odd: dict[str, set[str]] = {name: set() for name in ("plain runs differ", *ODD)}
    raised: dict[str, str] = {}
    every = listed()[:: given.every]
    for info in every:
        if time.perf_counter() - started > given.seconds:
            break
        seen += 1
        dtypes = info.dtypesIfCUDA if given.device == "cuda" else info.dtypes
        dtype = torch.float32 if torch.float32 in dtypes else next(iter(dtypes), None)
        grad = info.supports_autograd and dtype == torch.float32
        title = f"{info.name} {info.variant_test_name}".strip()
        try:
            inputs = list(info.sample_inputs(given.device, dtype, requires_grad=grad))[: given.samples]
            plain = [run(info, sample, given.device) for sample in inputs]
            _ = [bits(t) for t in tensors(plain)]
        except Exception:  # torch itself cannot run it here
            continue
        for sample, want in zip(inputs, plain, strict=True):
            if not all(same(run(info, sample, given.device), want) for _ in range(2)):
                odd["plain runs differ"].add(title)
                continue
            fails = FailsOnce(retry)

            def again(info: Any = info, sample: Any = sample, fails: Any = fails) -> Any:
                watched.watcher.retry = retry
                return run(info, sample, given.device, fails, watched.watched())

            try:
                got = again()
            except Exception as error:  # what it raises is the finding
                raised[title] = f"{type(error).__name__}: {error}"[:200]
                continue
            samples, names = samples + 1, names | fails.names
            if not same(got, want):
                idle = same(run(info, sample, given.device, Idle()), got)
                odd[ODD[0] if idle else ODD[1] if any(same(again(), want) for _ in range(5)) else ODD[2]].add(title)
    figures = {
        "torch": torch.__version__, "seen": seen, "of": len(every), "samples": samples,
        "operations that failed once": len(names), "seconds": round(time.perf_counter() - started, 1),
        "raised": raised, **{k: sorted(v) for k, v in odd.items()},
    }  # fmt: skip
    print(json.dumps(figures, indent=1))
    file = Path(given.file)
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept[given.device] = figures
    if given.device == "cuda":
        from record import where

        kept["where"] = where()
    else:
        kept.setdefault("where", {"machine": platform.machine()})
    file.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
