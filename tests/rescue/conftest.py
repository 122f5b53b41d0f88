"""A cell run statement by statement as the cells room does it, with a guard, on the practice GPU."""

from __future__ import annotations

import ast
import contextlib
import traceback

import pytest

from cuda_magic.allocation.session import Session
from cuda_magic.cells.rescuer import Step
from cuda_magic.machine import use
from cuda_magic.rescue.guard import GuardRun
from cuda_magic.rescue.options import GuardOptions


class Cells:
    """A namespace, and cells that run guarded in it. `lines` are what the guard said, `report` is the last report."""

    def __init__(self) -> None:
        self.names: dict = {"__name__": "__main__"}
        self.lines: list[str] = []
        self.report = None
        self.shell = None
        self.repeat = False
        """Whether every statement may run again, for tests of how room is made."""

    def _bind(self, report):
        self.report = report

    def plain(self, code: str) -> None:
        exec(code, self.names)

    def guard(self, code: str, **options):
        """Run `code` guarded; the error that it ends with, or None."""
        run = GuardRun(GuardOptions(**{"repeat": self.repeat, **options}), self.shell, self.lines.append, self._bind)
        for index, node in enumerate(ast.parse(code).body):
            compiled = compile(ast.Module([node], []), "<cell>", "exec")
            bound = frozenset(
                n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
            )
            step = Step(index, ast.unparse(node), node.lineno, node.end_lineno, bound, False, node, compiled)
            before = {n: self.names[n] for n in bound if n in self.names}
            first = None
            while True:
                run.before(step, self.names)
                try:
                    with run.during(step) or contextlib.nullcontext():
                        exec(compiled, self.names)
                    break
                except Exception as error:
                    if not run.noticed(error, step):
                        self.text = run.gave_up(error, step)
                        return error
                    first = first or error
                    traceback.clear_frames(error.__traceback__)
                for name in bound:
                    self.names.pop(name, None)
                self.names.update(before)
                if not run.recover(step, self.names, ()):
                    self.text = run.gave_up(first, step)
                    return first
        first = None  # its traceback has this frame
        run.finished()
        return None

    def rung(self, name: str):
        """What the last report says of one rung."""
        found = [r for r in self.report.rungs if r.id == name]
        return found[-1] if found else None


_BEGIN = Session.begin


@pytest.fixture
def cells(monkeypatch):
    """What is met after the error: nothing makes room where memory is asked for (the fixture `armed` lets it)."""
    monkeypatch.setattr(Session, "begin", lambda *asked: None)
    yield Cells()
    use(None)


@pytest.fixture
def armed(cells, monkeypatch):
    """The same cells, with room made where memory is asked for, as users have it."""
    monkeypatch.setattr(Session, "begin", _BEGIN)
    return cells


@pytest.fixture
def practice(cells):
    """The same with ``gpu``, a practice card of 24 GiB, in the namespace."""
    from cuda_magic.testing import gpu

    cells.gpu = cells.names["gpu"] = gpu(force=True)
    return cells
