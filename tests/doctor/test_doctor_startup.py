"""The start of CUDA in a child process, against a libcuda.so.1 built for the purpose."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import FrozenInstanceError, replace

import psutil
import pytest
from fakes.build import build, compiler

from cuda_magic.doctor import diagnose
from cuda_magic.doctor.codes import CUDA
from cuda_magic.doctor.facts import Allocator, Torch
from cuda_magic.doctor.situations import healthy
from cuda_magic.doctor.startup import Allocation, Startup, probe
from cuda_magic.environment.allocator_grammar import read

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


# -- every way in which the trial can end, and what is said of it


def said(startup: Startup):
    """(first finding's id, exit code, the whole text) of a machine that is well but for this start."""
    found = diagnose(replace(healthy(), startup=startup))
    assert not found.usable and found.verdict == "unusable"
    text = repr(found)
    assert "works here" not in text and "CUDA starts here" not in text and "None device" not in text
    return found.findings[0].id, found.exit_code, text


@pytest.mark.parametrize("program", ["/nonexistent", "", None, "/etc/passwd", "/"])
def test_no_program_is_no_health(monkeypatch, program):
    """sys.executable is wrong, unknown, or no program: said as not tried, exit code 2, check_cuda() False."""
    monkeypatch.setattr(sys, "executable", program)
    seen = probe()
    assert not seen.ok and seen.failed
    first, code, text = said(seen)
    assert (first, code) == ("startup.not-tried", 2) and "could not be tried" in text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EPERM])
def test_a_system_that_starts_no_process(monkeypatch, number):
    """The system's own words are kept, and the line is for that limit."""

    def refuse(*args, **more):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    first, _, text = said(probe())
    assert first == "startup.not-tried" and os.strerror(number) in text


def test_too_many_open_files_in_the_whole_doctor():
    """With no descriptor left the doctor answers, is not healthy, and raises nothing."""
    code = (
        "import os, cuda_magic, cuda_magic.doctor.command as c, cuda_magic.doctor.check, cuda_magic.doctor.gather\n"
        "import cuda_magic.devices.helper, cuda_magic.memory.torch.state, psutil, resource, packaging.version\n"
        "c.look()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "held = []\n"
        "try:\n    while True: held.append(os.dup(0))\n"
        "except OSError: pass\n"
        "found = c.look(); ok = bool(cuda_magic.check_cuda())\n"
        "for one in held: os.close(one)\n"
        "print(found.verdict, ok, found.findings[0].id)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["unusable", "False", "startup.not-tried"], done.stderr


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "exit code 0 without an answer"),
        ("exit 3", "exit code 3 without an answer"),
        ("echo hello", "is no answer"),
        ("echo 5; echo '[1]'; echo null; echo '\"x\"'", "is no answer"),
        ('echo \'{"code": "x", "step": "done"}\'', "is no answer"),
        ('echo \'{"devices": [1], "step": "done"}\'', "is no answer"),
        ("echo boom >&2; exit 1", "boom"),
    ],
)
def test_a_program_that_is_no_python(monkeypatch, tmp_path, script, words):
    """Silent, another program's words, or broken JSON: told as no answer, with the last line that it wrote."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    first, _, text = said(probe())
    assert first == "startup.silent" and words in text


@pytest.mark.parametrize("number", [4, 6, 7, 9, 11, 15])
def test_each_signal_in_cuinit(libcuda, number):
    """The signal and the step are told."""
    first, _, text = said(start(libcuda, FAKE_CUDA_CRASH=number))
    assert first == "startup.dies" and f"signal {number} in cuInit" in text


def test_a_death_after_cuinit_is_no_health(libcuda):
    """The count was told, then a call crashed: what came before is not the whole."""
    seen = start(libcuda, FAKE_CUDA_NAME_CRASH=11)
    assert (seen.code, seen.device_count, seen.signal, seen.ok) == (0, 1, 11, False)
    assert said(seen)[0] == "startup.dies"


def test_an_exit_inside_the_driver(libcuda):
    """A library that calls exit() leaves no answer."""
    first, _, text = said(start(libcuda, FAKE_CUDA_EXIT=7))
    assert first == "startup.silent" and "exit code 7" in text and "in cuInit" in text


def test_what_the_driver_prints_is_no_answer(libcuda):
    """JSON on stdout by a library does not count as the child's."""
    assert start(libcuda, FAKE_CUDA_PRINT=1, FAKE_CUINIT=999).device_count is None


def test_a_library_without_its_calls(tmp_path):
    """A libcuda.so.1 that lacks cuInit."""
    if compiler() is None:
        pytest.skip("no C compiler")
    (tmp_path / "x.c").write_text("int nothing(void) { return 0; }")
    subprocess.run([compiler(), "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "x.c"], check=True)
    seen = start(tmp_path)
    first, _, text = said(seen)
    assert first == "startup.silent" and "AttributeError" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"junk, which is no library at all\n" * 99, "no library at all"), (b"", "empty or cut off")],
)
def test_a_libcuda_that_cannot_be_loaded(tmp_path, content, words):
    """It is there: the loader's own sentence is shown, and "not found" is not said."""
    (tmp_path / "libcuda.so.1").write_bytes(content)
    seen = start(tmp_path)
    facts = replace(healthy(), startup=seen, environment={"LD_LIBRARY_PATH": f"{tmp_path}:/opt/lib"})
    found = diagnose(facts)
    assert found.findings[0].id == "driver.library-broken"
    text = repr(found)
    assert "cannot be loaded" in text and words in text and "is not found" not in text
    assert "%cuda_env LD_LIBRARY_PATH=/opt/lib\n%cuda_env --restart" in found.findings[0].do


def test_a_hang_names_its_step(libcuda):
    """Killed within its limit, and where it was."""
    first, _, text = said(start(libcuda, limit=0.6, FAKE_CUDA_HANG=1))
    assert first == "startup.hangs" and "hung in cuInit" in text


TORCH_ENDS = {
    "import os; os.abort()": "ended by signal 6, in import torch",
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": "ended by signal 11, in import torch",
    "import time; time.sleep(60)": "did not come to an end, in import torch",
    "import os; os._exit(3)": "exit code 3 without an answer, in import torch",
}


@pytest.mark.parametrize("body", TORCH_ENDS)
def test_a_torch_that_ends_the_process_is_not_the_driver(libcuda, tmp_path, monkeypatch, body):
    """With --full: the driver started, torch's import did not live. The driver's library is not blamed."""
    (tmp_path / "torch.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = start(libcuda, full=True, limit=3)
    assert seen.ok and not seen.allocated
    found = diagnose(replace(healthy(), startup=seen))
    assert found.findings[0].id == "torch.ends-process" and not found.usable
    assert TORCH_ENDS[body] in repr(found) and "driver library" not in found.findings[0].means


def test_a_half_written_allocator_value_is_the_cause(libcuda, tmp_path, monkeypatch):
    """torch 2.14 aborts at its import with one: named, with --full too, as what it is."""
    (tmp_path / "torch.py").write_text("import os; os.abort()")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = start(libcuda, full=True)
    for value in ("expandable_segments", "max_split_size_mb:", "roundup_power2_divisions:["):
        problem = read(value, (2, 14)).refused
        facts = replace(
            healthy(),
            torch=Torch("2.14.1+cu130", "13.0"),
            allocator=Allocator("PYTORCH_CUDA_ALLOC_CONF", value, problem),
        )
        for startup in (seen, healthy().startup):
            found = diagnose(replace(facts, startup=startup))
            assert found.findings[0].id == "allocator.refused", value
            assert "import torch ends the process (signal 6)" in repr(found)


def test_an_interrupt_ends_the_wait_at_once(libcuda):
    """Ctrl-C during a start that hangs: no wait for the child, which is gone soon after."""
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        start(libcuda, FAKE_CUDA_HANG=1)
    assert time.monotonic() - begun < 0.8


def test_healthy_says_what_was_tried(libcuda):
    """Without --full: CUDA starts, no tensor was tried. With it and an allocation on each device: works."""
    quick = diagnose(replace(healthy(), startup=start(libcuda)))
    assert "CUDA starts here, 1 device. No tensor was tried" in quick.sentence
    tried = replace(healthy().startup, full=True, allocations=(Allocation(0, "torch", True),))
    assert diagnose(replace(healthy(), startup=tried)).sentence == "CUDA works here, 1 device."
    part = replace(healthy(2).startup, full=True, allocations=(Allocation(0, "torch", True),))
    assert "No tensor was tried" in diagnose(replace(healthy(2), startup=part)).sentence


@pytest.mark.parametrize(("code", "words"), [(46, "licence"), (2, "full or busy"), (209, "no code for this card")])
def test_a_first_tensor_that_fails_is_judged_by_its_code(code, words):
    """cuInit 0 and the first tensor fails: unusable, with the reason of that code."""
    failed = replace(healthy().startup, full=True, allocations=(Allocation(0, "torch", False, code, "CUDA error: x"),))
    found = diagnose(replace(healthy(), startup=failed))
    assert found.findings[0].id == "torch.allocation" and not found.usable and words in repr(found)


@pytest.mark.parametrize("startup", [Startup(), Startup(code=0), Startup(code=0, device_count=None, full=True)])
def test_nothing_known_is_never_healthy(startup):
    """Whatever is missing in a start, the verdict is not healthy and no count is invented."""
    said(startup)


def test_nvmls_codes_are_those_of_its_header():
    """Each code of the installed nvidia-ml-py has its name here, and its sentence."""
    import pynvml

    from cuda_magic.devices.codes import SENTENCES
    from cuda_magic.doctor.codes import NVML

    theirs = {v: k for k, v in vars(pynvml).items() if k.startswith("NVML_ERROR") or k == "NVML_SUCCESS"}
    assert theirs.items() <= NVML.items() and set(theirs) - {0} <= set(SENTENCES)
    assert NVML[0] == "NVML_SUCCESS" and CUDA[0] == "CUDA_SUCCESS" and CUDA[209] == "CUDA_ERROR_NO_BINARY_FOR_GPU"


def test_a_frozen_program_is_not_started_again(monkeypatch):
    """sys.executable is then the program itself."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert probe().failed
