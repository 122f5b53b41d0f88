"""The doctor's answer: a verdict, causes in order, the symptoms they explain, and the versions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..render.blocks import Block, Code, Note, Table, Text, Title
from ..render.units import NA
from ..result import Result
from .checks import CHECKS
from .codes import nvml_name
from .facts import Facts
from .finding import ERROR, INFO, Finding, order, run
from .private import clean
from .versions import release

__all__ = ["SCHEMA_VERSION", "Answer", "Diagnosis", "Version", "diagnose"]

SCHEMA_VERSION = 1
"""Raised when a field of the JSON changes its meaning or goes; new fields do not raise it."""

HEALTHY, FINDINGS, UNUSABLE = "healthy", "findings", "unusable"
_EXIT = {HEALTHY: 0, FINDINGS: 1, UNUSABLE: 2}


@dataclass(frozen=True)
class Version:
    """One row of the versions. `verdict` is empty where nothing can be said."""

    what: str
    version: str | None
    verdict: str = ""


@dataclass(frozen=True)
class Answer:
    """What NVML or CUDA answered."""

    who: str
    code: int | None
    name: str
    devices: int | None


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What is wrong, if anything."""

    schema_version: int
    label: str
    verdict: str
    """``healthy``, ``findings`` or ``unusable``."""
    sentence: str
    safe_to_fork: bool
    """Whether a child forked from this process can start CUDA."""
    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    explained: tuple[Finding, ...]
    """Symptoms, each with the id of the finding that explains it."""
    versions: tuple[Version, ...]
    checks: tuple[str, ...]
    """Ids of the checks that ran."""
    failed_checks: tuple[str, ...] = ()
    """Ids of checks that failed themselves: nothing is known from them."""
    startup_seconds: float | None = None
    processes: tuple[str, ...] = field(default=())
    """With ``--show-private``: the processes on the cards with their command lines."""

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 findings, 2 CUDA unusable."""
        return _EXIT[self.verdict]

    @property
    def usable(self) -> bool:
        """Whether CUDA can be used here."""
        return self.verdict != UNUSABLE

    def verdict_line(self) -> str:
        if self.verdict == HEALTHY:
            return ""
        first = self.findings[0] if self.findings else None
        return f"cuda_doctor: {self.sentence}" + (f" {first.seen}  [{first.id}]" if first is not None else "")

    def rows(self) -> list[dict[str, Any]]:
        """One row a finding, causes first."""
        return [{f: getattr(one, f) for f in Finding.__dataclass_fields__} for one in (*self.findings, *self.explained)]

    def blocks(self) -> Sequence[Block]:
        """Verdict, findings, symptoms, the two answers, versions."""
        shown: list[Block] = [Title(f"cuda_doctor: {self.sentence}", self.label)]
        # without hardware there is nothing to compare: calm and short
        bare = self.findings and self.findings[0].id == "driver.none"
        for finding in self.findings[:1] if bare else self.findings:
            shown.append(Note(finding.severity, f"{finding.seen}  [{finding.id}]\n{finding.means}"))
            shown += _todo(finding.do)
        if bare:
            return shown
        if self.explained:
            # what contradicts itself is told in full, the rest in a line
            lines = [f"{one.seen} {one.means}" if one.severity == INFO else one.seen for one in self.explained]
            shown.append(Text("Explained by the above:\n" + "\n".join(f"- {line}" for line in lines)))
        shown.append(Table(("asked", "answer", "devices"), [_answer(a) for a in self.answers], frozenset({2})))
        if self.versions:
            rows = [(v.what, v.version or NA, v.verdict) for v in self.versions]
            shown.append(Table(("version of", "is", "verdict"), rows))
        shown.append(Text(f"safe to fork: {'yes' if self.safe_to_fork else 'no'}"))
        if self.processes:
            shown.append(Text("\n".join(self.processes)))
        if self.failed_checks:
            shown.append(Text(f"not checked (these checks failed): {', '.join(self.failed_checks)}"))
        return shown


def _todo(do: str) -> list[Block]:
    """Sentences as text, lines to run as code, in their order."""
    shown: list[Block] = []
    for line in do.split("\n") if do else ():
        code = line[:2] == "$ " or line[:1] == "%" or line.startswith("multiprocessing.")
        kind: type[Code] | type[Text] = Code if code else Text
        if shown and isinstance(shown[-1], kind):
            shown[-1] = kind(f"{shown[-1].text}\n{line}")
        else:
            shown.append(kind(line))
    return shown


def _answer(answer: Answer) -> tuple[str, str, str]:
    text = answer.name if answer.code is None else f"{answer.code} {answer.name}"
    return answer.who, text, NA if answer.devices is None else str(answer.devices)


def diagnose(facts: Facts, show_private: bool = False) -> Diagnosis:
    """Judge `facts` by every check.

    Parameters
    ----------
    facts
        Of this machine (`cuda_magic.machine.machine().facts()`), or of a situation.
    show_private
        Leave home folders and names in, and add the command lines of the processes on the cards.
    """
    found, failed = run(CHECKS, facts)
    causes, symptoms = order(found)
    if not show_private:
        causes, symptoms = (tuple(_cleaned(one) for one in group) for group in (causes, symptoms))
    verdict = _verdict(causes) if facts.startup.ok else UNUSABLE  # healthy is said only of what answered
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        label=facts.label,
        verdict=verdict,
        sentence=_sentence(verdict, causes, facts)
        + (" Not everything could be checked." if failed or facts.unknown else ""),
        safe_to_fork=not facts.kernel.cuda_started and not facts.kernel.bad_fork,
        answers=_answers(facts),
        findings=causes,
        explained=symptoms,
        versions=_versions(facts, {one.id for one in causes}),
        checks=tuple(check.id for check in CHECKS),
        failed_checks=(*failed, *(f"facts of {one}" for one in facts.unknown)),
        startup_seconds=facts.startup.seconds,
        processes=_processes(facts) if show_private else (),
    )


def _cleaned(finding: Finding) -> Finding:
    return replace(finding, seen=clean(finding.seen), means=clean(finding.means), do=clean(finding.do))


def _verdict(causes: Sequence[Finding]) -> str:
    if any(one.unusable for one in causes):
        return UNUSABLE
    return FINDINGS if any(one.severity != INFO for one in causes) else HEALTHY


def _sentence(verdict: str, causes: Sequence[Finding], facts: Facts) -> str:
    s = facts.startup
    devices = f"{s.device_count} device{'' if s.device_count == 1 else 's'}"
    if verdict != UNUSABLE:
        does = "works" if s.allocated else "starts"
        more = ", with something to look at." if verdict == FINDINGS else "."
        return f"CUDA {does} here, {devices}{more}" + ("" if s.allocated else " No tensor was tried (--full does).")
    if not causes or causes[0].id in ("startup.not-tried", "startup.silent", "startup.unclear"):
        return "CUDA could not be tried here."
    if causes[0].id == "driver.none":
        here = facts.platform.service or facts.platform.batch
        return "no GPU was given to this session." if here else "no CUDA here, and nothing to repair."
    return "CUDA cannot be used here." if causes[0].severity == ERROR else "CUDA cannot be used as things stand."


def _answers(facts: Facts) -> tuple[Answer, ...]:
    status, s = facts.nvml.status, facts.startup
    nvml_count = sum(1 for d in facts.nvml.devices if d.parent is None) if status.ok else None
    name = nvml_name(status.code) if status.code is not None else clean(status.sentence)
    return (
        Answer("NVML", status.code, name, nvml_count),
        Answer(
            "CUDA (cuInit in a child process)",
            s.code,
            s.error if s.code is not None else clean(s.sentence),
            s.device_count,
        ),
    )


def _versions(facts: Facts, ids: set[str]) -> tuple[Version, ...]:
    """Driver, torch and its libraries, cards; a verdict only where the facts carry one."""
    s, torch = facts.startup, facts.torch
    driver = facts.nvml.driver_version or facts.driver.module_version
    shown = [Version("driver", driver, f"supports up to CUDA {s.driver_cuda}" if s.driver_cuda else "")]
    if torch is None:
        shown.append(Version("torch", None, "not installed"))
    else:
        shown.append(Version("torch", torch.version, "" if torch.cuda or torch.hip else "a build without CUDA"))
    if torch is not None and torch.cuda:
        shown.append(Version("CUDA of torch", torch.cuda, _fit(torch.cuda, s.driver_api)))
        shown += [Version(what, v) for what, v in (("cuDNN", torch.cudnn), ("NCCL", torch.nccl)) if v]
    for d in s.devices:
        if d.compute_capability is not None:
            dotted = ".".join(map(str, d.compute_capability))
            bad = "torch.no-code-for-card" in ids
            shown.append(Version(f"device {d.index}: {d.name or NA}", dotted, "see above" if bad else ""))
    return tuple(shown)


def _fit(cuda: str, api: int | None) -> str:
    need = release(cuda)
    if need is None or api is None:
        return ""
    have = (api // 1000, api % 1000 // 10)
    if have[0] < need[0]:
        return "driver too old"
    return "fine" if have >= need else "fine within the major version"


def _processes(facts: Facts) -> tuple[str, ...]:
    return tuple(
        f"process {h.pid}: {h.command or h.name or NA}"
        if h.visible
        else f"process {h.pid}: outside of what is seen here"
        for h in facts.holders
    )
