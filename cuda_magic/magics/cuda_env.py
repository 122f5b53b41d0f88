"""``%cuda_env``: is my environment right, and is it in effect?"""

from __future__ import annotations

import re
from typing import Any

from ..errors import UserError
from .eye import watch
from .options import Option, Spec

_FORMATS = ("shell", "dotenv", "dockerfile", "docker-run", "kubernetes", "slurm", "kernelspec", "python")
_PRESETS = ("nvml-check", "low-fragmentation", "debug", "deterministic", "cpu-only")


def _more(event: Any) -> list[str]:
    """TAB: names, and after ``NAME=`` the values that are known."""
    from ..environment.completion import complete

    return complete(event.line, event.symbol)


SPEC = Spec(
    name="cuda_env",
    summary="Show, check, set and export the environment variables that CUDA, torch and NVML read.",
    positionals=(
        Option("assignments", "variables to set (all or none), or one name to explain", "NAME[=VALUE]", {"nargs": "*"}),
    ),
    options=(
        Option("--unset", "unset the variables named", "NAME", {"nargs": "+", "default": []}),
        Option("--devices", "make these GPUs the visible ones, numbered as nvidia-smi does", "LIST"),
        Option(
            "--preset",
            f"set one of {', '.join(_PRESETS)}; without a name list them",
            "NAME",
            {"nargs": "?", "const": ""},
            _PRESETS,
        ),
        Option("--undo", "back to what stood before the last change"),
        Option("--export", f"the variables that are set, as {', '.join(_FORMATS)}", "FORMAT", {}, _FORMATS),
        Option("--file", "set what a .env file assigns, all or none", "FILE"),
        Option("--restart", "start this kernel anew, in place, with the environment as it is now"),
        Option(
            "--cluster",
            "on every engine of an ipyparallel cluster (a profile or a connection file), all or none",
            "[PROFILE]",
            {"nargs": "?", "const": "", "metavar": "PROFILE"},
        ),
        Option("--force", "set a value although it is refused"),
    ),
    examples=(
        ("%cuda_env", "what is set, what it means, whether it is in effect"),
        ("%cuda_env CUDA_LAUNCH_BLOCKING", "explain one variable"),
        ("%cuda_env CUDA_VISIBLE_DEVICES=0,2", "check, set, and say when it takes effect"),
        ("%cuda_env --unset CUDA_LAUNCH_BLOCKING", "unset it"),
        ("%cuda_env --devices 0,2", "see only these GPUs, numbered as nvidia-smi does"),
        ("%cuda_env --preset debug", "set a preset"),
        ("%cuda_env --undo", "take the last change back"),
        ("%cuda_env --export shell", "the variables that are set, as lines for bash"),
        ("%cuda_env --file .env", "set what a file assigns"),
        ("%cuda_env --restart", "a new process in this kernel, with these variables"),
        ("%cuda_env --cluster CUDA_LAUNCH_BLOCKING=1", "set on every engine, all or none"),
        ("%cuda_env --cluster PROFILE --restart", "new engines in the place of the old, with these variables"),
        ("%cuda_env --force MY_CUDA_FLAG=1", "set it although it is refused"),
    ),
    more=_more,
)


def run(magics: Any, line: str) -> Any:
    """The result of one ``%cuda_env`` line; with ``--restart`` what was asked is done first."""
    from ..environment import typed

    if SPEC.asks_help(line):
        return None
    words = typed.assignments(typed.words(line))
    if words[:1] == ["unset"]:
        words[0] = "--unset"
    if "--cluster" in words or any(word.startswith("--cluster=") for word in words):
        return _cluster(magics, words)
    options = SPEC.parse(words)
    result = watch(magics.shell, _answer(options, line))
    if options.restart:
        from ..kernel.restart import restart

        restart(magics.shell, say=True)
    return result


def _cluster(magics: Any, words: list[str]) -> Any:
    """The same for every engine."""
    from ..environment.catalogue import CATALOGUE

    # a variable's name may follow --cluster as well as a profile's
    names = {variable.name for variable in CATALOGUE}
    made = list(words)
    for i, word in enumerate(made[:-1]):
        if word == "--cluster" and (made[i + 1] in names or "=" in made[i + 1]):
            made[i] = "--cluster="
    options = SPEC.parse(made)
    for flag in ("undo", "devices", "preset", "export", "file"):
        if getattr(options, flag) not in (None, False):
            raise UserError(
                f"cuda_env: --{flag} is asked of this kernel alone; with --cluster go NAME=VALUE and --unset."
            )
    assigned = [word for word in options.assignments if "=" in word]
    if (options.unset and options.assignments) or (assigned and len(assigned) != len(options.assignments)):
        raise UserError("cuda_env: set, unset or explain on the engines, one after the other.")
    if not assigned and len(options.assignments) > 1:
        raise UserError("cuda_env: one name at a time is explained; to set variables write NAME=VALUE.")
    from ..cluster import command

    return command.environment(
        options.cluster,
        magics.shell,
        options.assignments,
        unset=options.unset,
        force=options.force,
        restart=options.restart,
    )


def _said(line: str) -> list[str]:
    """What was done to the line before it was set, and what was not."""
    from ..environment import typed

    said = []
    if typed.expanded(line):
        said.append("$NAME and ~ were replaced by what they stand for; in single quotes they stay.")
    if re.search(r"\$\(|`", line):
        said.append("No command is run here: $(...) stays as it is.")
    if braces := re.findall(r"(?<!\$)\{([A-Za-z_]\w*)\}", line):
        said.append(f"{{{braces[0]}}} stays as it is: this notebook has no name {braces[0]}.")
    return said


def _answer(options: Any, line: str) -> Any:
    from ..environment import change, command

    words = options.assignments
    asked = [
        flag
        for flag, given in (
            ("--undo", options.undo),
            ("--unset", options.unset),
            ("--devices", options.devices is not None),
            ("--preset", options.preset is not None),
            ("--export", options.export is not None),
            ("--file", options.file is not None),
            ("NAME", words),
        )
        if given
    ]
    if len(asked) > 1:
        raise UserError(f"cuda_env: {asked[0]} and {asked[1]} are two questions; ask them one after the other.")
    if options.undo:
        return command.undo()
    if options.unset:
        return command.unset_all(options.unset)
    if options.devices is not None:
        return command.set_devices(options.devices)
    if options.preset is not None:
        return command.preset(options.preset)
    if options.export is not None:
        return command.export_all(options.export)
    if options.file is not None:
        return command.set_file(options.file, options.force)
    if not words:
        return None if options.restart else command.listing()
    if any("=" in word for word in words):
        return command.set_all(words, options.force, change.quoted(line), _said(line))
    if len(words) > 1:
        raise UserError("cuda_env: one name at a time is explained; to set variables write NAME=VALUE.")
    return command.explain(words[0])
