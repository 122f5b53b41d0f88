"""``%cuda_env``: is my environment right, and is it in effect?"""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from .options import Option, Spec


def _names(event: Any) -> list[str]:
    """TAB: names, and after ``NAME=`` the values that are known."""
    from ..environment.catalogue import CATALOGUE, find

    name, equals, typed = event.symbol.partition("=")
    if equals:
        variable = find(name)
        values = variable.values if variable else ()
        return [f"{name}={v}" for v in values if v.startswith(typed)]
    return [v.name for v in CATALOGUE if v.name.startswith(name)]


SPEC = Spec(
    name="cuda_env",
    summary="Show, check and set the environment variables that CUDA, torch and NVML read.",
    positionals=(
        Option("assignments", "variables to set (all or none), or one name to explain", "NAME[=VALUE]", {"nargs": "*"}),
    ),
    options=(
        Option("--unset", "unset the variables named", "NAME", {"nargs": "+", "default": []}),
        Option("--undo", "back to what stood before the last change"),
        Option("--force", "set a value although it is refused"),
    ),
    examples=(
        ("%cuda_env", "what is set, what it means, whether it is in effect"),
        ("%cuda_env CUDA_LAUNCH_BLOCKING", "explain one variable"),
        ("%cuda_env CUDA_VISIBLE_DEVICES=0,2", "check, set, and say when it takes effect"),
        ("%cuda_env --unset CUDA_LAUNCH_BLOCKING", "unset it"),
        ("%cuda_env --undo", "take the last change back"),
        ("%cuda_env --force MY_CUDA_FLAG=1", "set it although it is refused"),
    ),
    more=_names,
)


def run(magics: Any, line: str) -> Any:
    """The result of one ``%cuda_env`` line."""
    from ..environment import change, command

    options = SPEC.parse(change.words(line))
    words = options.assignments
    if options.undo:
        return command.undo()
    if options.unset:
        return command.unset_all(options.unset)
    if not words:
        return command.listing()
    if any("=" in word for word in words):
        return command.set_all(words, options.force)
    if len(words) > 1:
        raise UserError("cuda_env: one name at a time is explained; to set variables write NAME=VALUE.")
    return command.explain(words[0])
