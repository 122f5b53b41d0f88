"""What to do, in the words of the place: a line that works on a server is no help in a pod, under WSL or on Colab."""

from __future__ import annotations

import re

from .facts import Facts

__all__ = [
    "admin",
    "anew",
    "driver_update",
    "get_gpu",
    "index",
    "install",
    "log",
    "look",
    "name_of",
    "new_session",
    "reload_uvm",
    "reset",
]

PICK = "pytorch.org/get-started/locally names the line for this driver."
_VGPU = re.compile(r"^GRID |-\d+[ABCQV]$|vGPU", re.ASCII)
_COLAB = "Choose a runtime with a GPU: Runtime > Change runtime type > Hardware accelerator."
_KAGGLE = "Choose an accelerator: Settings > Accelerator > GPU."


def name_of(facts: Facts) -> str:
    """The place as the lines below tell them apart; the inner one where there are two (a container under WSL)."""
    p = facts.platform
    if p.service:
        return p.service
    if p.container:
        return _CONTAINERS.get(p.container, "container")
    if p.wsl:
        return "wsl"
    if p.jetson:
        return "jetson"
    return p.batch


_CONTAINERS = {
    "kubernetes": "kubernetes",
    "podman": "podman",
    "docker": "docker",
    "apptainer": "apptainer",
    "lxc": "lxc",
}
_INSIDE = (*_CONTAINERS.values(), "container")


def _nobody_here(facts: Facts) -> str:
    """Where neither the user nor an administrator of theirs can act on the machine: what to do instead."""
    place = name_of(facts)
    if place == "colab":
        return "Get another machine: Runtime > Disconnect and delete runtime, then connect again."
    if place == "kaggle":
        return "Get another machine: Run > Restart, or switch the accelerator off and on."
    return ""


def _virtual(facts: Facts) -> bool:
    """A virtual GPU, by the name that its manager gives it: GRID T4-4Q, NVIDIA A40-8Q."""
    names = [d.name or "" for d in facts.nvml.devices] + [d.name or "" for d in facts.startup.devices]
    return any(_VGPU.search(name) for name in names)


def admin(facts: Facts, does: str, *lines: str) -> str:
    """What an administrator does on the machine that has the card."""
    if nobody := _nobody_here(facts):
        return nobody
    place = name_of(facts)
    if place in _INSIDE:
        where = "On the node" if place == "kubernetes" else "On the host"
        outside = "\n".join(line.removeprefix("$ ") for line in lines)
        return f"{where}, by its administrator (not inside this container): {does}" + (f"\n{outside}" if lines else "")
    return "\n".join([f"For the administrator: {does}", *lines])


def log(facts: Facts, of: str = "nvrm -e xid") -> str:
    """How to read what the driver's kernel module wrote."""
    if nobody := _nobody_here(facts):
        return nobody
    place = name_of(facts)
    if place == "wsl":
        return (
            "$ dmesg | grep -i dxg\nThe driver itself runs in Windows; its messages are in the event viewer (nvlddmkm)."
        )
    if place == "jetson":
        return "$ sudo dmesg | grep -i -e nvgpu -e nvhost"
    if place in _INSIDE:
        return admin(facts, f"look for NVRM and Xid in the kernel's log: dmesg | grep -i -e {of}")
    if place == "slurm":
        return f"For the administrator of this node ($SLURMD_NODENAME has its name):\n$ sudo dmesg | grep -i -e {of}"
    return f"$ sudo dmesg | grep -i -e {of}"


def look(facts: Facts, arguments: str = "") -> str:
    """A line that shows the cards as the driver has them."""
    if name_of(facts) == "jetson" and not facts.nvml.status.ok:
        return "$ ls -l /dev/nvhost* /dev/nvmap"  # there is no nvidia-smi for the built-in GPU before JetPack 7
    return f"$ nvidia-smi{f' {arguments}' if arguments else ''}"


def get_gpu(facts: Facts, more: str = "") -> str:
    """How this notebook gets a card at all. `more` are options of docker run and podman run."""
    place = name_of(facts)
    if place == "colab":
        return _COLAB
    if place == "kaggle":
        return _KAGGLE
    if place == "kubernetes":
        return (
            "Create the pod anew with a GPU among its limits (resources.limits: nvidia.com/gpu: 1); on a JupyterHub,"
            " choose a server profile with a GPU."
        )
    if place == "podman":
        return f"Start the container anew with a GPU:\n$ podman run --device nvidia.com/gpu=all{more} IMAGE"
    if place == "docker":
        return f"Start the container anew with a GPU:\n$ docker run --gpus all{more} IMAGE"
    if place == "apptainer":
        return "Start the container anew with the host's driver:\n$ apptainer exec --nv IMAGE COMMAND" + (
            "\nIn a batch job ask for a GPU too: #SBATCH --gpus=1" if facts.platform.batch else ""
        )
    if place == "lxc":
        return "On the host, give the container the cards: lxc config device add NAME gpu gpu"
    if place == "container":
        return "Start the container anew, with the device files of the cards and the driver's libraries of the host."
    if place == "slurm":
        return "Ask for a GPU in the job:\n$ srun --gpus=1 --pty bash\nor in a batch script: #SBATCH --gpus=1"
    return ""


def anew(facts: Facts) -> str:
    """The container was started in a way that no kernel in it can repair."""
    place = name_of(facts)
    if place in ("colab", "kaggle"):
        return _nobody_here(facts)
    if place == "apptainer":
        return "Leave the container and start it anew (apptainer exec --nv)."
    if place == "kubernetes":
        return "Delete the pod, so that it is created anew (restarting the kernel or the server in it is not enough)."
    return "Remove it and create the container anew (a restart of it, or of the kernel in it, is not enough)."


def driver_update(facts: Facts) -> str:
    """Who brings a newer driver, and how."""
    place = name_of(facts)
    if place in ("colab", "kaggle"):
        return "The service chooses the driver: keep the torch that it brings, or install one for an older CUDA."
    if place == "wsl" or facts.platform.wsl:
        return "Update NVIDIA's driver in Windows (none inside Linux)."
    if place == "jetson":
        return "The driver belongs to JetPack: install a newer JetPack."
    if _virtual(facts):
        return "The administrator updates this virtual machine's driver, to one that its host's vGPU manager supports."
    whose = {"kubernetes": "the node's", "slurm": "the nodes'", **dict.fromkeys(_INSIDE[1:], "the host's")}
    return f"The administrator updates {whose.get(place, 'the')} driver."


def new_session(facts: Facts) -> str:
    """A line that starts this kernel anew and keeps the variables."""
    return "%cuda_env --restart"


def reload_uvm(facts: Facts) -> str:
    """The module that a suspend spoils."""
    if facts.platform.wsl:
        return "In a Windows terminal (ends every Linux there):\nwsl --shutdown"
    if name_of(facts) == "jetson":
        return "The administrator restarts the machine."
    return admin(
        facts,
        "end all CUDA programs, then reload the module.",
        "$ sudo modprobe -r nvidia_uvm",
        "$ sudo modprobe nvidia_uvm",
    )


def reset(facts: Facts) -> str:
    """A card that does not answer."""
    if facts.platform.wsl:
        return (
            "In a Windows terminal (ends every Linux there):\nwsl --shutdown\nIf that is not enough, restart Windows."
        )
    if name_of(facts) == "jetson":
        return "The administrator restarts the machine."
    if _virtual(facts):
        return "A virtual GPU cannot be reset from inside: the administrator restarts the virtual machine."
    return admin(facts, "look at the log, then reset the card (nvidia-smi --gpu-reset) or restart the machine.")


def index(api: int | None, capabilities: tuple[tuple[int, int], ...] = ()) -> str:
    """The index of PyTorch whose build runs with this driver and has code for these cards; empty where none is known.

    Builds of one major version of CUDA run on every driver of it. CUDA 13 has no code below 7.5; what is newer than
    Hopper needs a build for 12.8 or newer.
    """
    major = None if api is None else api // 1000
    newest = max(capabilities, default=None)
    oldest = min(capabilities, default=None)
    if oldest is not None and oldest < (5, 0):
        return ""
    if newest is not None and newest[0] >= 10:
        return "cu130" if any(one[0] == 11 for one in capabilities) else "cu128"
    if major is not None and major < 12:
        return "cu118" if major == 11 else ""
    if major is not None and major >= 13 and (oldest is None or oldest >= (7, 5)):
        return "cu130"
    return "" if major is None and oldest is None else "cu126"


def install(facts: Facts) -> str:
    """The line that puts a fitting build of torch in the place of the installed one."""
    if facts.platform.jetson:
        return (
            "Jetson has builds of its own, one for each JetPack: see NVIDIA's page"
            " docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform"
        )
    listed = [
        *(d.compute_capability for d in facts.startup.devices),
        *(d.compute_capability for d in facts.nvml.devices),
    ]
    seen = {one for one in listed if one is not None}
    api = facts.startup.driver_api
    if api is None and facts.nvml.cuda_version:
        whole, _, part = facts.nvml.cuda_version.partition(".")
        api = 1000 * int(whole) + 10 * int(part or 0) if whole.isdigit() and (part or "0").isdigit() else None
    found = index(api, tuple(sorted(seen)))
    if not found and seen and min(seen) < (5, 0):
        return f"No build of torch 2 has code for compute capability {min(seen)[0]}.{min(seen)[1]}: use another card."
    where = f" --index-url https://download.pytorch.org/whl/{found}" if found else ""
    return f"%pip install --force-reinstall torch{where}\nThen:\n%cuda_env --restart\n{PICK}"
