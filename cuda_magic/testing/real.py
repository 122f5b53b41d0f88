"""The same few operations on a real card, by torch.

The one place that imports torch: whoever calls ``cuda_magic.testing.gpu()`` asks for a card to work on in this kernel.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from ..errors import UserError
from ..machine import RealMachine
from .sizes import size

__all__ = ["RealGpu", "real_gpus"]


def real_gpus() -> int:
    """How many cards torch can use here; 0 without importing torch where there is no driver."""
    if find_spec("torch") is None:
        return 0
    try:
        ctypes.CDLL("libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll")
    except OSError:
        return 0
    import torch

    try:
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
            return int(torch.cuda.device_count())
    except RuntimeError:
        pass  # CUDA does not start: %cuda_doctor says why
    return 0


class RealProcess:
    """A child process that holds memory of a card."""

    _HOLD = (
        "import sys, time, torch\n"
        "kept = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device=f'cuda:{sys.argv[2]}')\n"
        "torch.cuda.synchronize()\n"
        "print('held', flush=True)\n"
        "time.sleep(float(sys.argv[3]))\n"
    )

    def __init__(self, nbytes: int, device: int, seconds: float | None) -> None:
        words = [sys.executable, "-c", self._HOLD, str(nbytes), str(device), str(seconds or 3600)]
        self._child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert self._child.stdout is not None
        if self._child.stdout.readline().strip() != "held":
            self.stop()
            raise RuntimeError("the other process could not take the memory")
        self.pid, self.nbytes = self._child.pid, nbytes

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def stop(self) -> None:
        """End the process: its memory is free again."""
        self._child.kill()
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()


class RealGpu:
    """The real cards of this machine behind the interface of `PracticeGpu`."""

    practice = False

    def __init__(self) -> None:
        import torch

        self.torch: Any = torch
        self.machine = RealMachine()

    def __repr__(self) -> str:
        cuda = self.torch.cuda
        return ", ".join(cuda.get_device_name(i) for i in range(cuda.device_count()))

    def empty(self, nbytes: str | int, device: int = 0) -> Any:
        """A tensor of bytes, not written."""
        __tracebackhide__ = True
        return self.torch.empty(size(nbytes), dtype=self.torch.uint8, device=f"cuda:{device}")

    def full(self, nbytes: str | int, value: int, device: int = 0) -> Any:
        """A tensor of bytes, each `value` (0 to 255)."""
        __tracebackhide__ = True
        return self.empty(nbytes, device).fill_(value)

    def fill(self, tensor: Any, value: int) -> Any:
        """Write `value` into every byte of `tensor`."""
        return tensor.fill_(value)

    def sum(self, tensor: Any) -> int:
        """The sum of the bytes of `tensor`: proves that its data is intact."""
        # in pieces: a sum of bytes is done in 64-bit numbers, which the card first makes room for
        return sum(int(part.sum()) for part in tensor.view(-1).split(1 << 20))

    def rand(self) -> float:
        """A random number from the device's generator."""
        return float(self.torch.rand((), device="cuda"))

    def empty_cache(self) -> None:
        """Give cached memory back to the driver, as ``torch.cuda.empty_cache()`` does."""
        self.torch.cuda.empty_cache()

    def limit(self, nbytes: str | int | None, device: int = 0) -> None:
        """Let this process reserve at most `nbytes` on `device`; None lifts the limit."""
        total = self.torch.cuda.get_device_properties(device).total_memory
        fraction = 1.0 if nbytes is None else min(1.0, size(nbytes) / total)
        self.torch.cuda.set_per_process_memory_fraction(fraction, device)

    def other_process(
        self, nbytes: str | int, pid: int = 0, seconds: float | None = None, device: int = 0
    ) -> RealProcess:
        """A child process that holds `nbytes` of `device` until its ``stop()`` or for `seconds`; it has its own pid."""
        return RealProcess(size(nbytes), device, seconds)

    def lose_context(self, device: int = 0) -> None:
        """Not on a real card: nothing but a restart would bring it back."""
        raise UserError("a real card's context is not lost on purpose; CUDA_MAGIC_PRACTICE=1 gives a practice GPU")
