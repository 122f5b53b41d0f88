"""What arrays and frames hold, marked before a statement that may write to them: a checksum of their bytes."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable
from typing import Any

from .boxes import MOST

__all__ = ["of_array", "of_frame"]

WHOLE = 1 << 20
"""Bytes of an array up to which each of them counts; of a larger one both ends and about 4000 items between."""


def of_array(value: Any, kind: type, numbers: list[Any]) -> Iterable[Any]:
    if kind.__name__ == "SeedSequence":
        numbers.append(value.n_children_spawned)
    elif hasattr(kind, "random_raw"):  # a bit generator
        numbers.append(repr(value.state))
    numpy = sys.modules.get("numpy")
    if numpy is None or not issubclass(kind, numpy.ndarray):
        return ()
    values = value.view(numpy.ndarray)
    numbers += (values.shape, values.strides, str(values.dtype))
    if values.dtype.hasobject:
        return values.ravel().tolist() if values.size <= MOST and values.dtype == object else ()
    if values.nbytes <= WHOLE:
        numbers.append(zlib.crc32(values.tobytes()))
    else:
        flat = (
            values.reshape(-1)
            if values.flags.c_contiguous
            else values.T.reshape(-1)
            if values.flags.f_contiguous
            else None
        )
        if flat is not None:
            for part in (flat[:MOST], flat[:: max(1, flat.size // 4000)], flat[-MOST:]):
                numbers.append(zlib.crc32(part.tobytes()))
    return ()


def of_frame(value: Any) -> Iterable[Any]:
    """The arrays of a frame or a series of pandas'."""
    try:
        manager = value._mgr
        return (manager, *manager.axes, *manager.arrays)
    except (AttributeError, TypeError):
        return ()
