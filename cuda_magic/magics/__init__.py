"""The magics. One short file each: arguments in, result object out; the rooms behind them load on first use."""

from __future__ import annotations

import functools
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand

from ..allocation.on_import import forget, when_imported
from ..cells.front import Front
from ..cells.hooks import Hooks
from ..settings import CudaMagic
from . import cuda_doctor, cuda_env, cuda_guard, gpu_mem
from .completion import Completion
from .options import Spec

__all__ = ["load", "unload"]

SPECS: tuple[Spec, ...] = (cuda_env.SPEC, cuda_guard.SPEC, gpu_mem.SPEC, cuda_doctor.SPEC)


@magics_class
class CudaMagics(Magics):
    """The four magics of one shell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.settings = CudaMagic(parent=shell)
        self.hooks = Hooks(shell)
        self.hooks.before = cuda_guard.before_cell
        self.hooks.front = Front(self.hooks, cuda_guard.SPEC.name, functools.partial(cuda_guard.prepare, self))
        self.completion = Completion(shell, SPECS)

    @line_magic
    def cuda_env(self, line: str) -> Any:
        return cuda_env.run(self, line)

    @no_var_expand
    @line_cell_magic
    def cuda_guard(self, line: str, cell: str | None = None) -> Any:
        __tracebackhide__ = True
        if cell is None and cuda_guard.SPEC.asks_help(line):
            return None
        return cuda_guard.run(self, line, cell)

    @no_var_expand
    @line_cell_magic
    def gpu_mem(self, line: str, cell: str | None = None) -> Any:
        __tracebackhide__ = True
        return gpu_mem.run(self, line, cell)

    @line_magic
    def cuda_doctor(self, line: str) -> Any:
        return cuda_doctor.run(self, line)


for _spec in SPECS:
    getattr(CudaMagics, _spec.name).__doc__ = _spec.doc()

_loaded: dict[int, CudaMagics] = {}


def load(shell: Any) -> None:
    """Register magics, completers, settings and cell hooks. Loading twice replaces the first."""
    unload(shell)
    magics = CudaMagics(shell)
    shell.register_magics(magics)
    shell.configurables.append(magics.settings)
    magics.hooks.install()
    when_imported("torch", cuda_guard.before_cell)
    magics.completion.install()
    _loaded[id(shell)] = magics


def unload(shell: Any) -> None:
    """Undo `load`: no magic, hook, completer, setting, panel or parked tensor stays."""
    magics = _loaded.pop(id(shell), None)
    if magics is None:
        return
    magics.hooks.remove()
    forget()
    cuda_guard.close()
    gpu_mem.close()
    table = shell.magics_manager.magics
    for kind, names in magics.magics.items():
        for name in names:
            table[kind].pop(name, None)
    shell.magics_manager.registry.pop(type(magics).__name__, None)
    # Magics.__init__ puts itself there too
    shell.configurables[:] = [c for c in shell.configurables if c is not magics and c is not magics.settings]
    magics.completion.remove()
