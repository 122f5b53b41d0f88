"""``%cuda_doctor``: why does CUDA not work here, and what do I do?"""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from .eye import watch
from .options import Option, Spec

SPEC = Spec(
    name="cuda_doctor",
    summary="Find out why CUDA does not work here, cause first, with a line to run for each finding.",
    options=(
        Option("--json", "the diagnosis as JSON, for programs (schema in docs/doctor.md)"),
        Option("--full", "also make a first tensor on each device, in a child process (takes seconds)"),
        Option("--topology", "which cards see each other by what (NVLink, PCIe, processors)"),
        Option("--log", "start CUDA in a child process with the loader's and the driver's logs on, and show them"),
        Option(
            "--compare", "what differs between diagnoses of several nodes", "FILE...", {"nargs": "+", "metavar": "FILE"}
        ),
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
        ("%cuda_doctor --topology", "a table of the cards"),
        ("%cuda_doctor --log", "a log of CUDA's start"),
        ("%cuda_doctor --compare a.json b.json", "two nodes (cuda-magic doctor --json > a.json on each)"),
        ("found = %cuda_doctor", "keep it: found.findings[0].id, found.to_dataframe()"),
    ),
)


def run(magics: Any, line: str) -> Any:
    """The diagnosis; with ``--json`` its text is printed."""
    if SPEC.asks_help(line):
        return None
    options = SPEC.parse(line)
    found: Any
    asked = [name for name in ("topology", "log", "compare", "cluster") if getattr(options, name) not in (None, False)]
    if len(asked) > 1:
        raise UserError(f"cuda_doctor: --{asked[0]} and --{asked[1]} are two questions; ask them one after the other.")
    if options.topology or options.log or options.compare:
        from ..doctor.command import other

        found = other(asked[0], options.compare or (), options.full, options.show_private)
    elif options.cluster is not None:
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
