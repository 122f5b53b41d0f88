"""What a guarded cell that succeeds costs, beside ``%%time`` and the plain cell, in the same run.

    python benchmarks/guard_cost.py

Prints the median processor time over rounds of interleaved runs, in microseconds, and what happened meanwhile:
collections that somebody asked for, and imports. The cells run in an IPython shell without a front end,
with the guard that users get; torch is not imported, so nothing is asked of an allocator.
"""

from __future__ import annotations

import contextlib
import gc
import io
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BODIES = {
    "one line": "x = 1",
    "ten lines": "\n".join(f"x{i} = {i}" for i in range(10)),
    "ten calls": "\n".join(f"y{i} = abs({i})" for i in range(10)),
    "a loop and an expression": "total = 0\nfor i in range(100):\n    total += i\ntotal",
    "a function and its call": (
        "def f(a, b=2):\n    c = a + b\n    for i in range(3):\n        c += i\n    return c\n\nprint(f(1), f(2))"
    ),
}
ROUNDS = 400


def measure(shell, body: str, rounds: int = ROUNDS) -> SimpleNamespace:
    """Median microseconds of the three ways to run `body`, and the guard's cost over the plain cell."""
    ways = {"plain": "# c\n", "time": "%%time\n", "guard": "%%cuda_guard\n"}
    spent: dict[str, list[float]] = {way: [] for way in ways}
    with contextlib.redirect_stdout(io.StringIO()):
        for line in ways.values():
            shell.run_cell(line + body)
        gc.disable()  # so that a collection is one that somebody asked for
        modules, collections = set(sys.modules), sum(s["collections"] for s in gc.get_stats())
        try:
            for number in range(rounds):
                for way, line in ways.items():
                    text = f"{line}# edit {number}\n{body}"  # a cell that was edited: nothing of it is known
                    start = time.process_time()
                    shell.run_cell(text)
                    spent[way].append(time.process_time() - start)
            collected = sum(s["collections"] for s in gc.get_stats()) - collections
        finally:
            gc.enable()
    medians = {way: statistics.median(times) * 1e6 for way, times in spent.items()}
    return SimpleNamespace(**medians, collections=collected, imports=sorted(set(sys.modules) - modules))


def make_shell():
    """A shell with the extension loaded, as `%load_ext` does it."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "cuda_magic")
    return shell


def main() -> None:
    shell = make_shell()
    print(f"{'cell':26}{'plain':>9}{'%%time':>9}{'guarded':>9}{'over plain':>12}   collections, imports")
    for name, body in BODIES.items():
        m = measure(shell, body)
        figures = f"{m.plain:9.0f}{m.time:9.0f}{m.guard:9.0f}{m.guard - m.plain:12.0f}"
        print(f"{name:26}{figures}   {m.collections}, {m.imports}")


if __name__ == "__main__":
    main()
