"""The live panel in real front ends: shows, becomes rich, ticks, and is silent when nobody looks."""

from __future__ import annotations

import json
import re
import time

import pytest

SETUP = """import json, pathlib, threading, time
import fakes.moving
%load_ext cuda_magic
fake = fakes.moving.Moving({count}, names={names!r}).install()
from cuda_magic.panel import live
def report():
    while True:
        one = live.current()
        said = [one and one.sent, one and one.is_rich, sum(t.name == 'cuda_magic panel' for t in threading.enumerate())]
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
