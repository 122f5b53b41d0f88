"""What `%load_ext cuda_magic` costs beside importing its peers, each in fresh processes of the same run.

Prints one line a tool and the ratio to ours; peers that are not installed are named and left out.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys

ROUNDS = 7
OURS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import time; started = time.perf_counter()
shell.run_line_magic("load_ext", "cuda_magic")
print(time.perf_counter() - started)
"""
PEER = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import time; started = time.perf_counter()
import {0}
print(time.perf_counter() - started)
"""


def seconds(code: str) -> float:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    codes = {"cuda_magic": OURS}
    for peer in ("nvitop", "gpustat", "pytorch_memlab"):
        if importlib.util.find_spec(peer) is None:
            print(f"{peer}: not installed, left out")
        else:
            codes[peer] = PEER.format(peer)
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(ROUNDS):  # in turn, so that a busy moment hits all alike
        for name, code in codes.items():
            times[name].append(seconds(code))
    ours = statistics.median(times["cuda_magic"])
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:15} {middle * 1e3:8.1f} ms   {middle / ours:6.1f} x")


if __name__ == "__main__":
    main()
