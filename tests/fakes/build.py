"""A fake ``libnvidia-ml.so.1``, built with the C compiler: cards, processes and errors as a test asks for them.

>>> fake = FakeNvml(build(folder), folder)
>>> fake.device(0, name="NVIDIA H200", total=143 << 30, used=2 << 30, reserved=615 << 20, util=37)
>>> fake.process(0, pid=4242, used=1 << 30)
>>> fake.error("nvmlDeviceGetUtilizationRates", 3, device=0)

Here and in our children ``attach`` makes it what ``dlopen("libnvidia-ml.so.1")`` finds; others get ``environment``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

GIB = 1 << 30
CONTROL = "CUDA_MAGIC_FAKE_NVML"


def compiler() -> str | None:
    """A C compiler, or None."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path, source: str = "nvml.c", library: str = "libnvidia-ml.so.1") -> Path:
    """Compile `source` beside this file into ``folder/library``."""
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler")
    made = folder / library
    here = Path(__file__).parent / source
    command = [cc, "-O1", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(made), str(here)]
    subprocess.run(command, check=True, capture_output=True)
    return made


class FakeNvml:
    """The library's control file, written anew on each change."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        self.path = folder / "nvml.control"
        self.rows: dict[str, str] = {}
        self._loaded: ctypes.CDLL | None = None
        self._before: dict[str, str | None] = {}
        self.write()

    @property
    def environment(self) -> dict[str, str]:
        """What a child process needs to find the fake (merged with this process's environment)."""
        folder = str(self.library.parent)
        paths = [folder, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {**os.environ, CONTROL: str(self.path), "LD_LIBRARY_PATH": os.pathsep.join(paths)}

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self.rows.items()))
        new.replace(self.path)

    def set(self, key: str, value: Any) -> None:
        """One row: ``set("driver", "535.1")``; None removes it."""
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = str(value)
        self.write()

    def device(self, index: int | str = 0, **fields: Any) -> None:
        """Add or change a card (``0``) or a MIG instance of one (``"0.1"``); a field of None is not supported."""
        new = f"name.{index}" not in self.rows
        if new:
            kind = "MIG" if "." in str(index) else "GPU"
            serial = str(index).replace(".", "")
            uuid = f"{kind}-{serial * 8}-0000-0000-0000-000000000000"[: len(kind) + 37]
            fields = {
                "name": "NVIDIA H200",
                "uuid": uuid,
                "total": 80 * GIB,
                "used": 0,
                "reserved": 600 << 20,
                **({} if kind == "MIG" else {"util": 0, "temp": 35, "power": 75000, "limit": 700000, "mig": 0}),
                **fields,
            }
        for key, value in fields.items():
            if value is None:
                self.rows.pop(f"{key}.{index}", None)
            else:
                self.rows[f"{key}.{index}"] = str(value)
        if "." not in str(index):
            self.rows["devices"] = str(max(int(self.rows.get("devices", 0)), int(index) + 1))
        else:
            card, instance = str(index).split(".")
            self.rows[f"mig.{card}"] = "1"
            self.rows[f"nmig.{card}"] = str(max(int(self.rows.get(f"nmig.{card}", 0)), int(instance) + 1))
        self.write()

    def process(self, device: int | str, pid: int, used: int | None, graphics: bool = False) -> None:
        """Add a process; `used` None is what WSL2 and MIG answer."""
        kind = "gproc" if graphics else "proc"
        count = int(self.rows.get(f"n{kind}.{device}", 0))
        self.rows[f"{kind}.{device}.{count}"] = f"{pid} {-1 if used is None else used}"
        self.rows[f"n{kind}.{device}"] = str(count + 1)
        self.write()

    def no_processes(self, device: int | str) -> None:
        self.rows[f"nproc.{device}"] = self.rows[f"ngproc.{device}"] = "0"
        self.write()

    def error(self, function: str, code: int | str | None, device: int | str | None = None) -> None:
        """Let `function` (or "any" with a device) fail with NVML's `code`, or ``hang``, ``crash``, ``slow 300`` (ms);
        None mends it."""
        self.set(f"error.{function}" + ("" if device is None else f".{device}"), code)

    # -- in this process
    def attach(self) -> None:
        """Load it under the driver library's name, so that pynvml and torch find it here."""
        self._before = {name: os.environ.get(name) for name in (CONTROL, "LD_LIBRARY_PATH")}
        os.environ.update({name: self.environment[name] for name in self._before})
        _forget_pynvml()
        self._loaded = ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        # getenv of the library reads the C environment, which os.environ has just written
        self._loaded.fake_reset()

    def detach(self) -> None:
        if self._loaded is None:
            return
        import _ctypes

        for handle in (*_forget_pynvml(), self._loaded._handle):
            _ctypes.dlclose(handle)
        self._loaded = None
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def calls(self, function: str | None = None) -> int:
        """How often `function` was called in this process (None: all calls)."""
        assert self._loaded is not None
        self._loaded.fake_calls.restype = ctypes.c_long
        return int(self._loaded.fake_calls(None if function is None else function.encode()))


def _forget_pynvml() -> list[int]:
    """Let pynvml look for the library anew; gives the handle it had."""
    had: list[int] = []
    module = sys.modules.get("pynvml")
    if module is not None:
        if module.nvmlLib is not None:
            had.append(module.nvmlLib._handle)
        module.nvmlLib = None
        module._nvmlLib_refcount = 0
        module._nvmlGetFunctionPointer_cache.clear()
    for ours in ("nvml", "helper"):
        if f"cuda_magic.devices.{ours}" in sys.modules:
            sys.modules[f"cuda_magic.devices.{ours}"].forget()
    return had
