"""The cards themselves: mode, memory and who holds it, links, unified memory."""

from __future__ import annotations

from ...environment.visible import resolve
from ...render.units import bytes_text
from ..facts import Facts
from ..finding import ERROR, INFO, WARNING, Check, Finding
from ..places import admin, log, look, reset
from .common import NO_START, plural

GIB = 1 << 30
CONTEXT = 700 << 20
"""A context took 518 to 610 MiB on an H200; smaller cards take less."""


def prohibited(facts: Facts) -> Finding | None:
    """All cards are in mode prohibited."""
    modes = [d.compute_mode for d in facts.nvml.devices if d.parent is None]
    closed = [i for i, mode in enumerate(modes) if mode == "prohibited"]
    if not closed:
        return None
    every = len(closed) == len(modes)
    return Finding(
        ERROR if every else WARNING,
        f"GPU {', '.join(map(str, closed))} is in compute mode prohibited.",
        "In this mode no program may make a CUDA context on the card.",
        admin(facts, "set the mode.", "$ sudo nvidia-smi -c DEFAULT"),
        "nvidia-smi(1), compute mode",
        unusable=every,
    )


def exclusive(facts: Facts) -> Finding | None:
    """A card in exclusive mode that another process holds."""
    for d in facts.nvml.devices:
        if d.compute_mode == "exclusive-process" and any(p.kind == "compute" for p in d.processes or ()):
            if facts.kernel.cuda_started:
                continue
            pids = ", ".join(str(p.pid) for p in d.processes or () if p.kind == "compute")
            return Finding(
                ERROR if len(facts.nvml.devices) == 1 else WARNING,
                f"GPU {d.index} is in compute mode exclusive-process, and process {pids} holds it.",
                "Only one process at a time may use the card.",
                f"Wait for it or end it:\n%gpu_mem"
                f" --who\n{admin(facts, 'or change the mode.', '$ sudo nvidia-smi -c DEFAULT')}",
                "nvidia-smi(1), compute mode",
                unusable=len(facts.nvml.devices) == 1,
            )
    return None


def lost(facts: Facts) -> Finding | None:
    """A card that NVML cannot read."""
    whole = [d for d in facts.nvml.devices if d.parent is None]
    bad = [d for d in whole if d.error]
    if not bad:
        return None
    which = ", ".join(str(d.index) for d in bad)
    closed = all("permission" in (d.error or "").lower() for d in bad)
    rest = f" The other {plural(len(whole) - len(bad), 'card')} can be read." if len(whole) > len(bad) else ""
    return Finding(
        WARNING if facts.startup.ok else ERROR,
        f"GPU {which} cannot be read: {bad[0].error}{rest}",
        "This process has no right to ask the card." if closed else "The card fell off the bus, or it does not answer.",
        admin(facts, "give access to the card.") if closed else f"{log(facts)}\n{reset(facts)}",
        "nvml.h, nvmlReturn_t",
        unusable=not facts.startup.ok,
    )


def full(facts: Facts) -> Finding | None:
    """No room for a context on any card."""
    # where the mask cannot be resolved (MIG) every card counts
    visible = resolve(facts.environment.get("CUDA_VISIBLE_DEVICES"), facts.nvml.devices).devices
    seen = facts.nvml.devices if visible is None else visible
    cards = [d for d in seen if d.memory.free is not None and not d.memory.unified]
    tight = [d for d in cards if d.memory.free is not None and d.memory.free < CONTEXT]
    if not tight or facts.kernel.cuda_started or not facts.startup.ok:
        return None
    one = tight[0]
    pids = [p.pid for p in one.processes or ()]
    who = f" Process {', '.join(map(str, pids))} holds it." if pids else ""
    others = [d for d in cards if d not in tight]
    best = max(others, key=lambda d: d.memory.free or 0, default=None)
    go = f"\nGPU {best.index} has {bytes_text(best.memory.free)} free." if best is not None else ""
    return Finding(
        WARNING if others else ERROR,
        f"GPU {one.index} has {bytes_text(one.memory.free)} of {bytes_text(one.memory.total)} free.{who}",
        "CUDA starts there and torch.cuda.is_available() says True, and the first allocation fails: a context alone"
        " takes about half a GiB.",
        f"%gpu_mem --who{go}",
        "seen on an H200 with 3 MiB free",
        unusable=not others,
    )


def invisible(facts: Facts) -> Finding | None:
    """Memory that no process on the list accounts for."""
    for d in facts.nvml.devices:
        if d.memory.used is None or d.memory.unified or d.processes is None or d.mig_mode:
            continue
        if any(p.used is None for p in d.processes) or facts.platform.wsl:
            continue
        rest = d.memory.used - sum(p.used or 0 for p in d.processes)
        if d.memory.used_includes_reserved:
            rest -= GIB
        if rest > GIB:
            inside = (
                "They are most likely outside this container."
                if facts.platform.container
                else "A process that ended badly, or one of another user or container."
            )
            return Finding(
                WARNING,
                f"GPU {d.index}: {bytes_text(rest)} is held by no process that can be seen here.",
                inside,
                admin(facts, "see which processes have it open.", "$ sudo fuser -v /dev/nvidia*"),
                "NVML: used memory minus that of the listed processes",
            )
    return None


def unified(facts: Facts) -> Finding | None:
    """The GPU shares the system's memory."""
    shared = any(d.memory.unified for d in facts.nvml.devices) or any(d.integrated for d in facts.startup.devices)
    if not shared and not (facts.platform.jetson and facts.startup.ok):
        return None
    return Finding(
        INFO,
        "The GPU shares the system's memory (unified memory).",
        "Its total and free memory are the system's; NVML has no numbers of its own for it.",
        source="CU_DEVICE_ATTRIBUTE_INTEGRATED; NVML answers not supported",
    )


def peers(facts: Facts) -> Finding | None:
    """Cards that cannot reach each other's memory."""
    pairs = facts.startup.no_peers
    if not pairs:
        return None
    shown = ", ".join(f"{a}-{b}" for a, b in pairs[:6]) + (" ..." if len(pairs) > 6 else "")
    return Finding(
        INFO,
        f"Devices {shown} cannot reach each other's memory directly.",
        "Copies between them go through the host's memory, which is slower; nothing is broken.",
        look(facts, "topo -m"),
        "cuDeviceCanAccessPeer",
    )


def link(facts: Facts) -> Finding | None:
    """A card that runs on fewer PCIe lanes than it could."""
    narrow = [p for p in facts.driver.pci if p.link_width and p.link_width_max and p.link_width < p.link_width_max]
    if not narrow:
        return None
    one = narrow[0]
    return Finding(
        INFO,
        f"{plural(len(narrow), 'card')} on fewer PCIe lanes than it could: {one.bus_id} has x{one.link_width} of"
        f" x{one.link_width_max}.",
        "Copies between host and card are slower in proportion. The slot, a riser or the board's layout decides.",
        look(facts, "topo -m"),
        "sysfs, current_link_width and max_link_width",
    )


LOST = (Check("devices.lost", lost, NO_START),)
CAUSES = (
    Check("devices.prohibited", prohibited, (*NO_START, "torch.allocation")),
    Check("devices.exclusive", exclusive, (*NO_START, "torch.allocation")),
    Check("devices.full", full, ("torch.allocation",)),
)
CHECKS = (
    Check("devices.memory-of-nobody", invisible),
    Check("devices.unified-memory", unified),
    Check("devices.no-peer-access", peers),
    Check("devices.narrow-link", link),
)
