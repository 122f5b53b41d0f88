"""The live panel in real front ends: shows, becomes rich, ticks, and is silent when nobody looks."""

from __future__ import annotations

import json
import time

import pytest
from browser.harness import Page, serve

SETUP = """import json, pathlib, threading, time
import fakes.moving
%load_ext cuda_magic
fake = fakes.moving.Moving({count}, names={names!r}).install()
from cuda_magic.panel import live
def report():
    while True:
        one = live.current()
        said = [one and one.sent, one and one.is_rich, threading.active_count()]
        pathlib.Path("said.json").write_text(json.dumps(said)); time.sleep(0.05)
threading.Thread(target=report, daemon=True).start()"""
HOSTILE = "<img src=x onerror=window.hurt=1><b>card</b>"
APPS = pytest.mark.parametrize("app", ["lab", "notebook7"])


def setup(count: int = 8, names: tuple[str, ...] = ()) -> str:
    return SETUP.format(count=count, names=names)


def told(server):
    """[messages sent, rich or not, threads] as the kernel writes them, also while a cell runs."""
    for _ in range(50):
        try:
            return json.loads((server.root / "said.json").read_text())
        except ValueError:
            time.sleep(0.02)
    raise AssertionError("the kernel says nothing")


def data(page, name):
    return page.js(f"() => document.querySelector('.cmg')?.dataset.{name}")


def rows(page):
    return page.js("() => [...document.querySelectorAll('.cmg-row')].map(r => r.dataset.gpu)")


def sent_in(page, server, seconds):
    before = told(server)[0]
    page.sleep(seconds)
    return told(server)[0] - before


@APPS
def test_rich_and_in_hand_while_a_cell_runs(app, request, open_page):
    """Rich while a cell runs, one small message a tick, pause, sort and filter answer, the status stays busy."""
    server = request.getfixturevalue(app)
    page = open_page(
        server, "busy.ipynb", [setup(names=(HOSTILE,)), "%gpu_mem --interval 0.25\ntime.sleep(25)"], size=(1250, 900)
    )
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8, 0.05), page.console
    assert page.prompts()[1] == "[*]:"
    page.sleep(1)
    since, before = time.time(), told(server)[0]
    page.sleep(3)
    ticks = page.frames("comm_msg", '"v"', since=since)
    assert 8 <= len(ticks) <= 13 and abs(len(ticks) - (told(server)[0] - before)) <= 2
    assert max(map(len, ticks)) <= 1300
    # in hand
    page.page.click(".cmg-pause")
    shown, points = data(page, "shown"), int(data(page, "points"))
    page.sleep(1)
    assert data(page, "shown") == shown and int(data(page, "points")) > points and data(page, "state") == "paused"
    page.page.click(".cmg-pause")
    assert rows(page) == [str(i) for i in range(8)]
    page.page.select_option(".cmg-sort", "used")
    assert rows(page)[0] == "6" and sorted(rows(page)) == [str(i) for i in range(8)]
    page.page.fill(".cmg-filter", "gpu 3")
    assert rows(page) == ["3"]
    page.page.fill(".cmg-filter", "")
    # the keyboard: details open with Enter on the focused row, which keeps the focus through ticks
    page.page.focus(".cmg-row .cmg-name")
    page.page.keyboard.press("Enter")
    page.sleep(0.8)
    assert page.js("() => document.activeElement.getAttribute('aria-expanded')") == "true"
    # hostile names are text
    assert page.js("() => [window.hurt, document.querySelectorAll('.cmg img, .cmg b').length]") == [None, 0]
    assert HOSTILE in page.js("() => document.querySelector('.cmg').innerText")
    bars = page.js("() => [...document.querySelectorAll('.cmg [role=progressbar]')].map(b => b.ariaLabel)")
    assert len(bars) == 8 and all(bars)
    assert page.prompts()[1] == "[*]:"
    assert not page.js("() => document.querySelectorAll('.jupyter-widgets-error-widget').length")


@APPS
def test_no_message_when_nobody_looks(app, request, open_page):
    """Tab hidden, scrolled away, output collapsed, cleared or the tab closed: none; back at once when seen again."""
    server = request.getfixturevalue(app)
    cells = [setup(2), "%gpu_mem --interval 0.25", "time.sleep(60)", *["1"] * 50]
    page = open_page(server, "looks.ipynb", cells)
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8)
    page.run(2)  # all of this while a cell runs
    page.scroll(False)
    page.sleep(0.5)
    assert sent_in(page, server, 1.5) >= 4
    for away, back in (
        (lambda: page.hide(True), lambda: page.hide(False)),
        (lambda: page.scroll(True), lambda: page.scroll(False)),
    ):
        away()
        page.sleep(0.4)
        assert sent_in(page, server, 1.5) == 0
        before = told(server)[0]
        back()
        assert page.until(lambda before=before: told(server)[0] > before, 0.6, 0.02)
        page.sleep(0.3)
        assert int(data(page, "points")) > 10  # the history that was missed is there
    page.js(
        "() => {const c = [...window.jupyterapp.shell.widgets('main')].find(w => w.context).content.widgets[1];"
        " c.outputHidden = true;}"
    )
    page.sleep(0.4)
    assert sent_in(page, server, 1.5) == 0
    page.js(
        "() => {const c = [...window.jupyterapp.shell.widgets('main')].find(w => w.context).content.widgets[1];"
        " c.outputHidden = false;}"
    )
    page.sleep(0.5)
    assert sent_in(page, server, 1) >= 2
    page.page.close()
    time.sleep(0.5)
    before, memory = told(server)[0], server.memory()
    time.sleep(2)
    assert told(server)[0] == before
    assert server.memory() - memory < 4 << 20


def test_nothing_changed_nothing_sent_and_the_panel_stays_live(lab, open_page):
    """Still cards: no message for seconds, and the page does not take that for a dead kernel."""
    page = open_page(lab, "still.ipynb", [setup(2), "fake.still = True\n%gpu_mem --interval 0.25"])
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8)
    page.sleep(0.5)
    assert sent_in(page, lab, 7) == 0
    assert data(page, "state") == "live"
    idle = lab.api("/api/kernels")[0]["last_activity"]
    page.sleep(3.5)  # beats and answers go on
    assert lab.api("/api/kernels")[0]["last_activity"] == idle and page.status() == "idle"


def test_a_server_without_anywidget_shows_the_plain_panel(tmp_path, chromium):
    """No error box, no dialog: the plain panel ticks on."""
    with serve(tmp_path / "server", without=["anywidget"]) as server:
        server.notebook("plain.ipynb", [setup(2), "%gpu_mem --interval 0.25"])
        page = Page(chromium, server, "plain.ipynb")
        page.execute(0)
        page.run(1)
        assert page.until(lambda: page.has(".widget-html .cuda-magic"), 8)
        page.sleep(1)
        assert sent_in(page, server, 1.5) >= 4 and told(server)[1] is False
        assert not page.has(".jupyter-widgets-error-widget") and not page.dialogs() and not page.has(".cmg")


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(dark, lab, open_page):
    """axe-core on the panel: no violation, light and dark, one card full and one lost."""
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(lab, "axe.ipynb", [setup(8), "fake.lose(2)\n%gpu_mem --interval 0.25"], size=(1500, 900))
    page.execute(0)
    page.theme(dark)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8)
    page.page.locator(".cmg-name").first.click()
    page.sleep(0.6)
    found = Axe().run(page.page, context=".cmg").response["violations"]
    assert not found, [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found]
    page.theme(False)


def test_a_saved_notebook_keeps_the_last_reading(lab, open_page):
    """nbconvert and a page without the kernel show the table; the widget's text has no address."""
    import nbformat
    from nbconvert import HTMLExporter

    page = open_page(lab, "saved.ipynb", [setup(2), "%gpu_mem --interval 0.25"])
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8)
    hidden = "() => getComputedStyle(document.querySelector('.cuda-magic-saved')).display"
    assert page.js(hidden) == "none"  # not twice on the page
    page.save()
    saved = nbformat.read(lab.root / "saved.ipynb", as_version=4)
    texts = [out["data"]["text/plain"] for out in saved.cells[1].outputs]
    assert texts[0].startswith("GPU memory, live") and "NVIDIA H100" in texts[1]
    page_html, _ = HTMLExporter().from_notebook_node(saved)
    assert "cuda-magic-saved" in page_html and "NVIDIA H100" in page_html
    lab.stop_kernels()
    page.page.reload()
    page.page.wait_for_selector(".cuda-magic-saved", timeout=20_000)
    assert page.js(hidden) == "block"
    assert "NVIDIA H100" in page.page.inner_text(".cuda-magic-saved")
