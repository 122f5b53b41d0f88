"""How long a guarded cell that fails keeps its user waiting, in a kernel that holds very much.

    python benchmarks/waits.py [FILE.json] [OBJECTS]

A kernel with millions of objects (what transformers and a data set come to) and a thousand tensors; the cell's one
operation asks for more than is free, the rungs that lose nothing are tried, and the report is made. Prints the seconds
of the whole cell, those in ``gc.collect`` (which nobody can spare: it is a rung of the ladder), and the walks of the
heap. FILE gets the same figures. Needs torch (its CPU build will do: tensors lie on a practice card).
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

OBJECTS = 3_000_000
ROWS = ((0, 10), (0, 1000), (None, 10), (None, 1000))
"""(objects beside those that the kernel has anyway, None for all that was asked for; tensors)."""
HELD = 8 << 20
"""Bytes of them all."""
LINE = "%%cuda_guard --only holders,collect,caches"


class Small:
    """One of the many objects: with its list and its dict there are three."""

    def __init__(self, number: int) -> None:
        self.items = [number]
        self.options = {"number": number, "items": self.items}


class Watch:
    """Counts walks of the heap, and the seconds that collections take."""

    NAMES = ("get_objects", "get_referrers", "collect")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(self.NAMES, 0)
        self.seconds = dict.fromkeys(self.NAMES, 0.0)
        self.most = 0
        """Objects that one call of get_referrers was asked for, at most."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watching, inside."""
        kept = {name: getattr(gc, name) for name in self.NAMES}

        def watched(name: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                started = time.perf_counter()
                try:
                    return kept[name](*args, **kwargs)
                finally:
                    self.counts[name] += 1
                    self.seconds[name] += time.perf_counter() - started
                    self.most = max(self.most, len(args)) if name == "get_referrers" else self.most

            return call

        for name in self.NAMES:
            setattr(gc, name, watched(name))
        try:
            yield
        finally:
            for name, function in kept.items():
                setattr(gc, name, function)


def kernel(objects: int, tensors: int) -> Any:
    """A shell on a practice card with so much in its variables; its card is ``shell.card``."""
    import torch
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from cuda_magic.testing.torch_card import torch_card

    os.environ["CUDA_MAGIC_PRACTICE"] = "1"
    config = Config()
    config.HistoryManager.enabled = False
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    shell.card = torch_card(practice=HELD + (2 << 20))
    shell.run_line_magic("load_ext", "cuda_magic")
    gc.disable()  # as fast as it goes; it is on again for the cell
    shell.user_ns["data"] = [Small(number) for number in range(objects // 3)]
    shell.user_ns["torch"] = torch
    shell.user_ns["held"] = [torch.empty(HELD // 4 // tensors) for _ in range(tensors)]
    gc.collect()
    gc.enable()
    return shell


def fail(shell: Any) -> dict[str, Any]:
    """Run a guarded cell that asks for too much."""
    watch = Watch()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), watch.on():
        started = time.perf_counter()
        shell.run_cell(f"{LINE}\ny = torch.empty(1 << 20)")
        seconds = time.perf_counter() - started
    assert "cuda_guard: not" in shown.getvalue(), shown.getvalue()
    return {
        "seconds": round(seconds, 2),
        "collecting": round(watch.seconds["collect"], 2),
        "beyond": round(seconds - watch.seconds["collect"], 2),
        "walks": watch.counts["get_objects"] + watch.counts["get_referrers"],
        "referrers_of": watch.most,
    }


def measure(objects: int, tensors: int) -> dict[str, Any]:
    """Figures of the first failing cell of a fresh process, and of the next one, which meets the first one's error."""
    shell = kernel(objects, tensors)
    fail_first, again = fail(shell), fail(shell)
    return {"objects": len(gc.get_objects()), "tensors": tensors, "first": fail_first, "again": again}


def main(path: str | None = None, objects: str = str(OBJECTS)) -> None:
    import subprocess

    print(f"{'objects':>9}{'tensors':>9}  {'cell':7}{'seconds':>9}{'collect':>9}{'beyond':>8}{'walks':>7}{'asked':>7}")
    rows = []
    for many, tensors in ROWS:
        ask = f"import sys, json; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'benchmarks')!r}]; import waits; "
        ask += f"print('FIGURES' + json.dumps(waits.measure({int(objects) if many is None else many}, {tensors})))"
        out = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
        row = json.loads(out.split("FIGURES")[1])
        rows.append(row)
        for name in ("first", "again"):
            f = row[name]
            print(
                f"{row['objects']:9}{tensors:9}  {name:7}{f['seconds']:9.2f}{f['collecting']:9.2f}{f['beyond']:8.2f}"
                f"{f['walks']:7}{f['referrers_of']:7}",
                flush=True,
            )
    if path:
        where = {
            "machine": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "torch": version("torch"),
            "cell": f"{LINE}, one request of 4 MiB with 2 free: the rungs, then the report",
        }
        Path(path).write_text(json.dumps({"where": where, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
