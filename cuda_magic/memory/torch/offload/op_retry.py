"""An op that ran out of memory is repeated at the call, once room was made: inside loops, inside backward.

Repeated is what is provably the same the second time: torch's own ops (namespace aten) whose schema says that they
change nothing, on plain tensors, with the random generators put back. What they write without saying so
(`operands.UNTOLD`) is put back too where it is small, else they are not repeated. Everything else, collectives,
custom ops and Triton wrappers among it, raises as always, and the statement's own rescue begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .operands import UNTOLD
from .storage_copies import quiet

__all__ = ["Problem", "Rescue", "Retry"]

STATISTICS = {
    "aten::native_batch_norm": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
    "aten::miopen_batch_norm": (3, 4),
}
"""Of ops that write to arguments untold: where the small tensors stand that they write to, and nothing else."""


@dataclass
class Problem:
    """One op that found no room. No tensor and no frame is held."""

    op: str
    error: str
    """Text of the error."""
    fault: Any
    """What `Rescue.judge` made of it."""
    device: int | None
    begun: bool
    """False: the op's own tensors could not be brought back, so it has not begun."""
    tries: int = 0


class Rescue(Protocol):
    """Who judges errors and makes room."""

    def judge(self, error: BaseException) -> Any:
        """What the error is, or None where it is no matter of memory. Inside ``except``."""
        ...

    def make_room(self, problem: Problem) -> bool:
        """Outside of ``except``. True: try again."""
        ...

    def less_workspace(self, op: str, errors: int) -> None:
        """A convolution met so many out-of-memory errors inside, and went on with less workspace."""
        ...


class Retry:
    """Runs ops, and repeats those that may be repeated.

    Parameters
    ----------
    torch
        The imported torch.
    rescue
        Who judges errors and makes room.
    errors
        Counts the allocator's out-of-memory errors so far.
    """

    def __init__(self, torch: Any, rescue: Rescue, errors: Callable[[], int] = lambda: 0) -> None:
        self.torch, self.rescue, self.errors = torch, rescue, errors
        self._known: dict[Any, bool] = {}
        self._seeded = torch.Tag.nondeterministic_seeded
        self._plain = {torch.Tensor, torch.nn.Parameter}

    def repeatable(self, func: Any, types: Any) -> bool:
        """Whether a second run of the op gives what the first would have given."""
        known = self._known.get(func)
        if known is None:
            schema = getattr(func, "_schema", None)
            known = False
            if schema is not None and getattr(func, "namespace", "") == "aten" and not schema.is_mutable:
                known = schema.name not in UNTOLD or schema.name in STATISTICS
            self._known[func] = known
        return known and all(kind in self._plain for kind in types)

    def call(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        around: Callable[..., Any],
    ) -> Any:
        """Run one op; `around` brings back what it names and runs it (see `mode.Watcher`)."""
        __tracebackhide__ = True
        kept: BaseException | None = None
        tries = 0
        begun = [False]
        try:
            while True:
                before = self._before(func, args, kwargs)
                try:
                    return around(func, args, kwargs, begun)
                except (RuntimeError, MemoryError) as error:
                    fault = self.rescue.judge(error)
                    if fault is None or (begun[0] and not self.repeatable(func, types)):
                        raise
                    problem = Problem(str(func), str(error), fault, None, begun[0], tries)
                    kept = kept or error.with_traceback(None)
                # outside of except: the failed op's frames are gone
                self._put_back(before)
                if not self.rescue.make_room(problem):
                    raise kept
                tries += 1
                begun[0] = False
        finally:
            kept = None

    # -- what is not in the schema
    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Callable[[], None]]:
        undo: list[Callable[[], None]] = []
        if self._seeded in getattr(func, "tags", ()):
            undo = [_generator(g) for g in self._generators(args, kwargs)]
        places = STATISTICS.get(func._schema.name) if hasattr(func, "_schema") else None
        if places is not None:
            undo += [self._copy(args[p]) for p in places if p < len(args) and args[p] is not None]
        return undo

    def _generators(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        torch = self.torch
        given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)]
        cuda = torch.cuda
        started = torch._C._cuda_hasPrimaryContext if cuda.is_initialized() else None
        defaults = [g for i, g in enumerate(cuda.default_generators) if started(i)] if started else []
        return [*given, torch.default_generator, *defaults]

    def _copy(self, tensor: Any) -> Callable[[], None]:
        with quiet(self.torch):
            saved = tensor.detach().clone()

        def back() -> None:
            with quiet(self.torch):
                tensor.data.copy_(saved)  # .data: the kernel that is undone counted no version either

        return back

    @staticmethod
    def _put_back(undo: list[Callable[[], None]]) -> None:
        for back in undo:
            back()


def _generator(generator: Any) -> Callable[[], None]:
    if generator.device.type == "cuda" and hasattr(generator, "get_offset"):  # since torch 2.1, 0.9 us
        offset = generator.get_offset()
        return lambda: generator.set_offset(offset)
    state = generator.get_state()
    return lambda: generator.set_state(state)
