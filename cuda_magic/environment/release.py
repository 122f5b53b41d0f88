"""The installed torch, from its package metadata: nothing is imported to find out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import metadata

from packaging.version import InvalidVersion, Version

from ..machine import machine

__all__ = ["NEWEST", "Torch", "installed"]

NEWEST = (2, 15)
"""The newest release whose grammar is known here."""


@dataclass(frozen=True)
class Torch:
    """`version` as the package says it; None where torch is not installed."""

    version: str | None = None

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor); that of the newest known release where torch is not installed or its version is odd."""
        try:
            parsed = Version(self.version or "")
        except InvalidVersion:
            return NEWEST
        return parsed.major, parsed.minor

    @property
    def cpu_only(self) -> bool:
        """A build without CUDA, as far as its version says (``2.13.0+cpu``)."""
        return (self.version or "").endswith("+cpu")

    @property
    def words(self) -> str:
        return f"torch {self.version}" if self.version else "torch is not installed; judged as its newest release"


PRACTICE = Torch("2.11.0")


def installed() -> Torch:
    """The torch that ``import torch`` would find; for the practice GPU the one whose allocator it models."""
    if machine().label:
        return PRACTICE
    imported = getattr(sys.modules.get("torch"), "__version__", None)
    if imported is not None:  # another release may have been installed since: this process has this one
        return Torch(str(imported))
    try:
        return Torch(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Torch()
