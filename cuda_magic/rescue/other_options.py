"""Next steps that are other options on the guard's line: what was refused, left out, or may be smaller."""

from __future__ import annotations

from .options import RUNGS
from .step import Case, NextStep

__all__ = ["left_out", "other_ranks", "read_before", "refused", "smaller"]


def other_ranks(c: Case) -> list[NextStep]:
    """Where a repeat on this rank alone would leave the others behind."""
    if not _of_ranks(c):
        return []
    return [NextStep("free memory on this rank, then run the cell on all ranks again", "%gpu_mem --free")]


def _of_ranks(c: Case) -> bool:
    return any("other ranks" in one or "from rank to rank" in one for one in c.refused)


def refused(c: Case) -> list[NextStep]:
    """Where the statement was not repeated: room, and then the user's own word on whether it may run again."""
    if not c.refused or _of_ranks(c):
        return []
    room = NextStep("give back garbage and caches, then go on from where the cell stands", "%gpu_mem --free")
    if c.s.options.consent:
        return [room]
    line = "cuda_magic.guard(repeat=True)" if c.s.node is None else "%%cuda_guard --repeat"
    return [room, NextStep("only if you know that all of the statement can run again", line)]


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
    moving = ("compact", "spill") if o.no_move else ()
    named = ("wait", "shrink", "else")
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
    room = c.where.room
    likely = [n for n in likely if room is None or c.request // whole[n] <= room.total]  # else not even 1 would fit
    if likely:
        return [NextStep(f"let {likely[0]} go down until it fits", f"%%cuda_guard --shrink {likely[0]}")]
    return []
