"""Readings from NVML, against the fake library: real pynvml, real ctypes, no card."""

from __future__ import annotations

from cuda_magic.devices.nvml import source

GIB = 1 << 30


def test_a_card_is_read(fake_nvml):
    """Memory, utilisation, temperature, power and processes come out as they were put in."""
    fake_nvml.device(0, total=143 * GIB, used=2 * GIB, reserved=615 << 20, util=37, temp=41, power=120000)
    fake_nvml.process(0, 4242, GIB)
    reading = source().read()
    (device,) = reading.devices
    assert reading.status.ok and reading.driver_version == "580.65.06" and reading.cuda_version == "13.0"
    assert (device.memory.total, device.memory.used, device.memory.reserved) == (143 * GIB, 2 * GIB, 615 << 20)
    assert (device.utilization, device.temperature, device.power, device.power_limit) == (37, 41, 120.0, 700.0)
    assert [(p.pid, p.used, p.kind) for p in device.processes] == [(4242, GIB, "compute")]
