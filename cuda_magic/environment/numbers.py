"""How C++ reads numbers (std::stoull, std::stoi, std::stod): a prefix counts, the rest is silently dropped."""

from __future__ import annotations

import math
import re

__all__ = ["WORD", "power_of_two", "read_int", "read_real", "read_size"]

WORD = 2**64
"""Unsigned 64-bit numbers wrap around here: -1 is the largest of them."""
_WHOLE = re.compile(r"\s*([+-]?)([0-9]+)")
_REAL = re.compile(
    r"\s*([+-]?)(?:(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?)"
    r"|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(inf(?:inity)?|nan))",
    re.IGNORECASE,
)


def read_size(text: str) -> tuple[int, str]:
    """(number, dropped rest) as std::stoull reads.

    Raises
    ------
    ValueError
        If no number starts `text`, or it does not fit 64 bits.
    """
    match = _WHOLE.match(text)
    if not match:
        raise ValueError("it takes a whole number")
    value = int(match[2])
    if value >= WORD:
        raise ValueError("the number is too large")
    return (WORD - value) % WORD if match[1] == "-" else value, text[match.end() :]


def read_int(text: str) -> tuple[int, str]:
    """(number, dropped rest) as std::stoi reads; a negative one is then taken as an unsigned of 64 bits.

    Raises
    ------
    ValueError
        If no number starts `text`, or it does not fit 32 bits.
    """
    match = _WHOLE.match(text)
    if not match:
        raise ValueError("it takes a whole number")
    value = int(match[1] + match[2])
    if not -(2**31) <= value < 2**31:
        raise ValueError("the number is too large")
    return value % WORD, text[match.end() :]


def read_real(text: str) -> tuple[float, str]:
    """(number, dropped rest) as std::stod reads.

    Raises
    ------
    ValueError
        If no number starts `text`, or it is too large or too small for a double.
    """
    match = _REAL.match(text)
    if not match:
        raise ValueError("it takes a number")
    sign, hexadecimal, decimal, special = match.groups()
    rest = text[match.end() :]
    try:
        value = float.fromhex(hexadecimal) if hexadecimal else float(decimal or special)
    except OverflowError:
        raise ValueError("the number is too large") from None
    digits = re.split("[pP]" if hexadecimal else "[eE]", hexadecimal or decimal or "")[0]
    zero = not re.search(r"[1-9a-fA-F]", digits[2:] if hexadecimal else digits)
    if not special and math.isinf(value):
        raise ValueError("the number is too large")
    if not special and not zero and abs(value) < 2.2250738585072014e-308:  # the smallest normal double
        raise ValueError("the number is too small")
    return -value if sign == "-" else value, rest


def power_of_two(value: int) -> bool:
    """Whether `value` is 1, 2, 4, ..."""
    return value > 0 and value & (value - 1) == 0
