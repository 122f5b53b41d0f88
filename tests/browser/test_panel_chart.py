"""The chart, its keys and exports, states told truly, and each size, in a real browser."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest
from browser.panel_words import data, rows, setup

PIXELS = """async box => {
  const canvas = document.querySelector('.cmg-chart canvas'), draw = canvas.getContext('2d');
  const image = draw.getImageData(0, 0, canvas.width, canvas.height).data;
  let painted = 0;
  for (let i = 3; i < image.length; i += 4) if (image[i]) painted++;
  return painted / (canvas.width * canvas.height);
}"""
NO_OVERFLOW = """() => { const box = document.querySelector('.cmg'), right = box.getBoundingClientRect().right;
  return [...box.querySelectorAll('*')].filter(e => e.getClientRects().length && getComputedStyle(e).clipPath === 'none'
    && e.getBoundingClientRect().right > right + 1 && !e.closest('.u-wrap, .cmg-heads')).map(e => e.className); }"""


def picture(page, name):
    if folder := os.environ.get("SCREENSHOTS"):
        page.page.locator(".cmg").screenshot(path=f"{folder}/{name}.png")


def read(page):
    return page.page.inner_text(".cmg-read")


def violations(page):
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page.page, context=".cmg").response["violations"]
    return [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found]


def control(page, code):
    """Run code in the second kernel thread of the notebook's own process: a file that it watches (cells are busy)."""
    (page.server.root / "todo.py").write_text(code)
    assert page.until(lambda: not (page.server.root / "todo.py").exists(), 5), code


WATCH = """
def watch():
    todo = pathlib.Path("todo.py")
    while True:
        if todo.exists():
            exec(todo.read_text(), globals()); todo.unlink()
        time.sleep(0.05)
threading.Thread(target=watch, daemon=True).start()"""


@pytest.fixture
def panel(lab, open_page):
    """A live panel of four cards while a cell runs, the second row open."""
    cells = [setup(4) + WATCH, "%gpu_mem --interval 0.25", "time.sleep(40)"]
    page = open_page(lab, "chart.ipynb", cells, size=(1250, 1300))
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8), page.console
    page.run(2)
    page.sleep(3)
    page.page.locator(".cmg-name").nth(1).click()
    assert page.until(lambda: page.has(".cmg-chart canvas"), 3), page.console
    page.sleep(0.5)
    yield page
    page.js("() => {window.jupyterapp.commands.execute('notebook:interrupt-kernel');}")


def test_the_chart_in_hand_while_a_cell_runs(panel, lab):
    """Painted, with axis and clock; hover and keys move one crosshair through all rows and speak; axe finds nothing."""
    page = panel
    assert page.js(PIXELS) > 0.1
    words = read(page)
    assert (
        "GiB of 80.0 GiB" in words
        and "tensors" in words
        and "% busy" in words
        and "MHz" in page.page.inner_text(".cmg-facts")
    )
    # hover: the crosshair stands in every row's line too
    box = page.page.locator(".cmg-chart .u-over").first.bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.sleep(0.3)
    hovered = read(page)
    assert hovered != words
    lines = page.js("() => [...document.querySelectorAll('.cmg-spark-cursor')].map(p => p.getAttribute('d'))")
    assert len(set(lines)) == 1 and lines[0].startswith("M")
    page.page.mouse.move(5, 5)
    # keys: one step back is an earlier time, spoken by the slider
    page.page.locator(".cmg-time").focus()
    page.page.keyboard.press("End")
    newest = page.page.get_attribute(".cmg-time", "aria-valuetext")
    page.page.keyboard.press("PageUp")
    earlier = page.page.get_attribute(".cmg-time", "aria-valuetext")
    assert earlier[:8] < newest[:8] and "GiB of 80.0 GiB" in earlier
    page.page.keyboard.press("Escape")
    # the running cell is a mark, and who holds the card is live below
    assert "In [3], running" in read(page)
    people = page.page.inner_text(".cmg-people")
    assert "this kernel" in people and "pid" in people
    assert "GPU 3 is 8" in page.page.inner_text(".cmg-top") and "you hold" in page.page.inner_text(".cmg-top")
    heads = page.js("() => [...document.querySelectorAll('[role=columnheader]')].map(h => h.textContent)")
    assert heads == ["GPU", "memory", "used / total", "full", "last minute", "utilization", "temp.", "power"]
    page.page.fill(".cmg-filter", "cuda:3")
    assert rows(page) == ["3"]
    page.page.fill(".cmg-filter", "")
    for dark in (False, True):
        page.theme(dark)
        picture(page, f"chart_{'dark' if dark else 'light'}")
        assert not violations(page), dark
    page.theme(False)
    assert page.prompts()[2] == "[*]:" and not page.console, page.console


def test_numbers_leave_as_they_are(panel, lab):
    """CSV and %gpu_mem --history --df give the same numbers; the PNG has the chart's width."""
    page = panel
    page.page.click(".cmg-pause")
    with page.page.expect_download() as download:
        page.page.click(".cmg-csv")
    text = download.value.path().read_text()
    mine = list(csv.DictReader(io.StringIO(text)))
    control(
        page,
        "import json; from cuda_magic.panel import over_time\n"
        "frame = over_time().to_dataframe()\n"
        "frame['time'] = frame['time'].astype('int64') // 10**6\n"
        "pathlib.Path('frame.json').write_text(frame.to_json(orient='records'))",
    )
    frame = json.loads((lab.root / "frame.json").read_text())
    assert set(mine[0]) == set(frame[0]) and len(mine) >= 4 * 8
    theirs = {
        (row["used"], row["allocated"] if "allocated" in row else row["live"], row["gpu"], row["power"])
        for row in frame
    }
    for row in mine:
        assert (int(row["used"]), int(row["live"]), row["gpu"], int(row["power"])) in theirs
    with page.page.expect_download() as download:
        page.page.click(".cmg-png")
    saved = download.value.path().read_bytes()
    assert saved[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(saved[16:20], "big") > 600 and int.from_bytes(saved[20:24], "big") > 240
    if folder := os.environ.get("SCREENSHOTS"):
        (Path(folder) / "exported.png").write_bytes(saved)


def test_time_goes_on_and_states_are_told(panel, lab):
    """Still cards: the line goes on. A spike is a cap. A card lost and back is a gap; the driver gone is said."""
    page = panel
    control(page, "fake.still = True")
    page.sleep(1)
    points = int(data(page, "points"))
    page.sleep(6)
    assert int(data(page, "points")) >= points + 16, "nothing changes, and time goes on all the same"
    assert data(page, "state") == "live"
    # 18 GiB for less than a tick
    control(page, "fake.spike(1, 70 << 30); fake.held = 0x44")
    assert page.until(
        lambda: (
            "highest" in page.page.inner_text(".cmg-facts")
            and float(page.page.inner_text(".cmg-facts").split("highest of ")[1].split(": ")[1].split(" ")[0]) > 70
        ),
        6,
    )
    assert page.until(lambda: "slowed down for its temperature" in read(page), 5) and page.has(".cmg-held")
    control(page, "fake.lose(1)")
    assert page.until(lambda: "fallen off the bus" in page.page.inner_text(".cmg-row[data-gpu='1']"), 5)
    page.sleep(1.5)
    control(page, "fake.find(1)")
    area = "() => document.querySelector(\".cmg-row[data-gpu='1'] .cmg-spark-used\").getAttribute('d')"
    assert page.until(lambda: page.js(area).count("Z") == 2, 6), "the gap is no ramp"
    control(page, "fake.none = True")
    assert page.until(lambda: data(page, "state") == "trouble", 5)
    assert page.page.inner_text(".cmg-words") == "No NVIDIA driver found on this machine."
    assert "memory not known" in page.page.inner_text(".cmg-total") and len(rows(page)) == 4
    assert "No device" not in page.page.inner_text(".cmg")
    picture(page, "driver_gone")
    control(page, "fake.none = False; fake.count = 5; fake.still = False; fake.held = 0")
    assert page.until(lambda: data(page, "state") == "live" and len(rows(page)) == 5, 5)
    assert "5 devices" in page.page.inner_text(".cmg-total")


def test_each_size_shows_all(panel, lab):
    """400 px: two lines a card and nothing dropped; 2500 px: the chart grows; forced colours keep the parts."""
    page = panel
    page.js("() => {window.jupyterapp.shell.collapseLeft(); window.jupyterapp.shell.collapseRight();}")
    widths = {}
    for wide in (400, 760, 2500):
        page._size((wide + 110, 1400))
        page.sleep(0.8)
        assert not page.js(NO_OVERFLOW), (wide, page.js(NO_OVERFLOW))
        seen = page.js(
            "() => ['amount', 'percent', 'util', 'temp', 'power', 'barcell', 'sparkcell'].filter("
            "n => document.querySelectorAll('.cmg-row .cmg-' + n)[2].getClientRects().length === 0)"
        )
        assert seen == [], (wide, seen)
        widths[wide] = page.js("() => document.querySelector('.cmg-chart canvas').getBoundingClientRect().width")
        picture(page, f"wide_{wide}")
        if wide == 400:
            high = page.js("() => document.querySelectorAll('.cmg-row')[2].getBoundingClientRect().height")
            assert high < 64, "two lines"
    assert widths[2500] > 2000 > widths[400] > 200
    page._size((1250, 1300))
    page.page.emulate_media(forced_colors="active")
    page.sleep(0.6)
    live = "() => getComputedStyle(document.querySelector('.cmg-bar .cmg-live')).backgroundColor"
    assert page.js(live) == "rgb(47, 114, 207)"
    picture(page, "forced_colours")
    page.page.emulate_media(forced_colors="none")


def test_the_legend_is_told_apart_in_grey(panel, lab):
    """Swatches as they are painted, in grey: any two differ in a fifth of their pixels by a tenth of the lightness."""
    from itertools import combinations

    import numpy
    from PIL import Image

    page = panel
    page.js(
        "() => {const box = document.querySelector('.cmg > .cmg-legend').cloneNode(true); box.id = 'every';"
        " document.querySelector('.cmg').prepend(box); for (const item of box.children) item.hidden = false;"
        " for (const swatch of box.querySelectorAll('.cmg-swatch:not(.cmg-line)')) {"
        "   swatch.style.width = '48px'; swatch.style.height = '24px'; }}"
    )
    seen = {}
    for swatch in page.page.locator("#every .cmg-swatch:not(.cmg-line)").all():
        shot = Image.open(io.BytesIO(swatch.screenshot())).convert("L").crop((2, 2, 46, 22))
        seen[swatch.get_attribute("class").split("cmg-")[-1]] = numpy.asarray(shot, dtype=float) / 255
    assert len(seen) >= 9
    for (one, a), (two, b) in combinations(seen.items(), 2):
        differ = float((abs(a - b) > 0.1).mean())
        assert differ > 0.2, (one, two, differ)
