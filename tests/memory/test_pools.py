"""Pools of other libraries, at the seam: modules that answer as CuPy 14 and JAX 0.10 do, and a libcuda built here."""

from __future__ import annotations

import os
import sys
import types
from contextlib import contextmanager

import pytest

from cuda_magic.devices import driver
from cuda_magic.devices.model import Device, Memory, Process, Reading
from cuda_magic.memory import pools as room
from cuda_magic.memory.split import split

MIB = 1 << 20


class CupyPool:
    def __init__(self, cupy):
        self.cupy, self.held, self.used = cupy, {0: 300 * MIB, 1: 50 * MIB}, {0: 100 * MIB, 1: 50 * MIB}

    def total_bytes(self):
        return self.held[self.cupy.current]

    def used_bytes(self):
        return self.used[self.cupy.current]

    def free_all_blocks(self):
        self.held[self.cupy.current] = self.used[self.cupy.current]


@pytest.fixture
def cupy(monkeypatch):
    """A cupy whose pool answers for the current device, as the real one does."""
    module = types.ModuleType("cupy")
    module.current = 0

    @contextmanager
    def device(index):
        before, module.current = module.current, index
        try:
            yield
        finally:
            module.current = before

    module.cuda = types.SimpleNamespace(Device=device)
    pool = CupyPool(module)
    module.get_default_memory_pool = lambda: pool
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(driver, "contexts", lambda: (0, 1))
    return module


@pytest.fixture
def jax(monkeypatch):
    """A JAX with one client on device 0, as `jax._src.xla_bridge` keeps it."""
    card = types.SimpleNamespace(
        local_hardware_id=0, memory_stats=lambda: {"pool_bytes": 900 * MIB, "bytes_in_use": 200 * MIB}
    )
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge._backends = {"cuda": types.SimpleNamespace(platform="gpu", local_devices=lambda: [card])}
    monkeypatch.setitem(sys.modules, "jax", types.ModuleType("jax"))
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setattr(driver, "contexts", lambda: (0,))
    return bridge


def test_without_such_a_library_nothing_is_asked(monkeypatch):
    """No library, no call: not even the driver is looked for."""
    monkeypatch.setattr(driver, "contexts", lambda: pytest.fail("asked"))
    assert room.pools() == ()


def test_each_device_is_asked_as_the_current_one(cupy):
    """Held and unused bytes by device; the current device is the same afterwards."""
    found = [(p.owner, p.device, p.held, p.free) for p in room.pools()]
    assert found == [("CuPy", 0, 300 * MIB, 200 * MIB), ("CuPy", 1, 50 * MIB, 0)]
    assert cupy.current == 0


def test_only_what_is_unused_is_given_back(cupy):
    """The pool that has something unused is named and is smaller afterwards."""
    assert room.release() == ["CuPy's pool"]
    assert [(p.held, p.free) for p in room.pools()] == [(100 * MIB, 0), (50 * MIB, 0)]
    assert room.release() == []


def test_jax_keeps_its_memory_and_that_is_said(jax):
    """What JAX does not use cannot be given back: the reason and what would help are there."""
    (pool,) = room.pools()
    assert (pool.held, pool.free) == (900 * MIB, 700 * MIB)
    assert pool.give_back is None and "XLA_PYTHON_CLIENT_PREALLOCATE" in pool.kept
    assert room.release() == []


def test_a_jax_without_a_client_is_not_started(jax):
    """Asking must not start a client: it would take three quarters of the card."""
    jax._backends.clear()
    sys.modules["jax"].local_devices = lambda: pytest.fail("started")
    assert room.pools() == ()


def test_a_library_that_fails_is_left_out(cupy, jax, monkeypatch):
    """An error of CuPy's leaves JAX's answer."""
    monkeypatch.setattr(driver, "contexts", lambda: (0,))
    cupy.get_default_memory_pool = lambda: 1 / 0
    assert [p.owner for p in room.pools()] == ["JAX"]


def test_a_pool_is_a_part_of_its_own_in_the_split(cupy, monkeypatch):
    """Context is what is left of this process; all parts still add up to what is used."""
    monkeypatch.setattr(driver, "contexts", lambda: (0,))
    process = Process(pid=os.getpid(), used=1000 * MIB)
    card = Device(
        index=0, name="A", memory=Memory(total=8000 * MIB, used=1000 * MIB, free=7000 * MIB), processes=(process,)
    )
    (part,) = split(Reading(0.0, (card,)), None)
    assert (part.pools, part.context) == (300 * MIB, 700 * MIB)
    assert sum(one.amount for one in part.parts()) == 1000 * MIB


def test_the_caches_rung_says_what_a_library_keeps(jax):
    """An error on a practice card while JAX holds unused memory: the rung's reason names it."""
    from cuda_magic.rescue.rungs.caches import _said
    from cuda_magic.rescue.situation import Situation

    s = Situation(None, None, None, 0, {})  # type: ignore[arg-type]
    assert "700.00 MiB lie unused in JAX's pool" in _said(["cuBLAS workspaces"], s)


def test_what_rmm_keeps_is_said(monkeypatch):
    """RMM's Python interface has no size and no release of a pool: the rung says so where it is loaded."""
    from cuda_magic.rescue.rungs.caches import _said
    from cuda_magic.rescue.situation import Situation

    s = Situation(None, None, None, 0, {})  # type: ignore[arg-type]
    assert "RMM" not in _said([], s)
    monkeypatch.setitem(sys.modules, "rmm", types.ModuleType("rmm"))
    monkeypatch.setattr(driver, "contexts", lambda: ())
    assert "rmm.reinitialize()" in _said([], s)
