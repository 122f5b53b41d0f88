"""Loaded in a kernel of the tests: what a run left there, and the way back to a clean namespace."""

from __future__ import annotations

import sys
from typing import Any

from IPython import get_ipython

KEPT = ("In", "Out", "get_ipython", "exit", "quit", "open", "sys", "os", "time", "OutOfMemoryError")


def state(n: int) -> dict[str, Any]:
    """What the cells from number `n` on left: values, history, names, the last error."""
    ip = get_ipython()
    raw = ip.history_manager.input_hist_raw
    out = ip.user_ns["Out"]
    return {
        "Out": {k - n: type(v).__name__ if type(v).__name__ == "R" else repr(v) for k, v in out.items() if k >= n},
        "_": n in out and ip.user_ns.get("_") is out[n],
        "count": ip.execution_count - n,
        "raw": [t.split(chr(10), 1)[-1] for t in raw[n:]],
        "parsed": len(ip.history_manager.input_hist_parsed) - n,
        "names": sorted(k for k in ip.user_ns if not k.startswith("_") and k not in ("In", "Out")),
        "last": type(getattr(sys, "last_value", None)).__name__,
    }


def reset() -> None:
    """Names of the cells before, values shown under numbers to come, and the last error go."""
    ip = get_ipython()
    for name in [k for k in ip.user_ns if not k.startswith("_") and k not in KEPT]:
        ip.user_ns.pop(name, None)
    for number in [k for k in ip.user_ns["Out"] if k >= ip.execution_count]:
        del ip.user_ns["Out"][number]  # IPython 8 keeps what cells outside the history show under the next number
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
