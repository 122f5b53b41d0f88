"""A recording in the panel: all readings at once, no thread that goes on, the table where there are no widgets."""

from __future__ import annotations

import json

import pytest
from fakes.moving import Moving
from test_panel_kernel import Pub, hear, magics, samplers, wait  # noqa: F401 - magics is a fixture

from cuda_magic.devices import recording
from cuda_magic.devices.command import once
from cuda_magic.devices.replay import Replay
from cuda_magic.errors import UserError
from cuda_magic.machine import use
from cuda_magic.panel import live, playback


@pytest.fixture
def run(shell, magics):  # noqa: F811
    """``run(line)`` runs ``%gpu_mem line`` in the shell that looks as if it had a front end."""
    shell.run_line_magic("load_ext", "cuda_magic")
    yield lambda line: shell.run_line_magic("gpu_mem", line)
    shell.run_line_magic("unload_ext", "cuda_magic")


@pytest.fixture
def file(tmp_path, magics):  # noqa: F811
    """A recording of two cards."""
    path = tmp_path / "run.csv"
    recorder = recording.start(path, once, 0.01)
    assert wait(lambda: recorder.ticks >= 8)
    recording.stop()
    return path


def test_the_panel_gets_the_whole_recording_and_reads_nothing(run, file, shell):
    """REPLAY, every reading in order, cards by name; one word of the page and the thread is done."""
    fake = Moving(2).install()
    assert run(f"--replay {file}") is None
    one = live.current()
    tables = recording.load(file)
    assert one.rich.label == "REPLAY" and [card["name"] for card in one.rich.cards] == ["NVIDIA H100 80GB HBM3"] * 2
    used = [[round(d.memory.used / 2**20) for d in table.reading.devices] for table in tables]
    assert [[device[0] for device in frame] for frame in one.rich.frames] == used
    assert one.rich.times[0] == 0 and one.rich.times == sorted(one.rich.times)
    assert "used over time" in one.plain.value and one.box.children == (one.plain,)
    hear({"t": "ready", "see": True})
    assert wait(lambda: one.box.children == (one.rich,)) and wait(lambda: not samplers())
    assert fake.reads == 0 and one.sent == 0
    saved, _, _ = shell.display_pub.made[1]
    assert "<svg" in saved["text/html"], "the recording's chart is kept too"
    assert saved["text/plain"] == repr(Replay(file.name, tuple(tables)))
    run("--stop")
    assert live.current() is None


def test_a_recording_replaces_the_live_panel_and_the_other_way_round(run, file):
    """One panel at a time, whichever it is."""
    run("--interval 0.25")
    run(f"--replay {file}")
    assert isinstance(live.current(), playback.Playback) and len(samplers()) == 1
    run("--interval 0.25")
    assert type(live.current()) is live.Panel and len(samplers()) == 1


def test_a_terminal_gets_the_table_of_the_recording(run, file, shell):
    """No kernel: the recording itself, as with --json and --df in a front end."""
    assert len(run(f"--replay {file} --json")) and live.current() is None
    kernel, shell.kernel = shell.kernel, None
    assert isinstance(run(f"--replay {file}"), Replay) and live.current() is None
    shell.kernel = kernel


def test_a_card_that_is_lost_or_missing_in_some_readings_keeps_its_row():
    """Its name and size stay, its values are unknown there."""
    fake = Moving(2)
    before = use(fake)
    tables = [once()]
    fake.lose(1)
    tables.append(once())
    fake.count = 1
    tables.append(once())
    use(before)
    cards, rows = playback.frames(tables)
    assert [card["id"] for card in cards] == ["0", "1"] and cards[1]["total"] == 80 << 10 and not cards[1]["error"]
    assert [row[1] == [None] * 4 for row in rows] == [False, True, True]


def test_a_long_recording_is_thinned_and_keeps_its_peak(monkeypatch):
    """What goes to the page is bounded; the highest reading is among it."""
    fake = Moving(8)
    before = use(fake)
    tables = tuple(once() for _ in range(60))
    use(before)
    monkeypatch.setattr(playback, "NUMBERS", 10 * 8 * 16)
    some = playback.thin(tables)
    assert len(some) == 10 and [t.reading.time for t in some] == sorted(t.reading.time for t in some)
    assert max(map(playback._used, some)) == max(map(playback._used, tables))
    assert len(json.dumps(playback.frames(some)[1])) < 10 * 8 * 90


def test_stop_says_what_it_stopped(run, file, capsys, tmp_path):
    """The panel, the recording, or that there was nothing."""
    capsys.readouterr()

    def said():
        run("--stop")
        return capsys.readouterr().err.strip()

    assert said() == "No panel is open."
    run("--interval 0.25")
    assert said() == "The panel is stopped; its last reading stays."
    run(f"--log {tmp_path / 'new.csv'}")
    capsys.readouterr()
    assert " written to " in said()


def test_case_67_a_tiny_interval_is_clamped_with_a_note(run, capsys):
    """0.01 s becomes 0.25 s, and one line says so; 0 and less is a mistake."""
    assert run("--interval 0.01") is None
    assert live.current().interval == 0.25
    assert capsys.readouterr().err.strip() == "--interval 0.01: readings come every 0.25 s, the shortest interval."
    run("--stop")
    capsys.readouterr()
    with pytest.raises(UserError, match="--interval takes seconds from 0.25 to 86400, not 0"):
        run("--interval 0")
    assert live.current() is None
