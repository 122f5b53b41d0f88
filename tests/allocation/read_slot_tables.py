"""Read from torch's wheels how libc10_cuda.so calls the CUDA runtime, and keep it in slot_tables.json.

    python tests/allocation/read_slot_tables.py WHEEL...
    python tests/allocation/read_slot_tables.py --release 2.14.1 [--machine aarch64]

Wheels are named as files, or brought by pip from its own index and removed again (up to 900 MB each). A wheel with no
such library (a CPU build, as those for aarch64 were up to torch 2.10) is named as one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cuda_magic.allocation.slots import MACHINES, tables

DATA = Path(__file__).with_name("slot_tables.json")
LIBRARY = "torch/lib/libc10_cuda.so"
SYMBOLS = ("cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync")
CPU_ONLY = "a CPU build: no libc10_cuda.so"
PLATFORMS = ("manylinux_2_28_{}", "manylinux2014_{}", "manylinux1_{}")


def table(wheel: Path) -> dict[str, object] | str:
    """What one wheel's library says, or CPU_ONLY."""
    with zipfile.ZipFile(wheel) as opened:
        if LIBRARY not in opened.namelist():
            return CPU_ONLY
        read = tables(opened.read(LIBRARY))
    slots = {name: list(read.slots[name]) for name in SYMBOLS if name in read.slots}
    return {"bind_now": read.bind_now, "needed": list(read.needed), "slots": slots}


def keep(wheel: Path) -> None:
    """Put one wheel's table into the data, under its release and machine (both stand in its name)."""
    _, release, *_, platform = wheel.stem.split("-")
    machine = next(name for name in MACHINES.values() if platform.endswith(name))
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    data.setdefault(release.split("+")[0], {})[machine] = table(wheel)
    ordered = sorted(data.items(), key=lambda item: [int(part) for part in item[0].split(".")])
    rows = (
        f" {json.dumps(release)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(machines.items()))
        + "\n }"
        for release, machines in ordered
    )
    DATA.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(wheel.name, json.dumps(data[release.split("+")[0]][machine]))


def fetch(release: str, machine: str) -> None:
    """By pip, for CPython 3.11, which every release from 2.2 on has wheels for; === passes over local builds."""
    with tempfile.TemporaryDirectory() as folder:
        line = ["-m", "pip", "download", "-q", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "-d", folder]
        line += ["--python-version=3.11", "--implementation=cp", "--abi=cp311", f"torch==={release}"]
        line += [f"--platform={one.format(machine)}" for one in PLATFORMS]
        subprocess.run([sys.executable, *line], check=True)
        keep(next(Path(folder).glob("*.whl")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="*", type=Path, metavar="WHEEL")
    parser.add_argument("--release", action="append", default=[])
    parser.add_argument("--machine", choices=list(MACHINES.values()), action="append")
    asked = parser.parse_args()
    for wheel in asked.wheels:
        keep(wheel)
    for release in asked.release:
        for machine in asked.machine or MACHINES.values():
            fetch(release, machine)


if __name__ == "__main__":
    main()
