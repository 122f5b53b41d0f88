"""How long %cuda_doctor takes here: all checks, the start of CUDA in a child, and the judging alone.

python benchmarks/doctor.py [FOLDER]     writes FOLDER/doctor.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from cuda_magic.doctor.command import look
from cuda_magic.doctor.diagnosis import diagnose
from cuda_magic.machine import machine

ROUNDS = 7
LIMIT = 1.5


def timed(work, rounds=ROUNDS):
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return took


def main() -> int:
    first = timed(look, 1)[0]
    whole = timed(look)
    probes = [machine().startup().seconds for _ in range(ROUNDS)]
    facts = machine().facts()
    judged = timed(lambda: diagnose(facts))
    found = diagnose(facts)
    figures = {
        "verdict": found.verdict,
        "checks": len(found.checks),
        "first_call_s": round(first, 3),
        "all_checks_median_s": round(statistics.median(whole), 3),
        "probe_median_s": statistics.median(probes),
        "judging_median_s": round(statistics.median(judged), 5),
        "limit_s": LIMIT,
        "driver": facts.nvml.driver_version,
        "card": facts.nvml.devices[0].name if facts.nvml.devices else None,
    }
    print(json.dumps(figures, indent=1))
    if len(sys.argv) > 1:
        Path(sys.argv[1], "doctor.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if figures["all_checks_median_s"] < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
