"""What the doctor knows of a machine, as frozen data; gathered by gather.py, judged by the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..devices.model import Reading, Status
from .startup import Startup

__all__ = [
    "Allocator",
    "Driver",
    "Facts",
    "Holder",
    "Host",
    "Kernel",
    "Library",
    "Package",
    "PciGpu",
    "Platform",
    "Torch",
]


@dataclass(frozen=True)
class Platform:
    """Where this Python runs."""

    system: str = "linux"
    machine: str = "x86_64"
    wsl: bool = False
    jetson: bool = False
    container: str = ""
    """``docker``, ``podman``, ``kubernetes``, ``lxc`` or the like; empty outside of one."""
    batch: str = ""
    """``slurm`` inside a job or step of it."""
    service: str = ""
    """``colab`` or ``kaggle``."""


@dataclass(frozen=True)
class Host:
    """Limits and memory of the host. Bytes; None is unlimited for a limit, unknown for a size."""

    address_space: int | None = None
    """RLIMIT_AS (``ulimit -v``)."""
    locked_memory: int | None = None
    """RLIMIT_MEMLOCK (``ulimit -l``)."""
    memory_total: int | None = None
    memory_available: int | None = None
    overcommit: int | None = None
    """vm.overcommit_memory: 2 means that every reserved byte counts."""
    commit_limit: int | None = None
    committed: int | None = None
    cgroup_limit: int | None = None
    cgroup_used: int | None = None


@dataclass(frozen=True)
class Library:
    """A driver library found on disk."""

    name: str
    path: str
    version: str | None = None


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA card as the PCI bus shows it, with or without a driver."""

    bus_id: str
    driver: str | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    numa_node: int | None = None


@dataclass(frozen=True)
class Driver:
    """Kernel modules, device nodes, libraries and cards."""

    module_version: str | None = None
    """Of the loaded kernel module (/proc/driver/nvidia/version; absent on WSL2)."""
    module: bool | None = None
    """Whether ``nvidia`` is loaded."""
    uvm: bool | None = None
    nouveau: bool = False
    hmm: bool | None = None
    """Whether ``nvidia_uvm`` has heterogeneous memory management on; None where it does not tell."""
    nodes: tuple[str, ...] = ()
    """Device files: ``/dev/nvidia0``, ``/dev/nvidiactl``, ``/dev/nvidia-uvm``, ``/dev/dxg``."""
    closed_nodes: tuple[str, ...] = ()
    """Device files that this user may not open."""
    libraries: tuple[Library, ...] = ()
    pci: tuple[PciGpu, ...] = ()


@dataclass(frozen=True)
class Torch:
    """The installed torch, read from its files; never imported for it."""

    version: str
    cuda: str | None = None
    """The CUDA it was built for; None for a build without CUDA."""
    hip: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    architectures: tuple[str, ...] = ()
    """What the build has code for (``sm_90``, ``compute_90``), as its own files say; empty where they do not."""
    imported: str | None = None
    """The release that this process has imported, where it differs from the installed one."""


@dataclass(frozen=True)
class Package:
    """An installed distribution that concerns NVML's Python module."""

    name: str
    version: str
    owns_pynvml: bool


@dataclass(frozen=True)
class Kernel:
    """This process: what is loaded, and whether CUDA was started in it. Asked without starting anything."""

    torch_imported: bool = False
    cuda_started: bool = False
    device_count: int | None = None
    """What this process's CUDA sees, once it is started."""
    bad_fork: bool = False
    """True in a child that was forked after CUDA had started."""


@dataclass(frozen=True)
class Allocator:
    """The verdict on the allocator configuration that torch would read."""

    variable: str
    value: str
    problem: str
    """One sentence; empty where all is well."""
    refused: bool = True
    """True where torch would raise."""


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a card, as far as this process may see it."""

    pid: int
    visible: bool
    name: str | None = None
    command: str | None = None
    """The command line: private, shown with ``--show-private`` only."""


@dataclass(frozen=True)
class Facts:
    """Everything the checks look at."""

    platform: Platform = field(default_factory=Platform)
    host: Host = field(default_factory=Host)
    driver: Driver = field(default_factory=Driver)
    nvml: Reading = field(default_factory=lambda: Reading(0.0, status=Status(False)))
    startup: Startup = field(default_factory=Startup)
    torch: Torch | None = None
    packages: tuple[Package, ...] = ()
    pynvml_file: str | None = None
    """``pynvml.py`` (nvidia-ml-py) or ``pynvml/__init__.py`` (the old package)."""
    kernel: Kernel = field(default_factory=Kernel)
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that the checks look at, where they are set."""
    allocator: Allocator | None = None
    holders: tuple[Holder, ...] = ()
    label: str = ""
    unknown: tuple[str, ...] = ()
    """Rooms of these facts that could not be read, with the error: what they hold by default says nothing."""
