"""What is asked of torch.distributed before a repeat, on a stand-in of its groups (the real ones: tests/cluster)."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from cuda_magic.memory.torch import distributed


class Group:
    def __init__(self, name, count):
        self.group_name, self.count = name, count

    def _get_sequence_number_for_group(self):
        if self.count is None:
            raise RuntimeError("not implemented by this backend")
        return self.count


@pytest.fixture
def job(monkeypatch):
    """A job of four ranks with two groups, over NCCL."""
    groups = [Group("0", 7), Group("1", 2)]
    c10d = SimpleNamespace(
        is_initialized=lambda: True,
        get_world_size=lambda: 4,
        get_rank=lambda: 2,
        get_backend=lambda: "nccl",
        _world=SimpleNamespace(pg_map=dict.fromkeys(groups)),
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    return groups


def test_nothing_is_asked_outside_of_a_job(monkeypatch):
    """No torch.distributed, or one rank: as without ranks."""
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    assert (
        distributed.position() == ()
        and distributed.changed((), {}) == []
        and not distributed.alone()
        and not distributed.left_behind()
    )


def test_a_collective_of_any_group_forbids_the_repeat(job):
    """Each group counts; a new group is a collective too."""
    before = distributed.position()
    assert before == (("0", 7), ("1", 2)) and distributed.changed(before, {}) == []
    job[1].count = 4
    assert distributed.changed(before, {}) == [
        "rank 2 of 4 entered 2 collectives with the other ranks, which would not repeat them"
    ]
    assert "entered" in distributed.changed((), {})[0]  # the job was begun by the statement itself


def test_a_backend_that_does_not_count_forbids_it_too(job):
    """What cannot be told is not taken for nothing."""
    job[0].count = None
    assert "does not tell" in distributed.changed(distributed.position(), {})[0]


def test_sends_from_rank_to_rank_over_nccl_forbid_it(job, monkeypatch):
    """NCCL's groups do not count them: functions of the notebook that send, and pipelines, are taken as having sent."""

    def stage(t):
        def inner():
            dist.send(t, 1)  # noqa: F821

        inner()

    before = distributed.position()
    assert distributed.changed(before, {"f": len, "n": 1}) == []
    assert "stage()" in distributed.changed(before, {"stage": stage})[0]
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining", object())
    assert "pipelining" in distributed.changed(before, {})[0]
