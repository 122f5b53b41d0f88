"""A tutorial as it ran on a real card, kept beside the one whose outputs the practice GPU made."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import Missing

__all__ = ["KEY", "card_and_releases", "record", "sentence"]

KEY = "recorded"
"""The notebook's metadata under which card and releases stand."""
_NAMES = ("driver", "torch", "python", "ipython", "ipykernel", "cuda_magic")


def card_and_releases() -> dict[str, str]:
    """The card, the driver, and the releases of what runs here.

    Raises
    ------
    Missing
        Where there is no card, or no torch that starts on it.
    """
    from ..machine import RealMachine

    code = (
        "import torch; torch.zeros(1, device='cuda'); print(torch.cuda.get_device_name(), torch.__version__, sep='|')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    reading = RealMachine().devices().read()
    if done.returncode or not reading.driver_version:
        raise Missing("a recording needs a real card and a torch that starts on it; cuda-magic doctor says what lacks")
    card, torch = done.stdout.strip().split("|")
    releases = {name: version(name) for name in ("ipython", "ipykernel")}
    from .. import __version__

    mine = {"torch": torch, "python": platform.python_version(), **releases, "cuda_magic": __version__}
    return {"card": card, "driver": reading.driver_version, **mine}


def sentence(seen: dict[str, str]) -> str:
    """Card and releases in one line, for the reader."""
    rest = ", ".join(f"{name} {seen[name]}" for name in _NAMES)
    return f"Recorded on one {seen['card']}: {rest}."


def record(notebook: Any, folder: Path, seen: dict[str, str]) -> Any:
    """`notebook` run on the card, in `folder`; a first cell and the metadata say on what.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails that is not tagged ``raises-exception``.
    """
    from nbformat.v4 import new_markdown_cell

    from .demo import clean, execute

    done = clean(execute(notebook, folder))
    done.cells.insert(0, new_markdown_cell(f"*{sentence(seen)}*", id=KEY))
    done.metadata[KEY] = seen
    return done
