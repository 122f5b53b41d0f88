"""What the browser tests of the panel share: a kernel with moving cards that writes what it sent."""

from __future__ import annotations

import json
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


def silent(page, server, seconds):
    """Whether the messages stop (soon: a busy machine takes a moment), and none comes in `seconds` afterwards."""
    return bool(page.until(lambda: sent_in(page, server, 0.4) == 0, 5)) and sent_in(page, server, seconds) == 0
