"""`%cuda_env` and `cuda-magic env`: listing, explaining, setting, exporting."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from ..devices import driver
from ..devices.model import Device
from ..errors import Refused, UserError, nearest
from ..machine import machine
from ..memory.torch import live
from ..result import Result
from . import change
from .catalogue import CATALOGUE, Variable, find
from .exports import FORMATS, export
from .presets import PRESETS
from .release import installed
from .results import Environment, Explanation, Export, Presets, VisibleDevice
from .secrets import secret, shown
from .state import progress
from .typed import dotenv
from .verdict import REMEDY, Situation, Verdict, first_environment, noted, takes_effect, verdict
from .visible import resolve

__all__ = [
    "env",
    "explain",
    "export_all",
    "listing",
    "preset",
    "set_all",
    "set_devices",
    "set_file",
    "situation",
    "undo",
    "unset_all",
]

READ = {
    "process": "when a process starts",
    "always": "at each call",
    "import": "when torch is imported",
    "cuinit": "when CUDA starts (torch.cuda.is_available() is enough)",
    "init": "when torch initialises CUDA",
    "context": "when the first context is created",
    "container": "when the container is created",
    "never": "never",
}


def situation() -> Situation:
    """This process as it is now. Reads the cards through NVML; starts nothing."""
    reading = machine().devices().read(processes=False, slow=False)
    return Situation(
        environment=os.environ,
        progress=progress(),
        torch=installed(),
        started_with=first_environment(),
        set_at=change.set_at,
        devices=reading.devices if reading.status.ok else None,
        live=live.settings(),
        backend=live.backend(),
    )


def _environment(
    at: Situation, verdicts: Sequence[Verdict], title: str = "CUDA environment", more: Sequence[str] = ()
) -> Environment:
    seen = now = None
    if any(v.name == "CUDA_VISIBLE_DEVICES" for v in verdicts):
        resolved = resolve(at.environment.get("CUDA_VISIBLE_DEVICES"), at.devices).devices
        if resolved is not None:
            seen = _numbered(resolved)
            more = list(dict.fromkeys([*more, *_expected(at)]))
        if at.progress.started:
            started = _started_with(at)
            now = None if started is None else _numbered(started)
            mask = next(v for v in verdicts if v.name == "CUDA_VISIBLE_DEVICES")
            if now is None and mask.state == "in effect":
                now = seen
    return Environment(
        at.progress.words, tuple(verdicts), title, seen, tuple(more), machine().label, now, at.progress.started
    )


def _numbered(cards: Sequence[Device]) -> tuple[VisibleDevice, ...]:
    return tuple(VisibleDevice(i, d.index, d.name, d.uuid) for i, d in enumerate(cards))


def _started_with(at: Situation) -> list[Device] | None:
    """The cards that the CUDA of this process sees, which no variable changes any more; None where it does not tell."""
    cards = [d for d in at.devices or () if d.parent is None]
    if machine().label:
        return cards  # the practice GPU heeds no mask
    told = driver.uuids()
    by_uuid = {(d.uuid or "").lower(): d for d in cards}
    found = [by_uuid.get(uuid) for uuid in told or ()]
    return [d for d in found if d is not None] if told is not None and None not in found else None


def _verdicts(at: Situation, names: Sequence[str]) -> list[Verdict]:
    return [verdict(name, at) for name in names]


def listing() -> Environment:
    """All variables of the catalogue that are set, and what one would expect to be set."""
    at = situation()
    return _environment(at, _verdicts(at, _set_names()), more=_expected(at))


def _set_names() -> list[str]:
    """What is set: the catalogue's, then the others that were set here."""
    here = change.ours()
    # what counts when a process starts is the machine's own affair, unless it was set here
    names = [v.name for v in CATALOGUE if v.name in os.environ and (v.read != "process" or v.name in here)]
    return list(dict.fromkeys([*names, *here]))


def _expected(at: Situation) -> list[str]:
    models = {d.name for d in at.devices or () if d.parent is None and d.name and not d.error}
    if len(models) > 1 and "CUDA_DEVICE_ORDER" not in at.environment:
        return [
            "The GPUs are of different models and CUDA numbers the fastest first, nvidia-smi by PCI bus:"
            " CUDA_DEVICE_ORDER=PCI_BUS_ID makes the numbers agree."
        ]
    return []


def explain(name: str) -> Result:
    """What one variable means, and how it stands.

    Raises
    ------
    UserError
        If the name is neither known nor set.
    """
    change.known(name)
    at, variable = situation(), find(name)
    return _environment(at, _verdicts(at, [name]), name) if variable is None else _explanation(variable, at)


def _explanation(variable: Variable, at: Situation) -> Explanation:
    current = verdict(variable.name, at)
    state = "; ".join(filter(None, [current.state, current.note]))
    if current.value is None:
        state = f"not set; a value set now: {takes_effect(variable, at.progress)[0]}"
    return Explanation(
        variable.name,
        variable.meaning,
        variable.legal,
        variable.default,
        READ.get(variable.read, f"at {variable.first_use}"),
        state,
        current.value,
        variable.myth,
        variable.late or ("it never is" if variable.read in ("always", "never") else REMEDY),
        f"torch {variable.since[0]}.{variable.since[1]}" if variable.since else "",
        variable.source,
        not variable.documented,
    )


def set_file(path: str, force: bool = False) -> Environment:
    """Set what a ``.env`` file assigns, all or none.

    Raises
    ------
    UserError, Refused
        If it cannot be read, or at the first assignment that is not legal; nothing is set then.
    """
    found = dotenv(Path(path))
    if not found:
        raise UserError(f"cuda_env: {path} assigns nothing.")
    return _set(found, force)


def set_all(
    assignments: Sequence[str], force: bool = False, quoted: Collection[str] = (), more: Sequence[str] = ()
) -> Environment:
    """Check all, then set all or none; `quoted` are the names whose value was typed in quotes.

    Raises
    ------
    UserError, Refused
        At the first assignment that is not legal; nothing is set then.
    """
    return _set(change.parse(assignments), force, quoted, more)


def _set(
    wanted: dict[str, str], force: bool = False, quoted: Collection[str] = (), more: Sequence[str] = ()
) -> Environment:
    before = dict(os.environ)
    at = replace(situation(), environment={**before, **wanted})
    said = {name: change.check(name, value, at, force) for name, value in wanted.items()}
    change.apply(dict(wanted))
    at = situation()
    verdicts = []
    for name, value in wanted.items():
        notes = [n for n in said[name] if n.startswith("forced")]
        if name in quoted:
            notes.append("the quotes around the value were taken off")
        if before.get(name) not in (None, value):
            notes.append(f"was {shown(name, before[name]) or '(empty)'}")
        if name == "CUDA_VISIBLE_DEVICES" and at.progress.imported and not at.progress.started:
            notes.append("torch is imported and CUDA not started: the value counts; a restart makes sure")
        verdicts.append(noted(verdict(name, at), "; ".join(notes)))
    return _environment(at, verdicts, "set", more)


def set_devices(text: str) -> Environment:
    """Make the cards of `text` (indices or UUID prefixes, as nvidia-smi shows them) the visible ones, in that order.

    Raises
    ------
    UserError
        If a card is not there or stands twice.
    """
    cards = [d for d in situation().devices or () if d.parent is None]
    if not cards:
        raise UserError("cuda_env: --devices checks against the cards, and no NVIDIA GPU is seen here.")
    have = ", ".join(f"{d.index} ({d.name or 'n/a'})" for d in cards)
    chosen: list[Device] = []
    for word in text.split(","):
        entry = word.strip()
        fits = [
            d for d in cards if str(d.index) == entry or (entry.startswith("GPU-") and (d.uuid or "").startswith(entry))
        ]
        if len(fits) != 1:
            raise UserError(
                f"cuda_env: {entry!r} {'fits several GPUs' if fits else 'is no GPU here'}; there are {have}."
            )
        if fits[0] in chosen:
            raise UserError(f"cuda_env: GPU {fits[0].index} stands twice; CUDA would then see no device.")
        chosen.append(fits[0])
    indices = ",".join(str(d.index) for d in chosen)
    return _set({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": indices})


def preset(name: str) -> Result:
    """Set a preset, or list them for an empty name.

    Raises
    ------
    UserError
        If there is no such preset.
    """
    if not name:
        return Presets(tuple((p.name, " ".join(f"{k}={v}" for k, v in p.values), p.meaning) for p in PRESETS))
    found = next((p for p in PRESETS if p.name == name), None)
    if found is None:
        names = [p.name for p in PRESETS]
        raise UserError(
            f"cuda_env: there is no preset {name!r}.{nearest(name, names) or ' Presets: ' + ', '.join(names)}"
        )
    return _set(dict(found.values), more=[t for t in (found.meaning, found.beware) if t])


def unset_all(names: Sequence[str]) -> Environment:
    """Unset all of `names`."""
    for name in names:
        change.known(name)
    before = [name for name in names if name in os.environ]
    change.apply(dict.fromkeys(names))
    at = situation()
    verdicts = []
    for name in names:
        variable = find(name)
        state, note = takes_effect(variable, at.progress) if variable and name in before else ("in effect", "")
        shown = "not set" if state == "in effect" else f"unset: {state}"
        verdicts.append(Verdict(name, None, shown, note, bool(variable)))
    return _environment(at, verdicts, "unset")


def undo() -> Environment:
    """Back to what stood before the last change.

    Raises
    ------
    Refused
        If there was none.
    """
    names = change.undo()
    at = situation()
    return _environment(at, _verdicts(at, names), "back to what stood before")


def export_all(form: str) -> Export:
    """The catalogue's variables that are set, in the format `form`.

    Raises
    ------
    UserError, Refused
        If there is no such format, nothing is set, or the format cannot hold a value.
    """
    set_here = {name: os.environ[name] for name in _set_names()}
    values = {name: value for name, value in set_here.items() if not secret(name, value)}
    left = [name for name in set_here if name not in values]
    if form in FORMATS and not values:
        raise Refused("cuda_env: none of the variables that CUDA or torch read is set: there is nothing to export.")
    meaning = FORMATS[form][1] if form in FORMATS else ""
    if left:
        meaning += f"; left out, since they look like secrets: {', '.join(left)}"
    return Export(form, meaning, export(form, values))


def env(words: list[str]) -> tuple[Result, int]:
    """`cuda-magic env [NAME] [--export FORMAT]`: exit code 1 where a variable is invalid or without effect."""
    if words[:1] == ["--export"]:
        if len(words) != 2:
            raise UserError(f"--export takes one format: {', '.join(FORMATS)}")
        return export_all(words[1]), 0
    if len(words) > 1 or any(w.startswith("-") for w in words):
        raise UserError(f"takes one NAME, --export FORMAT or --json, not {' '.join(words)!r}")
    if words and "=" in words[0]:
        raise UserError("a terminal's variables are set in its shell: export NAME=VALUE")
    result = explain(words[0]) if words else listing()
    bad = isinstance(result, Environment) and any(v.state in ("invalid", "no effect") for v in result.variables)
    return result, 1 if bad else 0
