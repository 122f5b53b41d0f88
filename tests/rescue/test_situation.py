"""Which card a failure is about, and who else holds it."""

from __future__ import annotations

import pytest

from cuda_magic.devices.model import Device, Memory, Process, Reading
from cuda_magic.rescue.classify import classify
from cuda_magic.rescue.options import GuardOptions
from cuda_magic.rescue.rungs.wait import RUNG
from cuda_magic.rescue.situation import Situation, own_device

GIB = 1 << 30


def card(index, free, *processes):
    """One of two cards of 80 GiB."""
    return Device(index, "A", f"GPU-{index}", memory=Memory(80 * GIB, 80 * GIB - free, free), processes=processes or ())


@pytest.mark.parametrize(("mask", "expected"), [(None, 1), ("0", 0), ("1", 1), ("1,0", 1), ("", None)])
def test_the_first_tensor_of_a_process_fails_on_the_fullest_card_that_it_sees(monkeypatch, mask, expected):
    """Nothing tells the card then: not the error, and no library has started."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    found = own_device(Reading(0.0, (card(0, 70 * GIB), card(1, GIB // 8))), None)
    assert (found.index if found is not None else None) == expected


def test_the_first_tensor_waits_for_the_others_of_its_card(monkeypatch):
    """Two cards, one visible and full of another process: --wait waits, and goes on when that one has left."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    now = Reading(0.0, (card(0, 79 * GIB), card(1, GIB // 8, Process(4000, 79 * GIB))))
    later = Reading(1.0, (card(0, 79 * GIB), card(1, 79 * GIB)))
    readings = iter([now, now, now, now, later, later])

    class NotStarted:
        def started(self):
            return False

        def devices(self):
            return ()

    fault = classify(type("AcceleratorError", (RuntimeError,), {"__module__": "torch"})("CUDA error: out of memory"))
    situation = Situation(
        fault, GuardOptions(wait=30.0), NotStarted(), None, {}, readings=lambda: next(readings, later)
    )
    assert situation.others() == 79 * GIB
    assert RUNG.skip(situation) == ""
    done = RUNG.run(situation)
    assert (done.repeat, done.reason) == (True, "another process gave memory back")
