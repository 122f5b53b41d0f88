"""Figures that the GPU tests measured, with the card, driver and torch release they were seen on.

Written to the folder that RECORD_DIR names (else not kept): run
``pytest -m gpu`` on a card, keep in benchmarks/results.
"""

from __future__ import annotations

import json
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any


@cache
def where() -> dict[str, str]:
    """The card, its driver and the torch release of this machine."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    return {
        "card": name.decode() if isinstance(name, bytes) else name,
        "cards": str(pynvml.nvmlDeviceGetCount()),
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def record(name: str, figures: dict[str, Any]) -> None:
    """Keep `figures` under `name`; printed too, so that a run's log has them."""
    print(f"MEASURED {name}: {json.dumps(figures)}")
    folder = os.environ.get("RECORD_DIR")
    if folder:
        path = Path(folder, "gpu.json")
        kept = json.loads(path.read_text()) if path.exists() else {"where": where()}
        kept[name] = figures
        path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
