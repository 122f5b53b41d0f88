"""README's table of real cells is made from the result file, or says how to make it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from real_cells import BY_NAME  # noqa: E402
from real_cells_table import BEGIN, END, README, into_readme, kept_results, readme_table  # noqa: E402

FAILED = {"raised": {"type": "OutOfMemoryError", "text": ""}}


def row(name, **guard):
    """A measured cell with these findings of the guarded run."""
    guard = {"seconds": 3.0, "steps": [2.0, 0.5, 0.7], "report": {"status": "rescued", "attempts": 1}, **guard}
    reference = {
        "digest": "a",
        "seconds": 1.5,
        "peak_allocated": 12 << 30,
        "steps": [0.3, 0.2, 0.2],
        "torch": "2.0+cu1",
    }
    found = {"title": BY_NAME[name].title, "fixed": True, "own": False, "date": "2026-01-02", "cap": 6 << 30}
    return found | {"ref": reference, "plain": FAILED, "guard": guard}


def kept():
    """Four cells: the same bits, other ones, an error, and something that ran twice."""
    names = iter(BY_NAME)
    rows = ({"digest": "a"}, {"digest": "b"}, FAILED, {"digest": "a", "report": {"status": "rescued", "attempts": 2}})
    made = {name: row(name, **guard) for name, guard in zip(names, rows, strict=False)}
    return {"where": {"python": "3.12", "torch": "2.0", "card": "CARD", "driver": "580"}, "rows": made}


def test_the_table_in_readme_is_that_of_the_results():
    """``python benchmarks/real_cells_table.py`` puts it there."""
    text = README.read_text()
    start = text.index(BEGIN)
    assert readme_table(kept_results()) == text[start : text.index(END, start) + len(END)]


def test_the_table_says_what_came_of_each_cell():
    """Only what ran to its end with the same bits, nothing repeated, counts; card and releases are named."""
    text = readme_table(kept())
    assert "4 cells" in text and "fails in 4" in text and "Guarded, 1 run to the end" in text and "one CARD" in text
    lines = [line for line in text.splitlines() if "| 12.0 GiB | 6.0 GiB | OutOfMemoryError |" in line]
    assert [line.split(" | ")[4] for line in lines] == [
        "**yes**",
        "**yes**, other numbers",
        "no: OutOfMemoryError",
        "**yes**, a statement ran 2 times",
    ]
    assert lines[0].endswith("| 1.5 s / 3.0 s | 0.200 s / 0.600 s |")
    assert "torch 2.0+cu1" in text and "measured 2026-01-02." in text


def test_the_table_goes_between_the_markers(tmp_path, monkeypatch):
    """Nothing else of the page changes; without figures it says how to take them."""
    import real_cells_table

    monkeypatch.setattr(real_cells_table, "kept_results", lambda: None)
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    into_readme(page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nThe table is made on a card") and text.endswith(f"{END}\nafter\n")
