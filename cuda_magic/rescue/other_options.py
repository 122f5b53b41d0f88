"""Next steps that are other options on the guard's line: what was refused, left out, or may be smaller."""

from __future__ import annotations

import re

from .checkpoint import uses
from .options import RUNGS
from .step import Case, NextStep

__all__ = ["left_out", "read_before", "refused", "smaller"]


def refused(c: Case) -> list[NextStep]:
    """What allows a repeat of a statement that changed something."""
    if not c.refused:
        return []
    if any("other ranks" in one or "from rank to rank" in one for one in c.refused):
        return [NextStep("free memory on this rank, then run the cell on all ranks again", "%gpu_mem --free")]
    allocator = c.s.allocator
    at_call = allocator is not None and not c.s.options.retry_at_call and allocator.ops() is not None
    steps = (
        [NextStep("repeat only the operation that fails, when it fails", "%%cuda_guard --retry-at-call")]
        if at_call
        else []
    )
    names = _changed(c)
    if names:
        why = f"keep {', '.join(names)} on the host, to be put back before a repeat"
        kept = ",".join(dict.fromkeys([*c.s.options.checkpoint, *names]))
        steps.append(NextStep(why, f"%%cuda_guard --checkpoint {kept}"))
    return [*steps, NextStep("if a second run of the statement does no harm", "%%cuda_guard --repeat-anyway")]


def _changed(c: Case) -> list[str]:
    """The user's variables that the reasons of a refusal name, and that --checkpoint may keep."""
    found: dict[str, None] = {}
    names = c.s.names()
    for reason in c.refused:
        what, _, listed = reason.partition(": ")
        if not what.startswith("iterators"):
            words = re.sub(r"\b(?:a (?:parameter|buffer|state|tensor)(?: of)?|and [0-9]+ more)\b", "", listed)
            found |= dict.fromkeys(word for word in re.findall(r"(?<![\w.\]'])[A-Za-z_]\w*", words) if word in names)
    if any(reason.startswith(("parameters", "buffers", "an optimizer")) for reason in c.refused):
        # who updates them goes back with them: optimizer, scheduler, scaler
        for name, value in names.items():
            if all(hasattr(type(value), part) for part in ("state_dict", "load_state_dict")):
                found |= dict.fromkeys([name] if uses(name, c.node_names, c.s.namespace) else [])
    return [name for name in found if name not in c.s.options.checkpoint]


def read_before(c: Case) -> list[NextStep]:
    """A name of --shrink or --else that an earlier statement of the cell had read."""
    o = c.s.options
    asked = [(name, f"--else {name}={value}") for name, value in o.otherwise]
    if o.shrink:
        name, floor = o.shrink
        asked.append((name, _shrink(f"{name}={floor}" if floor > 1 else name, o.grow)))
    if c.refused or c.s.fault.kind.repeat == "never":
        return []
    return [
        NextStep(f"move the earlier statement that reads {name} into another cell, then", f"%%cuda_guard {option}")
        for name, option in asked
        if name in c.s.read_before
    ]


def _shrink(what: str, grow: str | None) -> str:
    return f"--shrink {what}" + (f" --grow {grow}" if grow else "")


def left_out(c: Case) -> list[NextStep]:
    """What the options forbade, where it might have helped."""
    o = c.s.options
    if c.s.fault.kind.repeat != "ladder" or c.refused or c.kind == "context":
        return []
    if not o.retries and not (o.shrink or o.otherwise or o.wait):
        return [NextStep("--retries 0 allows no repeat", "%%cuda_guard")]
    moving = ("compact", "spill", "page") if o.no_move else ()
    named = ("reserve", "wait", "shrink", "else")
    out = [r for r in RUNGS if r not in named and (o.excluded(r) or r in moving)]
    return [NextStep(f"rungs were left out by the options ({', '.join(out)})", "%%cuda_guard")] if out else []


def smaller(c: Case) -> list[NextStep]:
    """A variable that the statement reads and that may be lowered; one request too large is helped by that too."""
    repeats = c.s.fault.kind.repeat == "ladder" or c.kind == "too-large"
    if c.crowded or not repeats or c.kind == "context" or c.refused:
        return []
    if c.s.options.shrink:
        name, floor = c.s.options.shrink
        if floor == 1 or c.s.namespace.get(name) != floor:
            return []
        return [NextStep(f"{name} may go below {floor}", f"%%cuda_guard {_shrink(name, c.s.options.grow)}")]
    read = c.node_names - c.touched
    whole = {n: v for n, v in c.s.names().items() if n in read and isinstance(v, int) and not isinstance(v, bool)}
    likely = [n for n, v in whole.items() if v > 1 and ("batch" in n.lower() or n.lower() in ("bs", "b", "n"))]
    if likely:
        return [NextStep(f"let {likely[0]} go down until it fits", f"%%cuda_guard --shrink {likely[0]}")]
    return []
