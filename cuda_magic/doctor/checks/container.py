"""Containers: what the toolkit put in, and what was lost since."""

from __future__ import annotations

from ..facts import Facts
from ..finding import ERROR, Check, Finding
from .common import NO_START

TOOLKIT = "NVIDIA container toolkit, environment variables of an image"


def lost(facts: Facts) -> Finding | None:
    """Access to the card taken away from a running container."""
    if not facts.platform.container or facts.nvml.status.code != 999 or facts.startup.ok:
        return None
    return Finding(
        ERROR,
        "NVML answers 999, unknown error, inside this container.",
        "The container has lost its access to the GPU, as happens when systemd reloads and rewrites the container's"
        " device rules. The host and its driver are usually well.",
        "Nothing in this kernel can repair it: create the container anew (not only its process). To prevent it, the"
        " administrator gives the device files to the container explicitly or uses the cgroupfs driver.",
        "NVIDIA/nvidia-container-toolkit#48, NVIDIA/nvidia-docker#1730",
        unusable=True,
    )


def capabilities(facts: Facts) -> Finding | None:
    """A container that was started without the compute capability."""
    value = facts.environment.get("NVIDIA_DRIVER_CAPABILITIES")
    if value is None or facts.startup.ok or not facts.startup.load_error:
        return None
    if {"compute", "all"} & {word.strip() for word in value.split(",")}:
        return None
    return Finding(
        ERROR,
        f"NVIDIA_DRIVER_CAPABILITIES={value} lacks compute, and libcuda.so.1 is not in this container.",
        "The toolkit mounts libcuda only for the capability compute; NVML and nvidia-smi need utility.",
        "Start the container anew (setting it in a notebook comes too late):\n"
        "$ docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
        TOOLKIT,
        unusable=True,
    )


def hidden(facts: Facts) -> Finding | None:
    """A container that was started without a card."""
    value = facts.environment.get("NVIDIA_VISIBLE_DEVICES")
    if value is None or value.strip() not in ("", "void", "none") or facts.startup.ok:
        return None
    if any(node.removeprefix("/dev/nvidia").isdigit() for node in facts.driver.nodes):
        return None
    return Finding(
        ERROR,
        f"NVIDIA_VISIBLE_DEVICES={value.strip() or '(empty)'}: this container was started without a GPU.",
        "The variable is read when the container is created; setting it here changes nothing.",
        "Start the container anew with a GPU:\n$ docker run --gpus all ...",
        TOOLKIT,
        unusable=True,
    )


CHECKS = (
    Check("container.lost-gpu", lost, (*NO_START, "driver.")),
    Check("container.capabilities", capabilities, (*NO_START, "driver.")),
    Check("container.no-gpu", hidden, (*NO_START, "driver.")),
)
