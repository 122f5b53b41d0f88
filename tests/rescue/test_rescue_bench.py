"""The bench of rescues works: run on the practice GPU, its verdicts can fail, and README's table is its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from rescue import cards_of, is_right, outcome  # noqa: E402
from rescue_cases import CASES  # noqa: E402
from rescue_table import BEGIN, END, cell, markdown, page_table  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "rescue.json"
BY_ID = {case.id: case for case in CASES}
FINE = {"bs": 24, "tries": 2, "told": True, "result": True, "intact": True}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run of four rows with three ways."""
    folder = tmp_path_factory.mktemp("bench")
    rows = ["--only", "cycle,fragmentation,shrinkable,S2", "--ways", "plain,advice,guard"]
    line = [sys.executable, "benchmarks/rescue.py", str(folder), "--practice", "--jobs", "2", *rows]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=170, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "rescue.json").read_text())
    assert (folder / "rescue.md").read_text() == markdown(found)
    return found


def test_the_bench_runs_on_the_practice_gpu(kept):
    """Cycles: collecting helps. Fragmentation: the guard alone, at the full batch. A batch too large: lowered."""
    verdicts = {row: {way: f["outcome"] for way, f in ways.items()} for row, ways in kept["rows"].items()}
    assert verdicts == {
        "cycle": {"plain": "no", "advice": "yes", "guard": "yes"},
        "fragmentation": {"plain": "no", "advice": "no", "guard": "yes"},
        "shrinkable": {"plain": "no", "advice": "no", "guard": "smaller"},
        "S2": {"plain": "no", "advice": "no", "guard": "yes"},
    }
    guards = [ways["guard"] for ways in kept["rows"].values()]
    assert all(g["intact"] is True and g["right"] is True for g in guards)
    shrunk = kept["rows"]["shrinkable"]["guard"]
    assert shrunk["bs"] == 64
    assert shrunk["tries"] <= 3
    assert kept["rows"]["fragmentation"]["guard"]["bs"] == 24


@pytest.mark.parametrize(
    ("change", "error", "verdict", "right"),
    [
        ({}, None, "yes", True),
        ({"result": False}, None, "wrong", False),
        ({"result": "NameError: r"}, None, "wrong", False),
        ({"bs": 7}, None, "smaller", False),
        ({"intact": False}, None, "yes", False),
        ({}, "OutOfMemoryError: ...", "no", False),
    ],
)
def test_the_verdict_can_fail(change, error, verdict, right):
    """Wrong numbers, a smaller batch than wanted, lost data and an error are not a rescue."""
    found = {**FINE, **change}
    assert outcome(BY_ID["fragmentation"], found, error) == verdict
    assert is_right(BY_ID["fragmentation"], {**found, "outcome": verdict}) is right


def test_where_nothing_can_be_rescued_the_guard_must_say_why():
    """The right answer is the error and what the report tells; a report that lacks it is wrong."""
    case = BY_ID["S12"]
    assert is_right(case, {**FINE, "outcome": "no"})
    assert not is_right(case, {**FINE, "outcome": "no", "told": False})
    assert cell(case, {**FINE, "outcome": "no", "right": True, "tries": 1, "seconds": 0.5}).startswith(
        "no, and says why"
    )


def test_kernels_of_two_cards_see_one_each_and_wait_until_it_is_empty(monkeypatch):
    """--cards 0,1: each kernel's environment names its card; a row that needs all of it waits for the one before."""
    used = {0: [0], 1: [5 << 30, 9 << 30, 8 << 30, 5 << 30]}
    asked = []

    def info(handle):
        asked.append(handle)
        left = used[handle]
        return SimpleNamespace(used=left.pop(0) if len(left) > 1 else left[0])

    fake = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetMemoryInfo=info
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    cards = cards_of("0, 1")
    assert [card.environment()["CUDA_VISIBLE_DEVICES"] for card in cards] == ["0", "1"]
    cards[1].wait_until_empty()
    assert asked == [0, 1, 1, 1, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [card.index for card in cards_of(None)] == ["1"]


def test_every_cause_and_scenario_has_a_row():
    """The eight causes of the measured table, and the scenarios 1 to 14."""
    assert len(BY_ID) == len(CASES)
    assert {f"S{n}" for n in range(1, 15)} <= {name.rstrip("abc") for name in BY_ID}
    assert {"cycle", "traceback", "fragmentation", "rounding", "idle", "handle", "S4c", "larger"} <= set(BY_ID)


def test_the_table_on_the_page_is_that_of_the_results():
    """docs/rescues.md has it from the result file: ``python benchmarks/rescue.py benchmarks/results --page``."""
    text = (ROOT / "docs" / "rescues.md").read_text()
    assert page_table(json.loads(RESULTS.read_text())) == text[text.index(BEGIN) : text.index(END) + len(END)]
