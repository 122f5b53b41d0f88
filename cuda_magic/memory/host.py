"""How much memory the host can still give this process, container limits included."""

from __future__ import annotations

from pathlib import Path

__all__ = ["available"]


def available(root: Path = Path("/")) -> int | None:
    """Bytes that the host, and the control group of this process, can still give; None where nobody tells."""
    from ..doctor.gather import host

    seen = host(root)
    found = []
    if seen.memory_available is not None:
        found.append(seen.memory_available)
    if seen.cgroup_limit is not None:
        found.append(max(0, seen.cgroup_limit - (seen.cgroup_used or 0)))
    if found:
        return min(found)
    try:
        import psutil

        return int(psutil.virtual_memory().available)
    except (ImportError, OSError):
        return None
