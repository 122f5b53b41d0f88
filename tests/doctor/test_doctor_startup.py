"""The start of CUDA in a child process, against a libcuda.so.1 built for the purpose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import FrozenInstanceError

import psutil
import pytest
from fakes.build import build, compiler

from cuda_magic.doctor.codes import CUDA
from cuda_magic.doctor.startup import Startup, probe

CODES = [0, 2, 3, 34, 46, 100, 101, 304, 500, 800, 802, 803, 804, 805, 999, 12345]


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory):
    """The folder of the fake driver library."""
    if compiler() is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("libcuda")
    build(folder, "cuda.c", "libcuda.so.1")
    return folder


def start(libcuda, full=False, limit=None, **settings) -> Startup:
    env = {**os.environ, "LD_LIBRARY_PATH": str(libcuda), **{k: str(v) for k, v in settings.items()}}
    return probe(full=full, limit=limit, environment=env)


@pytest.mark.parametrize("code", CODES)
def test_each_code_of_cuinit_is_told_with_its_name(libcuda, code):
    """What cuInit answers arrives as it is, with CUDA's name for it."""
    seen = start(libcuda, FAKE_CUINIT=code)
    assert seen.code == code
    assert seen.error == CUDA.get(code, f"CUDA error {code}")
    assert seen.ok is (code == 0)
    assert seen.device_count == (1 if code == 0 else None)
    assert seen.driver_api == 13000


def test_devices_are_described_without_a_context(libcuda):
    """Name, size, compute capability and bus of each device; pairs without peer access."""
    seen = start(libcuda, FAKE_CUDA_COUNT=3, FAKE_CUDA_CC=86, FAKE_CUDA_NO_PEERS=1, FAKE_CUDA_INTEGRATED=1)
    assert [d.name for d in seen.devices] == ["Fake GPU 0", "Fake GPU 1", "Fake GPU 2"]
    assert {d.compute_capability for d in seen.devices} == {(8, 6)}
    assert {d.total for d in seen.devices} == {24 << 30}
    assert [d.bus_id for d in seen.devices] == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    assert all(d.integrated for d in seen.devices)
    assert seen.no_peers == ((0, 1), (0, 2), (1, 2))


def test_no_library_is_an_answer():
    """Without libcuda.so.1 the reason is kept and nothing is raised."""
    seen = probe(environment={**os.environ, "LD_LIBRARY_PATH": "/nonexistent"})
    if seen.load_error:
        assert "libcuda.so.1" in seen.load_error
        assert not seen.ok


def test_a_hanging_start_is_killed_within_its_limit(libcuda):
    """The child is gone after the limit, and what it said until then is kept."""
    before = {p.pid for p in psutil.Process().children()}
    started = time.monotonic()
    seen = start(libcuda, limit=0.6, FAKE_CUDA_HANG=1)
    assert seen.timed_out
    assert seen.code is None
    assert seen.driver_api == 13000
    assert time.monotonic() - started < 3
    assert {p.pid for p in psutil.Process().children()} <= before


def test_a_crash_of_the_driver_stays_in_the_child(libcuda):
    """SIGSEGV in cuInit is told as signal 11."""
    seen = start(libcuda, FAKE_CUDA_CRASH=1)
    assert seen.signal == 11
    assert "signal 11" in seen.sentence


def test_the_quick_probe_takes_under_half_a_second(libcuda):
    """The fastest of three: the child imports no torch and nothing of ours."""
    assert min(start(libcuda).seconds for _ in range(3)) < 0.5


def test_the_parent_does_not_load_libcuda(libcuda):
    """After a probe this process has no libcuda, so that a forked child can start CUDA."""
    start(libcuda)
    with open("/proc/self/maps") as maps:
        assert str(libcuda) not in maps.read()


def test_full_without_torch_allocates_by_the_driver(libcuda, tmp_path):
    """A Python without torch tries a context and memory through the driver."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from cuda_magic.doctor.startup import probe\n"
        "s = probe(full=True)\n"
        "print(json.dumps([[a.by, a.ok, a.code] for a in s.allocations] + [s.torch_error]))"
    )
    env = {**os.environ, "LD_LIBRARY_PATH": str(libcuda), "FAKE_CUDA_COUNT": "2", "FAKE_CUDA_ALLOC": "2"}
    done = subprocess.run([sys.executable, "-c", code, tmp_path], env=env, capture_output=True, text=True, check=True)
    first, second, error = json.loads(done.stdout)
    assert first == second == ["driver", False, 2]
    assert error == "ImportError: no torch here"


def test_a_working_folder_with_a_module_of_a_common_name_does_no_harm(libcuda, tmp_path, monkeypatch):
    """A ctypes.py or json.py beside the notebook is not what the child imports."""
    (tmp_path / "json.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert start(libcuda).code == 0


def test_startup_is_frozen():
    """A reading does not change."""
    with pytest.raises(FrozenInstanceError):
        Startup().code = 1  # type: ignore[misc]
