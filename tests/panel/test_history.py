"""The history by time: thinned by maximum, gaps, peaks between readings, marks; the same numbers everywhere."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from shutil import which

import pytest
from fakes.moving import GIB, Moving
from test_panel_kernel import Magics, hear, magics, recorded, wait  # noqa: F401 - magics is a fixture

from cuda_magic import panel
from cuda_magic.devices.command import once
from cuda_magic.devices.model import Device, Memory, Reading, Status
from cuda_magic.devices.table import MemoryTable
from cuda_magic.machine import use
from cuda_magic.memory.allocator import Stats
from cuda_magic.memory.split import split
from cuda_magic.panel import live
from cuda_magic.panel.cards import GONE, Cards
from cuda_magic.panel.history import DAY, RECENT, WHOLE, History, merge, pack
from cuda_magic.panel.marks import Marks
from cuda_magic.panel.peaks import Peaks
from cuda_magic.panel.picture import picture, stacked
from cuda_magic.panel.rich import script

MIB = 1 << 20


def spiky(count, at):
    """`count` readings of one card a second, 10 GiB, but 70 GiB at `at`."""
    made = History(1.0)
    for i in range(count):
        made.add(1e9 + i, [[70 << 10 if i == at else 10 << 10, i % 100, 40, 300]])
    return made


def test_a_day_is_kept_and_no_spike_is_lost():
    """Two days at one reading a second: bounded, a day long, the one-second spike of the last day at its time."""
    count, at = 2 * 86400, 2 * 86400 - 40_000
    made = spiky(count, at)
    points = made.points()
    assert len(made.recent) == RECENT and len(points) <= RECENT + WHOLE
    assert DAY * 0.95 <= points[-1].time - points[0].time <= DAY + made.step
    top = max(points, key=lambda point: point.rows[0][0])
    assert top.rows[0][0] == 70 << 10 and abs(top.time - (1e9 + at)) <= made.step
    assert [p.time for p in points] == sorted(p.time for p in points)


@pytest.mark.skipif(which("node") is None, reason="no node to run the page's half")
def test_page_and_kernel_keep_the_same(tmp_path):
    """history.js thins as history.py does: the same points from the same readings, packed and unpacked."""
    made = spiky(5000, 1234)
    file = tmp_path / "check.mjs"
    file.write_text(
        script().replace("export default", "const left_out =")
        + """
const one = new History(1);
for (let i = 0; i < 5000; i++) one.push(1e9 + i, [[i === 1234 ? 70 * 1024 : 10 * 1024, i % 100, 40, 300]]);
const flat = points => points.map(p => [p.t, ...p.rows]);
console.log(JSON.stringify([flat(one.from()), flat(unpackPoints(PACKED, 1e9))]));
""".replace("PACKED", json.dumps(pack(made.points(), 1e9)))
    )
    mine, sent = json.loads(subprocess.run(["node", str(file)], check=True, capture_output=True, text=True).stdout)
    assert mine == sent == [[p.time, *p.rows] for p in made.points()]


def test_merging_keeps_the_highest_and_what_is_known():
    """The fuller reading's parts stay together; the busiest percent is kept; a reading beats none."""
    from cuda_magic.panel.history import Point

    one = Point(1.0, [[100, 5, 40, 300, 80, 20], [None] * 4, [7, 1, 1, 1]])
    two = Point(2.0, [[90, 99, 41, 200, 10, 80], [50, 1, 2, 3], [None] * 4])
    made = merge(one, two)
    assert made.rows == [[100, 99, 41, 300, 80, 20], [50, 1, 2, 3], [7, 1, 1, 1]] and made.time == 1.0


# -- peaks
class Counter:
    """An allocator that tells what it is told."""

    def __init__(self):
        self.now = Stats(2 * GIB, 3 * GIB, 2 * GIB, 3 * GIB)

    def started(self):
        return True

    def devices(self):
        return (0,)

    def stats(self, device):
        return self.now


def asked(peaks, counter):
    device = Device(0, "card", "GPU-a", memory=Memory(24 * GIB, 4 * GIB, 20 * GIB, 0), processes=())
    reading = Reading(0.0, (device,), label="PRACTICE")
    return peaks.note(MemoryTable(reading, split(reading, None)), counter)[0]


def test_a_spike_of_50_ms_shows_as_a_cap():
    """The counter rose or was restarted since the reading before: the device's highest; else nothing is claimed."""
    peaks, counter = Peaks(), Counter()
    assert asked(peaks, counter) is None, "what was before the panel is not of this time"
    counter.now = replace(counter.now, peak_allocated=18 * GIB)
    assert asked(peaks, counter) == 4 * GIB - 3 * GIB + 18 * GIB
    assert asked(peaks, counter) is None, "said once"
    counter.now = replace(counter.now, peak_allocated=12 * GIB)  # %%gpu_mem restarted it
    assert asked(peaks, counter) == 13 * GIB
    counter.now = replace(counter.now, ooms=2)
    assert asked(peaks, counter) is None and peaks.ooms == [0]
    assert asked(peaks, counter) is None and peaks.ooms == []


def test_a_practice_spike_between_two_readings_is_seen():
    """Allocated, freed and given back between two readings; the user's own counter is left as it is."""
    import cuda_magic.testing

    gpu = cuda_magic.testing.gpu(["24 GiB"], force=True)
    peaks = Peaks()
    try:
        keep = gpu.empty("2 GiB")
        peaks.note(once(), gpu.allocator)
        spike = gpu.empty("18 GiB")
        del spike
        gpu.allocator.empty_cache()
        (cap,) = peaks.note(once(), gpu.allocator)
        assert 20 * GIB <= cap <= 21 * GIB and gpu.allocator.stats(0).peak_allocated == 20 * GIB
        del keep
    finally:
        use(None)


# -- devices that come and go
def reading(*devices, ok=True):
    made = Reading(0.0, devices, Status(ok, 0 if ok else 9, "" if ok else "The driver is not loaded."))
    return MemoryTable(made, split(made, None))


def device(index, uuid, used=1):
    return Device(index, "card", uuid, memory=Memory(10 * GIB, used * GIB, 0, 0), processes=())


def test_each_card_keeps_its_place():
    """Lost, back, renumbered and joined: by UUID; one that is no longer listed says so and keeps its size."""
    cards = Cards()
    assert [row[0] for row in cards.place(reading(device(0, "a", 1), device(1, "b", 2)), [])] == [1024, 2048]
    rows = cards.place(reading(device(0, "b", 3)), [])
    assert rows[0] == [None] * 4 and rows[1][0] == 3072, "renumbered, at the place that it had"
    assert cards.all[0]["error"] == GONE and cards.all[0]["total"] == 10 << 10
    rows = cards.place(reading(device(0, "a", 1), device(1, "b", 2), device(2, "c", 4)), [])
    assert [row[0] for row in rows] == [1024, 2048, 4096] and not any(card["error"] for card in cards.all)
    lost = replace(device(1, None), memory=Memory(), error="It fell off the bus.")
    assert cards.place(reading(device(0, "a"), lost, device(2, "c")), [])[1] == [None] * 4
    assert cards.all[1]["error"] == "It fell off the bus." and cards.all[1]["total"] == 10 << 10


def test_the_driver_gone_is_said_and_is_a_gap(magics):  # noqa: F811
    """In mid-run: its sentence, unknown values, the last reading kept; back again it goes on."""
    fake = Moving(2)
    use(fake)
    panel.show(magics, interval=0.25, alert=95)
    one = live.current()
    sent = recorded(one)
    hear({"t": "ready", "see": True})
    assert wait(lambda: sent)
    fake.none = True
    assert wait(lambda: one.rich.trouble == "No NVIDIA driver found on this machine.")
    assert sent[-1]["v"] == [",,,"] * 2 and len(one.rich.cards) == 2
    assert one.table.reading.devices, "what is saved is the last reading there was"
    fake.none = False
    assert wait(lambda: one.rich.trouble == "" and sent[-1]["v"][0][0] != ",")
    drawn = picture(one.history.points(), one.cards.all)
    assert drawn.svg.count('fill="url(') >= 2


def test_unknown_is_not_nought(magics):  # noqa: F811
    """A part that is 0 is sent as 0, one that is unknown as null."""
    use(Moving(1))
    panel.show(magics, interval=60, alert=95)
    row = live.current()._now[0]
    assert row[8] == 0 and row[11] is None, row  # no other kernels of mine; pools are not known
    assert stacked([None] * 4) is None


# -- marks
def test_marks_of_cells_errors_and_rescues(magics, monkeypatch):  # noqa: F811
    """A cell with its number, time and difference; out of memory by the allocator's count; a rescue by its report."""
    import sys
    from types import SimpleNamespace

    fake = Moving(2, still=True)
    use(fake)
    panel.show(magics, interval=0.25, alert=95)
    one = live.current()
    sent = recorded(one)
    hear({"t": "ready", "see": True})
    assert wait(lambda: sent)
    before = one._held()
    magics.shell.events.trigger("pre_run_cell", None)
    fake._at += 5
    fake.ooms = 1
    guard = SimpleNamespace(_last=[SimpleNamespace(room=[SimpleNamespace(id="caches")], status="ok")])
    monkeypatch.setitem(sys.modules, "cuda_magic.magics.cuda_guard", guard)
    seq = one._seq
    magics.shell.events.trigger("post_run_cell", SimpleNamespace(error_in_exec=None, error_before_exec=None))
    assert wait(lambda: one._seq > seq, 0.3), "the end of a cell is read at once"
    assert wait(lambda: {m["k"] for m in one.marks.all} == {"cell", "oom", "rescue"})
    cell = next(m for m in one.marks.all if m["k"] == "cell")
    assert cell["n"] == magics.shell.displayhook.prompt_count and cell["b"] >= cell["a"]
    assert wait(lambda: "d" in cell) and cell["d"] == one._held() - before != 0
    assert wait(lambda: any(m["k"] == "rescue" for message in sent for m in message.get("m", ())))
    told = panel.over_time()
    assert {m["k"] for m in told.marks} == {"cell", "oom", "rescue"}


def test_marks_are_sent_once():
    marks = Marks()
    marks.begin(7, 100)
    version = marks.version
    assert [m["n"] for m in marks.after(0)] == [7] and marks.after(version) == []
    marks.end(MemoryError("x"))
    marks.read(150)
    (mark,) = marks.after(version)
    assert mark["d"] == 50 and mark["x"] == "MemoryError"


# -- what leaves
def test_history_is_a_result(magics):  # noqa: F811
    """After the panel is stopped too: bytes, a time that is a moment, the chart in text and SVG."""
    use(Moving(2))
    panel.show(magics, interval=0.25, alert=95)
    one = live.current()
    assert wait(lambda: one._seq >= 4)
    panel.stop()
    told = panel.over_time()
    frame = told.to_dataframe()
    assert str(frame["time"].dtype).startswith("datetime64[") and "UTC" in str(frame["time"].dtype)
    assert len(frame) == 2 * len(told.points) and list(frame["gpu"].unique()) == ["0", "1"]
    assert frame["used"].iloc[0] % MIB == 0 and frame["total"].iloc[0] == 80 * GIB
    assert "highest" in repr(told) and "<svg" in told._repr_html_()


def test_the_saved_page_draws_a_gap_as_a_gap():
    """A card lost for a while and back: two areas, no ramp from nought; five minutes without a reading likewise."""
    made = History(1.0)
    for i in range(60):
        made.add(1e9 + i, [[None] * 4 if 20 <= i < 40 else [10 << 10, 50, 40, 300, 10 << 10]])
    for i in range(30):
        made.add(1e9 + 400 + i, [[20 << 10, 50, 40, 300, 20 << 10]])
    drawn = picture(made.points(), [{"id": "0", "name": "<b>card</b>", "total": 80 << 10}])
    area = next(path for path in drawn.svg.split("<path ") if "url(" in path).split('"')[1]
    assert area.count("Z") == 3 and "<b>" not in drawn.svg
    assert "highest 20.00 GiB" in drawn.text
