"""A finding, a check, and the order in which findings are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .facts import Facts

__all__ = ["ERROR", "INFO", "WARNING", "Check", "Finding", "order", "run"]

INFO, WARNING, ERROR = "info", "warning", "error"
_RANK = {ERROR: 0, WARNING: 1, INFO: 2}


@dataclass(frozen=True)
class Finding:
    """One thing that was found. `id` and `family` are the check's."""

    severity: str
    seen: str
    means: str
    do: str = ""
    """What to do: sentences, and lines to run that begin with ``$ `` (a shell) or ``%`` (a notebook)."""
    source: str = ""
    unusable: bool = False
    """True where CUDA cannot be used because of it."""
    id: str = ""
    family: str = ""
    explained_by: str = ""
    """The id of the finding of which this one is a symptom."""


@dataclass(frozen=True)
class Check:
    """A row of the table of checks: a function from facts to a finding, and the symptoms that it explains."""

    id: str
    judge: Callable[[Facts], Finding | None]
    explains: tuple[str, ...] = ()
    """Ids of symptoms; ``startup.`` stands for all ids that begin so."""

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]

    def covers(self, symptom: str) -> bool:
        return symptom != self.id and any(
            symptom.startswith(e) if e.endswith(".") else symptom == e for e in self.explains
        )


def run(checks: Iterable[Check], facts: Facts) -> tuple[list[tuple[Check, Finding]], list[str]]:
    """What each check found, in the table's order, and the ids of checks that failed themselves."""
    found, failed = [], []
    for check in checks:
        try:
            finding = check.judge(facts)
        except Exception:  # noqa: BLE001 - one broken check must not hide the others
            failed.append(check.id)
            continue
        if finding is not None:
            found.append((check, replace(finding, id=check.id, family=check.family)))
    return found, failed


def order(found: Sequence[tuple[Check, Finding]]) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Causes, the one to act on first, and the symptoms that they explain.

    What makes CUDA unusable comes first, then by severity, then by the table's order: causes stand above effects there.
    """

    def rank(finding: Finding) -> tuple[bool, int]:
        return not finding.unusable, _RANK[finding.severity]

    ranked = sorted(found, key=lambda pair: rank(pair[1]))
    causes: list[Finding] = []
    symptoms: list[Finding] = []
    by: dict[str, str] = {}
    # A symptom that another finding explains does not explain anything itself.
    for check, finding in ranked:
        for _, other in ranked:
            # what only may do harm (a limit under which CUDA has started before, say) does not explain a failure
            if not finding.unusable and rank(finding) > rank(other):
                continue
            if check.covers(other.id) and finding.id not in by and by.get(finding.id) != other.id:
                by.setdefault(other.id, finding.id)
    for _, finding in ranked:
        if finding.id in by:
            symptoms.append(replace(finding, explained_by=by[finding.id]))
        else:
            causes.append(finding)
    return tuple(causes), tuple(symptoms)
