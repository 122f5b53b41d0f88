"""``cuda-magic doctor`` and ``%cuda_doctor``: the diagnosis of the machine in use."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError, nearest
from ..machine import machine
from ..result import Result
from .diagnosis import Diagnosis, diagnose

__all__ = ["FLAGS", "doctor", "look"]

OTHER = ("--topology", "--log", "--compare")
FLAGS = ("--full", *OTHER, "--show-private")


def look(full: bool = False, show_private: bool = False) -> Diagnosis:
    """Gather the facts of the machine in use and judge them."""
    return diagnose(machine().facts(full=full), show_private=show_private)


def other(asked: str, files: Sequence[str] = (), full: bool = False, show_private: bool = False) -> Result:
    """The answers beside the diagnosis: `asked` is ``topology``, ``log`` or ``compare``."""
    if asked == "topology":
        from .topology import topology

        return topology()
    if asked == "log":
        from .startlog import start_log

        return start_log(full, show_private)
    from .compare import compare

    return compare(files)


def doctor(words: Sequence[str]) -> tuple[Result, int]:
    """The diagnosis and the exit code: 0 healthy, 1 findings, 2 CUDA unusable; of a comparison 1 where nodes differ.

    Raises
    ------
    UserError
        For an unknown word.
    """
    asked = [word for word in words if word in OTHER]
    if asked:
        rest = [word for word in words if word not in FLAGS]
        if len(asked) > 1 or (rest and asked[0] != "--compare") or any(word.startswith("-") for word in rest):
            raise UserError(f"{asked[0]} stands alone" + (", with its files" if asked[0] == "--compare" else "") + ".")
        answer = other(asked[0][2:], rest, "--full" in words, "--show-private" in words)
        return answer, int(bool(getattr(answer, "different", ())))
    for word in words:
        if word not in FLAGS:
            known = (*FLAGS, "--json")
            raise UserError(f"unknown option {word}.{nearest(word, known) or ' Options: ' + ', '.join(known)}")
    found = look(full="--full" in words, show_private="--show-private" in words)
    return found, found.exit_code
