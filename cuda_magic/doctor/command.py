"""``cuda-magic doctor`` and ``%cuda_doctor``: the diagnosis of the machine in use."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError, nearest
from ..machine import machine
from .diagnosis import Diagnosis, diagnose

__all__ = ["FLAGS", "doctor", "look"]

FLAGS = ("--full", "--show-private")


def look(full: bool = False, show_private: bool = False) -> Diagnosis:
    """Gather the facts of the machine in use and judge them."""
    return diagnose(machine().facts(full=full), show_private=show_private)


def doctor(words: Sequence[str]) -> tuple[Diagnosis, int]:
    """The diagnosis and the exit code: 0 healthy, 1 findings, 2 CUDA unusable.

    Raises
    ------
    UserError
        For an unknown word.
    """
    for word in words:
        if word not in FLAGS:
            known = (*FLAGS, "--json")
            raise UserError(f"unknown option {word}.{nearest(word, known) or ' Options: ' + ', '.join(known)}")
    found = look(full="--full" in words, show_private="--show-private" in words)
    return found, found.exit_code
