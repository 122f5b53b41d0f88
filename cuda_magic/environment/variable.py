"""What one row of the catalogue says of a variable, and the checks of values that rows share.

`read` says at which moment the value is read, and with that until when a change still takes effect:

always      at each call                                    a change takes effect at once
process     when a process starts (by the loader or Python)
import      when torch is imported
cuinit      when CUDA starts in the process (cuInit; torch.cuda.is_available() is enough)
context     when the first context is created (the first tensor on a GPU)
init        when torch initialises CUDA, which is before its first context
use         at the first use of the feature; `first_use` names it
container   when the container is created: nothing in a notebook changes it
never       by nothing
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Variable", "integer", "number", "one_of", "real", "whole", "workspace"]


def one_of(*legal: str, case: bool = True) -> Callable[[str], str]:
    known = legal if case else tuple(word.lower() for word in legal)

    def check(value: str) -> str:
        return "" if (value if case else value.lower()) in known else f"legal values are {', '.join(legal)}"

    return check


def integer(lists: bool = False) -> Callable[[str], str]:
    """A whole number, of either sign; with `lists` several with commas."""

    def check(value: str) -> str:
        words = value.split(",") if lists else [value]
        return "" if all(re.fullmatch(r"\s*[+-]?[0-9]+\s*", word) for word in words) else "it takes a whole number"

    return check


def number() -> Callable[[str], str]:
    """What Python's float() takes."""

    def check(value: str) -> str:
        try:
            float(value)
        except ValueError:
            return "it takes a number"
        return ""

    return check


def whole(low: int, high: int) -> Callable[[str], str]:
    def check(value: str) -> str:
        fits = re.fullmatch(r"\d+", value) and low <= int(value) <= high
        return "" if fits else f"it takes a whole number from {low} to {high}"

    return check


def anything(value: str) -> str:
    return ""


def workspace(value: str) -> str:
    return "" if re.fullmatch(r"(:\d+:\d+)+", value) else "it takes :KiB:count, for example :4096:8"


def real(low: float, high: float) -> Callable[[str], str]:
    def check(value: str) -> str:
        try:
            fits = low <= float(value) <= high
        except ValueError:
            fits = False
        return "" if fits else f"it takes a number from {low:g} to {high:g}"

    return check


@dataclass(frozen=True)
class Variable:
    """One variable. `check` gives what is wrong with a value, or an empty string; that is said, and refused only where
    the reader is known to raise (`refuses`).
    """

    name: str
    meaning: str
    read: str
    check: Callable[[str], str] = anything
    values: tuple[str, ...] = ()
    """Values that TAB offers."""
    legal: str = ""
    """Legal values in words."""
    default: str = ""
    late: str = ""
    """What to do when it is too late."""
    myth: str = ""
    """What circulates about it and is wrong, with the right fact."""
    first_use: str = ""
    since: tuple[int, int] | None = None
    """The first torch release that reads it."""
    documented: bool = False
    """From vendors' documentation; not tried by us."""
    refuses: bool = False
    """The reader raises on a value that `check` finds fault with."""
    source: str = "measured"
    """The reader: where the value is read, and how that is known."""
