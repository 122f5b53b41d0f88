"""Facts of the machine. Files are read below a root folder, so that a test can show another machine."""

from __future__ import annotations

import os
import platform as python_platform
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..devices.model import Reading
from .facts import Driver, Facts, Holder, Host, Library, PciGpu, Platform
from .installed import packages, pynvml_file, torch_build
from .kernel import allocator_verdict, kernel_state
from .startup import Startup

__all__ = ["VARIABLES", "driver", "gather", "host", "pci_cards", "platform"]

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_MPS_PIPE_DIRECTORY",
    "LD_LIBRARY_PATH",
    "LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
)
_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/run/opengl-driver/lib",
)
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")


def gather(
    startup: Startup, reading: Reading, root: str | Path = "/", environment: Mapping[str, str] | None = None
) -> Facts:
    """The facts of this machine, with the answers of CUDA's start and of NVML."""
    env = os.environ if environment is None else environment
    root = Path(root)
    known: dict[str, Any] = {}
    unknown: list[str] = []
    rooms: dict[str, Callable[[], Any]] = {
        "platform": lambda: platform(root, env),
        "host": lambda: host(root),
        "driver": lambda: driver(root, env),
        "torch": torch_build,
        "packages": packages,
        "pynvml_file": pynvml_file,
        "kernel": kernel_state,
        "allocator": lambda: allocator_verdict(env),
        "holders": lambda: holders(reading),
    }
    for name, look in rooms.items():
        try:
            known[name] = look()
        except Exception as error:  # noqa: BLE001 - one room that cannot be read (no descriptors, no rights) hides no other
            unknown.append(f"{name} ({type(error).__name__})")
    return Facts(
        nvml=reading,
        startup=startup,
        environment={name: env[name] for name in VARIABLES if name in env},
        label=reading.label,
        unknown=tuple(unknown),
        **known,
    )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None


def platform(root: Path, env: Mapping[str, str]) -> Platform:
    """Operating system, WSL, Jetson, container."""
    kernel = _text(root / "proc/version").lower()
    model = _text(root / "proc/device-tree/model").lower()
    return Platform(
        system="linux" if str(root) != "/" else sys.platform,
        machine=python_platform.machine(),
        wsl="microsoft" in kernel or _exists(root / "dev/dxg"),
        jetson=_exists(root / "etc/nv_tegra_release") or "jetson" in model,
        container=_container(root, env),
        batch="slurm" if "SLURM_JOB_ID" in env else "",
        service=_service(env),
    )


def _service(env: Mapping[str, str]) -> str:
    if "KAGGLE_KERNEL_RUN_TYPE" in env:
        return "kaggle"
    return "colab" if "COLAB_RELEASE_TAG" in env or "COLAB_GPU" in env else ""


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # one may not look, or no descriptor is left
        return False


def _container(root: Path, env: Mapping[str, str]) -> str:
    if "KUBERNETES_SERVICE_HOST" in env or _exists(root / "var/run/secrets/kubernetes.io"):
        return "kubernetes"
    if "APPTAINER_CONTAINER" in env or "SINGULARITY_CONTAINER" in env or _exists(root / ".singularity.d"):
        return "apptainer"
    if _exists(root / ".dockerenv"):
        return "docker"
    if _exists(root / "run/.containerenv"):
        return "podman"
    groups = _text(root / "proc/1/cgroup")
    found = re.search(r"\b(kubepods|docker|libpod|lxc|containerd)\b", groups)
    if found:
        return {"kubepods": "kubernetes", "libpod": "podman"}.get(found[1], found[1])
    return env.get("container", "")


def host(root: Path) -> Host:
    """Limits of this process, memory of the machine and of its control group."""
    limits = {
        match[1]: None if match[2] == "unlimited" else int(match[2])
        for match in re.finditer(
            r"^(Max address space|Max locked memory) +(\S+)", _text(root / "proc/self/limits"), re.M
        )
    }
    memory = {
        match[1]: int(match[2]) * 1024
        for match in re.finditer(r"^(\w+): +(\d+) kB", _text(root / "proc/meminfo"), re.M)
    }
    limit, used = _cgroup(root)
    return Host(
        address_space=limits.get("Max address space"),
        locked_memory=limits.get("Max locked memory"),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        overcommit=_number(_text(root / "proc/sys/vm/overcommit_memory")),
        commit_limit=memory.get("CommitLimit"),
        committed=memory.get("Committed_AS"),
        cgroup_limit=limit,
        cgroup_used=used,
    )


def _used(place: Path, name: str) -> int | None:
    """What a control group uses, without file cache that the kernel takes back at once (as `docker stats` says it)."""
    used = _number(_text(place / name))
    cache = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(place / "memory.stat"), re.M)
    return used if used is None or cache is None else max(0, used - int(cache[1]))


def _cgroup(root: Path) -> tuple[int | None, int | None]:
    """The tightest memory limit on the way up from this process's control group, and what is used below it."""
    found: tuple[int | None, int | None] = (None, None)
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, kinds, path = line.split(":", 2)
        if number == "0" and not kinds:
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in kinds.split(","):
            base, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base / path.lstrip("/")
        for place in [folder, *folder.parents]:
            if place != base and base not in place.parents:
                break
            limit = _number(_text(place / names[0]))
            # version 1 says "no limit" by a number near 2**63
            if limit is not None and limit < 1 << 60 and (found[0] is None or limit < found[0]):
                found = (limit, _used(place, names[1]))
    return found


def driver(root: Path, env: Mapping[str, str]) -> Driver:
    """Kernel modules, device files, libraries and PCI cards."""
    version = _VERSION.search(_text(root / "proc/driver/nvidia/version"))
    modules = root / "sys/module"
    nodes, closed = _nodes(root)
    return Driver(
        module_version=version[1] if version else None,
        module=_exists(modules / "nvidia") or version is not None if _exists(modules) else None,
        uvm=_exists(modules / "nvidia_uvm") if _exists(modules) else None,
        nouveau=_exists(modules / "nouveau"),
        hmm={"N": True, "Y": False, "0": True, "1": False}.get(
            _text(modules / "nvidia_uvm/parameters/uvm_disable_hmm")
        ),
        nodes=nodes,
        closed_nodes=closed,
        libraries=_libraries(root, env),
        pci=pci_cards(root),
    )


def _nodes(root: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = [p for p in sorted((root / "dev").glob("nvidia*")) if not p.is_dir()]
    found += [p for p in [root / "dev/dxg"] if p.exists()]
    names = ["/" + str(p.relative_to(root)) for p in found]
    closed = [n for n, p in zip(names, found, strict=True) if not os.access(p, os.R_OK | os.W_OK)]
    return tuple(names), tuple(closed)


def _libraries(root: Path, env: Mapping[str, str]) -> tuple[Library, ...]:
    """libcuda and libnvidia-ml in the usual folders, those of LD_LIBRARY_PATH first, as the loader goes."""
    found: dict[str, Library] = {}
    folders = [*filter(None, env.get("LD_LIBRARY_PATH", "").split(":")), *_PLACES]
    for folder in dict.fromkeys(folders):
        if not folder.startswith("/"):
            continue
        for name in ("libcuda.so", "libnvidia-ml.so"):
            base = root / folder.lstrip("/")
            for path in sorted(base.glob(name + "*")) if base.is_dir() else ():
                version = _VERSION.search(path.name)
                real = str(path.resolve())
                if (version or path.name.endswith(".so.1")) and real not in found:
                    match = _VERSION.search(Path(real).name)
                    shown = f"{folder}/{path.name}"
                    found[real] = Library(name.removesuffix(".so"), shown, match[1] if match else None)
    return tuple(found.values())


def pci_cards(root: Path) -> tuple[PciGpu, ...]:
    found = []
    folder = root / "sys/bus/pci/devices"
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        # display controllers (class 03) of NVIDIA (vendor 10de)
        if _text(place / "vendor") != "0x10de" or not _text(place / "class").startswith("0x03"):
            continue
        used = place / "driver"
        node = _number(_text(place / "numa_node"))
        found.append(
            PciGpu(
                bus_id=place.name,
                driver=used.resolve().name if used.exists() else None,
                link_width=_number(_text(place / "current_link_width")),
                link_width_max=_number(_text(place / "max_link_width")),
                numa_node=node if node is not None and node >= 0 else None,
            )
        )
    return tuple(found)


def holders(reading: Reading) -> tuple[Holder, ...]:
    """The processes that NVML names, as far as they can be seen from here."""
    import psutil

    found = {}
    for device in reading.devices:
        for process in device.processes or ():
            try:
                seen = psutil.Process(process.pid)
                found[process.pid] = Holder(process.pid, True, seen.name(), " ".join(seen.cmdline()))
            except psutil.AccessDenied:
                found[process.pid] = Holder(process.pid, True)
            except psutil.Error:
                found[process.pid] = Holder(process.pid, False)
    return tuple(found.values())
