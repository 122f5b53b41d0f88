"""The panel without a browser: a shell with a kernel's comms, messages counted, threads and widgets left behind."""

from __future__ import annotations

import json
import threading
import time

import ipywidgets
import pytest
from fakes.moving import GIB, Moving

from cuda_magic import panel
from cuda_magic.machine import use
from cuda_magic.panel import live, wire
from cuda_magic.panel.watchers import Watchers


class Magics:
    """What `show` needs of the magics."""

    def __init__(self, shell):
        self.shell = shell


class Pub:
    """A display publisher that keeps what was published."""

    def __init__(self):
        self.made = []

    def publish(self, data, metadata=None, *, transient=None, update=False, **_):
        self.made.append((data, transient, update))


class Kernel:
    """A kernel with a control thread, as ipykernel 6 and newer have it."""

    def __init__(self):
        self.control_thread = object()
        self.original = lambda *_: "original"
        self.control_handlers = {"comm_info_request": self.original}


@pytest.fixture
def magics(shell, monkeypatch):
    """A shell that looks as if it had a front end, on a machine of two moving cards."""
    pub = Pub()
    monkeypatch.setattr(shell, "display_pub", pub)
    shell.kernel = Kernel()
    before = use(Moving(2))
    yield Magics(shell)
    panel.close()
    use(before)
    del shell.kernel


def samplers():
    return [t for t in threading.enumerate() if t.name == "cuda_magic panel"]


def wait(answer, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer():
            return True
        time.sleep(0.01)
    return False


def hear(said):
    """A word of a page to the current panel; gives the answer."""
    one = live.current()
    return one._hear_control({"key": one.key, "cid": "page", **said})


def recorded(one):
    """Custom messages that the rich panel sends, from now on."""
    sent = []
    one.rich.send = lambda message, buffers=None: sent.append(message)
    return sent


def test_show_displays_the_panel_and_a_saved_reading(magics):
    """Two outputs: the widget with a text that never changes, and the reading that a saved notebook keeps."""
    assert panel.show(magics, interval=60, alert=95) is None
    (view, _, _), (saved, transient, update) = magics.shell.display_pub.made
    assert view["text/plain"] == live.Panel.text
    assert view["application/vnd.jupyter.widget-view+json"]["model_id"] == live.current().box.model_id
    assert "NVIDIA H100" in saved["text/plain"] and "cuda-magic-saved" in saved["text/html"]
    assert transient["display_id"] and not update


def test_a_terminal_gets_the_table(magics):
    """No kernel, no front end for widgets: the reading itself."""
    kernel, magics.shell.kernel = magics.shell.kernel, None
    table = panel.show(magics, interval=1, alert=95)
    assert "NVIDIA H100" in repr(table) and not samplers()
    magics.shell.kernel = kernel


def test_without_a_driver_one_calm_sentence_and_no_thread(magics):
    """Nothing to follow: no panel, no timer."""
    use(Moving(none=True))
    table = panel.show(magics, interval=1, alert=95)
    assert "No NVIDIA driver found on this machine." in repr(table)
    assert not samplers() and live.current() is None


def test_case_65_colab_gets_a_button_and_no_thread(magics, monkeypatch):
    """A front end that shows no background updates: a Refresh button and a hint."""
    import sys

    monkeypatch.setitem(sys.modules, "google.colab", object())
    box = panel.show(magics, interval=1, alert=95)
    button, view = box.children
    before = view.value
    button.click()
    assert not samplers() and view.value != before and "press Refresh" in view.value


def test_case_68_five_panels_are_one_thread_and_nothing_stays(magics):
    """Each panel closes the one before; afterwards no thread, widget, hook or handler of ours is left."""
    registry = ipywidgets.widgets.widget._instances
    before = len(registry)
    events = {name: len(found) for name, found in magics.shell.events.callbacks.items()}
    sizes = []
    for _ in range(5):
        panel.show(magics, interval=0.25, alert=95)
        sizes.append(len(registry))
        assert len(samplers()) == 1
    assert len(set(sizes)) == 1
    assert panel.stop() == "The panel is stopped; its last reading stays."
    assert panel.stop() == "No panel is open."
    assert not samplers() and len(registry) == before
    assert {name: len(found) for name, found in magics.shell.events.callbacks.items()} == events
    assert magics.shell.kernel.control_handlers["comm_info_request"] is magics.shell.kernel.original


def test_stopping_leaves_the_last_reading_in_sight(magics):
    """The saved reading is rewritten, no longer hidden by the live panel's style."""
    panel.show(magics, interval=60, alert=95)
    panel.stop()
    data, transient, update = magics.shell.display_pub.made[-1]
    assert update and transient == magics.shell.display_pub.made[1][1]
    assert "the panel is stopped" in data["text/plain"] and "cuda-magic-saved" not in data["text/html"]


def test_plain_first_then_rich_when_a_page_answers(magics):
    """The rich widget takes the plain one's place only after `ready`, and gets the history first."""
    panel.show(magics, interval=0.25, alert=95)
    one = live.current()
    sent = recorded(one)
    assert one.box.children == (one.plain,)
    assert hear({"t": "ready", "see": True})["seq"] >= 1
    assert wait(lambda: sent)
    assert one.box.children == (one.rich,)
    assert len(sent[0]["p"]) == sent[0]["s"] and len(sent[0]["v"]) == 2
    assert wait(lambda: len(sent) > 1) and "p" not in sent[1]


def test_nothing_is_sent_when_nobody_looks_and_all_of_it_afterwards(magics):
    """Hidden: no message. Shown again: one at once, with what was missed."""
    panel.show(magics, interval=0.25, alert=95)
    one = live.current()
    sent = recorded(one)
    hear({"t": "ready", "see": True})
    assert wait(lambda: sent)
    hear({"t": "hide", "see": False})
    time.sleep(0.1)
    sent.clear()
    assert wait(lambda: one._seq > 4)
    assert not sent
    hear({"t": "show", "see": True, "seq": 2})
    assert wait(lambda: sent, 0.2)
    assert sent[0]["f"] <= 2 and len(sent[0]["p"]) == sent[0]["s"] - sent[0]["f"], "what the page missed, no more"


def test_nothing_is_sent_when_nothing_changed(magics):
    """Readings go on, messages do not; the page that asks is told that the reading is fresh."""
    fake = Moving(2, still=True)
    use(fake)
    panel.show(magics, interval=0.25, alert=95)
    one = live.current()
    sent = recorded(one)
    hear({"t": "ready", "see": True})
    assert wait(lambda: sent)
    at = fake.reads
    assert wait(lambda: fake.reads > at + 3)
    assert len(sent) == 1
    assert hear({"t": "beat", "see": True})["age"] <= 0.5


def test_the_budget_ends_readings_and_a_cell_renews_it(magics):
    """600 readings with no sign of life (here 3), then none until somebody runs a cell."""
    fake = Moving(1)
    use(fake)
    from cuda_magic.devices.command import once

    one = live.Panel.open(magics.shell, once(), 0.05, 95, Watchers(budget=3))
    assert wait(lambda: fake.reads == 4)
    time.sleep(0.3)
    assert fake.reads == 4
    magics.shell.events.trigger("pre_run_cell", None)
    assert wait(lambda: fake.reads == 7)
    assert one.sent <= 7


def test_a_lost_card_is_told_once(magics):
    """Its sentence goes out with the names, not with each tick."""
    fake = Moving(2, still=True)
    use(fake)
    panel.show(magics, interval=0.25, alert=95)
    one = live.current()
    sent = recorded(one)
    hear({"t": "ready", "see": True})
    assert wait(lambda: sent)
    fake.lose(1)
    assert wait(lambda: len(sent) == 2)
    assert "fallen off the bus" in one.rich.cards[1]["error"] and sent[1]["v"][1] == ",,,"
    time.sleep(0.6)
    assert len(sent) == 2


def test_the_sampler_is_silent_whatever_happens(magics, capfd):
    """A reading that raises ends the thread: no line, no traceback, no exception in a cell."""

    class Broken(Moving):
        def read(self, **options):
            if threading.current_thread().name == "cuda_magic panel":
                raise RuntimeError("broken")
            return super().read(**options)

    use(Broken(1))
    panel.show(magics, interval=0.25, alert=95)
    assert wait(lambda: not samplers())
    assert capfd.readouterr() == ("", "")


def test_the_saved_reading_is_rewritten_at_most_once_a_minute():
    """More would fill the notebook's undo and the server's log."""
    from cuda_magic.panel.saved import Saved

    pub, now = Pub(), [0.0]
    from cuda_magic.devices.table import MemoryTable

    saved = Saved(pub.publish, clock=lambda: now[0])
    table = MemoryTable(Moving(1).read())
    saved.show(table)
    assert not saved.update(table)
    now[0] = 61.0
    assert saved.update(table) and not saved.update(table)
    assert [update for _, _, update in pub.made] == [False, True]


def test_a_tick_of_eight_devices_is_small(magics):
    """The values of 8 devices: 900 bytes a message with six values, 1.3 kB with the split; about 490 are headers."""
    use(Moving(8))
    from cuda_magic.devices.command import once

    table = once()
    whole = wire.values(table)
    assert len(json.dumps({"s": 12345, "v": whole}, separators=(", ", ": "))) <= 1300 - 490
    first = [row[:6] for row in whole]
    assert len(json.dumps({"s": 12345, "v": first}, separators=(", ", ": "))) <= 900 - 490
    assert whole[0][0] == round(table.reading.devices[0].memory.used / (GIB >> 10))


def test_hostile_names_are_escaped_in_plain_and_saved(magics):
    """A device's name comes from outside: it is text everywhere."""
    use(Moving(1, names=("<img src=x onerror=alert(1)>",)))
    panel.show(magics, interval=60, alert=95)
    saved = magics.shell.display_pub.made[1][0]["text/html"]
    for text in (live.current().plain.value, saved):
        assert "<img" not in text and "&lt;img" in text


def test_case_64_the_panel_starts_no_cuda(magics):
    """An allocator that has not started is asked for nothing but that."""

    class Idle:
        def started(self):
            return False

        def __getattr__(self, name):
            if name == "uuids":  # optional, asked for after `started`
                raise AttributeError(name)
            raise AssertionError(f"{name} was asked of an allocator that has not started")

    class Untouched(Moving):
        def allocator(self):
            return Idle()

    use(Untouched(2))
    panel.show(magics, interval=0.25, alert=95)
    one = live.current()
    assert wait(lambda: one._seq >= 4)


def test_reprs_have_no_addresses(magics):
    """What a saved notebook or nbval compares is the same in each run."""
    panel.show(magics, interval=60, alert=95)
    assert live.current().rich._repr_mimebundle_() == {"text/plain": "GPU memory panel"}
