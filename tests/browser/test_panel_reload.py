"""The live panel in real front ends: shows, becomes rich, ticks, and is silent when nobody looks."""

from __future__ import annotations

import re

from browser.panel_words import APPS, data, setup, told


@APPS
def test_reload_restart_and_a_second_panel(app, request, open_page):
    """A reload brings the panel back with its history; a second one replaces it; a new kernel is named."""
    server = request.getfixturevalue(app)
    cells = [setup(2), "%gpu_mem --interval 0.25", "%gpu_mem --interval 0.25", "%gpu_mem --stop"]
    page = open_page(server, "reload.ipynb", cells)
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 8)
    page.sleep(2)
    page.reload()
    assert page.until(lambda: page.has(".cmg-row"), 10)
    assert page.until(lambda: int(data(page, "points") or 0) >= 8, 3)
    page.run(2)
    assert page.until(lambda: page.js("() => document.querySelectorAll('.cmg').length") == 1, 8)
    page.sleep(0.5)
    assert told(server)[2] == 1
    page.run(3)
    assert page.until(lambda: not page.has(".cmg"), 5)
    page.sleep(0.3)
    assert told(server)[2] == 0
    page.run(1)
    assert page.until(lambda: data(page, "state") == "live", 8)
    page.restart()
    assert page.until(lambda: data(page, "state") in ("lost", "late"), 15), data(page, "state")
    words = page.page.inner_text(".cmg-words")
    assert re.fullmatch(r"the kernel was restarted: run %gpu_mem again|no reading for \d+ s", words)
