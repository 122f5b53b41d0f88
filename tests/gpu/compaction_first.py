"""Child process: where the time of the first compaction goes, and of the ones behind it. Prints JSON.

python compaction_first.py call|guard
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import torch
from capped import GIB, MIB, cap, strewn

SPENT: dict[str, float] = {}


def timed(owner: Any, name: str, label: str = "") -> None:
    """Add up the seconds spent in a function of `owner`."""
    real = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*arguments, **options)
        finally:
            key = label or name
            SPENT[key] = SPENT.get(key, 0.0) + time.perf_counter() - started

    setattr(owner, name, call)


def watch() -> None:
    from cuda_magic.memory import compaction
    from cuda_magic.memory.torch import caching, mover, safety, scan, settings, snapshot

    timed(mover, "reach")
    timed(mover.scan, "storages_of")
    timed(safety, "reach", "reach (refused?)")
    timed(mover.safety, "refusals")
    timed(snapshot, "read", "snapshot")
    timed(snapshot, "segment", "segments")
    timed(settings, "rules_of")
    timed(scan.safety, "viewed")
    timed(compaction, "_plan", "plan")
    timed(compaction, "replay")
    for name in ("healthy", "driver_memory", "memory_limit", "survey", "filler", "move", "host_room"):
        timed(caching.TorchAllocator, name)
    timed(torch.cuda, "empty_cache")


def spent() -> dict[str, float]:
    parts = {key: round(1000 * seconds, 2) for key, seconds in SPENT.items()}
    SPENT.clear()
    return parts


def call() -> list[dict[str, Any]]:
    """Compaction alone."""
    rows = []
    for turn in range(3):
        cap(8 * GIB)
        live = strewn(56, 64 * MIB, 64 * MIB)
        started = time.perf_counter()
        from cuda_magic.memory.compaction import compact
        from cuda_magic.memory.torch import allocator

        own = allocator()
        imported = time.perf_counter()
        if not turn:
            watch()
        before = time.perf_counter()
        outcome = compact(own, 0, 3 * GIB)
        torch.cuda.synchronize()
        took = time.perf_counter() - before
        assert outcome.done, outcome
        rows.append(
            {"imports_ms": round(1000 * (imported - started), 2), "ms": round(1000 * took, 2), "parts": spent()}
        )
        del live
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def guard() -> list[dict[str, Any]]:
    """The rung of a guarded cell, in IPython."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "cuda_magic")
    shell.user_ns["torch"] = torch
    rows = []
    for turn in range(3):
        cap(8 * GIB)
        live = strewn(56, 64 * MIB, 64 * MIB)
        if turn == 1:
            watch()
        before = time.perf_counter()
        shell.run_cell_magic(
            "cuda_guard", "--report report", f"y = torch.empty({3 * GIB}, dtype=torch.uint8, device='cuda')"
        )
        took = time.perf_counter() - before
        report = shell.user_ns["report"].to_dict()
        rungs = {r["id"]: round(1000 * r["seconds"], 2) for r in report["rungs"] if r["state"] != "skipped"}
        rows.append({"status": report["status"], "ms": round(1000 * took, 2), "rungs": rungs, "parts": spent()})
        del live
        shell.user_ns.pop("y", None)
        gc.collect()
        torch.cuda.empty_cache()
    return rows


if __name__ == "__main__":
    torch.cuda.init()
    made = {"call": call, "guard": guard}[sys.argv[1]]()
    for row in made:
        print(row)
    print(json.dumps({"objects": len(gc.get_objects()), "rows": made}))
