"""A figure on a page is that of its result file, rounded as it is written there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
GB, GIB = 1e9, 1 << 30


def moments(d, rung=""):
    """How many moments, and how many of them interrupted the cell, in all runs of a rung or of every one."""
    found = [v for k, v in d.items() if k.startswith(f"interrupts_{rung}")]
    return sum(v["moments"] for v in found), sum(v["ends"]["KeyboardInterrupt"] for v in found)


def heaps(results):
    """How many heaps were compacted, over the host, fitted as they were, and had no plan."""
    compacted = sum(n for how, n in results.items() if how not in {"fits", "none"})
    return compacted, results.get("out", 0), results["fits"], results["none"]


def planned(d, name, run):
    """The moves of a plan of the benchmark, and the seconds that one of two runs took for it."""
    found = d["planning (benchmarks/compaction.py)"][name]
    return found["moves"], found["seconds"][run]


def on_the_card(d, kind):
    """Seconds of planning in each run, and all in all."""
    found = [run[f"compact_20000_{kind}"] for run in d["runs"] if f"compact_20000_{kind}" in run]
    return [f["planning_s"] for f in found] + [f["seconds"] for f in found]


PLANNED = {
    "blocks of 1.5 MiB with .*": "strewn",
    "two blocks of 7 MiB .*": "rounding",
    "random sizes, .*": "random_sizes",
    "the same, one in fifty .*": "fixed",
    "the same, three streams": "streams",
    "the same, expandable segments": "expandable",
    "small blocks": "small",
    "holes smaller than .*": "tight",
}


def met(d):
    """Of the convolutions, those that met errors and all of them, the fewest and the most; then with benchmark on."""
    rows = d["guard_convolution"]["rows"]
    plain, bench = ([r["errors"] for r in rows if r["benchmark"] is on] for on in (False, True))
    return [sum(map(bool, plain)), len(plain), min(plain), max(plain), sum(map(bool, bench)), len(bench)]


N = r"(\d[\d.]*(?: to \d[\d.]*)?)"
LADDER, RESCUES = "docs/ladder.md", "docs/rescues.md"
CURVE = {"the newest 0.25 GiB, as at first": "as it starts"} | {
    f"{n / 4:g} GiB": f"stays {n}, out 1, ahead {n + 1}" for n in (2, 4, 12, 24)
}
CLAIMS = [
    # page, words with a group for each figure, result file, its figures in the same order
    (LADDER, rf"\| plain \| {N} \| {N} GiB \|\n\| the rung", "activations",
        lambda d: [d["activations_step"][k] for k in ("plain_s", "plain_peak_GiB")]),
    (LADDER, rf"\| the rung \| {N} \(the first time {N}: .* \| {N} GiB", "activations",
        lambda d: [d["activations_step"][k] for k in ("median_s", "first_s", "peak_GiB")]),
    (LADDER, rf"save_on_cpu\(pin_memory=True\)` \| {N} \| {N} GiB", "activations",
        lambda d: [d["activations_step"]["save_on_cpu_s"][-1], d["activations_step"]["save_on_cpu_peak_GiB"]]),
    (LADDER, rf"Of the {N} s of another run {N} GiB going out take {N} s and {N} GiB coming back {N} s",
        "activations_curve",
        lambda d: [d["as it starts"]["timed"][k] for k in ("s", "out_GiB", "out_s", "in_GiB", "in_s")]),
    (LADDER, rf"The hooks need {N} s", "activations_curve", lambda d: [d["as it starts"]["timed"]["hooks_s"]]),
    *((LADDER, rf"\| {row} \| {N} \| {N} GiB", "activations_curve",
        lambda d, name=name: [d[name]["s"], d[name]["peak_GiB"]]) for row, name in CURVE.items()),
    (LADDER, rf"the first step took {N} s, .*, the second {N} s and each later\none {N} s, with up to {N} GiB",
        "activations",
        lambda d: [d["activations_loop"]["s"][n] for n in (0, 1, -1)] + [d["activations_loop"]["kept_GiB"]]),
    (LADDER, rf"took {N} us plain and {N} us watched in one run", "retry_ops",
        lambda d: [d["one operation on an H200, us"][k] for k in ("plain", "retry at the call")]),
    (LADDER, rf"list of {N} operations (?:.*\n)*?.*: {N} kinds of operations ran, .* in {N} samples", "retry_ops",
        lambda d: [d["cpu"][k] for k in ("seen", "operations that failed once", "samples")]),
    (LADDER, rf"\| host, first time .* \| {N} GB/s \| {N} GB/s", "spill",
        lambda d: [d["spill_rates"]["first"][k] for k in ("out_GBps", "back_GBps")]),
    (LADDER, rf"\| host, again \| {N} GB/s \| {N} GB/s", "spill",
        lambda d: [d["spill_rates"]["again"][k] for k in ("out_GBps", "back_GBps")]),
    (LADDER, rf"{N} random heaps of ten kinds", "compaction", lambda d: [d["heaps"]]),
    (LADDER, rf"{N} were compacted \({N} of them over the host\), {N} fitted anyway, {N} had no plan", "compaction",
        lambda d: heaps(d["results of all heaps"])),
    (LADDER, rf"of the {N} heaps of small blocks {N}\n?\s*were compacted", "compaction",
        lambda d: [sum(d["results of small ones"].values()), heaps(d["results of small ones"])[0]]),
    (LADDER, rf"the rung took {N}, {N} and {N} s in three cells", "compaction",
        lambda d: d["runs"][-1]["compact_in_a_guarded_cell"]["seconds"]),
    *((LADDER, rf"\| {row} \| \w+ \| {N} \| {N} \|", "compaction",
        lambda d, name=name, run=run: planned(d, name, run)) for row, name in PLANNED.items() for run in (0, 1)),
    (LADDER, rf"blocks of 1.5 MiB took {N} and {N} s to plan \({N} and {N} s in all\)", "compaction",
        lambda d: on_the_card(d, "one_segment")),
    (LADDER, rf"small ones\n?\s*{N} and {N} s \({N} and {N} s\)", "compaction", lambda d: on_the_card(d, "small")),
    (RESCUES, rf"{N} moments in guarded cells .* {N} of which interrupted", "interrupts", moments),
    (RESCUES, rf"compact and activations {N} each, spill and the retry at the call {N} each",
        "interrupts", lambda d: [moments(d, "compact")[0], moments(d, "spill")[0]]),
    (LADDER, rf"{N} of {N} convolutions with half .* met {N} to {N} of them .* {N} of {N} did", "convolution", met),
    (LADDER, rf"A convolution takes {N} us more", "convolution",
        lambda d: [2e6 * d["guard_convolution"]["seconds of one count"]]),
    *(("docs/cells.md", rf"\| {row} \| {N} \| {N} \| {N} \|", "guard_cost",
        lambda d, row=row: [d["rows"][row][way] for way in ("plain_us", "time_us", "guarded_us")])
        for row in json.loads((RESULTS / "guard_cost.json").read_text())["rows"]),
    ("README.md", rf"64 engines of 8 devices cost the notebook's kernel about {N} ms of CPU time and the page {N} kB",
        "cluster", lambda d: next([t["kernel_ms"], t["page_kB"]] for t in d["a tick"] if t["engines"] == 64)),
]  # fmt: skip


def agrees(written: str, value: float) -> bool:
    """Whether `written` is `value`, rounded to its own digits, or a range of several runs that holds it."""
    ends = [(float(end), 0.5 * 10 ** -len(end.partition(".")[2]) * (1 + 1e-9)) for end in written.split(" to ")]
    return ends[0][0] - ends[0][1] <= value <= ends[-1][0] + ends[-1][1]


@pytest.mark.parametrize(("page", "words", "file", "figures"), CLAIMS, ids=[f"{c[0]}: {c[1][:40]}" for c in CLAIMS])
def test_a_figure_on_a_page_is_that_of_its_result_file(page, words, file, figures):
    """The sentence is there, and each of its figures is the measured one."""
    found = re.search(words, (ROOT / page).read_text())
    assert found, f"{page} no longer says: {words}"
    measured = figures(json.loads((RESULTS / f"{file}.json").read_text()))
    assert len(measured) == len(found.groups())
    wrong = [(w, m) for w, m in zip(found.groups(), measured, strict=True) if not agrees(w, m)]
    assert not wrong, f"{page} differs from {file}.json (written, measured): {wrong}"


def test_every_result_file_says_what_it_was_measured_on():
    """Card, driver and torch release; those that need no card name the machine."""
    for path in RESULTS.glob("*.json"):
        kept = json.loads(path.read_text())
        names = kept.get("where", kept)
        assert "machine" in names or "card" in names, path.name


def test_every_result_file_is_explained():
    """benchmarks/results/README.md tells where each file came from."""
    text = (RESULTS / "README.md").read_text()
    assert [p.name for p in RESULTS.iterdir() if p.name != "README.md" and f"`{p.name}`" not in text] == []
