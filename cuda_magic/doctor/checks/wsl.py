"""Windows Subsystem for Linux: the driver is Windows' own, seen through /dev/dxg and /usr/lib/wsl/lib."""

from __future__ import annotations

from ...environment.visible import resolve
from ..facts import Facts
from ..finding import ERROR, Check, Finding
from .common import NO_START, broken_library, cards, failed, gpus, in_path, without

GUIDE = "CUDA on WSL user guide (docs.nvidia.com/cuda/wsl-user-guide)"


def no_gpu(facts: Facts) -> Finding | None:
    """WSL without the bridge to the Windows driver."""
    bridge = "/dev/dxg" in facts.driver.nodes
    if not facts.platform.wsl or facts.platform.container or facts.startup.ok or broken_library(facts):
        return None
    if bridge and not facts.startup.load_error:
        return None
    return Finding(
        ERROR,
        "This is WSL, and " + ("libcuda.so.1 is not found." if bridge else "/dev/dxg is missing."),
        "Under WSL 2 the driver is the one installed in Windows; Linux sees it through /dev/dxg and /usr/lib/wsl/lib."
        + (" WSL 1 has no GPU." if not bridge else ""),
        "Install NVIDIA's driver in Windows (none inside Linux), then in a Windows terminal:\n"
        "wsl --update\nwsl --shutdown",
        GUIDE,
        unusable=True,
    )


def linux_driver(facts: Facts) -> Finding | None:
    """A Linux driver installed inside WSL hides the right library."""
    if not facts.platform.wsl or not failed(facts):
        return None
    other = [lib for lib in facts.driver.libraries if lib.name == "libcuda" and "/wsl/" not in lib.path and lib.version]
    if not other:
        return None
    return Finding(
        ERROR,
        f"This is WSL, and a Linux driver library is installed beside Windows' own: {other[0].path}.",
        "The Linux driver has no kernel module here and hides the library that works, the one in /usr/lib/wsl/lib.",
        without(facts, [other[0].path.rpartition("/")[0]])
        if in_path(facts, other[0].path)
        else "Build the image without NVIDIA's driver packages, and create the container anew."
        if facts.platform.container
        else "Remove the Linux driver's packages, keep the CUDA toolkit:\n$ sudo apt purge 'libnvidia-compute-*'",
        GUIDE,
        unusable=True,
    )


def many_gpus(facts: Facts) -> Finding | None:
    """Code 2 on a WSL machine with several cards."""
    if facts.startup.code != 2 or not facts.platform.wsl or gpus(facts) < 2:
        return None
    seen = resolve(facts.environment.get("CUDA_VISIBLE_DEVICES"), facts.nvml.devices).devices or facts.nvml.devices
    shown = [d.index for d in seen if d.parent is None]
    if len(shown) < 2:
        return None
    fewer = ",".join(str(i) for i in shown[:-1])
    return Finding(
        ERROR,
        f"cuInit answers 2, out of memory, under WSL with {cards(facts)}.",
        "The driver's start-up failed, and not for video memory: reports show that it depends on the number of visible"
        " cards, and that more memory for WSL did not help. An NVML-based check that says True does not repair it.",
        f"Show fewer cards and start a new kernel:\n%cuda_env CUDA_VISIBLE_DEVICES={fewer}\n%cuda_env --restart",
        "microsoft/WSL#10269, pytorch/pytorch#150048",
        unusable=True,
    )


CAUSES = (
    Check("wsl.no-gpu", no_gpu, (*NO_START, "driver.")),
    Check("wsl.linux-driver", linux_driver, (*NO_START, "driver.")),
)
EFFECTS = (Check("wsl.many-gpus", many_gpus, NO_START),)
