"""Memory pools of other libraries in this process: CuPy's, JAX's, and the driver's own (cudaMallocAsync).

Asked through ``sys.modules`` only, and only on devices whose context is active, so that no question starts anything.
RMM is not among them: in its Python interface a pool does not tell its size (read in rmm 26.10), so what an RMM pool
holds stands under "context and libraries". Its asynchronous resource has a pool of its own, which nobody else can ask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..devices import driver

__all__ = ["Pool", "pools", "release", "unread"]


@dataclass(frozen=True)
class Pool:
    """One library's pool on one device (this process's cuda index), in bytes."""

    owner: str
    device: int
    held: int
    """Taken from the driver."""
    free: int
    """Of it, in no array of the library's."""
    kept: str = ""
    """Why what is free cannot be given back, and what would help; empty where it can."""
    give_back: Callable[[], Any] | None = field(default=None, repr=False, compare=False)


def _cupy(devices: tuple[int, ...]) -> Iterator[Pool]:
    """CuPy's default pool is one a device, and the current device decides which is asked (cupy.cuda.MemoryPool)."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not hasattr(cupy, "get_default_memory_pool"):
        return
    pool = cupy.get_default_memory_pool()
    for device in devices:
        with cupy.cuda.Device(device):
            held, used = int(pool.total_bytes()), int(pool.used_bytes())
        yield Pool("CuPy", device, held, held - used, give_back=_on(cupy, device, pool.free_all_blocks))


def _on(cupy: Any, device: int, call: Callable[[], Any]) -> Callable[[], Any]:
    def there() -> None:
        with cupy.cuda.Device(device):
            call()

    return there


def _jax(devices: tuple[int, ...]) -> Iterator[Pool]:
    """JAX never gives memory back to the driver while its client lives (docs.jax.dev, GPU memory allocation)."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    # asking jax itself for its devices would start a client, which takes three quarters of the card
    for client in list(getattr(bridge, "_backends", {}).values()):
        if getattr(client, "platform", "") not in ("gpu", "cuda"):
            continue
        for card in client.local_devices():
            stats = card.memory_stats() or {}
            index = getattr(card, "local_hardware_id", None)
            held = stats.get("pool_bytes")
            if held is None or index not in devices:
                continue
            yield Pool(
                "JAX", index, int(held), int(held) - int(stats.get("bytes_in_use", 0)),
                "JAX keeps it until the kernel restarts; XLA_PYTHON_CLIENT_PREALLOCATE=false lets it take less",
            )  # fmt: skip


def _async(devices: tuple[int, ...]) -> Iterator[Pool]:
    """The driver's default pool, for whoever calls cudaMallocAsync; torch's share of it is counted by torch."""
    torch = sys.modules.get("torch")
    backend = getattr(getattr(torch, "_C", None), "_cuda_getAllocatorBackend", None)
    if backend is not None and backend() == "cudaMallocAsync":
        return
    for device in devices:
        found = driver.default_pool(device)
        if found is not None and found[0]:
            held, used = found
            yield Pool("cudaMallocAsync", device, held, held - used, give_back=_trim(device))


def _trim(device: int) -> Callable[[], Any]:
    return lambda: driver.trim_default_pool(device)


LIBRARIES = {"cupy": _cupy, "jax": _jax}
"""Root module of a library and how its pools are read."""


def pools() -> tuple[Pool, ...]:
    """Every pool that holds something. A library that fails to answer is left out: nobody's cell ends for it."""
    sources = [read for name, read in LIBRARIES.items() if name in sys.modules]
    if not sources and "rmm" not in sys.modules and "numba" not in sys.modules:
        return ()
    devices = driver.contexts()
    found: list[Pool] = []
    for read in (*sources, _async):
        try:
            found += [pool for pool in read(devices) if pool.held > 0]
        except Exception:  # noqa: BLE001 - another library's error in the middle of a reading
            continue
    return tuple(found)


def unread() -> str:
    """Of which loaded library the pools neither tell their size nor give anything back, and what would help."""
    if "rmm" not in sys.modules:
        return ""
    return "what RMM's pools hold cannot be read or given back; rmm.reinitialize() does it once nothing lives in them"


def release() -> list[str]:
    """Have each pool give back what it does not use; the names of those that had something."""
    done = []
    for pool in pools():
        if pool.free > 0 and pool.give_back is not None:
            pool.give_back()
            done.append(f"{pool.owner}'s pool")
    return list(dict.fromkeys(done))
