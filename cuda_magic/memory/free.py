"""``%gpu_mem --free``: gives back what this kernel holds for nothing, and says what each cause gave."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..machine import machine
from ..render.blocks import Block, Table, Text, Title
from ..render.units import bytes_text, seconds_text
from ..result import Result
from .allocator import Allocator

__all__ = ["Freed", "Step", "free"]


@dataclass(frozen=True)
class Step:
    """One cause. Bytes over all devices: `unused` became free in the allocator, `returned` went to the driver."""

    cause: str
    unused: int
    returned: int
    seconds: float
    detail: str = ""


@dataclass(frozen=True, repr=False)
class Freed(Result):
    """What was given back."""

    steps: tuple[Step, ...]
    label: str = ""
    note: str = ""

    @property
    def returned(self) -> int:
        """Bytes that went back to the driver, for every process to use."""
        return sum(s.returned for s in self.steps)

    def rows(self) -> list[dict[str, Any]]:
        """One row a cause."""
        return [
            {"cause": s.cause, "unused": s.unused, "returned": s.returned, "seconds": s.seconds} for s in self.steps
        ]

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = [Title("Given back", self.label)]
        if self.steps:
            rows = [(s.cause, bytes_text(s.unused), bytes_text(s.returned), s.detail) for s in self.steps]
            columns = ("cause", "no longer in tensors", "back to the driver", "")
            blocks.append(Table(columns, rows, frozenset({1, 2})))
            seconds = sum(s.seconds for s in self.steps)
            blocks.append(Text(f"{bytes_text(self.returned)} are free for every process, in {seconds_text(seconds)}."))
        if self.note:
            blocks.append(Text(self.note))
        return blocks


def free(shell: Any = None, outputs: bool = False) -> Freed:
    """Let go of earlier errors, cycles and caches; with `outputs` also of ``Out`` and ``_``. User variables stay."""
    here = machine()
    allocator = here.allocator()
    if allocator is None or not allocator.started():
        name = "torch is not imported" if allocator is None else f"{allocator.name} has not started CUDA"
        return Freed((), here.label, f"{name} in this kernel: it holds nothing on a GPU.")
    causes: list[tuple[str, Callable[[], str]]] = [("earlier errors", lambda: _errors(shell))]
    if outputs:
        causes.append(("shown values (Out, _)", lambda: _outputs(shell)))
    causes += [
        ("reference cycles", _collect),
        ("workspaces and other libraries' pools", lambda: ", ".join(allocator.clear_workspaces())),
        ("cache", lambda: _empty(allocator)),
    ]
    if allocator.parked() or any(
        allocator.stats(d).elsewhere for d in allocator.devices()
    ):  # when there is most room, and before the host's memory is given back
        causes.append(("tensors that wait elsewhere", lambda: _settle(allocator)))
    steps = [_step(allocator, name, call) for name, call in causes]
    parked = _step(allocator, "host memory kept for parking", lambda: _host(allocator))
    return Freed((*steps, *([parked] if parked.detail else [])), allocator.label)


def _step(allocator: Allocator, cause: str, call: Callable[[], str]) -> Step:
    allocated, reserved = _totals(allocator)
    started = time.perf_counter()
    detail = call()
    seconds = time.perf_counter() - started
    now, kept = _totals(allocator)
    return Step(cause, max(0, allocated - now), max(0, reserved - kept), seconds, detail)


def _totals(allocator: Allocator) -> tuple[int, int]:
    stats = [allocator.stats(d) for d in allocator.devices()]
    return sum(s.allocated for s in stats), sum(s.reserved for s in stats)


def _errors(shell: Any) -> str:
    from ..kernel.holders import forget_errors

    forget_errors(shell)
    return ""


def _outputs(shell: Any) -> str:
    from ..kernel.holders import forget_outputs, outputs

    values = [v for v in outputs(shell).values() if not isinstance(v, (str, int, float, type(None)))]
    if values:
        forget_outputs(shell, values)
    return ""


def _settle(allocator: Allocator) -> str:
    before = allocator.parked()
    left = allocator.settle()
    back = f"{bytes_text(before - left)} came back to the card"
    return f"{back}, {bytes_text(left)} still wait: no room" if left else back


def _collect() -> str:
    gc.collect()
    return ""


def _host(allocator: Allocator) -> str:
    given = allocator.release_host()
    return f"{bytes_text(given)} back to the host" if given else ""


def _empty(allocator: Allocator) -> str:
    allocator.empty_cache()

    return ""
