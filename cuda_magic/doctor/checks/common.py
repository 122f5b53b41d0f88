"""Questions that several families ask of the facts."""

from __future__ import annotations

from ..facts import Facts

__all__ = ["NO_START", "cards", "failed", "gpus", "hardware", "plural"]

NO_START = ("startup.", "nvml.", "torch.nvml-check")
"""The symptoms of a start that fails, whatever made it fail."""


def gpus(facts: Facts) -> int:
    """The whole cards that NVML counts."""
    return sum(1 for d in facts.nvml.devices if d.parent is None)


def cards(facts: Facts) -> str:
    """``2 GPUs``, with their name where all are of one kind."""
    names = {d.name for d in facts.nvml.devices if d.parent is None}
    count = plural(gpus(facts), "GPU")
    return f"{count} ({names.pop()})" if len(names) == 1 and None not in names else count


def failed(facts: Facts) -> bool:
    """Whether CUDA was tried and did not start."""
    s = facts.startup
    return not s.ok and (s.code is not None or bool(s.load_error) or s.timed_out or s.signal is not None)


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
        or facts.startup.code not in (None, 100)
    )


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
