"""Runs in a helper process, as a script: asks NVML there, one reading for each line on stdin.

``python -I -S child.py PATHS``, PATHS a JSON list of folders to import from. A line is three characters, 0 or 1: with
processes, with slow values, anew. An answer is its length in four bytes and a pickled Reading. A helper that is asked
nothing for a while ends, and so does one whose kernel is gone.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import sys

IDLE = 10.0
"""Seconds."""


def main() -> None:
    out = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)  # a library that prints must not write among the answers
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.path[:0] = json.loads(sys.argv[1])
    from cuda_magic.devices.nvml import Nvml

    source = Nvml()
    while select.select([0], [], [], IDLE)[0]:
        line = os.read(0, 4)
        if not line:
            return
        processes, slow, anew = (c == ord("1") for c in line[:3])
        if anew and not source.well:
            source = Nvml()
        answer = pickle.dumps(source.read(processes=processes, slow=slow), pickle.HIGHEST_PROTOCOL)
        answer = len(answer).to_bytes(4, "little") + answer
        while answer:
            answer = answer[os.write(out, answer) :]


if __name__ == "__main__":
    main()
