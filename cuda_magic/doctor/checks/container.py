"""Containers: what the toolkit put in, and what was lost since."""

from __future__ import annotations

from ..facts import Facts
from ..finding import ERROR, Check, Finding
from ..places import anew, get_gpu
from .common import NO_START, hardware, not_found

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
        f"Nothing in this kernel can repair it. {anew(facts)}\nTo prevent it, the administrator gives the device"
        " files to"
        " the container explicitly or uses the cgroupfs driver.",
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
        f"Setting it in a notebook comes too late; in the image or the container's environment it reads"
        " compute,utility."
        f"\n{get_gpu(facts, ' -e NVIDIA_DRIVER_CAPABILITIES=compute,utility')}",
        TOOLKIT,
        unusable=True,
    )


def hidden(facts: Facts) -> Finding | None:
    """A container that was started without a card."""
    value = facts.environment.get("NVIDIA_VISIBLE_DEVICES")
    named = value is not None and value.strip() in ("", "void", "none")
    # without the variable too: the host's card or driver shows through sysfs, and no device file was given
    bare = bool(facts.platform.container) and not_found(facts) and (hardware(facts) or facts.platform.wsl)
    if facts.startup.ok or facts.nvml.devices or not (named or bare):
        return None
    if any(node.removeprefix("/dev/nvidia").isdigit() or node == "/dev/dxg" for node in facts.driver.nodes):
        return None
    if not named and (facts.driver.libraries or (facts.driver.module is not None and not facts.platform.wsl)):
        return None
    return Finding(
        ERROR,
        f"NVIDIA_VISIBLE_DEVICES={(value or '').strip() or '(empty)'}: this container was started without a GPU."
        if named
        else "This container was started without a GPU: it has no device file of a card and no driver library.",
        "Both are given to a container when it is created; nothing that is set in here changes that.",
        get_gpu(facts) or "Start the container anew with a GPU.",
        TOOLKIT,
        unusable=True,
    )


CHECKS = (
    Check("container.lost-gpu", lost, (*NO_START, "driver.")),
    Check("container.capabilities", capabilities, (*NO_START, "driver.")),
    Check("container.no-gpu", hidden, (*NO_START, "driver.")),
)
