"""The report of a guarded cell in which something was rescued, failed or is worth a note."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ..machine import machine
from ..memory.torch import distributed
from .guard import count_ooms
from .report import Report, RoomMade

if TYPE_CHECKING:
    from .guard import GuardRun

__all__ = ["read_devices", "report"]

_CUDNN = (
    "cuDNN goes on from out of memory too, inside a convolution, with an algorithm that needs less: "
    "the allocator counts its errors like those of the cell's own code"
)
"""Where operations were not watched and the allocator counted errors that nobody raised."""


def report(run: GuardRun, status: str, error: BaseException | None) -> Report:
    """The report of a cell that ended with `status`, and with `error` where it failed for lack of memory."""
    handled = 0
    if run.ooms is not None:
        absorbed = run.calls.absorbed if run.calls is not None else 0
        handled = max(0, count_ooms(machine().allocator()) - run.ooms - run.seen - absorbed)
    notes = list(run.notes)
    handler = run.session.handler if run.session is not None else None
    if handler is not None and status not in ("ok", "rescued"):
        notes += [f"no room was made where memory was asked for: {reason}" for reason in handler.reasons]
    if handler is not None and handler.broken is not None:
        broken = handler.broken
        notes.append(f"a way to make room failed with an error of its own ({type(broken).__name__}: {broken})")
    own = [_CUDNN] if handled and run.calls is None and not machine().label else []
    trial, step = run.trial, run.step
    fault = trial.fault
    common: dict[str, Any] = {
        "attempts": max(1, trial.attempts),
        "room": _room(run),
        "requests": run.session.handler.requests if run.session is not None and run.session.handler is not None else 0,
        "rungs": tuple(run.rungs),
        "notes": (*notes, *(run.calls.said() if run.calls is not None else ()), *own),
        "handled": handled,
        "calls": run.calls.rescues if run.calls is not None else (),
        "label": machine().label,
    }
    if status in ("ok", "error", "rescued") or fault is None or step is None:
        if run.rescued:
            attempts = max((r.attempt for r in run.rungs), default=0) + 1
            common["attempts"] = attempts if status == "rescued" else common["attempts"]
        return Report(status, **common)
    from .advice import next_steps
    from .situation import Situation
    from .survey import survey

    s = trial.situation or Situation(
        fault,
        run.options,
        machine().allocator(),
        trial.device,
        run.namespace,
        run.shell,
        node=step.node,
        readings=read_devices,
    )
    s.fault = fault
    where = survey(s, error)
    refused = list(trial.refused)
    behind = distributed.left_behind()
    if behind:
        common["notes"] += (behind,)
    if refused:
        common["notes"] += (f"not repeated: {'; '.join(refused)}",)
    room, sizes = where.room, fault.sizes
    script = not step.source
    return Report(
        status,
        line=None if script else step.first_line,
        last_line=None if script else step.last_line,
        kind=fault.kind.id,
        sentence=fault.sentence,
        error=fault.error,
        device=sizes.device if trial.device is None or fault.kind.id == "worker" else trial.device,
        requested=sizes.requested,
        needed=s.need,
        free=room.driver if room else sizes.free,
        cached=room.cached if room else sizes.unallocated,
        largest_free=room.largest if room else None,
        capacity=where.capacity,
        holders=where.holders,
        next_steps=next_steps(s, where, refused, step.node, run.done),
        loops=isinstance(step.node, (ast.For, ast.AsyncFor, ast.While)),
        **common,
    )


_WHAT = {
    "caches": "what torch and other libraries had cached",
    "errors": "earlier failures were let go of",
    "garbage": "reference cycles",
    "holes": "memory from between live tensors; no tensor moved",
    "saved": "what autograd saved for the backward pass waits on the host",
    "pages": "tensors that are needed last lie on the host, under the same address",
    "host": "new tensors were made on the host",
}


def _room(run: GuardRun) -> tuple[RoomMade, ...]:
    return tuple(
        RoomMade(done.id, done.times, done.nbytes, done.seconds, "; ".join(done.notes) or _WHAT[done.id])
        for done in run.made()
    )


def read_devices() -> Any:
    """A reading of the devices, or None: no reading is no reason to lose the rescue."""
    try:
        return machine().devices().read(slow=False)
    except Exception:  # noqa: BLE001 - see above
        return None
