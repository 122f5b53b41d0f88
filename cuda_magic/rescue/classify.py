"""What an error is: its kind from the table, the sizes from its message, decided by the memory that is free.

Chained errors (``raise X from oom``), exception groups and errors with several arguments are looked through.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..render.units import bytes_text
from .kinds import KINDS, ROWS, WORKER_TEXT, WORKERS, Kind, Row
from .messages import Sizes, parse

if TYPE_CHECKING:
    from ..devices.model import Reading
    from ..memory.allocator import Allocator

__all__ = ["OWN_LIMIT", "Fault", "classify", "judge", "known", "others_hold_it"]

OWN_LIMIT = "out of GPU memory within a library's own limit; the card itself has room"
LITTLE = 1 << 30
"""Free bytes (or 2 % of the card) below which a library that failed to start is taken to lack memory."""
LONGEST = 50_000
"""Characters at the beginning and at the end of a message that are read: XLA's can be megabytes of buffers."""
ROUNDING = 64 << 20
"""Bytes that a figure with two decimals may be off, and more."""
_KEPT = ("host-memory", "shared-host", "wrong-size", "start-up", "setting", "unknown")
"""Kinds that stay what they are where another process raised the error."""
_MISTAKES = (NameError, AttributeError, ImportError, LookupError, TypeError, ArithmeticError, UnicodeError)
_FILES = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
"""Errors whose text quotes a name or a path, whatever words it is made of."""
_VALUES = (ValueError, AssertionError, NotImplementedError)
"""Python code's own words on a value, where it is of no derived class."""
_WORKER = re.compile(WORKER_TEXT)


@dataclass(frozen=True)
class Fault:
    """An error that concerns memory. Holds neither the error nor its frames."""

    kind: Kind
    row: Row
    sizes: Sizes
    error: str
    """Name of the class."""
    sentence: str

    @property
    def repeatable(self) -> bool:
        return self.kind.repeat == "ladder"

    @property
    def torch_allocator(self) -> bool:
        """Whether the caching allocator itself said so (it has flushed its cache before)."""
        return self.row.kind == "gpu-memory"


@functools.cache
def _compiled(row: Row) -> re.Pattern[str] | None:
    return row.pattern


def _related(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, what it was raised while handling, and the parts of a group; each once."""
    seen: set[int] = set()
    pending = [error]
    while pending:
        one = pending.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        try:
            parts = getattr(one, "exceptions", None)
        except Exception:  # noqa: BLE001 - a property of the user's
            parts = None
        if isinstance(parts, tuple):
            pending += [part for part in parts if isinstance(part, BaseException)]
        if one.__cause__ is not None:
            pending.append(one.__cause__)
        elif one.__context__ is not None and not one.__suppress_context__ and isinstance(one, RuntimeError):
            # another class of error raised in a handler is a fault of the handler
            pending.append(one.__context__)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
        text = "\n".join([text, *(a for a in error.args if isinstance(a, str) and a not in text)])
    except Exception:  # noqa: BLE001 - a broken __str__ of the user's must not hide the error
        return ""
    return text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}\n{text[-LONGEST:]}"


def _code(error: BaseException) -> int | None:
    for name in ("error_code", "code", "status"):
        try:
            value = getattr(error, name, None)
        except Exception:  # noqa: BLE001 - a property of the user's
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
    return None


def _is(error: BaseException, wanted: str) -> bool:
    name, _, library = wanted.partition(":")
    for cls in type(error).__mro__:
        ours = not library or str(cls.__module__).split(".", 1)[0] == library
        if ours and name in (cls.__name__, "*"):
            return True
    return False


def _fits(row: Row, error: BaseException, text: str, code: int | None) -> bool:
    if (row.native or row.kind == "unknown") and isinstance(error, (*_MISTAKES, *_FILES)):
        return False
    if row.native and type(error) in _VALUES:
        return False
    if row.named and not any(re.search(row.named, cls.__name__) for cls in type(error).__mro__):
        return False
    if row.classes and not any(_is(error, wanted) for wanted in row.classes):
        return False
    if row.codes:
        # a code alone says nothing: SystemExit has one too
        if code not in row.codes:
            return False
        if not row.classes and not _is(error, "AcceleratorError") and "CUDA" not in text and "cuda" not in text:
            return False
    pattern = _compiled(row)
    return pattern is None or pattern.search(text) is not None


def known(error: BaseException) -> bool:
    """Whether `error` tells of a fault in a wording that is known."""
    fault = classify(error)
    return fault is not None and fault.kind.id != "unknown"


def classify(error: BaseException) -> Fault | None:
    """The fault that `error` tells of, by its class, its codes and its text; None for anything else.

    A lost context anywhere in the chain decides; then the innermost out-of-memory error that is found first, in a
    wording that is known before one that is not. What a worker process raised says nothing of this one's context.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, SyntaxError)):
        return None
    found: list[Fault] = []
    elsewhere = False
    for one in _related(error):
        text, code = _text(one), _code(one)
        elsewhere |= _WORKER.search(text) is not None or any(_is(one, wanted) for wanted in WORKERS)
        for row in ROWS:
            if _fits(row, one, text, code):
                kind = KINDS[row.kind]
                found.append(Fault(kind, row, parse(text), type(one).__name__, kind.sentence))
                break
    found = [fault for fault in found if fault.kind.memory]
    if elsewhere:
        found = [
            f if f.kind.id in _KEPT else _as(f, "worker")
            for f in found
            if f.kind.repeat == "ladder" or f.kind.id in _KEPT
        ]
    if not found:
        return None
    first = next((f for f in found if f.kind.id != "unknown"), found[0])
    return next((f for f in found if f.kind.id == "lost-context"), first)


def judge(fault: Fault, allocator: Allocator | None, reading: Callable[[], Reading | None] = lambda: None) -> Fault:
    """`fault` with what only the device can decide: too large, the context, an ambiguous library, pinned memory.

    Reads free memory where CUDA runs, and by `reading` (NVML) where it does not; starts nothing; never raises.
    """
    sizes = fault.sizes
    if sizes.beyond and fault.kind.repeat == "ladder":
        return _as(fault, "wrong-size")
    if fault.kind.repeat == "never":
        return fault
    if fault.torch_allocator and allocator is not None and _foreign(sizes, allocator):
        return _as(fault, "worker")
    if sizes.requested and sizes.capacity and sizes.requested > sizes.capacity:
        return _as(fault, "too-large")
    if fault.kind.id == "gpu-memory" and _crowded(sizes):
        fault = _as(fault, "other-process")
    started = allocator is not None and bool(allocator.devices())
    if fault.kind.id == "gpu-memory-runtime" and fault.row.library == "torch" and not started:
        return _at_start(fault, allocator, reading())
    if allocator is None or not started:
        return fault
    device = sizes.device if sizes.device is not None else _fullest(allocator)
    memory = _driver(allocator, device) if device is not None else None
    if device is None or memory is None:
        return fault
    if memory == (-1, -1):
        return _as(fault, "lost-context")
    free, total = memory
    if sizes.requested and sizes.requested > total:
        return _as(fault, "too-large")
    little = free < max(LITTLE, total // 50)
    if fault.kind.repeat == "ambiguous":
        if little:
            return _as(fault, "library-handle")
        return replace(
            fault,
            sentence=f"{fault.sentence}, with plenty of GPU memory free: perhaps an index out of range or a mismatch "
            "of versions, not a lack of memory",
        )
    if fault.kind.id == "library-handle" and not little:
        return replace(
            fault,
            kind=KINDS["library-failed"],
            sentence="a CUDA library could not allocate although plenty of GPU memory is free: perhaps an index out "
            "of range or a mismatch of versions",
        )
    if fault.kind.id == "mapping" and free > total // 2:
        return replace(
            fault,
            kind=KINDS["library-failed"],
            sentence="an expandable segment could not be mapped although plenty of GPU memory is free: "
            "not every platform can map them",
        )
    if fault.kind.id == "gpu-memory-runtime" and fault.row.library != "torch" and sizes.requested:
        if sizes.requested + LITTLE <= free:
            return replace(fault, sentence=OWN_LIMIT)
        return fault
    uncached = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0") != "0"
    if fault.kind.id == "gpu-memory-runtime" and fault.row.library == "torch" and free > total // 2 and not uncached:
        return replace(
            fault,
            kind=KINDS["host-memory"],
            sentence="page-locked host memory could not be had; the GPU has plenty free",
        )
    return fault


def _at_start(fault: Fault, allocator: Allocator | None, reading: Reading | None) -> Fault:
    """The context's, unless the driver says that the card has room for it: then something of the host is short."""
    from .situation import CONTEXT, own_device

    card = own_device(reading, fault.sizes.device, allocator) if reading is not None else None
    free = card.memory.free if card is not None else None
    if free is None or free < 2 * CONTEXT:
        return _as(fault, "context")
    return replace(
        fault,
        kind=KINDS["start-up"],
        sentence=f"CUDA found no memory to start with, though the card has {bytes_text(free)} free: the host's memory, "
        "or a limit of it, is short",
    )


def _foreign(sizes: Sizes, allocator: Allocator) -> bool:
    """Whether the figures cannot be those of this process's allocator: the error is another process's, passed on."""
    device = 0 if sizes.device is None else sizes.device
    if not allocator.devices() or not sizes.allocated:
        return False
    if device not in allocator.devices():
        return sizes.allocated >= ROUNDING
    memory = _driver(allocator, device)
    total = memory[1] if memory is not None else 0
    if total > 0 and sizes.capacity is not None and abs(sizes.capacity - total) > total // 50:
        return True
    peak = allocator.stats(device).peak_allocated
    return bool(peak) and sizes.allocated > peak + peak // 50 + ROUNDING


def _crowded(sizes: Sizes) -> bool:
    """Whether the message itself says that other processes hold most of the card."""
    if sizes.capacity is None or sizes.free is None or sizes.own is None:
        return False
    return others_hold_it(sizes.capacity - sizes.free - sizes.own, sizes.own, sizes.requested or 0, sizes.capacity)


def others_hold_it(others: int, own: int, request: int, capacity: int) -> bool:
    """Whether a card is full because of other processes. All in bytes."""
    return others > max(own, request) and others > capacity // 4


def _as(fault: Fault, kind: str) -> Fault:
    return replace(fault, kind=KINDS[kind], sentence=KINDS[kind].sentence)


def _driver(allocator: Allocator, device: int) -> tuple[int, int] | None:
    """(free, total); (-1, -1) for a lost context."""
    try:
        return allocator.driver_memory(device)
    except Exception:  # noqa: BLE001 - whatever torch raises here, the context does not answer
        return (-1, -1)


def _fullest(allocator: Allocator) -> int | None:
    """The device in use with the smallest share of memory free."""
    shares = []
    for device in allocator.devices():
        memory = _driver(allocator, device)
        if memory is not None:
            shares.append((memory[0] / memory[1] if memory[1] > 0 else -1.0, device))
    return min(shares)[1] if shares else None
