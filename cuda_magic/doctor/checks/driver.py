"""Driver files, kernel modules, device nodes and versions."""

from __future__ import annotations

from ..facts import Facts
from ..finding import ERROR, INFO, Check, Finding
from ..places import admin, driver_update, get_gpu, reload_uvm
from .common import (
    NO_START,
    cards,
    failed,
    gpus,
    hardware,
    not_found,
    plural,
)
from .libraries import broken, compat, library_missing, mismatch, stub


def none(facts: Facts) -> Finding | None:
    """No driver and no card: nothing is broken."""
    if hardware(facts) or facts.startup.ok or facts.platform.wsl:
        return None
    if not (not_found(facts) or facts.startup.code == 100):
        return None
    practise = "To practise without a GPU: from cuda_magic.testing import gpu; card = gpu()"
    ask = get_gpu(facts)
    if facts.platform.service or facts.platform.batch:
        means = "This session or job was given a machine without a GPU, or none of its GPUs; nothing is broken."
    else:
        means = "CUDA cannot run here. That is normal on Binder, in CI and on most laptops; nothing is broken."
        ask = f"If the host of this container has a GPU: {ask[:1].lower()}{ask[1:]}" if ask else ""
        practise, ask = (f"{practise}\n{ask}" if ask else practise), ""
    return Finding(
        INFO,
        "No NVIDIA driver found, and no NVIDIA GPU.",
        means,
        f"{ask}\n{practise}" if ask else practise,
        "no libcuda.so.1, no kernel module, no device file, no NVIDIA card on the PCI bus",
        unusable=True,
    )


def nouveau(facts: Facts) -> Finding | None:
    """The open driver nouveau holds the card."""
    bound = any(card.driver == "nouveau" for card in facts.driver.pci)
    if facts.startup.ok or facts.driver.module or not (bound or (facts.driver.nouveau and facts.driver.pci)):
        return None
    return Finding(
        ERROR,
        "The NVIDIA card is driven by nouveau, which has no CUDA.",
        "NVIDIA's kernel module cannot take a card that nouveau holds.",
        admin(facts, "install NVIDIA's driver, which blocks nouveau, then restart the machine.", "$ lspci -k -d 10de:"),
        "NVIDIA driver installation guide",
        unusable=True,
    )


def missing(facts: Facts) -> Finding | None:
    """A card without any driver."""
    if facts.startup.ok or not facts.driver.pci or facts.driver.module or not not_found(facts):
        return None
    if facts.platform.wsl or facts.platform.jetson:
        return None
    if facts.platform.container and facts.driver.libraries:
        return None
    return Finding(
        ERROR,
        f"{plural(len(facts.driver.pci), 'NVIDIA card')} on the PCI bus, and no NVIDIA driver.",
        "Neither the kernel module nor libcuda.so.1 is installed.",
        admin(
            facts,
            "install the distribution's NVIDIA driver, then restart the machine (Ubuntu: ubuntu-drivers install).",
        ),
        "NVIDIA driver installation guide",
        unusable=True,
    )


def not_loaded(facts: Facts) -> Finding | None:
    """Libraries without their kernel module."""
    if facts.startup.ok or facts.platform.wsl or facts.platform.jetson or facts.driver.module:
        return None
    if facts.nvml.status.code != 9 and not (facts.driver.pci and failed(facts) and not facts.startup.load_error):
        return None
    return Finding(
        ERROR,
        "The driver's libraries are installed, and its kernel module nvidia is not loaded.",
        "The module was not built for the running kernel, was blocked (Secure Boot), or there is no NVIDIA card.",
        admin(
            facts,
            "load it; if that fails, the log says why.",
            "$ sudo modprobe nvidia",
            "$ dkms status",
            "$ sudo dmesg | grep -i -e nvrm -e nvidia",
        ),
        "NVML_ERROR_DRIVER_NOT_LOADED (9), nvml.h",
        unusable=True,
    )


def fabric(facts: Facts) -> Finding | None:
    """NVSwitch machine whose fabric manager does not run."""
    if facts.startup.code != 802:
        return None
    version = facts.nvml.driver_version or facts.driver.module_version
    same = f", of exactly the driver's version {version}" if version else ", of exactly the driver's version"
    return Finding(
        ERROR,
        "cuInit answers 802: the system is not yet initialized"
        + (f", with {cards(facts)} in it." if gpus(facts) else "."),
        "On machines with NVSwitch the cards wait for the service nvidia-fabricmanager: it is missing, stopped or of"
        " another version.",
        driver_update(facts)
        if facts.platform.wsl
        else admin(
            facts,
            f"install nvidia-fabricmanager{same}, and start it.",
            "$ systemctl status nvidia-fabricmanager",
        ),
        "pytorch/pytorch#35710, gpustack/gpustack#4154",
        unusable=True,
    )


def no_nodes(facts: Facts) -> Finding | None:
    """A loaded driver without device files."""
    cards_here = [n for n in facts.driver.nodes if n.removeprefix("/dev/nvidia").isdigit()]
    if facts.startup.ok or not facts.driver.module or facts.platform.wsl or facts.platform.jetson:
        return None
    if cards_here and "/dev/nvidiactl" in facts.driver.nodes:
        return None
    return Finding(
        ERROR,
        "The kernel module is loaded, and the device files /dev/nvidiactl and /dev/nvidia0 are not all here.",
        "Without them no program reaches the card.",
        get_gpu(facts)
        if facts.platform.container or facts.platform.service
        else admin(facts, "make them.", "$ sudo nvidia-modprobe -c 0"),
        "NVIDIA driver README, device files",
        unusable=True,
    )


def no_uvm(facts: Facts) -> Finding | None:
    """The device file of unified memory is missing."""
    nodes = facts.driver.nodes
    if not failed(facts) or "/dev/nvidiactl" not in nodes or "/dev/nvidia-uvm" in nodes or facts.startup.load_error:
        return None
    return Finding(
        ERROR,
        "The device file /dev/nvidia-uvm is missing, while the card's own are here.",
        "CUDA needs it to start; NVML and nvidia-smi do not.",
        get_gpu(facts)
        if facts.platform.container or facts.platform.service
        else admin(facts, "make it.", "$ sudo nvidia-modprobe -u -c 0"),
        "NVIDIA driver README, device files",
        unusable=True,
    )


def closed(facts: Facts) -> Finding | None:
    """Device files that this user may not open."""
    if facts.startup.ok or not facts.driver.closed_nodes:
        return None
    return Finding(
        ERROR,
        f"This user may not open {', '.join(facts.driver.closed_nodes)}.",
        "The permissions of the device files, or the batch system's device rules, keep this process from the card.",
        "\n".join(
            filter(
                None,
                [
                    get_gpu(facts) or admin(facts, "give this user access."),
                    f"$ ls -l {' '.join(facts.driver.closed_nodes)}",
                ],
            )
        ),
        "access(2) of the device files",
        unusable=True,
    )


def uvm_state(facts: Facts) -> Finding | None:
    """Code 999 with all files in place, as after suspend."""
    if facts.startup.code != 999:
        return None
    return Finding(
        ERROR,
        "cuInit answers 999, unknown error"
        + (", while NVML reads the card." if facts.nvml.status.ok and facts.nvml.devices else "."),
        "After a suspend the state of the module nvidia_uvm is often spoilt. The hint in torch's message about"
        " CUDA_VISIBLE_DEVICES is rarely the reason.",
        reload_uvm(facts),
        "pytorch/pytorch#88639, NixOS/nixpkgs#348769",
        unusable=True,
    )


def hmm(facts: Facts) -> Finding | None:
    """Code 3 with heterogeneous memory management on, which some kernels do not bear."""
    if facts.startup.code != 3 or not facts.driver.hmm or facts.platform.wsl or facts.platform.jetson:
        return None
    return Finding(
        ERROR,
        "cuInit answers 3, not initialized, and the module nvidia_uvm has heterogeneous memory management (HMM) on.",
        "With some Linux kernels the driver's start fails so, and its log says nothing of it. If the log does name"
        " another reason, that one counts.",
        admin(
            facts,
            "look at the log; where it is clean, switch HMM off and reload the module.",
            "$ sudo dmesg | grep -i -e nvrm -e xid",
            "$ echo options nvidia_uvm uvm_disable_hmm=1 | sudo tee /etc/modprobe.d/nvidia-uvm-hmm.conf",
            "$ sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
        ),
        "NVIDIA/open-gpu-kernel-modules#901",
        unusable=True,
    )


CHECKS = (
    Check("driver.none", none, (*NO_START, "torch.", "driver.")),
    Check("driver.nouveau", nouveau, (*NO_START, "driver.")),
    Check("driver.missing", missing, (*NO_START, "driver.not-loaded", "driver.library-missing", "driver.no-nodes")),
    Check("driver.not-loaded", not_loaded, (*NO_START, "driver.")),
    Check("driver.mismatch", mismatch, (*NO_START, "driver.")),
    Check("driver.stub", stub, NO_START),
    Check("driver.library-missing", library_missing, NO_START),
    Check("driver.library-broken", broken, (*NO_START, "driver.not-loaded", "driver.no-nodes")),
    Check("driver.hmm", hmm, NO_START),
    Check("driver.compat", compat, NO_START),
    Check("driver.fabric-manager", fabric, NO_START),
    Check("driver.no-nodes", no_nodes, (*NO_START, "driver.")),
    Check("driver.no-uvm-node", no_uvm, (*NO_START, "driver.uvm-state")),
    Check("driver.closed-nodes", closed, (*NO_START, "driver.uvm-state")),
    Check("driver.uvm-state", uvm_state, NO_START),
)
