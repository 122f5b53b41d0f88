"""``%cuda_guard --all``: the magic's line in front of every following cell, put there before IPython reads the cell."""

from __future__ import annotations

from typing import Any

__all__ = ["Everywhere"]


class Everywhere:
    """Guards every cell of one shell while `install`-ed.

    A transformer of raw lines is called for nested bodies too, ours among them: only the user's own cell, which is
    read while no cell runs and nothing of ours is being translated, gets the line.
    """

    has_side_effects = True
    """IPython's check whether a cell is complete then leaves this transformer out."""

    def __init__(self, hooks: Any, line: str) -> None:
        self.hooks, self.shell = hooks, hooks.shell
        self.line = f"%%cuda_guard {line}".rstrip() + "\n"
        self._running = False

    def install(self) -> None:
        self._running = True  # the cell that says --all
        self.shell.input_transformers_cleanup.append(self)
        self.shell.events.register("pre_execute", self._begins)
        self.shell.events.register("post_execute", self._ends)

    def remove(self) -> None:
        if self not in self.shell.input_transformers_cleanup:
            return
        self.shell.input_transformers_cleanup.remove(self)
        self.shell.events.unregister("pre_execute", self._begins)
        self.shell.events.unregister("post_execute", self._ends)

    def _begins(self) -> None:
        self._running = True

    def _ends(self) -> None:
        self._running = False

    def __call__(self, lines: list[str]) -> list[str]:
        first = next((line.strip() for line in lines if line.strip()), "")
        if self._running or self.hooks.translating or not first or first.startswith(("%cuda_guard", "%%cuda_guard")):
            return lines
        return [self.line, *lines]
