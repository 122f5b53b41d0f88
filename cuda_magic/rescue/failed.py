"""After the failure of a statement: what it was, whether the statement may run again, and the way there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..machine import machine
from ..memory.torch import distributed
from . import figures, randomness
from .classify import classify, judge
from .first_call import why_not
from .ladder import climb
from .outcome import read_devices
from .reads import names_read
from .repeated import find
from .situation import Situation, device_of, room_of

if TYPE_CHECKING:
    from ..cells.rescuer import Step
    from .guard import GuardRun
    from .ladder import RungResult

__all__ = ["noticed", "recover"]

_HOW = {"shrink": "shrink: {}", "else": "else: {}", "wait": "{}"}

OWN_STEPS = ("expandable", "wait", "shrink", "else", "activations", "cudamalloc")
"""Rungs whose repeats are not counted by --retries: each is tried once, or ends by itself."""


def noticed(run: GuardRun, error: BaseException, step: Step) -> bool:
    """Whether to try a rescue from `error` (see `cuda_magic.cells.rescuer.Rescuer.noticed`)."""
    run.attempt_ended()
    trial, options = run.trial, run.options
    fault = classify(error)
    if (fault is None or fault.kind.id == "unknown") and _made_by_the_repeat(run, error):
        fault = trial.fault
    elif fault is not None:
        # what the allocator's own count rose by
        run.seen += fault.error == "OutOfMemoryError" and judge(fault, machine().allocator()).kind.id != "worker"
    if fault is None:
        trial.fault, trial.status = None, "error"
        return False
    if trial.over:
        return True  # so that the first error is the one that shows
    allocator = machine().allocator()
    fault = trial.fault = judge(fault, allocator, read_devices)
    trial.device = device_of(fault, allocator)
    smaller = bool(options.shrink or options.otherwise)
    if fault.kind.repeat != "ladder" and not (fault.kind.id == "too-large" and smaller):
        trial.status = "not-repeated"
        return False
    room = room_of(allocator, trial.device)
    trial.held = _held(room.allocated, fault.sizes.allocated) if room is not None else None
    signature = (fault.kind.id, fault.sizes.requested, trial.held or fault.sizes.allocated)
    trial.stuck, trial.signature = signature == trial.signature, signature
    refused = distributed.changed(trial.ranks, run.namespace)
    if not refused and not options.consent:
        reason = why_not(error, step, run.namespace)
        refused = [reason] if reason else []
    trial.refused = tuple(refused)
    if refused:
        trial.status = "refused"
        return False
    trial.status = "failed"
    if allocator is not None:
        trial.memory["recorded"] = allocator.recorded(error)
    return trial.plain < options.retries or smaller or options.wait > 0


def _made_by_the_repeat(run: GuardRun, error: BaseException) -> bool:
    """Whether a repeat ended in an error of its own: then the memory error of the first attempt stands.

    A statement whose first call failed had done nothing yet: what its repeat raises is the user's.
    """
    if run.trial.attempts < 2 or run.trial.fault is None or not isinstance(error, Exception):
        return False
    row = find(error)
    if row is None and not run.options.consent:
        return False
    run.notes.append(row.why if row is not None else f"the repeat ended with {_line(error)}")
    run.trial.over = row is None or not row.ladder
    return True


def _line(error: BaseException) -> str:
    """An error in one line, whatever its class does."""
    try:
        text = str(error).partition("\n")[0]
    except Exception:  # noqa: BLE001 - it may be of a class of the user's
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _held(now: int, told: int | None) -> int:
    """Bytes allocated when the request failed: what unfinished expressions held is gone by now, the error names it.

    Its figure has two decimals, so a small difference is none.
    """
    return told if told is not None and told > now + (16 << 20) else now


def recover(run: GuardRun, step: Step, namespace: dict[str, Any], lost: tuple[str, ...]) -> bool:
    """Make room; whether to repeat the statement (see `cuda_magic.cells.rescuer.Rescuer.recover`)."""
    trial, options = run.trial, run.options
    assert trial.fault is not None
    if trial.over:
        trial.status = "failed"
        return False
    if lost and options.consent:  # else nothing was bound
        trial.refused = (f"the earlier value of {', '.join(lost)} is gone",)
        trial.status = "refused"
        return False
    allocator = machine().allocator()
    room = room_of(allocator, trial.device)
    request = trial.fault.sizes.requested
    need = None
    if request is not None and room is not None and trial.held is not None:
        need = request + max(0, trial.held - room.allocated)
    situation = trial.situation = Situation(
        fault=trial.fault,
        options=options,
        allocator=allocator,
        device=trial.device,
        namespace=namespace,
        shell=run.shell,
        held=trial.held,
        need=need,
        stuck=trial.stuck,
        spent=trial.plain >= options.retries or trial.fault.kind.id == "too-large",
        read_before=frozenset().union(*map(names_read, run.done)),
        memory=trial.memory,
        node=step.node,
        roots=run.roots,
        enter=run.modes.enter_context,
        after=run.after.append,
        say=run.say,
        readings=read_devices,
    )
    run.let_collector()
    try:
        results, repeat = climb(situation, trial.attempts)
    except BaseException:
        run.modes.close()
        raise
    run.rungs += [replace(result, line=step.first_line if step.source else None) for result in results]
    if not repeat:
        run.modes.close()
        return False
    if trial.random is not None:
        randomness.put_back(trial.random, allocator)
        figures.close_new(trial.figures)
    last = results[-1]
    if last.id not in OWN_STEPS:
        trial.plain += 1
    run.rescued = True
    _announce(run, step, last)
    return True


def _announce(run: GuardRun, step: Step, last: RungResult) -> None:
    where = f"line {step.first_line}" if step.source else "the function"
    how = _HOW.get(last.id, "room was made").format(last.reason)
    run.say(f"cuda_guard: {where} ran out of GPU memory; {how}; it runs again (attempt {run.trial.attempts + 1})")
