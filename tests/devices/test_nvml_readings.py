"""Readings from NVML, against the fake library: real pynvml, real ctypes, no card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from cuda_magic.devices import nvml
from cuda_magic.devices.codes import SENTENCES
from cuda_magic.devices.nvml import source

GIB = 1 << 30
EACH_TIME = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)
ONCE = (
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
)


@pytest.fixture
def at_once(monkeypatch):
    """Lost drivers and devices are looked for again at once."""
    monkeypatch.setattr(nvml, "AGAIN", -1.0)


def test_a_card_is_read(fake_nvml):
    """Memory, utilisation, temperature, power and processes come out as they were put in."""
    fake_nvml.device(0, total=143 * GIB, used=2 * GIB, reserved=615 << 20, util=37, temp=41, power=120000)
    fake_nvml.process(0, 4242, GIB)
    fake_nvml.process(0, 7, 5 << 20, graphics=True)
    reading = source().read()
    (device,) = reading.devices
    assert reading.status.ok and reading.driver_version == "580.65.06" and reading.cuda_version == "13.0"
    assert (device.memory.total, device.memory.used, device.memory.reserved) == (143 * GIB, 2 * GIB, 615 << 20)
    assert (device.utilization, device.temperature, device.power, device.power_limit) == (37, 41, 120.0, 700.0)
    assert [(p.pid, p.used, p.kind) for p in device.processes] == [
        (7, 5 << 20, "graphics"),
        (4242, GIB, "compute"),
    ]


def test_clocks_and_limits(fake_nvml):
    """Limits are asked once; an idle card's lower clock is no trouble, power and heat are; none of it is no answer."""
    fake_nvml.device(0, hot=89, clock=1200, fast=1980, held=0x1 | 0x4 | 0x40)
    fake_nvml.device(1)
    for _ in range(3):
        one, two = source().read().devices
    assert (one.temperature_limit, one.clock, one.clock_limit, one.throttled) == (89, 1200, 1980, 0x44)
    assert (two.temperature_limit, two.clock, two.clock_limit, two.throttled) == (None, None, None, None)
    assert fake_nvml.calls("nvmlDeviceGetMaxClockInfo") == 2


def test_what_does_not_change_is_asked_once(fake_nvml):
    """Eight cards: names once; a fast reading is three calls a card; PCIe throughput is never asked."""
    for i in range(8):
        fake_nvml.device(i)
    source().read()
    before = fake_nvml.calls()
    for _ in range(10):
        source().read(slow=False)
    assert fake_nvml.calls() - before == 10 * 8 * 3
    assert fake_nvml.calls("nvmlDeviceGetName") == 8
    assert fake_nvml.calls("nvmlDeviceGetPcieThroughput") == 0
    assert source().read(slow=False).devices[0].temperature == 35, "the last slow value stays"


@pytest.mark.parametrize("function", EACH_TIME + ONCE)
def test_every_error_in_every_call_is_a_calm_answer(fake_nvml, at_once, function, capfd):
    """Whatever code a call gives: no exception, nothing printed, and after mending the card is read again."""
    fake_nvml.device(0, name="A card")
    fake_nvml.device("0.0", total=5 * GIB)
    for code in [*SENTENCES, 12345]:
        nvml.forget()
        fake_nvml.error(function, code)
        for _ in range(2):
            reading = source().read()
            assert reading.status.sentence or reading.devices
            assert reading.status.ok == bool(reading.devices), (code, reading.status)
        fake_nvml.error(function, None)
        source().read()
        if function in ONCE or code not in (3, 13, 25, 26):
            reading = source().read()
            assert reading.status.ok and reading.devices[0].memory.total == 80 * GIB, (function, code)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("code", sorted(SENTENCES))
def test_start_failure_names_its_code(fake_nvml, code):
    """Each code at nvmlInit has its own sentence."""
    fake_nvml.error("nvmlInitWithFlags", code)
    status = source().read().status
    assert (status.ok, status.code, status.sentence) == (False, code, SENTENCES[code])


def test_no_library_is_one_calm_line():
    """Without a driver library the reading is empty and says so."""
    code = (
        "from cuda_magic.devices.nvml import source; r = source().read();"
        "print(r.devices, r.status.code, r.status.sentence)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if "()" not in done.stdout:
        pytest.skip("this machine has an NVIDIA driver")
    assert done.stdout == "() 12 No NVIDIA driver found on this machine.\n" and done.stderr == ""


def test_wrapped_values_are_dropped(fake_nvml):
    """Values that cannot be become unknown, the others stay."""
    wrapped = (1 << 64) - 1
    fake_nvml.device(0, total=80 * GIB, used=wrapped - 5, free=3 * GIB, util=4294967295, temp=4294967295)
    fake_nvml.process(0, 11, 99 * (1 << 40))
    device = source().read().devices[0]
    assert device.memory.used is None and device.memory.free == 3 * GIB and device.memory.total == 80 * GIB
    assert device.utilization is None and device.temperature is None and device.processes[0].used is None


def test_case_56_unified_memory(fake_nvml):
    """GB10: no memory numbers of its own; the system's are shown and labelled, other columns stay."""
    import psutil

    fake_nvml.device(0, name="NVIDIA GB10", total=None, used=None, util=12)
    device = source().read().devices[0]
    assert device.name == "NVIDIA GB10" and device.memory.unified and device.utilization == 12
    assert device.memory.total == psutil.virtual_memory().total and device.error is None


def test_case_58_process_memory_unknown(fake_nvml):
    """WSL2 gives no bytes of a process: unknown, not zero."""
    fake_nvml.device(0, used=3 * GIB)
    fake_nvml.process(0, 79, None)
    device = source().read().devices[0]
    assert device.processes[0].used is None and device.memory.used == 3 * GIB


def test_case_61_old_memory_call_is_labelled(fake_nvml):
    """v2 keeps the driver's reserve apart; v1 cannot, and says so."""
    fake_nvml.device(0, used=8 << 20, reserved=308 << 20)
    memory = source().read().devices[0].memory
    assert (memory.used, memory.reserved, memory.used_includes_reserved) == (8 << 20, 308 << 20, False)
    fake_nvml.error("nvmlDeviceGetMemoryInfo_v2", 13)
    nvml.forget()
    memory = source().read().devices[0].memory
    assert (memory.used, memory.reserved, memory.used_includes_reserved) == (316 << 20, None, True)


def test_a_passing_error_of_memory_v2_does_not_change_its_meaning(fake_nvml):
    """After a timeout of v2 the next reading is v2 again; v1's other meaning of used never slips in."""
    fake_nvml.device(0, used=8 << 20, reserved=308 << 20)
    source().read()
    fake_nvml.error("nvmlDeviceGetMemoryInfo_v2", 10)
    device = source().read().devices[0]
    assert device.memory.used is None and device.error == SENTENCES[10]
    fake_nvml.error("nvmlDeviceGetMemoryInfo_v2", None)
    assert source().read().devices[0].memory.used == 8 << 20


def test_case_63_mig_in_a_container(fake_nvml):
    """No permission on the card: its row has no numbers, each instance has its own row."""
    fake_nvml.device(0, name="NVIDIA H100")
    fake_nvml.device("0.0", name="NVIDIA H100 MIG 1g.10gb", total=5 * GIB, used=GIB, reserved=0)
    fake_nvml.device("0.1", name="NVIDIA H100 MIG 1g.10gb", total=5 * GIB, used=0, reserved=0)
    fake_nvml.error("nvmlDeviceGetMemoryInfo_v2", 4, device=0)
    card, first, second = source().read().devices
    assert card.mig_mode and card.memory.total is None and card.error is None
    assert (first.parent, first.index, first.memory.used, second.memory.used) == (0, 0, GIB, 0)
    assert first.uuid.startswith("MIG-") and first.uuid != second.uuid


def test_a_lost_card_is_named_and_comes_back(fake_nvml, at_once):
    """Lost: its row keeps the name and says why, the other cards stay; mended: it is read again."""
    fake_nvml.device(0, name="First")
    fake_nvml.device(1, name="Second")
    source().read()
    fake_nvml.error("any", 15, device=1)
    for _ in range(3):
        first, second = source().read().devices
        assert first.error is None and first.memory.total == 80 * GIB
        assert (second.name, second.error, second.memory.total) == ("Second", SENTENCES[15], None)
    fake_nvml.error("any", None, device=1)
    source().read()
    assert source().read().devices[1].error is None


def test_someone_elses_shutdown_is_survived(fake_nvml):
    """Another library shuts NVML down: the next reading starts it again."""
    import pynvml

    fake_nvml.device(0)
    source().read()
    pynvml.nvmlShutdown()
    assert source().read().devices[0].memory.total == 80 * GIB


def test_a_forked_child_starts_nvml_anew(fake_nvml):
    """A child forked while another thread reads gets readings of its own."""
    fake_nvml.device(0)
    source().read()
    with source()._lock:  # held as another thread would hold it
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answer = source().read().devices[0].memory.total
            except BaseException as error:
                answer = repr(error)
            os.write(writer, json.dumps(answer).encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    assert json.loads(os.read(reader, 1000)) == 80 * GIB
    os.close(reader)


def test_many_processes_are_all_listed(fake_nvml):
    """More processes than there is room for at first: all come out, in order of pid."""
    fake_nvml.device(0)
    for pid in range(300, 200, -1):
        fake_nvml.process(0, pid, 1 << 20)
    assert [p.pid for p in source().read().devices[0].processes] == list(range(201, 301))


def test_names_as_bytes_of_an_old_binding(fake_nvml, monkeypatch):
    """nvidia-ml-py before 11.515 gives bytes, and names that are no UTF-8 do not raise."""
    import pynvml

    fake_nvml.device(0)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: b"Tesla \xff")
    assert source().read().devices[0].name == "Tesla �"


def test_threads_may_read_at_once(fake_nvml):
    """The sampler and a cell read at the same time."""
    fake_nvml.device(0)
    wrong = []

    def work():
        for _ in range(50):
            if source().read().devices[0].memory.total != 80 * GIB:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
