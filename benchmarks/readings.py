"""One reading of all devices, beside the tools that people use for it, in one run on one machine, as ratios.

    python benchmarks/readings.py [FILE.json]

Needs an NVIDIA driver. nvitop, gpustat and GPUtil are measured where they are installed, and named where not.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def median(call: Callable[[], Any], seconds: float = 2.0, most: int = 2000) -> float:
    """Median of repeated calls in microseconds, after one that warms up."""
    call()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < most and (time.perf_counter() < end or len(times) < 5):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def peers() -> dict[str, Callable[[], Any] | None]:
    """What each tool does for a reading of memory, utilisation and processes; None where it is not installed."""
    found: dict[str, Callable[[], Any] | None] = {}
    try:
        import nvitop

        cards = nvitop.Device.all()
        found["nvitop as_snapshot"] = lambda: [card.as_snapshot() for card in cards]
        found["nvitop processes"] = lambda: [card.processes() for card in cards]
        found["nvitop memory_info"] = lambda: [card.memory_info() for card in cards]
    except ImportError:
        found["nvitop"] = None
    try:
        import gpustat

        found["gpustat new_query"] = gpustat.new_query
    except ImportError:
        found["gpustat"] = None
    try:
        import GPUtil

        found["GPUtil getGPUs"] = GPUtil.getGPUs
    except ImportError:
        found["GPUtil"] = None
    return found


def main() -> None:
    from cuda_magic.devices.nvml import source

    reading = source().read()
    if not reading.devices:
        sys.exit(reading.status.sentence or "no GPU")
    ours = {
        "cuda_magic fast (memory, utilisation, processes)": median(lambda: source().read(slow=False)),
        "cuda_magic slow (and temperature, power, graphics processes)": median(lambda: source().read()),
    }
    base = next(iter(ours.values()))
    rows: dict[str, float | None] = dict(ours)
    for name, call in peers().items():
        try:
            rows[name] = None if call is None else median(call)
        except Exception as error:
            print(f"{name} failed: {type(error).__name__}: {error}")
            rows[name] = None
    card = reading.devices[0]
    print(f"{len(reading.devices)} device(s), {card.name}, driver {reading.driver_version}")
    print(f"{'one reading of all devices':62} {'us':>12} {'ratio':>9}")
    for name, value in rows.items():
        shown = f"{value:12.1f} {value / base:9.1f}" if value is not None else f"{'not here':>12}"
        print(f"{name:62} {shown}")
    if len(sys.argv) > 1:
        figures = {"card": card.name, "devices": len(reading.devices), "driver": reading.driver_version}
        microseconds = {name: value and round(value, 1) for name, value in rows.items()}
        Path(sys.argv[1]).write_text(json.dumps({**figures, "microseconds": microseconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
