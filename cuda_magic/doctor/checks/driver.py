"""Driver files, kernel modules, device nodes and versions."""

from __future__ import annotations

from ..facts import Facts
from ..finding import ERROR, INFO, Check, Finding
from .common import NO_START, cards, failed, gpus, hardware, plural

RELOAD = "$ sudo modprobe -r nvidia_uvm\n$ sudo modprobe nvidia_uvm"


def none(facts: Facts) -> Finding | None:
    """No driver and no card: nothing is broken."""
    if hardware(facts) or facts.startup.ok or facts.platform.wsl:
        return None
    if not (facts.startup.load_error or facts.startup.code == 100):
        return None
    inside = facts.platform.container
    return Finding(
        INFO,
        "No NVIDIA driver found, and no NVIDIA GPU.",
        "CUDA cannot run here. That is normal on Binder, in CI and on most laptops; nothing is broken.",
        "To practise without a GPU: from cuda_magic.testing import gpu; card = gpu()"
        + ("\nIf the host of this container has a GPU:\n$ docker run --gpus all ..." if inside else ""),
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
        "For the administrator: install NVIDIA's driver, which blocks nouveau, then reboot.\n$ lspci -k -d 10de:",
        "NVIDIA driver installation guide",
        unusable=True,
    )


def missing(facts: Facts) -> Finding | None:
    """A card without any driver."""
    if facts.startup.ok or not facts.driver.pci or facts.driver.module or not facts.startup.load_error:
        return None
    if facts.platform.container and facts.driver.libraries:
        return None
    return Finding(
        ERROR,
        f"{plural(len(facts.driver.pci), 'NVIDIA card')} on the PCI bus, and no NVIDIA driver.",
        "Neither the kernel module nor libcuda.so.1 is installed.",
        "For the administrator: install the distribution's NVIDIA driver, then reboot.\n$ ubuntu-drivers install",
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
        "For the administrator:\n$ sudo modprobe nvidia\n$ dkms status\n$ sudo dmesg | grep -i -e nvrm -e nvidia",
        "NVML_ERROR_DRIVER_NOT_LOADED (9), nvml.h",
        unusable=True,
    )


def mismatch(facts: Facts) -> Finding | None:
    """Kernel module and libraries of two releases."""
    if facts.startup.code != 803 and facts.nvml.status.code != 18:
        return None
    module = facts.driver.module_version
    library = next((lib.version for lib in facts.driver.libraries if lib.version and lib.version != module), None)
    versions = f": module {module}, library {library}" if module and library else ""
    inside = "The container has libraries of another driver: create it anew, with none installed in the image."
    return Finding(
        ERROR,
        f"The driver's kernel module and its libraries are of different releases{versions}.",
        "The driver was updated while the old module stayed loaded, or another driver's libraries come first.",
        inside if facts.platform.container else "Reboot, or the administrator reloads the modules.\n$ sudo reboot",
        "cuInit 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, NVML 18",
        unusable=not facts.startup.ok,
    )


def stub(facts: Facts) -> Finding | None:
    """The toolkit's stub in place of the driver's library."""
    if facts.startup.code != 34:
        return None
    return Finding(
        ERROR,
        "cuInit answers 34: the libcuda that was loaded is the toolkit's stub, made for linking only.",
        "A folder named stubs stands in LD_LIBRARY_PATH or in the loader's cache before the driver's own library.",
        "Take the stubs folder out, then start a new kernel:\n$ echo $LD_LIBRARY_PATH | tr : '\\n' | grep stubs\n"
        "$ ldconfig -p | grep libcuda.so",
        "cuda.h, CUDA_ERROR_STUB_LIBRARY",
        unusable=True,
    )


def library_missing(facts: Facts) -> Finding | None:
    """A driver is there and libcuda.so.1 is not found."""
    if not facts.startup.load_error or facts.platform.wsl or not hardware(facts):
        return None
    if not (facts.driver.module or facts.nvml.status.ok or facts.driver.nodes):
        return None
    if facts.platform.container:
        do = "Start the container anew:\n$ docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
    else:
        do = "$ ldconfig -p | grep libcuda.so\nIf that is empty, the administrator installs the driver's CUDA library."
    return Finding(
        ERROR,
        "The NVIDIA driver is loaded, and its library libcuda.so.1 is not found.",
        "NVML and nvidia-smi work without it; CUDA does not.",
        do,
        "dlopen(3) of libcuda.so.1 in a child process",
        unusable=True,
    )


def compat(facts: Facts) -> Finding | None:
    """Forward compatibility on a card that has none."""
    if facts.startup.code != 804:
        return None
    version = facts.nvml.driver_version or facts.driver.module_version
    where = f"{cards(facts)}, host driver {version}" if gpus(facts) and version else "this card"
    return Finding(
        ERROR,
        f"cuInit answers 804: forward compatibility was attempted on hardware that does not support it ({where}).",
        "A compat libcuda, newer than the host's driver, was loaded (the image's /usr/local/cuda/compat). It works on"
        " data-centre cards only.",
        "Either the administrator updates the host's driver, or use an image with an older CUDA.",
        "NVIDIA/libnvidia-container#131, NVIDIA/nvidia-docker#1294",
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
        f"For the administrator: install nvidia-fabricmanager{same}, and start it.\n"
        "$ systemctl status nvidia-fabricmanager",
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
        "Start the container anew with a GPU:\n$ docker run --gpus all ..."
        if facts.platform.container
        else "For the administrator:\n$ sudo nvidia-modprobe -c 0",
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
        "Start the container anew with all device files:\n$ docker run --gpus all ..."
        if facts.platform.container
        else "For the administrator:\n$ sudo nvidia-modprobe -u -c 0",
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
        "Ask for a GPU in the job (sbatch --gres=gpu:1), or the administrator gives access.\n$ ls -l /dev/nvidia*",
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
        f"The administrator ends all CUDA programs and reloads the module, or reboots:\n{RELOAD}",
        "pytorch/pytorch#88639, NixOS/nixpkgs#348769",
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
    Check("driver.compat", compat, NO_START),
    Check("driver.fabric-manager", fabric, NO_START),
    Check("driver.no-nodes", no_nodes, (*NO_START, "driver.")),
    Check("driver.no-uvm-node", no_uvm, (*NO_START, "driver.uvm-state")),
    Check("driver.closed-nodes", closed, (*NO_START, "driver.uvm-state")),
    Check("driver.uvm-state", uvm_state, NO_START),
)
