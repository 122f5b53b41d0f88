"""A plan done for real, every address checked against it. Interrupted anywhere, no data is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .heap import ARENA_BASE, ARENA_STEP

if TYPE_CHECKING:
    from ..allocator import Allocator, Storage
    from .plan import Plan

__all__ = ["Diverged", "replay"]


class Diverged(Exception):
    """The allocator chose another address than the plan; nothing is lost, the plan is stopped."""


def replay(plan: Plan, allocator: Allocator, device: int, storages: Mapping[int, Storage]) -> None:
    """Do the operations of `plan`.

    Raises
    ------
    Diverged
        At the first address that is not the planned one. All fillers are dropped, all data is in place.
    """
    fillers: dict[int, Any] = {}
    bases: list[int] = []

    def real(address: int) -> int:
        if address < ARENA_BASE:
            return address
        arena, offset = divmod(address - ARENA_BASE, ARENA_STEP)
        return bases[arena] + offset

    ops = plan.ops
    at = 0
    try:
        while at < len(ops):
            op = ops[at]
            at += 1
            if op.kind == "fill":  # holes of one size are taken in an order of the allocator's own
                places = {real(op.address)}
                while at < len(ops) and ops[at].kind == "fill" and ops[at].size == op.size:
                    places.add(real(ops[at].address))
                    at += 1
                while places:
                    filler = allocator.filler(device, op.size)
                    address = allocator.filler_address(filler)
                    fillers[address] = filler
                    del filler
                    if address not in places:
                        raise Diverged(f"a place of {op.size} bytes was taken elsewhere than planned")
                    places.remove(address)
            elif op.kind == "drop":
                del fillers[real(op.address)]
            elif op.kind == "move":
                if allocator.move(storages[op.key]) != real(op.address):
                    raise Diverged(f"a block of {op.size} bytes went elsewhere than planned")
            elif op.kind == "arena":
                filler = allocator.filler(device, op.size)
                bases.append(allocator.filler_address(filler))
                fillers[bases[-1]] = filler
                del filler
            else:
                allocator.empty_cache()
    finally:
        fillers.clear()
