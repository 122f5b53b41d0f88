"""``cuda-magic doctor | mem | env``: the same answers from a terminal.

Exit codes: 0 healthy or nothing to do, 1 findings, 2 CUDA unusable, 64 wrong usage.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .errors import CudaMagicError, UserError

__all__ = ["main"]

USAGE = 64
PIPE = 128 + 13
"""As of a program that SIGPIPE ended."""
_JSON = ("--json", "the same as JSON")
_COMMANDS: dict[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    "doctor": (
        "why CUDA does not work here, and what to do",
        "",
        (
            ("--full", "also make a first tensor on each device, in a child process (takes seconds)"),
            ("--topology", "which cards see each other by what"),
            ("--log", "CUDA's start with the loader's and the driver's logs"),
            ("--compare FILE...", "what differs between diagnoses that --json wrote on several nodes"),
            _JSON,
            ("--show-private", "leave in home folders, names and command lines: not for pasting in public"),
        ),
    ),
    "mem": (
        "who holds the memory of each GPU",
        "",
        (("--who", "the processes on each GPU, with their notebooks"), _JSON),
    ),
    "env": (
        "the environment, and whether it is in effect",
        " [NAME]",
        (
            ("NAME", "explain this variable"),
            (
                "--export FORMAT",
                "what is set, as shell, dotenv, dockerfile, docker-run, kubernetes, slurm, kernelspec, python",
            ),
            _JSON,
        ),
    ),
}
"""What each command answers, what may follow its name, and its options."""
_CODES = "exit code: 0 healthy or nothing to do, 1 findings, 2 CUDA unusable, 64 wrong usage"


def _usage(name: str) -> str:
    _, words, options = _COMMANDS[name]
    flags = " ".join(f"[{flag}]" for flag, _ in options if flag.startswith("-"))
    return f"cuda-magic {name}{words} {flags}"


def _help(name: str = "") -> str:
    """The help of one command, or of all."""
    if not name:
        wide = max(len(_usage(command)) for command in _COMMANDS)
        lines = [f"  {_usage(command).ljust(wide)}   {what}" for command, (what, _, _) in _COMMANDS.items()]
        return "\n".join(["usage: cuda-magic COMMAND [OPTION ...]", "", *lines, "", _CODES])
    what, _, options = _COMMANDS[name]
    wide = max(len(option) for option, _ in options)
    lines = [f"  {option.ljust(wide)}   {does}" for option, does in options]
    return "\n".join([f"usage: {_usage(name)}", "", f"{what[0].upper()}{what[1:]}", "", *lines, "", _CODES])


def _commands() -> dict[str, Callable[[list[str]], tuple[Any, int]]]:
    from .devices.command import mem
    from .doctor.command import doctor
    from .environment.command import env

    return {"doctor": doctor, "mem": mem, "env": env}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has read enough: no traceback, and nothing more is written at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE


def _run(arguments: Sequence[str] | None) -> int:
    """Each command takes its words and gives (result, exit code)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(words[1] if words[1:] and words[1] in _COMMANDS else ""))
        return 0 if words else USAGE
    if words[0] in ("-V", "--version"):
        from . import __version__

        print(f"cuda-magic {__version__}")
        return 0
    name, rest = words[0], words[1:]
    if name not in _COMMANDS:
        print(f"cuda-magic: no command {name!r}; there are doctor, mem and env", file=sys.stderr)
        return USAGE
    if "-h" in rest or "--help" in rest:
        print(_help(name))
        return 0
    as_json = "--json" in rest
    try:
        result, code = _commands()[name]([w for w in rest if w != "--json"])
    except CudaMagicError as error:
        print(f"cuda-magic {name}: {str(error).removeprefix(f'cuda_{name}: ')}", file=sys.stderr)
        return USAGE if isinstance(error, UserError) else 1
    print(json.dumps(result.to_dict(), indent=2) if as_json else repr(result))
    return code
