"""What torch's builds need: the driver for each CUDA, and the cards each build has code for. Rows with their source."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CARDS", "DRIVERS", "Cards", "Driver", "cards_of", "driver_of", "fits", "release"]

_COMPATIBILITY = "docs.nvidia.com/deploy/cuda-compatibility, minor version compatibility"
_RELEASE = "PyTorch RELEASE.md, CUDA builds and their architectures"


@dataclass(frozen=True)
class Driver:
    """The oldest driver (Linux) that runs any build of one CUDA major version."""

    major: int
    minimum: str
    source: str = _COMPATIBILITY


DRIVERS: tuple[Driver, ...] = (
    Driver(11, "450.80.02"),
    Driver(12, "525.60.13"),
    Driver(13, "580"),
)


@dataclass(frozen=True)
class Cards:
    """The compute capabilities that official wheels have code for. Applies from `torch` on, for CUDA from `cuda` on."""

    cuda: tuple[int, int]
    torch: tuple[int, int]
    lowest: tuple[int, int] | None
    highest: tuple[int, int] | None
    source: str = _RELEASE


# The last row that applies counts. None where the facts do not say.
CARDS: tuple[Cards, ...] = (
    Cards((11, 0), (0, 0), (3, 7), (9, 0), "Blackwell (10.0 and newer) needs a build for CUDA 12.8 or newer"),
    Cards((12, 0), (0, 0), (5, 0), (9, 0), "CUDA 12 release notes: Kepler is gone; PyTorch's builds for CUDA 12"),
    Cards((12, 6), (2, 6), (5, 0), (9, 0)),
    # the list in the wheel of 2.9.1+cu128 begins at sm_70; some of these builds begin at sm_75, none below 7.0
    Cards((12, 8), (2, 7), (7, 0), None, "the list of architectures in torch's wheels"),
    Cards((12, 8), (2, 11), (7, 5), None),
    Cards((13, 0), (2, 9), (7, 5), None),
)


def release(text: str | None) -> tuple[int, int] | None:
    """The first two numbers of a version."""
    parts = (text or "").split("+")[0].split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None


def driver_of(cuda: str | None) -> Driver | None:
    """The row of DRIVERS for a build's CUDA."""
    version = release(cuda)
    return next((row for row in DRIVERS if version is not None and row.major == version[0]), None)


def cards_of(torch: str, cuda: str | None) -> Cards | None:
    """The row of CARDS for a build."""
    version, built = release(torch), release(cuda)
    if version is None or built is None:
        return None
    rows = [row for row in CARDS if built >= row.cuda and version >= row.torch]
    return rows[-1] if rows else None


def fits(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Whether a build with these architectures (torch.cuda.get_arch_list) has code for a card.

    Machine code ``sm_86`` runs on its own major version from its minor on; ``compute_90`` is translated for every
    newer card. ``sm_90a`` and ``compute_90a`` are for exactly that card, ``sm_100f`` for its family, one major version.
    """
    for name in architectures:
        kind, _, digits = name.partition("_")
        if digits.endswith("a"):
            if digits[:-1] == "".join(map(str, capability)):
                return True
            continue
        if digits.endswith("f"):
            kind, digits = "sm", digits[:-1]
        if not digits.isdigit() or len(digits) < 2:
            continue
        major, minor = int(digits[:-1]), int(digits[-1])
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            return True
        if kind == "compute" and (major, minor) <= capability:
            return True
    return False
