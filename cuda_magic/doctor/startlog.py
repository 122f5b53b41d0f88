"""A log of CUDA's start: which libcuda the loader tried, and what the driver wrote of its own start."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..render.blocks import Block, Code, Text, Title
from ..result import Result
from .private import clean
from .startup import Startup, probe

__all__ = ["StartLog", "start_log"]

_VARIANT = re.compile(r"/(?:tls|glibc-hwcaps|haswell|avx512_1|x86_64)/")
"""Folders of variants for one processor, which the loader tries in each folder first; no driver uses them."""
MOST = 60
"""Lines of each part that are shown."""


@dataclass(frozen=True, repr=False)
class StartLog(Result):
    """`loader` and `driver` are lines, in their order."""

    sentence: str
    seconds: float | None
    loader: tuple[str, ...]
    driver: tuple[str, ...]

    def blocks(self) -> Sequence[Block]:
        took = "" if self.seconds is None else f" ({self.seconds:.2f} s)"
        nothing = "It wrote nothing. A driver older than CUDA 12.9 never does."
        return [
            Title(f"CUDA's start: {self.sentence}{took}"),
            Text("The loader (LD_DEBUG=libs), where it looked for libcuda:"),
            Code("\n".join(self.loader[:MOST]) or "(nothing)"),
            Text("The driver (CUDA_LOG_FILE):"),
            Code("\n".join(self.driver[:MOST])) if self.driver else Text(nothing),
        ]


def start_log(full: bool = False, show_private: bool = False) -> StartLog:
    """Start CUDA in a child process, as the doctor does, with both logs on."""
    with tempfile.TemporaryDirectory(prefix="cuda_magic") as folder:
        place = Path(folder)
        environment = {
            **os.environ,
            "CUDA_LOG_FILE": str(place / "cuda.log"),
            "LD_DEBUG": "libs",
            "LD_DEBUG_OUTPUT": str(place / "loader"),
        }
        startup: Startup = probe(full=full, environment=environment)
        loader = [line for file in sorted(place.glob("loader.*")) for line in _lines(file)]
        driver = _lines(place / "cuda.log")
    wanted = [re.sub(r"^\s*\d+:\s*", "", line) for line in loader if "libcuda" in line or "libnvidia" in line]
    wanted = [line for line in wanted if not _VARIANT.search(line)]
    polish = (lambda text: text) if show_private else clean
    return StartLog(
        polish(startup.sentence),
        startup.seconds,
        tuple(polish(line) for line in wanted),
        tuple(polish(line) for line in driver),
    )


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
