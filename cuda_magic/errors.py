"""The exceptions that cuda_magic raises, all below one base.

CudaMagicError
├── UserError        a mistake in what was typed: unknown option, illegal value
├── Refused          what was asked is understood, and not done, with the reason
└── Missing          an optional package or a piece of hardware is not there
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["CudaMagicError", "Missing", "Refused", "UserError", "nearest"]


class CudaMagicError(Exception):
    """One clear sentence, shown without a stack of our frames, that fails the cell.

    IPython's ``UsageError`` produces no error output, so nbclient, papermill and nbval would go on after it.
    ``_render_traceback_`` is the hook that IPython and ipykernel ask instead (seen on IPython 7.34 to 9.18).
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class UserError(CudaMagicError):
    """What was typed is not legal; the sentence names the nearest legal thing."""


class Refused(CudaMagicError):
    """What was asked is understood and would do harm, or nothing; the sentence says why and what to do instead."""


class Missing(CudaMagicError):
    """An optional package is not installed; the sentence gives the line that installs it."""


def nearest(word: str, known: Iterable[object]) -> str:
    """`` Did you mean 'X'?`` for the known word closest to `word`, or an empty string."""
    import difflib  # only for a mistake: loading stays light

    names = [k for k in known if isinstance(k, str)]
    match = [k for k in names if k.lower() == word.lower()] or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f" Did you mean {match[0]!r}?" if match else ""
