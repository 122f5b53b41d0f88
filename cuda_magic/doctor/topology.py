"""Which cards see each other by what: NVLink, a PCIe switch, the processor, or the link between processors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..devices.apart import command
from ..errors import Refused
from ..render.blocks import Block, Table, Text, Title
from ..result import Result
from .gather import pci_cards

__all__ = ["Topology", "topology"]

LIMIT = 10.0
"""Seconds."""
# nvmlGpuTopologyLevel_t in nvml.h, by the names that nvidia-smi topo -m uses
LEVELS = {0: "BRD", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
MEANS = {
    "NV": "NVLink, with the number of links",
    "BRD": "the same board",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the processor's PCIe",
    "NODE": "PCIe bridges of one processor",
    "SYS": "the link between processors: slow",
    "?": "not told by the driver",
}


@dataclass(frozen=True, repr=False)
class Topology(Result):
    """A table of ways: `ways[a][b]` is what lies between GPU a and GPU b, in NVML's order."""

    names: tuple[str, ...]
    ways: tuple[tuple[str, ...], ...]
    numa: tuple[int | None, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row a pair."""
        n = len(self.names)
        return [{"a": a, "b": b, "way": self.ways[a][b]} for a in range(n) for b in range(a + 1, n)]

    def blocks(self) -> Sequence[Block]:
        heads = ("", *(f"GPU{i}" for i in range(len(self.names))), "NUMA node", "name")
        rows = [
            (f"GPU{i}", *ways, "n/a" if self.numa[i] is None else str(self.numa[i]), self.names[i])
            for i, ways in enumerate(self.ways)
        ]
        used = {way.rstrip("0123456789") for ways in self.ways for way in ways}
        legend = "\n".join(f"{mark.ljust(4)} {means}" for mark, means in MEANS.items() if mark in used)
        return [Title("Which cards see each other by what"), Table(heads, rows), *([Text(legend)] if legend else [])]


def topology() -> Topology:
    """Ask the driver, in a child process.

    Raises
    ------
    Refused
        Where there is no answer, with the reason.
    """
    try:
        done = subprocess.run(
            command(
                "-I",
                "-S",
                str(Path(__file__).with_name("topology_child.py")),
                json.dumps([str(p) for p in sys.path if p]),
            ),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        told = json.loads(done.stdout)
        cards, pairs = told["cards"], told["pairs"]
    except subprocess.TimeoutExpired:
        raise Refused("cuda_doctor: the driver did not answer in time how the cards are connected.") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused("cuda_doctor: NVML does not tell how the cards are connected; %cuda_doctor says why.") from None
    if not cards:
        raise Refused("cuda_doctor: the driver lists no GPU.")
    return draw(cards, pairs, {p.bus_id.lower(): p.numa_node for p in pci_cards(Path("/"))})


def draw(cards: list[dict[str, Any]], pairs: list[list[Any]], numa: dict[str, int | None]) -> Topology:
    """The table from what the child told; NVLink counts before PCIe, as data take it."""
    n = len(cards)
    ways = [["-" if a == b else "?" for b in range(n)] for a in range(n)]
    for a, b, level in pairs:
        direct = cards[a]["to"].get(cards[b]["bus"], 0)
        through = min(cards[a]["switched"], cards[b]["switched"])
        count = direct or through
        ways[a][b] = ways[b][a] = f"NV{count}" if count else LEVELS.get(level, "?")
    # NVML's bus ids have eight digits of domain, sysfs's four
    nodes = tuple(numa.get(card["bus"][-12:]) for card in cards)
    return Topology(tuple(card["name"] for card in cards), tuple(map(tuple, ways)), nodes)
