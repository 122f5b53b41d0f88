"""What %cuda_env shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..render.blocks import Block, Code, Note, Table, Text, Title
from ..result import Result
from .verdict import Verdict

__all__ = ["Environment", "Explanation", "Export", "Presets", "VisibleDevice"]

WARNED = ("invalid", "no effect", "after a kernel restart", "not read by this torch")


@dataclass(frozen=True)
class VisibleDevice:
    """One card that the process sees: `cuda` is its number there, `index` its number for NVML and nvidia-smi."""

    cuda: int
    index: int
    name: str | None
    uuid: str | None


@dataclass(frozen=True, repr=False)
class Environment(Result):
    """The variables that are set, or those that were just changed."""

    moment: str
    variables: tuple[Verdict, ...]
    title: str = "CUDA environment"
    devices: tuple[VisibleDevice, ...] | None = None
    """The cards that CUDA_VISIBLE_DEVICES leaves, where it is among `variables` and they can be read."""
    hints: tuple[str, ...] = ()
    label: str = ""
    now: tuple[VisibleDevice, ...] | None = None
    """The cards that the CUDA of this process sees, once it has started and where that is known."""
    started: bool = False
    """Whether CUDA has started in this process: `devices` are then what a new one would see."""

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"name": v.name, "value": v.value, "state": v.state, "note": v.note, "known": v.known}
            for v in self.variables
        ]

    def verdict_line(self) -> str:
        wrong = [v for v in self.variables if v.warn or v.state in WARNED]
        return "\n".join(f"cuda_env: {v.name}: {'; '.join(filter(None, [v.state, v.note]))}" for v in wrong)

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = [Title(self.title, self.label), Text(self.moment)]
        if not self.variables:
            blocks.append(Text("None of the variables that CUDA or torch read is set; their defaults hold."))
        else:
            shown = [
                (v.name, "(not set)" if v.value is None else v.value or "(empty)", v.state) for v in self.variables
            ]
            blocks.append(Table(("variable", "value", "state"), shown))
        for v in self.variables:
            if v.note:
                blocks.append(Note("warning" if v.warn or v.state in WARNED else "info", f"{v.name}: {v.note}"))
        apart = self.started and self.now != self.devices
        if apart and self.now is not None:
            blocks.append(_cards(self.now, "What this process sees (CUDA has started)"))
        if self.devices or apart:
            blocks.append(
                _cards(self.devices or (), "What a new process would see" if apart else "What this process sees")
            )
        return [*blocks, *(Note("info", hint) for hint in self.hints)]


def _cards(devices: Sequence[VisibleDevice], caption: str) -> Block:
    rows = [(f"cuda:{d.cuda}", str(d.index), d.name or "n/a", d.uuid or "n/a") for d in devices]
    if not rows:
        return Text(f"{caption}: no GPU.")
    return Table(("here", "GPU", "name", "UUID"), rows, caption=caption)


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """One variable, explained."""

    name: str
    meaning: str
    legal: str
    default: str
    read: str
    state: str
    value: str | None
    myth: str
    late: str
    since: str
    source: str
    verified: bool

    def blocks(self) -> Sequence[Block]:
        rows = [
            ("now", "(not set)" if self.value is None else self.value or "(empty)"),
            ("state", self.state),
            ("legal values", self.legal or "any"),
            ("default", self.default or "(none)"),
            ("read", self.read),
            ("if too late", self.late),
            *([("since", self.since)] if self.since else []),
            ("source", self.source + ("" if self.verified else " (documented, not tried by us)")),
        ]
        blocks: list[Block] = [Title(self.name), Text(self.meaning), Table(("", ""), rows)]
        if self.myth:
            blocks.append(Note("info", self.myth))
        return blocks


@dataclass(frozen=True, repr=False)
class Export(Result):
    """The variables in another format; as text it is nothing else, so that it can be piped or copied."""

    format: str
    meaning: str
    text: str

    def __repr__(self) -> str:
        return self.text

    def blocks(self) -> Sequence[Block]:
        return [Title(f"{self.format}: {self.meaning}"), Code(self.text)]


@dataclass(frozen=True, repr=False)
class Presets(Result):
    """The presets there are: (name, values, meaning)."""

    presets: tuple[tuple[str, str, str], ...]

    def rows(self) -> list[dict[str, Any]]:
        return [dict(zip(("name", "values", "meaning"), row, strict=True)) for row in self.presets]

    def blocks(self) -> Sequence[Block]:
        return [Title("Presets"), Table(("preset", "values", "what it does"), self.presets)]
