"""Numbers as people read them. Unknown is ``n/a``; never 0, never a guess."""

from __future__ import annotations

import re

__all__ = ["NA", "amount", "bytes_text", "parse_bytes", "seconds_text"]

NA = "n/a"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE)


def bytes_text(count: int | None) -> str:
    """`count` bytes in binary units: ``1.50 GiB``; ``n/a`` for None."""
    if count is None:
        return NA
    sign, value = ("-", -count) if count < 0 else ("", count)
    if value < 1024:
        return f"{sign}{value} bytes"
    scaled = float(value)
    unit = 0
    while round(scaled, 2) >= 1024 and unit < len(_UNITS) - 1:
        scaled /= 1024
        unit += 1
    return f"{sign}{scaled:.2f} {_UNITS[unit]}"


def parse_bytes(text: str) -> int:
    """Bytes of ``2 GiB``, ``512MB``, ``1.5g`` or ``1048576``; units are binary, as torch's are.

    Raises
    ------
    ValueError
        If `text` is not a number with an optional unit.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size such as '2 GiB' or '512MB'")
    return int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


def seconds_text(seconds: float | None) -> str:
    """`seconds` with a unit that fits: ``27 ms``, ``1.3 s``, ``2 min 5 s``."""
    if seconds is None:
        return NA
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def amount(value: float | int | None, unit: str = "") -> str:
    """`value` followed by `unit`, or ``n/a``."""
    if value is None:
        return NA
    shown = f"{value:.0f}" if isinstance(value, float) else str(value)
    return f"{shown}{unit}"
