"""``%cuda_env``: is my environment right, and is it in effect?"""

from __future__ import annotations

from typing import Any

from .options import Option, Spec

SPEC = Spec(
    name="cuda_env",
    summary="Show, check, set and export the environment variables that CUDA, torch and NVML read.",
    positionals=(
        Option("assignments", "variables to set (all or none), or one name to explain", "NAME[=VALUE]", {"nargs": "*"}),
    ),
    options=(),
    examples=(
        ("%cuda_env", "what is set, what it means, whether it is in effect"),
        ("%cuda_env CUDA_VISIBLE_DEVICES=0,2", "check, set, and say when it takes effect"),
    ),
)


def run(magics: Any, line: str) -> Any:
    """The result of one ``%cuda_env`` line."""
    raise NotImplementedError
