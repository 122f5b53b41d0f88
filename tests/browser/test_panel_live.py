"""The live panel in real front ends: shows, becomes rich, ticks, and is silent when nobody looks."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from browser.harness import FIND, FLAGS, Page, chromium_path, free_port, serve
from browser.panel_words import APPS, HOSTILE, data, rows, sent_in, setup, silent, told


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
    ticks, seconds = page.frames("comm_msg", '"v"', since=since), time.time() - since
    assert 8 <= len(ticks) <= 4 * seconds + 1 and abs(len(ticks) - (told(server)[0] - before)) <= 2
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
        assert silent(page, server, 1.5)
        before = told(server)[0]
        back()
        assert page.until(lambda before=before: told(server)[0] > before, 0.6, 0.02)
        page.sleep(0.3)
        assert int(data(page, "points")) > 10  # the history that was missed is there
    collapse = f"hidden => {{{FIND}.content.widgets[1].outputHidden = hidden;}}"
    page.js(collapse, True)
    assert silent(page, server, 1.2)
    page.js(collapse, False)
    page.sleep(0.5)
    assert sent_in(page, server, 1) >= 2
    if app == "lab":  # another tab of JupyterLab in front
        page.js("() => {window.jupyterapp.commands.execute('launcher:create');}")
        assert page.until(lambda: page.has(".jp-Launcher"), 5)
        assert silent(page, server, 1.2)
        page.js(f"() => {{window.jupyterapp.shell.activateById({FIND}.id);}}")
        page.sleep(0.5)
        assert sent_in(page, server, 1) >= 2
    if app == "lab":
        page.js(f"() => {{{FIND}.content.activeCellIndex = 1;}}")
        page.command("notebook:clear-cell-output")
        assert page.until(lambda: not page.has(".cmg"), 5)
        assert silent(page, server, 1.2)
        return
    page.page.close()
    time.sleep(1)
    before, memory = told(server)[0], server.memory()
    time.sleep(1.5)
    assert told(server)[0] == before
    assert server.memory() - memory < 4 << 20


def test_nothing_changed_nothing_sent_and_the_panel_stays_live(lab, open_page):
    """Still cards: no message for seconds, and the page does not take that for a dead kernel."""
    page = open_page(lab, "still.ipynb", [setup(2), "fake.still = True\n%gpu_mem --interval 0.25"])
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8)
    assert silent(page, lab, 6.5)
    assert data(page, "state") == "live"
    idle = lab.api("/api/kernels")[0]["last_activity"]
    page.sleep(2.5)  # beats and answers go on
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
        assert 1 <= sent_in(page, server, 5.5) <= 2 and told(server)[1] is False
        assert not page.has(".jupyter-widgets-error-widget") and not page.dialogs() and not page.has(".cmg")


def test_axe_finds_nothing(lab, open_page):
    """axe-core on the panel: no violation, light and dark, one card full and one lost."""
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(lab, "axe.ipynb", [setup(8), "fake.lose(2)\n%gpu_mem --interval 0.25"], size=(1500, 900))
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8)
    page.page.locator(".cmg-name").first.click()
    for dark in (False, True):
        page.theme(dark)
        found = Axe().run(page.page, context=".cmg").response["violations"]
        assert not found, (dark, [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found])
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
    assert "live" not in texts[0] and "below" in texts[0] and "NVIDIA H100" in texts[1]
    page_html, _ = HTMLExporter().from_notebook_node(saved)
    assert "cuda-magic-saved" in page_html and "NVIDIA H100" in page_html and "GPU memory over time" not in page_html
    lab.stop_kernels()
    page.page.reload()
    page.page.wait_for_selector(".cuda-magic-saved", timeout=20_000)
    assert page.js(hidden) == "block"
    assert page.until(lambda: "NVIDIA H100" in page.page.inner_text(".cuda-magic-saved"), 10)
    page.sleep(1)
    assert "Error displaying widget" not in page.page.inner_text(".jp-Notebook"), "no error line above it"
    page.close()  # a page that lost its kernel is not for the next test


def test_rich_soon_after_plain_while_a_cell_runs(lab, open_page, record_property):
    """In a page that has drawn a panel before: plain, then rich, while the cell runs; the seconds are printed."""
    cells = [setup(), "%gpu_mem --interval 0.25", "%gpu_mem --interval 0.25\ntime.sleep(20)"]
    page = open_page(lab, "soon.ipynb", cells, size=(1200, 2000))  # both panels in view
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8)
    page.js("""() => {
      window.cmgSeen = {};
      const look = () => {
        const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[2];
        const at = (name, found) => { if (found && !window.cmgSeen[name]) window.cmgSeen[name] = performance.now(); };
        at('first', cell?.querySelector('.jp-OutputArea-output'));
        at('plain', cell?.querySelector('.widget-html .cuda-magic'));
        at('rich', cell?.querySelector('.cmg-row'));
      };
      new MutationObserver(look).observe(document.body, {childList: true, subtree: true});
    }""")
    page.run(2)
    assert page.until(lambda: page.js("() => window.cmgSeen.rich"), 8, 0.05), page.js("() => window.cmgSeen")
    seen = page.js("() => window.cmgSeen")
    # the page may be so quick that the plain panel is never drawn: then the output's own first moment counts
    seconds = (seen["rich"] - seen.get("plain", seen["first"])) / 1000
    print(f"MEASURED rich after plain, a cell runs: {seconds:.3f} s, {seen}")
    record_property("rich_after_plain_s", seconds)
    assert page.prompts()[2] == "[*]:"
    assert seconds >= 0


def test_64_devices(lab, open_page):
    """All rows are there and scroll in the panel; a tick is one message that grows with the devices alone."""
    page = open_page(lab, "many.ipynb", [setup(64), "%gpu_mem --interval 0.25"])
    page.execute(0)
    page.run(1)
    assert page.until(lambda: len(rows(page)) == 64, 10)
    page.sleep(1)
    since = time.time()
    page.sleep(2)
    ticks, seconds = page.frames("comm_msg", '"v"', since=since), time.time() - since
    assert 4 <= len(ticks) <= 4 * seconds + 1 and max(map(len, ticks)) <= 64 * 60 + 500
    assert page.js("() => document.querySelector('.cmg').getBoundingClientRect().height") < 600
    page.page.fill(".cmg-filter", "gpu 63")
    assert rows(page) == ["63"]


def test_a_killed_browser_ends_the_messages_after_the_lease(lab, chromium, tmp_path):
    """SIGKILL says nothing to the kernel: ticks end with the lease (here 3 s), and the server's memory stays flat."""
    short = "import functools; live.Watchers = functools.partial(live.Watchers, lease=3.0)"
    lab.notebook("killed.ipynb", [setup(8) + "\n" + short, "%gpu_mem --interval 0.25", "time.sleep(60)"])
    port = free_port()
    command = [chromium_path(), *FLAGS, "--headless=new", f"--remote-debugging-port={port}"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        one = _connected(chromium.browser.browser_type, port)
        page = Page(one.contexts[0], lab, "killed.ipynb")
        page.execute(0)
        page.run(1)
        assert page.until(lambda: page.has(".cmg-row"), 15)
        page.run(2)
        page.sleep(4)  # longer than the lease: beats keep it
        assert sent_in(page, lab, 1.5) >= 4
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    time.sleep(4.5)
    before, memory = told(lab)[0], lab.memory()
    time.sleep(3)
    assert told(lab)[0] == before
    assert lab.memory() - memory < 1 << 20
    lab.stop_kernels()


def _connected(kind, port):
    for _ in range(100):
        try:
            return kind.connect_over_cdp(f"http://127.0.0.1:{port}")
        except Exception:
            time.sleep(0.1)
    raise AssertionError("Chromium does not answer")


RECORDED = """from cuda_magic.devices import recording
from cuda_magic.devices.command import once
recorder = recording.start(pathlib.Path("run.csv"), once, 0.02)
while recorder.ticks < 60:
    time.sleep(0.02)
recording.stop()
fake.reads = 0
get_ipython().run_line_magic("gpu_mem", "--replay run.csv")"""


def test_a_recording_in_the_panel(lab, open_page):
    """REPLAY, all readings in the line, a slider that moves through them; nothing read or sent; axe finds nothing."""
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(lab, "replay.ipynb", [setup(8), RECORDED, "print(fake.reads)"], size=(1250, 900))
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 10)
    assert page.page.inner_text(".cmg-badge") == "REPLAY" and data(page, "state") == "replay"
    count = int(data(page, "points"))
    assert count >= 60 and len(rows(page)) == 8
    first = page.page.inner_text(".cmg-row[data-gpu='1'] .cmg-amount")
    page.js(
        "() => {const s = document.querySelector('.cmg-slider'); s.value = 20; s.dispatchEvent(new Event('input'));}"
    )
    assert page.page.inner_text(".cmg-row[data-gpu='1'] .cmg-amount") != first
    assert " s of " in page.page.inner_text(".cmg-words")
    assert page.page.get_attribute(".cmg-slider", "aria-valuetext") == page.page.inner_text(".cmg-words")
    page.sleep(1)
    assert sent_in(page, lab, 1) == 0 and page.execute(2) == "0"
    assert not page.has(".cmg-pause:visible") and not page.has(".jupyter-widgets-error-widget")
    found = Axe().run(page.page, context=".cmg").response["violations"]
    assert not found, [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found]
    if folder := os.environ.get("SCREENSHOTS"):
        page.page.locator(".cmg").screenshot(path=f"{folder}/replay.png")
