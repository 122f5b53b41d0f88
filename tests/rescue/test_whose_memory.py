"""Whose memory it is: this process's other libraries, its children, other kernels, strangers; what can be done."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from cuda_magic.devices.model import Device, Memory, Process, Reading
from cuda_magic.rescue.advice import next_steps
from cuda_magic.rescue.classify import classify, judge
from cuda_magic.rescue.lines import RESTART
from cuda_magic.rescue.options import GuardOptions
from cuda_magic.rescue.situation import Situation
from cuda_magic.rescue.survey import survey

MIB, GIB = 1 << 20, 1 << 30
OOM = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})


class NotStarted:
    """torch is imported, and none of its tensors has been on a card."""

    label = ""

    def started(self):
        return False

    def devices(self):
        return ()


def situation(*processes, allocator=None, error=None):
    """The first tensor failed on a card of 15 GiB; `processes` are (pid, bytes)."""
    used = sum(size for _, size in processes)
    card = Device(
        0,
        "T4",
        "GPU-0",
        memory=Memory(15 * GIB, used, 15 * GIB - used),
        processes=tuple(Process(pid, size) for pid, size in processes),
    )
    reading = Reading(0.0, (card,))
    allocator = allocator or NotStarted()
    fault = judge(classify(error or RuntimeError("CUDA error: out of memory")), allocator, lambda: reading)
    return Situation(fault, GuardOptions(), allocator, None, {}, readings=lambda: reading)


def lines(s) -> list[tuple[str, str]]:
    return [(step.why, step.line) for step in next_steps(s, survey(s, None), (), None)]


@pytest.fixture
def tensorflow(monkeypatch):
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))


def test_another_library_of_this_kernel_is_no_stranger(tensorflow, monkeypatch):
    """TensorFlow holds 14.4 of 15 GiB, torch's first tensor fails: nobody is waited for; its own setting is named."""
    s = situation((os.getpid(), int(14.4 * GIB)))
    assert s.others() == 0
    rows = {h.kind: h for h in survey(s, None).holders}
    assert rows["library"].nbytes > 13 * GIB
    assert "TensorFlow" in rows["library"].detail
    assert rows["context"].nbytes < GIB
    found = lines(s)
    assert found[0][1] == "%cuda_env TF_FORCE_GPU_ALLOW_GROWTH=true"
    assert not any("--wait" in line or "other processes" in why for why, line in found)
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # set, and not in force yet
    assert lines(s)[0][1] == RESTART


def test_with_a_stranger_beside_it_the_larger_one_counts(tensorflow):
    """A little of another process's does not make the card a stranger's; most of it does."""
    assert not any("--wait" in line for _, line in lines(situation((os.getpid(), 13 * GIB), (4242, GIB))))
    found = lines(situation((os.getpid(), 700 * MIB), (4242, 14 * GIB)))
    assert any("--wait" in line for _, line in found)
    assert not any("library in this kernel" in why for why, _ in found)


def test_where_no_library_is_known_the_kernel_restarts(monkeypatch):
    """Nothing of the table is imported: what holds the memory is said, and that it ends with the kernel."""
    from cuda_magic.rescue import libraries

    monkeypatch.setattr(libraries, "LIBRARIES", ())
    assert lines(situation((os.getpid(), 14 * GIB)))[0][1] == RESTART
    s = situation((os.getpid(), 2 * GIB), (4242, int(12.5 * GIB)))
    rows = {h.kind: h.nbytes for h in survey(s, None).holders}
    assert rows["context"] == 2 * GIB  # CUDA libraries of torch's own take as much
    assert "library" not in rows


def test_a_child_of_this_kernel_is_named_and_its_line_ends_it():
    """An engine that outlived its use: the line, followed by the letter, gives its memory back."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        s = situation((child.pid, 14 * GIB))
        if any(h.detail == "outside this container" for h in survey(s, None).holders):
            pytest.skip("processes without the driver are no GPU processes here")
        why, line = lines(s)[0]
        assert "a child of this kernel" in why
        exec(line)
        assert child.wait(timeout=10) != 0
    finally:
        child.kill()
        child.wait()


def test_another_kernel_is_named(monkeypatch):
    """Its notebook stands in the first words of the advice."""
    from cuda_magic.devices.processes import Person
    from cuda_magic.rescue import survey as module

    monkeypatch.setattr(module, "describe", lambda pid, known: Person(pid, "python3", "me", "/x/train.ipynb", "ab-c"))
    assert "notebook train.ipynb" in lines(situation((999_999, 14 * GIB)))[0][0]


TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of {} of which 1.00 GiB is free. "
    "Process 3 has 77.00 GiB memory in use. Of the allocated memory {} is allocated by PyTorch, and 1.00 GiB is "
    "reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("capacity", "allocated", "kind"),
    [
        ("24.00 GiB", "2.00 GiB", "gpu-memory"),
        ("79.10 GiB", "2.00 GiB", "worker"),  # no card of this process
        ("24.00 GiB", "22.54 GiB", "worker"),  # more than this allocator ever had
    ],
)
def test_figures_of_another_process_are_not_taken_for_ours(practice, capacity, allocated, kind):
    """An error that an engine's client passes on, of any class: this kernel can make no room for it."""
    practice.plain("mine = gpu.empty('2 GiB'); runs = []")
    text = TEXT.format(capacity, allocated)
    assert judge(classify(RuntimeError(text)), practice.gpu.allocator).kind.id == kind
    practice.guard(f"runs.append(1); raise RuntimeError({text!r})", repeat=True)
    assert practice.report.kind == kind
    if kind == "worker":
        assert (practice.names["runs"], practice.report.rungs, practice.report.needed) == ([1], (), None)


def test_a_piece_that_holds_the_request_is_no_fragmentation(practice):
    """Another's error: what is free here lies in one piece, so no setting of the allocator is advised."""
    practice.plain("x = gpu.empty('4 GiB'); del x")
    error = OOM("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB")
    assert practice.guard(f"raise type('OutOfMemoryError', (RuntimeError,), {{'__module__': 'torch'}})({str(error)!r})")
    assert not any("expandable" in step.line for step in practice.report.next_steps)
