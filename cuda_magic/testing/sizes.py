"""Sizes as users write them."""

from __future__ import annotations

from ..errors import UserError
from ..render.units import parse_bytes

__all__ = ["size"]


def size(given: str | int) -> int:
    """Bytes of ``"2 GiB"``, or of a number of bytes.

    Raises
    ------
    UserError
        If `given` is no size.
    """
    if isinstance(given, int):
        return given
    try:
        return parse_bytes(given)
    except ValueError as error:
        raise UserError(f"{error}") from None
