"""The machine that the magics ask: the real one, or the practice GPU. One place decides."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from .devices.model import DeviceSource, Reading
    from .doctor.facts import Facts
    from .memory.allocator import Allocator

__all__ = ["Machine", "RealMachine", "machine", "use"]


class Machine(Protocol):
    """The seams, and a label that is shown wherever their answers are."""

    @property
    def label(self) -> str:
        """Empty for the real machine, ``PRACTICE`` for the practice GPU."""
        ...

    def devices(self) -> DeviceSource: ...

    def allocator(self) -> Allocator | None:
        """The allocator of the library that the user imported; None where none is imported."""
        ...

    def startup(self, full: bool = False) -> Any:
        """How CUDA starts, tried in a child process: a `cuda_magic.doctor.startup.Startup`."""
        ...

    def facts(self, full: bool = False) -> Facts:
        """What the doctor judges: the answers above, and the host around them."""
        ...


@dataclass(frozen=True)
class RealMachine:
    """NVML, the torch in ``sys.modules``, and a child process."""

    label: str = ""

    def devices(self) -> DeviceSource:
        from .devices.helper import source

        return source()

    def allocator(self) -> Allocator | None:
        return _torch_allocator()()

    def startup(self, full: bool = False) -> Any:
        from .doctor.startup import probe

        return probe(full=full)

    def facts(self, full: bool = False) -> Facts:
        from .devices.helper import Helper
        from .doctor.gather import gather

        nvml = self.devices()
        readings: list[Reading] = []
        if isinstance(nvml, Helper):
            # an old failure is kept for a while: the doctor asks anew; beside the start of CUDA, since both may hang
            ask = threading.Thread(target=lambda: readings.append(nvml.read(anew=True)), daemon=True)
            ask.start()
            startup = self.startup(full=full)
            ask.join()
        else:
            startup = self.startup(full=full)
        return gather(startup, readings[0] if readings else nvml.read())


@functools.cache  # asked before every guarded statement: an import statement would cost ten times as much
def _torch_allocator() -> Callable[[], Allocator | None]:
    from .memory.torch import allocator

    return allocator


_machine: Machine = RealMachine()


def machine() -> Machine:
    """The machine in use."""
    return _machine


def use(new: Machine | None) -> Machine:
    """Make `new` the machine in use (None: the real one); gives the one before."""
    global _machine
    before, _machine = _machine, new if new is not None else RealMachine()
    return before
