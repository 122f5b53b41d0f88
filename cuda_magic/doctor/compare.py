"""Two nodes side by side: what differs between diagnoses that ``cuda-magic doctor --json`` wrote on each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..render.blocks import Block, Table, Text, Title
from ..render.units import NA
from ..result import Result

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """What differs, one row a fact, one column a file."""

    files: tuple[str, ...]
    different: tuple[tuple[str, tuple[str, ...]], ...]
    same: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        return [{"what": what, **dict(zip(self.files, values, strict=True))} for what, values in self.different]

    def blocks(self) -> Sequence[Block]:
        if not self.different:
            return [Title(f"{len(self.files)} diagnoses, no difference"), Text(f"the same: {', '.join(self.same)}")]
        rows = [(what, *values) for what, values in self.different]
        shown: list[Block] = [Title("What differs"), Table(("", *self.files), rows)]
        return [*shown, Text(f"the same: {', '.join(self.same)}")] if self.same else shown


def _facts(diagnosis: dict[str, Any]) -> dict[str, str]:
    found = {
        "verdict": diagnosis["verdict"],
        "first finding": diagnosis["findings"][0]["id"] if diagnosis["findings"] else "(none)",
    }
    for answer in diagnosis["answers"]:
        devices = answer["devices"]
        found[answer["who"]] = f"{answer['name']}, {NA if devices is None else devices} devices"
    for version in diagnosis["versions"]:
        found[version["what"].partition(":")[0]] = (
            f"{version['what'].partition(': ')[2]} {version['version'] or NA}".strip()
        )
    return found


def compare(paths: Sequence[str]) -> Comparison:
    """What differs between the files.

    Raises
    ------
    UserError
        For fewer than two files, or one that holds no diagnosis.
    """
    if len(paths) < 2:
        raise UserError("cuda_doctor: --compare takes two files or more, each written by cuda-magic doctor --json.")
    facts = []
    for path in paths:
        try:
            facts.append(_facts(json.loads(Path(path).expanduser().read_text("utf-8"))))
        except OSError as error:
            raise UserError(f"cuda_doctor: {path} cannot be read: {error.strerror}.") from None
        except (ValueError, KeyError, TypeError, IndexError):
            raise UserError(f"cuda_doctor: {path} is no diagnosis; write one with cuda-magic doctor --json.") from None
    names = list(dict.fromkeys(name for one in facts for name in one))
    table = [(name, tuple(one.get(name, NA) for one in facts)) for name in names]
    stems = [Path(path).stem for path in paths]
    labels = stems if len(set(stems)) == len(stems) else [str(path) for path in paths]
    return Comparison(
        tuple(labels),
        tuple((name, values) for name, values in table if len(set(values)) > 1),
        tuple(name for name, values in table if len(set(values)) == 1),
    )
