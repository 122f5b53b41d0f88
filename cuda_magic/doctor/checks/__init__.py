"""The table of checks, one room a family. Causes stand above effects: the first finding is the one to act on."""

from __future__ import annotations

from ..finding import Check
from . import build, container, devices, driver, host, kernel, packages, startup, visible, wsl

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    *kernel.CAUSES,
    *build.CAUSES,
    *container.CHECKS,
    *wsl.CAUSES,
    *driver.CHECKS,
    *devices.LOST,
    *visible.CHECKS,
    *host.CHECKS,
    *wsl.EFFECTS,
    *devices.CAUSES,
    *startup.CHECKS,
    *build.CHECKS,
    *kernel.CHECKS,
    *packages.CHECKS,
    *devices.CHECKS,
)
