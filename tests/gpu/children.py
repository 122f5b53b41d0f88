"""Child processes of the tests on a card: started, and what they printed last as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def start(script: str, *arguments: object, settings: str = "") -> subprocess.Popen[str]:
    """A script of this folder, with allocator settings of its own."""
    env = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings}
    words = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child: subprocess.Popen[str], seconds: float = 90) -> tuple[dict[str, Any], str]:
    """(what it printed last, as JSON; what went wrong)."""
    try:
        out, error = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        return {}, f"it took more than {seconds:g} s: " + child.communicate()[1][-1500:]
    if child.returncode:
        return {}, out[-500:] + error[-1500:]
    return json.loads(out.splitlines()[-1]), ""
