"""Which engines are on one host, which rows are one device, who is odd, what a sampler sends: no cluster needed."""

from __future__ import annotations

import json
import random
import time

import pytest
from cluster.conftest import until
from fakes.moving import Moving
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_magic.cluster.connect import Answer, reason
from cuda_magic.cluster.doctor import diagnosis
from cuda_magic.cluster.sampler import ALIVE, Sampler
from cuda_magic.cluster.state import State
from cuda_magic.cluster.table import from_answers, ids, table
from cuda_magic.machine import use
from cuda_magic.panel.wire import join, pack, split, unpack


def card(uuid, number=0, total=80_000):
    return {"id": str(number), "uuid": uuid, "name": "NVIDIA H100", "total": total, "driver": 500, "error": None}


def full(boot, uuids, name="n"):
    return {"host": {"name": name, "boot": boot}, "cards": [card(u, i) for i, u in enumerate(uuids)], "driver": "580"}


def say(state, engine, boot, uuids, rows, *name):
    number = state.engines[engine].number + 1 if engine in state.engines else 1
    return state.hear({"e": engine, "n": number, "f": full(boot, uuids, *name), "v": join([pack(r) for r in rows])})


@pytest.fixture
def state():
    now = [0.0]
    made = State(lambda: now[0])
    made.now = now
    return made


def test_a_host_is_a_boot_id_or_a_card_in_common(state):
    """Containers of one machine are one host; so are sandboxes that make up boot ids and see the same card."""
    say(state, 0, "a", ["X"], [[1, 0, 0, 0]], "box1")
    say(state, 1, "a", ["Y"], [[2, 0, 0, 0]], "box2")
    assert len(state.hosts) == 1 and len(state.rows) == 2
    say(state, 2, "b", ["Z"], [[3, 0, 0, 0]])
    assert len(state.hosts) == 2
    say(state, 3, "c", ["Z", "Y"], [[3, 0, 0, 0], [2, 0, 0, 0]])  # joins both
    assert len(state.hosts) == 1 and len(state.rows) == 3
    assert {row.host for row in state.rows} == {state.hosts[0]}
    assert [e.id for e in state.hosts[0].engines] == [0, 1, 2, 3]


def test_the_same_name_twice_is_told_apart(state):
    """Two machines called node, and node.a beside node.b."""
    for i, (boot, name) in enumerate((("a", "node"), ("b", "node"), ("c", "x.east"), ("d", "x.west"), ("e", "y.far"))):
        say(state, i, boot, [str(i)], [[0, 0, 0, 0]], name)
    assert state.names() == ["node (1)", "node (2)", "x.east", "x.west", "y"]


def test_a_card_that_two_engines_see_has_the_tensors_of_both(state):
    """To each of them the other is another process: that part is less by it, and the whole stays the driver's."""
    # used, util, temp, power, live, cached, fragmented, context, kernels, others, unattributed
    say(state, 0, "a", ["X"], [[20_000, 50, 40, 300, 4000, 1000, 0, 500, 0, 8500, 6000]])
    say(state, 1, "a", ["X"], [[20_000, 60, 41, 310, 6000, 500, 0, 500, 0, 6500, 7000]])
    state.settle()
    values = unpack(state.rows[0].values)
    assert values[0] == 20_000
    assert values[4:8] == [10_000, 1500, None, 1000] or values[4:8] == [10_000, 1500, 0, 1000]
    first = unpack(state.engines[0].values[0])
    assert sum(v or 0 for v in values[4:]) == sum(v or 0 for v in first[4:])
    # the second ends: the card is what the first says
    state.ages({0}, 10)
    assert unpack(state.rows[0].values) == first


def test_a_gap_is_told_and_values_hold_all_the_same(state):
    """A change that is missed is asked for again; what came after it is right already."""
    assert say(state, 0, "a", ["X", "Y"], [[1, 0, 0, 0], [2, 0, 0, 0]])
    assert state.hear({"e": 0, "n": 2, "i": [1], "v": "5,0,0,0"})
    assert not state.hear({"e": 0, "n": 4, "i": [0], "v": "7,0,0,0"})
    assert [row.values for row in state.rows] == ["7,0,0,0", "5,0,0,0"]
    assert not State(lambda: 0.0).hear({"e": 9, "n": 5, "i": [0], "v": "1,1,1,1"})


def test_late_gone_and_forgotten(state):
    """Silence is late, an engine that left is gone, and is named no longer than five minutes beside others."""
    say(state, 0, "a", ["X"], [[1, 0, 0, 0]])
    say(state, 1, "a", ["X"], [[1, 0, 0, 0]])
    state.now[0] = 7.0
    state.hear({"e": 1, "n": 2})
    state.ages({0, 1}, 6.0)
    assert [e.state for e in state.engines.values()] == ["late", "live"]
    state.ages({1}, 6.0)
    assert state.engines[0].state == "gone"
    state.now[0] = 400.0
    state.hear({"e": 1, "n": 3})
    state.ages({1}, 6.0)
    assert list(state.engines) == [1] and state.rows[0].seen == {1: 0}
    state.ages(set(), 6.0)
    assert table(state, "x", 95).devices[0].stale


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_each_device_once_whatever_the_order(hosts, devices, engines, order):
    """Engines of the same hosts in any order: one row a device, one host a machine, sums over all of them."""
    state = State(lambda: 0.0)
    says = [(h, e) for h in range(hosts) for e in range(engines)]
    order.shuffle(says)
    for h, e in says:
        uuids = [f"{h}-{d}" for d in range(devices)]
        say(state, 10 * h + e, f"boot {h}", uuids, [[1000, 1, 1, 1, 10 + d] for d in range(devices)], f"n{h}")
    assert len(state.hosts) == hosts and len(state.rows) == hosts * devices
    made = table(state, "x", 95)
    assert {(d.host, d.live) for d in made.devices} == {
        (f"n{h}", (10 + d) * engines) for h in range(hosts) for d in range(devices)
    }
    assert made.hosts == [f"n{h}" for h in range(hosts)]


@given(st.lists(st.lists(st.none() | st.integers(0, 10**6), min_size=1, max_size=12), min_size=1, max_size=5))
def test_packed_values_come_back(rows):
    """pack and join, unpack and split."""
    assert [unpack(text) for text in split(join([pack(row) for row in rows]))] == rows or rows == [[None]]


def test_an_engine_of_another_machine_without_gpu_and_one_that_failed():
    """Each is said, none hides the others."""
    empty = {**full("b", []), "none": "No NVIDIA driver found on this machine.", "values": "", "label": ""}
    good = {**full("a", ["X"]), "none": "", "values": "1000,5,30,100", "label": ""}
    made = from_answers(
        [
            Answer(0, good),
            Answer(1, empty),
            Answer(2, failure="it has ended", kind="gone"),
            Answer(3, failure="cuda_magic is not installed there", kind="broken"),
        ],
        "cluster x",
        95,
    )
    shown = repr(made)
    assert "No NVIDIA driver found" in shown and "engine 3: cuda_magic is not installed there" in shown
    assert [e.state for e in made.engines] == ["live", "live", "gone", "failed"]
    assert len(made.devices) == 1


def test_many_devices_are_one_line_a_host():
    """Beyond 64 devices the table has a line for each host."""
    answers = [
        Answer(i, {**full(f"b{i}", [f"{i}-{d}" for d in range(8)], f"node{i}"), "values": join(["1000,5,30,100"] * 8)})
        for i in range(12)
    ]
    lines = repr(from_answers(answers, "cluster x", 95)).splitlines()
    assert lines[1].split()[:3] == ["host", "GPUs", "used"] and len(lines) == 16
    assert [line.split()[0] for line in lines[3:15]] == [f"node{i}" for i in range(12)]  # node2 before node10


def test_numbers_in_runs():
    assert ids([3, 0, 1, 2, 7, 9, 10]) == "0-3, 7, 9-10"


# -- the doctor
def said(driver="580", *, cards=("H100",) * 8, packages=None, verdict="healthy", boot="a", findings=()):
    return {
        "host": {"name": boot, "boot": boot},
        "uuids": [f"{boot}{i}" for i in range(len(cards))],
        "label": "",
        "verdict": verdict,
        "sentence": "",
        "findings": list(findings),
        "explained": [],
        "cards": list(cards),
        "versions": {"driver": driver, "torch": "2.11", "Python": "3.12"},
        "packages": {"numpy": "2.1", **(packages or {})},
    }


def test_odd_ones_first_a_missing_card_and_other_packages():
    """A card less, other releases: named with what the others have; several packages of one engine are one line."""
    answers = [Answer(i, said(boot=f"h{i}")) for i in range(6)]
    answers[4] = Answer(4, said(boot="h4", cards=("H100",) * 7))
    answers[2] = Answer(2, said(boot="h2", packages={"numpy": "1.26", "pandas": "2.0"}))
    answers.append(Answer(6, failure="busy: no answer in 5 s", kind="silent"))
    found = diagnosis(answers, "cluster x")
    assert [e.engine for e in found.engines] == [6, 2, 4, 0, 1, 3, 5]
    sentences = [o.sentence for o in found.oddities]
    assert "the list of cards is 7 x H100; on 5 other engines 8 x H100" in sentences
    assert "packages is numpy 1.26, pandas 2.0; on 5 other engines numpy 2.1, pandas not installed" in sentences
    assert found.verdict == "unusable" and found.exit_code == 2  # one is not known
    assert "engine 6: busy" in repr(found)


def test_without_a_majority_nobody_is_odd():
    """One against one: the difference is told, no engine is accused."""
    found = diagnosis([Answer(0, said("580")), Answer(1, said("550", boot="b"))], "cluster x")
    assert [e.odd for e in found.engines] == [False, False]
    assert "driver differs, without a majority: 580 on engine 0; 550 on engine 1" in repr(found)
    assert found.exit_code == 1


def test_all_alike():
    """Calm: one line a host, no note."""
    found = diagnosis([Answer(0, said()), Answer(1, said())], "cluster x")
    assert found.exit_code == 0 and "they are alike (2 engines, 1 host)" in repr(found)
    assert not found.oddities and len(found._groups()) == 1


def test_an_unusable_engine_leads_and_its_finding_is_told_once():
    """The same finding on two engines is one note with both numbers."""
    finding = {"id": "driver.old", "severity": "error", "seen": "The driver is old.", "means": "It is.", "do": "$ up"}
    answers = [Answer(i, said(boot=f"h{i}")) for i in range(3)]
    answers += [Answer(i, said(boot=f"h{i}", verdict="unusable", findings=[finding])) for i in (3, 4)]
    found = diagnosis(answers, "cluster x")
    assert [e.engine for e in found.engines][:2] == [3, 4]
    assert repr(found).count("The driver is old.") == 1 and "engine 3-4: The driver is old." in repr(found)


# -- what an engine sends
class Kernel:
    engine_id = 5
    session = iopub_socket = None


@pytest.fixture
def sampler(monkeypatch):
    fake = Moving(3, still=True)
    before = use(fake)
    one = Sampler(Kernel(), "key", 1.0, 95, 60.0)
    one.fake, one.sent, clock = fake, [], [1000.0]
    one.clock = clock
    monkeypatch.setattr("cuda_magic.cluster.sampler.time.monotonic", lambda: clock[0])
    one.send = lambda content: one.sent.append(json.loads(json.dumps(content)))
    yield one
    use(before)


def test_everything_first_then_changes_then_signs_of_life(sampler):
    """Unchanged: nothing until a sign of life is due. Everything again after a while, and when a card is lost."""
    sampler.tick()
    assert len(split(sampler.sent[0]["v"])) == 3 and sampler.sent[0]["f"]["cards"][2]["id"] == "2"
    sampler.tick()
    assert len(sampler.sent) == 1
    sampler.clock[0] += ALIVE
    sampler.tick()
    assert sampler.sent[1] == {"e": 5, "n": 2}
    sampler.fake.still = False
    sampler.tick()
    changed = sampler.sent[2].get("i", [0, 1, 2])
    assert changed and len(split(sampler.sent[2]["v"])) == len(changed) and "f" not in sampler.sent[2]
    sampler.fake.lose(1)
    sampler.tick()
    assert "fallen off the bus" in sampler.sent[3]["f"]["cards"][1]["error"]
    sampler.clock[0] += 20
    sampler.tick()
    assert "f" in sampler.sent[4] and [m["n"] for m in sampler.sent] == [1, 2, 3, 4, 5]


def test_what_an_engine_sends_makes_up_what_it_read(sampler):
    """Any mix of changes: the state at the listener is the last reading."""
    state = State(lambda: 0.0)
    sampler.fake.still = False
    for _ in range(30):
        sampler.fake.still = random.random() < 0.3
        sampler.clock[0] += 1.0
        sampler.tick()
    for message in sampler.sent:
        assert state.hear(message)
    from cuda_magic.cluster.agent import snapshot
    from cuda_magic.panel.wire import MIB

    sampler.fake.still = True
    assert join([row.values for row in state.rows]) == snapshot(95, MIB)["values"]


def test_readings_end_when_nobody_listens():
    """The lease over: none; renewed: everything again; left alone for ten leases: the thread ends."""
    before = use(Moving(1))
    sent = []
    one = Sampler(Kernel(), "key", 0.02, 95, 0.15)
    one.send = sent.append
    try:
        one.begin()
        assert until(lambda: len(sent) > 2, 3)
        time.sleep(0.4)
        count = len(sent)
        time.sleep(0.2)
        assert len(sent) == count and one.running
        one.renew()
        assert until(lambda: len(sent) > count, 2) and "f" in sent[count]
        assert until(lambda: not one.running, 5)
    finally:
        one.stop()
        use(before)


def test_what_an_engine_says_of_itself_in_trouble():
    """No cuda_magic there, a release that speaks otherwise, an engine that ends: one sentence each."""

    class Missing(Exception):
        ename, evalue = "ModuleNotFoundError", "No module named 'cuda_magic'"

    class Ended(Exception):
        ename, evalue = "EngineError", "Engine died while running task"

    assert "%pip install cuda-magic" in reason(Missing(), 5)["failure"]
    assert reason(Ended(), 5) == {"failure": "it has ended", "kind": "gone"}
    assert reason(ValueError("no"), 5) == {"failure": "ValueError: no", "kind": "broken"}
    other = {**full("a", ["X"]), "values": "1,1,1,1", "protocol": 99}
    made = from_answers([Answer(0, other)], "cluster x", 95)
    assert [e.state for e in made.engines] == ["failed"] and "another release" in repr(made)


# -- what goes to the page
def test_a_message_to_the_page_is_bounded_and_nothing_is_lost(monkeypatch):
    """2048 devices that all change: 30 kB a message at most, every row within four, in turn."""
    from cuda_magic.cluster import live
    from cuda_magic.panel.marks import Marks

    state = State(lambda: 0.0)
    for e in range(256):
        uuids = [f"{e}-{d}" for d in range(8)]
        say(state, e, f"b{e}", uuids, [[70_000 + e, 97, 61, 690, 60_000, 2000, 300, 600, 0, 0, 500]] * 8, f"n{e}")
    panel = object.__new__(live.ClusterPanel)
    panel.state, panel._seq, panel._missed, panel._pending, panel._told = state, 1, 0, {}, state.version
    panel._history, panel.base, panel.marks, panel._marks_sent = [(0.0, panel._point())], 0.0, Marks(), 0
    sent = []
    monkeypatch.setattr(live.ClusterPanel, "_send", lambda self, message: sent.append(message))
    for _ in range(6):
        panel._send_rich()
        if not panel._pending:
            break
    assert not panel._pending and len(sent) <= 5
    assert max(len(json.dumps(message)) for message in sent) <= live.BUDGET + 500
    assert sorted(i for message in sent for i in message["i"]) == list(range(2048))
