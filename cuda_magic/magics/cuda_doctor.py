"""``%cuda_doctor``: why does CUDA not work here, and what do I do?"""

from __future__ import annotations

from typing import Any

from .eye import watch
from .options import Option, Spec

SPEC = Spec(
    name="cuda_doctor",
    summary="Find out why CUDA does not work here, cause first, with a line to run for each finding.",
    options=(
        Option("--json", "the diagnosis as JSON, for programs (schema in docs/doctor.md)"),
        Option("--full", "also make a first tensor on each device, in a child process (takes seconds)"),
        Option(
            "--cluster",
            "every engine of an ipyparallel cluster (a profile or a connection file), odd ones first",
            "[PROFILE]",
            {"nargs": "?", "const": "", "metavar": "PROFILE"},
        ),
        Option("--show-private", "leave in home folders, names and command lines: not for pasting in public"),
    ),
    examples=(
        ("%cuda_doctor", "all checks; CUDA is tried in a child process, never in this kernel"),
        ("%cuda_doctor --full", "with a first allocation on each device"),
        ("%cuda_doctor --json", "the same as JSON"),
        ("%cuda_doctor --cluster", "every engine's diagnosis in one table, odd ones first"),
        ("found = %cuda_doctor", "keep it: found.findings[0].id, found.to_dataframe()"),
    ),
)


def run(magics: Any, line: str) -> Any:
    """The diagnosis; with ``--json`` its text is printed."""
    if SPEC.asks_help(line):
        return None
    options = SPEC.parse(line)
    found: Any
    if options.cluster is not None:
        from ..cluster import command

        found = command.doctor(options.cluster, magics.shell, options.full, options.show_private)
    else:
        from ..doctor.command import look

        found = look(full=options.full, show_private=options.show_private)
    if not options.json:
        return watch(magics.shell, found)
    import json

    print(json.dumps(found.to_dict(), indent=2))  # noqa: T201 - the text is what was asked for
    return None
