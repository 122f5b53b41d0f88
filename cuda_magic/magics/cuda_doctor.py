"""``%cuda_doctor``: why does CUDA not work here, and what do I do?"""

from __future__ import annotations

from typing import Any

from .options import Spec

SPEC = Spec(
    name="cuda_doctor",
    summary="Find out why CUDA does not work here, cause first, with a line to run for each finding.",
    examples=(("%cuda_doctor", "all checks; CUDA is tried in a child process, never in this kernel"),),
)


def run(magics: Any, line: str) -> Any:
    """The diagnosis."""
    raise NotImplementedError
