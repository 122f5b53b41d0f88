"""``cuda-magic doctor | mem | env``: the same answers from a terminal.

Exit codes: 0 healthy or nothing to do, 1 findings, 2 CUDA unusable, 64 wrong usage.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .errors import CudaMagicError, UserError

__all__ = ["main"]

USAGE = 64
_HELP = """usage: cuda-magic COMMAND [OPTION ...]

  doctor   why CUDA does not work here, and what to do   [--json] [--full] [--show-private]
  mem      who holds the memory of each GPU              [--json]
  env      the environment, and whether it is in effect  [NAME ...] [--json] [--export FORMAT]

exit code: 0 healthy or nothing to do, 1 findings, 2 CUDA unusable, 64 wrong usage"""


def _commands() -> dict[str, Callable[[list[str]], tuple[Any, int]]]:
    from .devices.command import mem
    from .doctor.command import doctor
    from .environment.command import env

    return {"doctor": doctor, "mem": mem, "env": env}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code. Each command takes its words and gives (result, exit code)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_HELP)
        return 0 if words else USAGE
    if words[0] in ("-V", "--version"):
        from . import __version__

        print(f"cuda-magic {__version__}")
        return 0
    name, rest = words[0], words[1:]
    if name not in ("doctor", "mem", "env"):
        print(f"cuda-magic: no command {name!r}; there are doctor, mem and env", file=sys.stderr)
        return USAGE
    as_json = "--json" in rest
    try:
        result, code = _commands()[name]([w for w in rest if w != "--json"])
    except UserError as error:
        print(f"cuda-magic {name}: {error}", file=sys.stderr)
        return USAGE
    except CudaMagicError as error:
        print(f"cuda-magic {name}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result.to_dict(), indent=2) if as_json else repr(result))
    return code
