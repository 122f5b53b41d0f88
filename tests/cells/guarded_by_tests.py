"""An extension: cuda_magic with a guard of the tests' own, which repeats on an error of that name."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from cuda_magic.cells.run import run
from cuda_magic.magics import cuda_guard, load, unload


class OutOfMemoryError(RuntimeError):
    """Stands for torch's error of that name."""


class Repeats:
    """A rescuer that repeats a statement `times` times, says so, and keeps a record of what it was told."""

    def __init__(self, times: int = 1, say: bool = True) -> None:
        self.times, self.say = times, say
        self.log: list[str] = []
        self.lost: tuple[str, ...] = ()
        self.at_recovery: Any = None
        self.modes: Any = contextlib.nullcontext
        self.under: Any = None
        self.gone = False

    def before(self, step, namespace):
        self.log.append(f"before {step.index}")

    def during(self, step):
        return self.modes()

    def noticed(self, error, step):
        self.log.append(f"noticed {step.index}")
        return type(error).__name__ == "OutOfMemoryError"

    def recover(self, step, namespace, lost):
        self.log.append(f"recover {step.index}")
        self.lost = lost
        if self.at_recovery is not None:
            self.at_recovery()
        self.times -= 1
        if self.times >= 0 and self.say:
            print(f"repeat of line {step.first_line}", file=sys.stderr)
        return self.times >= 0

    def gave_up(self, error, step):
        self.log.append(f"gave up {step.index}")
        return self.under

    def finished(self):
        self.log.append("finished")

    def left(self):
        self.gone = True


last: list[Repeats] = []
make: list[Any] = [lambda line: Repeats(int(line or 1))]


def _run(magics, line, cell):
    __tracebackhide__ = True
    return run(magics, cell, _prepare(magics, line))


def _prepare(magics, line, nodes=(), by_all=False):
    last[:] = [make[0](line)]
    return last[0]


_plain = cuda_guard.run, cuda_guard.prepare


def load_ipython_extension(shell):
    cuda_guard.run, cuda_guard.prepare = _run, _prepare
    load(shell)
    shell.user_ns["OutOfMemoryError"] = OutOfMemoryError


def unload_ipython_extension(shell):
    cuda_guard.run, cuda_guard.prepare = _plain
    unload(shell)
