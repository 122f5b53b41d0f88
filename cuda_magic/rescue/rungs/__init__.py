"""The rungs of the ladder, one file each. A rung says why it cannot help, or makes room and says what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ...memory.allocator import Allocator
    from ..situation import Room, Situation

__all__ = ["Asked", "Did", "Rung", "asked", "load"]


@dataclass(frozen=True)
class Did:
    """What a rung did. `state` is ``ran``, ``on`` (in force for the repeat), ``failed``, or ``skipped``.

    ``skipped`` is for what is found out only on the way, before anything was done.
    """

    state: str = "ran"
    reason: str = ""
    repeat: bool = False
    """The statement is to be repeated now, whatever the readings say."""
    moved: int = 0
    cycles: tuple[tuple[str, int], ...] = ()
    """(type, bytes) of what a collection freed."""


class Rung(Protocol):
    """One way to make room."""

    id: str
    again: bool
    """Whether it is tried again after a repeat that failed."""
    changes: bool
    """Whether the repeat asks for something else, so that it does not count as a repeat of the same."""

    def skip(self, s: Situation) -> str:
        """Why it cannot help here, in one clause; empty where it may."""
        ...

    def run(self, s: Situation) -> Did: ...


class Asked(NamedTuple):
    """A request of the caching allocator's that failed, in bytes, and what there is of its device."""

    allocator: Allocator
    device: int
    room: Room
    request: int

    def need(self, s: Situation) -> int:
        """What the statement takes in all, at least."""
        return max(s.need or 0, self.request)


def asked(s: Situation) -> Asked | str:
    """The failed request; a string where a rung cannot work with it: why."""
    room = s.room()
    if s.allocator is None or s.device is None or room is None:
        return "the allocator cannot be asked"
    if not s.fault.torch_allocator or s.request is None:
        return "the request was not the caching allocator's"
    return Asked(s.allocator, s.device, room, s.request)


def load(name: str) -> Rung:
    """The rung of that id; its module is imported only when it is tried."""
    from importlib import import_module

    module = {"else": "otherwise"}.get(name, name)
    rung: Rung = import_module(f".{module}", __name__).RUNG
    return rung
