"""How to make room for a request of a wanted size: strategies on the model, the cheapest that works is taken.

window     empty the stretch of one segment that holds the fewest live bytes into holes elsewhere
slide      pack a part of one segment to its low end, through a hole that travels up
evacuate   empty sparse segments of any pool into holes, or into a new one from the driver's free memory; release them
out        as few blocks as possible leave for the host and come back packed
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .evacuate import evacuate
from .goal import OP_COST, Goal
from .heap import Heap
from .host import out
from .pieces import Op
from .slide import slide_any
from .window import window

__all__ = ["Plan", "plan"]

HOST_COST = 35
"""How many bytes moved on the card take the time of one that goes over the host and back (1,753 and 50 GB/s)."""


@dataclass(frozen=True)
class Plan:
    """Operations after which `request` bytes fit. `moved` in bytes; `how` names the strategy."""

    request: int
    how: str
    ops: tuple[Op, ...]
    moved: int
    moves: int = 0

    @property
    def parked(self) -> int:
        """Bytes that are on the host at once, at most."""
        now = most = 0
        for op in self.ops:
            now += op.size if op.kind == "park" else -op.size if op.kind == "unpark" else 0
            most = max(most, now)
        return most


def plan(
    make: Callable[[], Heap], request: int, *, stream: int = 0, host: Callable[[], int] = lambda: 0
) -> Plan | None:
    """The cheapest plan found, or None where no strategy makes `request` bytes fit.

    Parameters
    ----------
    make
        Gives the model of the heap as it is; each strategy that is tried takes one.
    stream
        Whose pool the request goes to.
    host
        Gives the bytes that may wait on the host at once; asked only where no plan on the card exists.
    """
    heap = make()
    goal = Goal(request, stream, heap.rules)
    if goal.reached(heap):
        return Plan(goal.need, "fits", (), 0)
    found: list[Plan] = []

    def attempt(how: str, run: Callable[[Heap, Goal], bool]) -> None:
        nonlocal heap
        if heap.ops:  # an earlier attempt has changed it
            heap = make()
        if run(heap, goal):
            found.append(_done(heap, goal, how))

    attempt("window", window)
    if not found:
        attempt("slide", slide_any)
        attempt("evacuate", evacuate)
    if not found:
        attempt("evacuate", lambda h, g: evacuate(h, g, close=False))
    room = host() if not found else 0
    if room > 0:
        attempt("out", lambda h, g: slide_any(h, g, room))
        found = [p for p in found if p.parked <= room]
        # whole segments take longer, unless they are fewer bytes
        attempt("out", lambda h, g: out(h, g, min([room, *(_cost(p) // HOST_COST for p in found)])))
    return min(found, key=_cost, default=None)


def _done(heap: Heap, goal: Goal, how: str) -> Plan:
    return Plan(goal.need, how, tuple(heap.ops), heap.moved, heap.moves)


def _cost(one: Plan) -> int:
    over = sum(op.size for op in one.ops if op.kind == "park")
    return one.moved + OP_COST * len(one.ops) + HOST_COST * over
