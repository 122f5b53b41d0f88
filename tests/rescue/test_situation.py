"""Which card a failure is about, and who else holds it."""

from __future__ import annotations

from dataclasses import replace

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


@pytest.mark.parametrize(("others", "held"), [((), 0), ((3 * GIB,), 3 * GIB), ((3 * GIB, GIB // 4), 13 * GIB // 4)])
@pytest.mark.parametrize("by", ["driver", "message"])
def test_in_a_container_this_process_is_not_taken_for_another(practice, monkeypatch, by, others, held):
    """The driver tells the machine's pids, as on Kaggle and Colab: the memory is ours, and the batch may be smaller."""
    from cuda_magic.devices import processes
    from cuda_magic.rescue import survey

    monkeypatch.setattr(processes, "own_namespace", lambda: False)
    practice.plain("mine = gpu.empty('14 GiB')")
    own = 14 * GIB + GIB // 2
    sizes = dict(enumerate((own, *others), 20398))
    text = "CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacity of 24.00 GiB "
    text += "of which 1.00 GiB is free. "
    text += "".join(f"Process {pid} has {used / GIB:.2f} GiB memory in use. " for pid, used in sizes.items())
    card = Device(0, "A", "GPU-0", memory=Memory(24 * GIB, sum(sizes.values()), GIB))
    if by == "driver":
        card = replace(card, processes=tuple(Process(pid, used) for pid, used in sizes.items()))
    s = Situation(
        classify(type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})(text)),
        GuardOptions(),
        practice.gpu.allocator,
        0,
        practice.names,
        readings=lambda: Reading(0.0, (card,)),
    )
    assert s.others() == held
    rows = {h.kind: h.nbytes for h in survey.survey(s, None).holders}
    assert sum(h.nbytes for h in survey.survey(s, None).holders if h.kind == "process") == held
    assert rows["context"] == GIB // 2


def test_where_pids_are_the_machines_own_nothing_is_guessed(practice, monkeypatch):
    """A process that is not on the list does not take another's place."""
    from cuda_magic.devices import processes

    practice.gpu.empty("1 GiB")
    monkeypatch.setattr(processes, "own_namespace", lambda: True)
    fault = classify(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    s = Situation(fault, GuardOptions(), practice.gpu.allocator, 0, {})
    assert s.own_process({4: 9 * GIB}) is None
    monkeypatch.setattr(processes, "own_namespace", lambda: None)
    assert s.own_process({4: 9 * GIB, 5: GIB // 2, 6: None}) == 4
