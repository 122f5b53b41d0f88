"""Machines to practise diagnosis on: facts of real kinds of trouble, the same on every host, labelled PRACTICE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..devices.model import Device, Memory, Process, Reading, Status
from ..errors import UserError, nearest
from ..machine import use
from .codes import cuda_name
from .facts import Driver, Facts, Host, Kernel, Library, Package, PciGpu, Platform, Torch
from .startup import StartedDevice, Startup

if TYPE_CHECKING:
    from ..memory.allocator import Allocator

__all__ = ["SITUATIONS", "SituationMachine", "failing", "healthy", "practice_facts", "situation"]

GIB = 1 << 30
LABEL = "PRACTICE"
_RELEASE = "580.65.06"


def healthy(cards: int = 1, name: str = "NVIDIA H100 80GB HBM3", capability: tuple[int, int] = (9, 0)) -> Facts:
    """A Linux server on which all is well."""
    devices = tuple(
        Device(
            i,
            name,
            f"GPU-{i:08d}-0000-0000-0000-000000000000",
            f"00000000:{i + 1:02X}:00.0",
            Memory(80 * GIB, 1 * GIB, 79 * GIB, 0),
            compute_capability=capability,
            compute_mode="default",
            processes=(Process(4000 + i, 1 * GIB),),
            mig_mode=False,
        )
        for i in range(cards)
    )
    started = tuple(
        StartedDevice(i, name, 80 * GIB, capability, f"0000:{i + 1:02x}:00.0", False, "default") for i in range(cards)
    )
    nodes = (*(f"/dev/nvidia{i}" for i in range(cards)), "/dev/nvidia-uvm", "/dev/nvidiactl")
    folder = "/usr/lib/x86_64-linux-gnu"
    return Facts(
        platform=Platform(),
        host=Host(
            locked_memory=8 << 20, memory_total=256 * GIB, memory_available=200 * GIB, overcommit=0, cgroup_limit=None
        ),
        driver=Driver(
            module_version=_RELEASE,
            module=True,
            uvm=True,
            nodes=nodes,
            libraries=(
                Library("libcuda", f"{folder}/libcuda.so.{_RELEASE}", _RELEASE),
                Library("libnvidia-ml", f"{folder}/libnvidia-ml.so.{_RELEASE}", _RELEASE),
            ),
            pci=tuple(PciGpu(d.bus_id or "", "nvidia", 16, 16, 0) for d in started),
        ),
        nvml=Reading(0.0, devices, Status(True, 0), _RELEASE, "13.0", LABEL),
        startup=Startup(0, "CUDA_SUCCESS", cards, 13000, started, sentence="CUDA starts"),
        torch=Torch("2.11.0+cu130", "13.0", cudnn="9.19.0.56"),
        packages=(Package("nvidia-ml-py", "13.580.65", True),),
        pynvml_file="pynvml.py",
        label=LABEL,
    )


def failing(code: int, facts: Facts | None = None) -> Facts:
    """The same machine, on which cuInit answers `code`."""
    before = facts if facts is not None else healthy()
    return replace(before, startup=Startup(code, cuda_name(code), driver_api=13000, sentence=f"cuInit answers {code}"))


def practice_facts(reading: Reading, startup: Startup, started: bool = False) -> Facts:
    """The facts of a practice machine with these readings: a healthy host, the same everywhere.

    `started` tells that this process has used a practice card.
    """
    base = healthy(max(1, len(reading.devices)))
    kernel = Kernel(cuda_started=started, device_count=startup.device_count if started else None)
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # cards of several sizes are of several names
    return replace(base, nvml=reading, startup=startup, kernel=kernel, environment=order, label=reading.label)


def _address_space() -> Facts:
    f = failing(2)
    return replace(f, host=replace(f.host, address_space=12_000_000 * 1024))


def _no_driver() -> Facts:
    return Facts(
        host=Host(memory_total=8 * GIB, memory_available=6 * GIB, overcommit=0),
        nvml=Reading(0.0, status=Status(False, 12, "No NVIDIA driver found on this machine."), label=LABEL),
        startup=Startup(load_error="libcuda.so.1: cannot open shared object file", sentence="libcuda.so.1 is missing"),
        driver=Driver(module=False, uvm=False),
        label=LABEL,
    )


def _hidden() -> Facts:
    return replace(failing(100, healthy(2)), environment={"CUDA_VISIBLE_DEVICES": "2"})


def _cpu_only() -> Facts:
    return replace(healthy(), torch=Torch("2.11.0+cpu"))


def _fabric() -> Facts:
    return failing(802, healthy(8))


def _full() -> Facts:
    f = healthy()
    card = replace(
        f.nvml.devices[0],
        memory=Memory(80 * GIB, 80 * GIB - (3 << 20), 3 << 20, 0),
        processes=(Process(4000, 80 * GIB - (3 << 20)),),
    )
    return replace(f, nvml=replace(f.nvml, devices=(card,)))


def _old_driver() -> Facts:
    f = healthy()
    driver = replace(f.driver, module_version="535.183.01")
    return replace(
        f,
        startup=replace(f.startup, driver_api=12020),
        nvml=replace(f.nvml, driver_version="535.183.01", cuda_version="12.2"),
        driver=driver,
    )


def _container() -> Facts:
    f = failing(999)
    return replace(
        f,
        platform=replace(f.platform, container="docker"),
        nvml=Reading(0.0, status=Status(False, 999, "The driver gives an unknown error."), label=LABEL),
    )


@dataclass(frozen=True)
class _Row:
    what: str
    make: Callable[[], Facts]


SITUATIONS: dict[str, _Row] = {
    "healthy": _Row("all is well", healthy),
    "address-space": _Row("Error 2, out of memory, on an idle card: a limit on the address space", _address_space),
    "no-driver": _Row("a machine without a GPU: Binder, CI, a laptop", _no_driver),
    "hidden-cards": _Row("CUDA_VISIBLE_DEVICES copied from a machine with more cards", _hidden),
    "cpu-only-torch": _Row("a build of torch without CUDA on a machine with a card", _cpu_only),
    "old-driver": _Row("a driver that is too old for torch's CUDA", _old_driver),
    "fabric-manager": _Row("a server with NVSwitch whose fabric manager does not run", _fabric),
    "full-card": _Row("CUDA starts, and the card has no room for a context", _full),
    "lost-in-container": _Row("a container that lost its access to the card", _container),
}


class _Source:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def read(self, *, processes: bool = True, slow: bool = True) -> Reading:
        return self._reading


class SituationMachine:
    """A machine in one of the situations, at the seams of `cuda_magic.machine.Machine`."""

    label = LABEL

    def __init__(self, facts: Facts, what: str) -> None:
        self._facts = facts
        self._what = what

    def __repr__(self) -> str:
        return f"{LABEL}: {self._what}"

    def devices(self) -> _Source:
        return _Source(self._facts.nvml)

    def allocator(self) -> Allocator | None:
        return None

    def startup(self, full: bool = False) -> Startup:
        return self._facts.startup

    def facts(self, full: bool = False) -> Facts:
        return self._facts


def situation(name: str | None) -> SituationMachine | None:
    """Make a machine in the situation `name` the one that the magics look at; None goes back to the real one.

    Raises
    ------
    UserError
        For a name that is not in SITUATIONS.
    """
    if name is None:
        use(None)
        return None
    if name not in SITUATIONS:
        hint = nearest(name, SITUATIONS) or f" There are: {', '.join(SITUATIONS)}."
        raise UserError(f"no situation {name!r}.{hint}")
    made = SituationMachine(SITUATIONS[name].make(), SITUATIONS[name].what)
    use(made)
    return made
