"""The live panel of a cluster: readings from real engines, busy, killed, restarted; what goes to the page."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time

import pytest
from cluster.conftest import until

from cuda_magic import panel
from cuda_magic.cluster import command
from cuda_magic.panel import live

SAMPLERS = "[t.name for t in __import__('threading').enumerate()].count('cuda_magic sampler')"


class Pub:
    def __init__(self):
        self.made = []

    def publish(self, data, metadata=None, *, transient=None, update=False, **_):
        self.made.append((data, transient, update))


class Kernel:
    def __init__(self):
        self.control_thread = object()
        self.control_handlers = {"comm_info_request": lambda *_: None}


@pytest.fixture
def front(shell, monkeypatch):
    """A shell that looks as if it had a front end."""
    monkeypatch.setattr(shell, "display_pub", Pub())
    shell.kernel = Kernel()
    yield shell
    panel.close()
    del shell.kernel


def show(front, file, interval=0.25):
    """The panel, and the messages that a page of it gets."""
    assert command.live(str(file), front, interval, 95) is None
    shown = live.current()
    sent = []
    shown.rich.send = lambda message, buffers=None: sent.append(message)
    shown._hear_control({"key": shown.key, "cid": "page", "t": "ready", "see": True})
    assert until(lambda: sent)
    return shown, sent


def page(sent):
    """The values that a page has after these messages."""
    values = {}
    for message in sent:
        values |= dict(zip(message.get("i", range(len(message.get("v", ())))), message.get("v", ()), strict=True))
    return values


def states(shown):
    return {e.id: e.state for e in shown.state.engines.values()}


def test_rows_by_host_and_only_what_changed(front, running, tmp_path):
    """Names once, all rows at first, then the changed one alone; --stop ends the engines' threads."""
    # by the client's file alone, away from the profile
    shown, sent = show(front, shutil.copy(running.file, tmp_path / "carried.json"))
    assert until(lambda: set(states(shown).values()) == {"live"} and len(states(shown)) == 4)
    named = lambda: {h["name"]: h["engines"] for h in shown.rich.hosts}  # noqa: E731
    assert until(lambda: named() == {"north": "0-1", "south": "2-3"})
    assert [(c["id"], c["total"]) for c in shown.rich.cards] == [("0", 24576)] * 2
    south = next(i for i, c in enumerate(shown.rich.cards) if shown.rich.hosts[c["host"]]["name"] == "south")
    assert until(lambda: len(page(sent)) == 2)
    time.sleep(0.6)
    count = len(sent)
    running.do(2, "from cuda_magic.testing import gpu; import builtins; builtins.held = gpu().empty('3 GiB')")
    try:
        assert until(lambda: page(sent)[south].split(",")[4:5] == ["3072"])
        assert {i for message in sent[count:] for i in message.get("i", ())} == {south}
    finally:
        running.do(2, "import builtins; del builtins.held; from cuda_magic.machine import use; use(None)")
    assert [running.on(i, SAMPLERS) for i in range(4)] == [1] * 4
    saved = front.display_pub.made[-1][0]["text/plain"]
    assert "north" in saved and "Read 20" in saved
    assert panel.close()
    assert until(lambda: [running.on(i, SAMPLERS) for i in range(4)] == [0] * 4)
    assert "the panel is stopped" in front.display_pub.made[-1][0]["text/plain"]
    assert not [t for t in threading.enumerate() if t.name == "cuda_magic panel"]


def test_a_busy_engine_goes_on_telling(front, running):
    """Its readings go out while it computes, and it is told to stop while it does."""
    shown, _ = show(front, running.file)
    assert until(lambda: states(shown).get(1) == "live")
    with running.busy(1) as (job, _):
        time.sleep(0.3)
        number = shown.state.engines[1].number
        assert until(lambda: shown.state.engines[1].number > number, 5)
        assert not job.ready() and states(shown)[1] == "live"
        panel.close()
        assert not job.ready()
    assert running.on(1, SAMPLERS) == 0


def test_an_engine_that_is_busy_from_the_start_is_said_and_joins_later(front, running):
    """Its host is seen through its neighbour meanwhile; nobody waits."""
    with running.busy(3) as (_, end):
        began = time.monotonic()
        shown, _ = show(front, running.file)
        assert time.monotonic() - began < 4
        assert until(lambda: len(shown.rich.cards) == 2)
        lost = lambda: [h["troubles"] for h in shown.rich.hosts if not h["name"]]  # noqa: E731
        waits = [3, "waits", "busy: its readings begin when its cell ends"]
        assert until(lambda: lost() and lost()[0][0][:3] == waits, 6)
        end()
        assert until(lambda: not lost() and states(shown)[3] == "live", 8)
        assert len(shown.rich.cards) == 2


def test_killed_in_mid_tick_and_started_again(front, other):
    """SIGKILL: named as ended within seconds, its neighbour goes on; a new engine on the host joins it."""
    shown, sent = show(front, other.file)
    first, second = other.client.ids
    assert until(lambda: set(states(shown).values()) == {"live"} and len(states(shown)) == 2)
    os.kill(other.on(first, "__import__('os').getpid()"), signal.SIGKILL)
    assert until(lambda: states(shown)[first] == "gone", 15)
    assert states(shown)[second] == "live" and shown._thread.is_alive()
    assert until(
        lambda: (
            shown.rich.hosts[0]["troubles"]
            and shown.rich.hosts[0]["troubles"][0][:3] == [first, "gone", "it has ended"]
        )
    )
    number = shown.state.engines[second].number
    assert until(lambda: shown.state.engines[second].number > number, 5)
    stopped = other.on(second, "__import__('os').getpid()")
    os.kill(stopped, signal.SIGSTOP)  # neither dead nor alive: late, by when a new one is there
    try:
        seq = shown._seq
        other.engines(1, "east")
        new = max(other.client.ids)
        assert until(lambda: states(shown).get(new) == "live", 10)
        assert until(lambda: states(shown)[second] == "late", 12)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert until(lambda: states(shown)[second] == "live", 8)
    assert shown._seq > seq
    assert [h["name"] for h in shown.rich.hosts] == ["east"] and len(shown.rich.cards) == 1
    assert new in shown.state.rows[0].seen
    other.cluster.stop_engines_sync()  # all of them: the last reading stays, marked as such
    assert until(lambda: set(states(shown).values()) == {"gone"}, 15)
    assert "no engine tells of east any more" in repr(shown._kept())


def test_a_forged_message_is_passed_by(front, running):
    """What does not carry the cluster's signature changes nothing."""
    shown, _ = show(front, running.file)
    assert until(lambda: set(states(shown).values()) == {"live"} and len(states(shown)) == 4)
    panel_feed = shown.feed
    content = json.dumps({"k": panel_feed.key, "e": 77, "n": 1}).encode()
    frames = [b"topic", b"<IDS|MSG>", b"0" * 64, b"{}", b"{}", b"{}", content]
    heard = panel_feed.heard
    panel_feed._message(frames)
    assert 77 not in shown.state.engines
    session = panel_feed.client.session
    frames[2] = session.sign(frames[3:7])
    panel_feed._message(frames)
    assert 77 in shown.state.engines and panel_feed.heard > heard
