"""``%cuda_env --cluster``: one line for every engine, all or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Refused, UserError
from ..render.blocks import Block, Note, Table, Text, Title
from ..result import Result
from .connect import Answer, ask
from .table import ids

__all__ = ["ClusterEnvironment", "EngineVariable", "set_all", "shown", "unset_all"]


@dataclass(frozen=True)
class EngineVariable:
    """One variable on one engine, as %cuda_env shows it there."""

    engine: int
    host: str
    name: str
    value: str | None
    state: str
    note: str = ""


@dataclass(frozen=True, repr=False)
class ClusterEnvironment(Result):
    """Variables by engine."""

    cluster: str
    title: str
    variables: tuple[EngineVariable, ...]
    moments: tuple[tuple[int, str], ...] = ()
    """(engine, how far torch and CUDA have come there)."""
    silent: tuple[tuple[int, str], ...] = ()
    """(engine, why it did not answer)."""
    label: str = ""

    def rows(self) -> list[dict[str, Any]]:
        return [{name: getattr(v, name) for name in EngineVariable.__dataclass_fields__} for v in self.variables]

    def blocks(self) -> Sequence[Block]:
        blocks: list[Block] = [Title(f"{self.title}, {self.cluster}", self.label)]
        for words, some in _groups(dict(self.moments)).items():
            blocks.append(Text(f"engine {ids(some)}: {words}"))
        # what is alike on many engines is one line
        lines = _groups({(v.name, v.engine): (v.name, v.value, v.state, v.note) for v in self.variables})
        rows = []
        for (name, value, state, _), some in lines.items():
            text = "(not set)" if value is None else value or "(empty)"
            rows.append((name, text, state, ids([engine for _, engine in some])))
        if rows:
            blocks.append(Table(("variable", "value", "state", "engines"), rows))
        elif self.moments:
            blocks.append(Text("None of the variables that CUDA or torch read is set; their defaults hold."))
        for (name, _, _, note), some in lines.items():
            if note:
                blocks.append(Note("info", f"{name}, engine {ids([engine for _, engine in some])}: {note}"))
        for why, engines in _groups(dict(self.silent)).items():
            blocks.append(Note("warning", f"engine {ids(engines)}: {why}"))
        return blocks


def _groups(values: dict[Any, Any]) -> dict[Any, list[Any]]:
    made: dict[Any, list[Any]] = {}
    for key, value in values.items():
        made.setdefault(value, []).append(key)
    return made


def _result(answers: Sequence[Answer], cluster: str, title: str) -> ClusterEnvironment:
    good = [one for one in answers if one.ok]
    rows = [
        EngineVariable(one.engine, one.value["host"]["name"], r["name"], r["value"], r["state"], r["note"])
        for one in good
        for r in one.value.get("rows", ())
    ]
    moments = tuple((one.engine, one.value["moment"]) for one in good)
    silent = tuple((one.engine, one.failure) for one in answers if not one.ok)
    label = next((one.value["label"] for one in good if one.value.get("label")), "")
    return ClusterEnvironment(cluster, title, tuple(rows), moments, silent, label)


def shown(client: Any, cluster: str, seconds: float, name: str = "") -> ClusterEnvironment:
    """What is set on each engine; with `name` that variable."""
    if name:
        from ..environment.catalogue import CATALOGUE, find
        from ..errors import nearest

        if find(name) is None:
            hint = nearest(name, [v.name for v in CATALOGUE])
            raise UserError(f"cuda_env: {name} is not in the catalogue.{hint}")
    answers = ask(client, "environment", {"name": name}, seconds)
    return _result(answers, cluster, name or "CUDA environment")


def set_all(client: Any, cluster: str, assignments: Sequence[str], force: bool, seconds: float) -> ClusterEnvironment:
    """Set on every engine, or on none.

    Each engine is asked first whether it would. Should one refuse, be busy or end after that, the others take their
    change back.

    Raises
    ------
    UserError, Refused
        With each engine's reason; no engine has been changed then.
    """
    arguments = {"assignments": list(assignments), "force": force}
    _agreed(ask(client, "check", arguments, seconds))
    return _done(client, cluster, ask(client, "set", arguments, seconds), seconds, "set")


def unset_all(client: Any, cluster: str, names: Sequence[str], seconds: float) -> ClusterEnvironment:
    """Unset on every engine, or on none (see `set_all`)."""
    _agreed(ask(client, "environment", {}, seconds))
    return _done(client, cluster, ask(client, "unset", {"names": list(names)}, seconds), seconds, "unset")


def _agreed(answers: Sequence[Answer]) -> None:
    bad = [one for one in answers if not one.ok and one.kind != "gone"]
    if not bad:
        return
    kind = UserError if all(one.kind == "UserError" for one in bad) else Refused
    raise kind(f"cuda_env: nothing is set on any of {len(answers)} engines. {_reasons(bad)}")


def _done(client: Any, cluster: str, answers: Sequence[Answer], seconds: float, title: str) -> ClusterEnvironment:
    bad = [one for one in answers if not one.ok and one.kind != "gone"]
    if not bad:
        return _result(answers, cluster, title)
    good = [one.engine for one in answers if one.ok]
    back = ask(client, "undo", {}, seconds, good) if good else []
    stuck = [one for one in back if not one.ok and one.kind != "gone"]
    words = f"cuda_env: the change was taken back, since not every engine made it. {_reasons(bad)}"
    if stuck:
        words += f" It could not be taken back everywhere. {_reasons(stuck)}"
    raise Refused(words)


def _reasons(answers: Sequence[Answer]) -> str:
    by = _groups({one.engine: one.failure.removeprefix("cuda_env: ").rstrip(".") for one in answers})
    return " ".join(f"Engine {ids(some)}: {why}." for why, some in by.items())
