"""Questions that several families ask of the facts."""

from __future__ import annotations

from collections.abc import Iterable

from ..facts import Facts

__all__ = [
    "NO_START",
    "broken_library",
    "cards",
    "failed",
    "gpus",
    "hardware",
    "in_path",
    "not_found",
    "plural",
    "without",
]

NO_START = ("startup.", "nvml.", "torch.nvml-check")
"""The symptoms of a start that fails, whatever made it fail."""


def gpus(facts: Facts) -> int:
    """The whole cards that NVML counts."""
    return sum(1 for d in facts.nvml.devices if d.parent is None)


def cards(facts: Facts) -> str:
    """``2 GPUs``, with their name where all are of one kind."""
    names = {d.name for d in facts.nvml.devices if d.parent is None and not d.error}
    count = plural(gpus(facts), "GPU")
    return f"{count} ({names.pop()})" if len(names) == 1 and None not in names else count


def failed(facts: Facts) -> bool:
    """Whether CUDA was tried and did not start."""
    s = facts.startup
    told = s.code is not None or bool(s.load_error)
    return not s.ok and (told or s.timed_out or s.signal is not None or bool(s.step))


def not_found(facts: Facts) -> bool:
    """The loader found no libcuda at all; else its sentence is about one that is there and does not load."""
    text = facts.startup.load_error
    if "Permission denied" in text:
        return False
    return "libcuda.so.1: cannot open shared object file" in text or "Could not find module" in text


def broken_library(facts: Facts) -> bool:
    """A libcuda is there and cannot be loaded."""
    return bool(facts.startup.load_error) and not not_found(facts)


def without(facts: Facts, folders: Iterable[str]) -> str:
    """The lines that take `folders` out of LD_LIBRARY_PATH, which is read when a process starts."""
    drop = {folder.rstrip("/") for folder in folders}
    kept = [f for f in facts.environment.get("LD_LIBRARY_PATH", "").split(":") if f and f.rstrip("/") not in drop]
    change = f"%cuda_env LD_LIBRARY_PATH={':'.join(kept)}" if kept else "%cuda_env --unset LD_LIBRARY_PATH"
    return f"{change}\n%cuda_env --restart"


def in_path(facts: Facts, library: str) -> bool:
    """Whether the folder of `library` stands in LD_LIBRARY_PATH."""
    folders = {f.rstrip("/") for f in facts.environment.get("LD_LIBRARY_PATH", "").split(":") if f}
    return library.rpartition("/")[0] in folders


def hardware(facts: Facts) -> bool:
    """Whether anything shows that an NVIDIA GPU is here."""
    driver = facts.driver
    return bool(
        facts.startup.ok
        or facts.nvml.devices
        or driver.pci
        or driver.module
        or driver.nodes
        or facts.platform.jetson
        or facts.nvml.status.code not in (None, 9, 12)
        or facts.nvml.status.trouble in ("hang", "crash")
        or facts.startup.code not in (None, 100)
    )


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
