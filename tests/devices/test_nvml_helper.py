"""NVML in a helper process: whatever the driver does, this process and its user go on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from cuda_magic.devices import helper
from cuda_magic.machine import machine

GIB = 1 << 30


@pytest.fixture
def card(fake_nvml):
    """One card in the fake NVML, read through the helper."""
    fake_nvml.device(0, total=80 * GIB, used=2 * GIB)
    return fake_nvml


def helpers():
    alive = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    return [p for p in alive if any("devices/child.py" in word for word in p.cmdline())]


def test_a_reading_is_that_of_nvml(card):
    """The same values as in this process, and nothing of the driver is loaded here by it."""
    card.process(0, 4242, GIB)
    reading = machine().devices().read()
    assert reading.status.ok and reading.driver_version == "580.65.06"
    assert reading.devices[0].memory.used == 2 * GIB and reading.devices[0].processes[0].pid == 4242
    assert card.calls() == 0, "asked in this process"
    card.device(0, used=3 * GIB)
    assert machine().devices().read().devices[0].memory.used == 3 * GIB
    assert len(helpers()) == 1


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_driver_that_hangs_costs_bounded_time(card, function):
    """Below five seconds, one sentence, and the next question is answered at once."""
    card.error(function, "hang")
    begun = time.monotonic()
    status = machine().devices().read().status
    assert time.monotonic() - begun < 5
    assert (status.ok, status.code, status.trouble) == (False, None, "hang") and "did not answer" in status.sentence
    begun = time.monotonic()
    assert machine().devices().read().status.trouble == "hang"
    assert time.monotonic() - begun < 0.1


def test_a_driver_that_crashes_ends_the_helper_alone(card, monkeypatch):
    """SIGSEGV is told as a sentence; mended, the next reading is had."""
    machine().devices().read()
    card.error("nvmlDeviceGetMemoryInfo_v2", "crash")
    status = machine().devices().read().status
    assert (status.ok, status.trouble) == (False, "crash") and "signal 11" in status.sentence
    card.error("nvmlDeviceGetMemoryInfo_v2", None)
    assert machine().devices().read(anew=True).status.ok
    assert machine().devices().read().status.ok


def test_an_interrupt_works_at_once_and_loses_nothing(card):
    """Ctrl-C while the driver hangs; mended, the same helper answers again."""
    machine().devices().read()
    card.error("nvmlDeviceGetMemoryInfo_v2", "slow 1500")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        machine().devices().read()
    assert time.monotonic() - begun < 0.6
    card.error("nvmlDeviceGetMemoryInfo_v2", None)
    card.device(0, used=5 * GIB)
    assert machine().devices().read().devices[0].memory.used == 5 * GIB
    assert len(helpers()) == 1


def test_a_slow_driver_has_answered_by_the_next_reading(card, monkeypatch):
    """Given up in time, the helper is not ended: it goes on waking the cards."""
    monkeypatch.setattr(helper, "LIMIT", 0.6)
    card.error("nvmlInitWithFlags", "slow 1000")
    assert machine().devices().read().status.trouble == "hang"
    time.sleep(0.8)
    assert machine().devices().read(anew=True).status.ok


def test_a_helper_that_never_answers_is_ended(card, monkeypatch):
    """After a while it is killed, and another is tried."""
    monkeypatch.setattr(helper, "LIMIT", 0.5)
    monkeypatch.setattr(helper, "GIVE_UP", 0.6)
    card.error("nvmlInitWithFlags", "hang")
    assert machine().devices().read().status.trouble == "hang"
    (first,) = helpers()
    time.sleep(0.3)
    card.error("nvmlInitWithFlags", None)
    assert machine().devices().read(anew=True).status.ok
    assert not first.is_running() or first.status() == psutil.STATUS_ZOMBIE


def test_no_process_can_be_started(card, monkeypatch):
    """A wrong or unknown program, and no descriptors left, are sentences."""
    for program in ("/nonexistent", "", None):
        monkeypatch.setattr(sys, "executable", program)
        helper.forget()
        status = machine().devices().read().status
        assert (status.ok, status.trouble) == (False, "start") and "helper process" in status.sentence
    monkeypatch.setattr(sys, "executable", "/bin/true")
    helper.forget()
    assert machine().devices().read().status.trouble == "crash"


def test_one_that_ended_for_want_of_questions_is_started_again(card, monkeypatch):
    """The idle end is no failure."""
    machine().devices().read()
    (one,) = helpers()
    machine().devices()._process.stdin.close()
    one.wait(2)
    machine().devices()._process.stdin = open(os.devnull, "wb")  # noqa: SIM115 - what a pipe without reader would be
    os.close(machine().devices()._process.stdin.fileno())
    reader, writer = os.pipe()
    os.close(reader)
    machine().devices()._process.stdin = os.fdopen(writer, "wb", buffering=0)
    assert machine().devices().read().status.ok


def test_a_forked_child_has_a_helper_of_its_own(card):
    """The parent's answers do not go to the child, and the parent's helper lives on."""
    machine().devices().read()
    pid = os.fork()
    if pid == 0:
        ok = machine().devices().read().status.ok
        helper.forget()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert machine().devices().read().status.ok and len(helpers()) == 1


def test_threads_may_read_at_once(card):
    """The sampler and a cell ask the same helper, each has its answer."""
    wrong = []

    def work():
        for _ in range(30):
            if machine().devices().read().devices[0].memory.total != 80 * GIB:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_nothing_stays_behind(card, tmp_path):
    """A process that ends, or is killed, takes its helper along; unread answers and warnings stay away."""
    code = textwrap.dedent(
        """
        import os, sys, time
        from cuda_magic.machine import machine
        assert machine().devices().read().status.ok
        print(machine().devices()._process.pid, flush=True)
        if sys.argv[1] == "wait": time.sleep(60)
        """
    )
    words = [sys.executable, "-X", "dev", "-c", code]
    done = subprocess.run([*words, "end"], env=card.environment, capture_output=True, text=True)
    assert done.stderr == "" and not psutil.pid_exists(int(done.stdout))
    other = subprocess.Popen([*words, "wait"], env=card.environment, stdout=subprocess.PIPE, text=True)
    pid = int(other.stdout.readline())
    other.kill()
    other.wait()
    other.stdout.close()
    end = time.monotonic() + 3
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_further_reading_costs_little(card):
    """Below two milliseconds at the median, eight cards and their processes included."""
    for i in range(8):
        card.device(i)
        card.process(i, 100 + i, GIB)
    source = machine().devices()
    source.read()
    times = []
    gc.collect()
    for _ in range(50):
        begun = time.perf_counter()
        source.read(slow=False)
        times.append(time.perf_counter() - begun)
    assert sorted(times)[25] < 0.002, sorted(times)[25]
