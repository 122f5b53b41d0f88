"""NVML's return codes as calm sentences. Source: nvml.h, nvmlReturn_t (13.580), each with what it means for a user."""

from __future__ import annotations

from .model import Status

__all__ = ["FOR_EVER", "LOST", "RESTART", "SENTENCES", "sentence", "status"]

SENTENCES: dict[int, str] = {
    1: "NVML was shut down by somebody in this process.",
    2: "The driver does not know this device any more.",
    3: "The device does not support this question.",
    4: "No permission to ask this device (a container, or a MIG card without the capability).",
    5: "NVML says that it is started already.",
    6: "The driver does not find what was asked for.",
    7: "The driver had more to say than there was room for.",
    8: "The GPU lacks its power cable.",
    9: "The NVIDIA driver is not loaded.",
    10: "The driver did not answer in time.",
    11: "The kernel has trouble with the GPU's interrupt.",
    12: "No NVIDIA driver found on this machine.",
    13: "This driver is too old for the question.",
    14: "The GPU's info ROM is damaged.",
    15: "The GPU has fallen off the bus: the machine must be restarted.",
    16: "The GPU must be reset before it can be used again.",
    17: "The operating system denies access to the GPU (a container without its device nodes, say).",
    18: "The driver's library and its kernel module are of different versions: restart, or reload the module.",
    19: "The GPU is in use and cannot answer.",
    20: "The driver ran out of memory of its own.",
    21: "The driver has no data yet.",
    22: "The virtual GPU has no ECC.",
    23: "The driver is short of resources of its own.",
    24: "The clock frequency is not supported.",
    25: "This driver is of another version than the question.",
    26: "The question is out of use with this driver.",
    27: "The GPU is not ready yet.",
    28: "The GPU is not found.",
    29: "The GPU is in a state in which it cannot answer.",
    30: "This kind of reset is not supported.",
    999: "The driver gives an unknown error; in a long-running container its access to the GPU may have been lost.",
}

FOR_EVER = frozenset({3, 13, 25, 26})
"""The answer will not change while the driver stays: not asked again."""
LOST = frozenset({2, 6, 15, 16, 28, 29, 999})
"""The device is not there (any more)."""
RESTART = frozenset({1, 2, 999})
"""Handles may be of an earlier start of the driver: worth starting NVML anew."""


def sentence(code: int) -> str:
    """What `code` means, in one sentence."""
    return SENTENCES.get(code, f"NVML answers with error {code}, which this release does not know.")


def status(error: Exception) -> Status:
    """The status after `error` while NVML was starting."""
    code = getattr(error, "value", None)
    if isinstance(code, int):
        return Status(False, code, sentence(code))
    return Status(False, None, f"NVML could not be started ({type(error).__name__}).")
