"""Recordings: written in the background, read back as they were, in each format."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import cuda_magic.testing
from cuda_magic.devices import recording
from cuda_magic.devices.command import once
from cuda_magic.devices.replay import replay, steps
from cuda_magic.errors import UserError
from cuda_magic.machine import use

GIB = 1 << 30


@pytest.fixture
def gpu():
    yield cuda_magic.testing.gpu(["24 GiB"], force=True)
    recording.stop()
    use(None)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_what_is_read_back_is_what_was_written(gpu, tmp_path, ending, capfd):
    """Every number survives, unknown stays unknown, the label stays; the thread prints nothing."""
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"run.{ending}"
    kept = gpu.empty("3 GiB")
    made = recording.start(path, once, 0.02)
    while made.ticks < 3:
        time.sleep(0.01)
    said = recording.stop()
    assert capfd.readouterr() == ("", "") and " written to " in said
    answer = replay(path)
    now = once()
    for table in answer.tables:
        assert table.reading.label == "PRACTICE"
        (part,) = table.splits
        assert (part.live, part.used, part.reserved, part.context) == (
            kept.nbytes,
            now.splits[0].used,
            now.splits[0].reserved,
            now.splits[0].context,
        )
        assert table.reading.devices[0].error is None and table.reading.devices[0].parent is None
    assert "PRACTICE" in repr(answer) and len(answer.rows()) == len(answer.tables) >= 3


def test_the_line_over_time_uses_its_height():
    """The highest reading is the highest mark, on a card of any size; nothing used is the lowest, unknown a space."""
    assert steps([0, 4, None, 8], 8) == "▁▄ █"
    assert steps([0, 0], 0) == "▁▁"


def test_two_readings_in_one_millisecond_stay_two(gpu, tmp_path):
    """A recorder that is late reads twice at once; the times differ all the same, and stay in order."""
    table = once()
    path = tmp_path / "run.csv"
    made = recording.Recorder(path, lambda: table, 0.0)
    while made.ticks < 5:
        time.sleep(0.01)
    made.stop()
    times = [found.reading.time for found in replay(path).tables]
    assert len(times) == made.ticks and times == sorted(set(times))
    assert all(len(found.splits) == 1 for found in replay(path).tables)


def test_a_recording_of_an_earlier_release_is_read():
    """Without the columns that came later: the tutorial's own one is such a file."""
    path = Path(__file__).resolve().parents[2] / "notebooks" / "recorded" / "h200_training.csv"
    assert "untold" not in path.read_text().splitlines()[0]
    tables = recording.load(path)
    assert len(tables) == 63
    assert tables[5].splits[0].untold is None


def test_a_second_recording_ends_the_first(gpu, tmp_path):
    """At most one recorder thread."""
    first = recording.start(tmp_path / "a.csv", once, 0.02)
    second = recording.start(tmp_path / "b.csv", once, 0.02)
    assert not first.running and second.running
    recording.stop()
    assert not second.running and recording.stop() == ""


def test_a_reading_that_fails_ends_the_recording_quietly(tmp_path, capfd):
    """No traceback in another cell's output; why is said at --stop."""

    def broken():
        raise RuntimeError("gone")

    made = recording.start(tmp_path / "a.csv", broken, 0.02)
    made._thread.join(5)
    assert capfd.readouterr() == ("", "")
    assert "gone" in recording.stop()


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00\x01"])
def test_a_file_that_is_no_recording_is_one_sentence(tmp_path, text):
    """Wrong columns, an empty file, bytes."""
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"not a recording|no reading"):
        recording.load(path)


def test_a_last_line_that_was_cut_off_is_passed_by(gpu, tmp_path):
    """The kernel died while it wrote: all earlier readings are there."""
    path = tmp_path / "run.jsonl"
    made = recording.start(path, once, 0.02)
    while made.ticks < 2:
        time.sleep(0.01)
    recording.stop()
    whole = len(recording.load(path))
    path.write_text(path.read_text()[:-30])
    assert len(recording.load(path)) == whole - 1
