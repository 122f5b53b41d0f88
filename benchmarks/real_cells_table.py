"""README's table of `real_cells.py`, from its figures alone.

python benchmarks/real_cells.py --all --jobs 1 --out benchmarks/results/real_cells.json    some minutes on one card
python benchmarks/real_cells_table.py                                                      puts the table into README
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from real_cells import BY_NAME, different, outcome, repeated, steady  # noqa: E402

__all__ = ["BEGIN", "END", "RESULTS", "into_readme", "kept_results", "readme_table"]

README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "real_cells.json"
BEGIN, END = "<!-- the table of benchmarks/real_cells.py -->", "<!-- end of the table -->"
GIB = 1 << 30
_NOT_YET = (
    "The table is made on a card by `python benchmarks/real_cells.py --all --jobs 1 --out"
    " benchmarks/results/real_cells.json`, then `python benchmarks/real_cells_table.py`."
)
_RELEASES = {"driver": "driver", "python": "Python", "lightning": "Lightning"}


def kept_results() -> dict[str, Any] | None:
    """The measured figures, where they have been taken."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else None


def _guarded(row: dict[str, Any]) -> str:
    """The guarded run in a few words: to its end or not, whether the bits are the same, what ran twice."""
    guard = row["guard"]
    if "digest" not in guard:
        return f"no: {outcome(guard)}"
    differs = ", other numbers" if row["fixed"] else ", other numbers, as two plain runs have"
    again = repeated(guard.get("report"))
    return "**yes**" + (differs if different(row) else "") + (f", {again}" if again else "")


def _step(row: dict[str, Any]) -> str:
    plain, guarded = steady(row["ref"]), steady(row["guard"])
    return f"{plain:.3f} s / {guarded:.3f} s" if plain and guarded and "digest" in row["guard"] else ""


def _line(row: dict[str, Any]) -> str:
    whole = f"{row['ref']['seconds']:.1f} s / {row['guard']['seconds']:.1f} s" if "digest" in row["guard"] else ""
    sizes = f"{row['ref']['peak_allocated'] / GIB:.1f} GiB | {row['cap'] / GIB:.1f} GiB"
    plain = outcome(row["plain"]).replace("yes", "**yes**")
    return f"| {row['title']} | {sizes} | {plain} | {_guarded(row)} | {whole} | {_step(row)} |"


def _where(kept: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    where = dict(kept["where"])
    torch = {row["ref"].get("torch") for row in rows} - {None}
    where["torch"] = torch.pop() if len(torch) == 1 else where["torch"]
    days = sorted({row["date"] for row in rows})
    rest = [f"{_RELEASES.get(name, name)} {release}" for name, release in where.items() if name != "card"]
    return f"On one {where['card']}, {', '.join(rest)}; measured {' to '.join(sorted({days[0], days[-1]}))}."


def readme_table(kept: dict[str, Any] | None) -> str:
    """What is between the two markers of README: the table, folded, or how to make it where nothing is measured."""
    names = [name for name in BY_NAME if name in kept["rows"]] if kept is not None else []
    rows = [kept["rows"][name] for name in names] if kept is not None else []
    rows = [row for row in rows if "digest" in row.get("ref", {}) and "guard" in row and "plain" in row]
    if kept is None or not rows:
        return "\n".join([BEGIN, _NOT_YET, END])
    right = [row for row in rows if "digest" in row["guard"] and not different(row)]
    right = [row for row in right if not repeated(row["guard"].get("report"))]
    fails = sum("digest" not in row["plain"] for row in rows)
    lines = [
        BEGIN,
        "<details>",
        f"<summary>{len(rows)} cells with part of the memory that they take, each in a process of its own on one "
        f"{kept['where']['card']}: the plain cell fails in {fails}. Guarded, {len(right)} run to the end with the same "
        "numbers, bit for bit, and nothing is repeated.</summary>",
        "",
        "| cell | takes | may have | plain | guarded | the cell, enough memory / guarded | a later step |",
        "|---|---|---|---|---|---|---|",
        *map(_line, rows),
        "",
        "A later step is the median of the steps after the first, with enough memory and guarded. Attention adds in a "
        f"fixed order, so that bits can be compared. {_where(kept, rows)}"
        + (f" {kept['note']}" if "note" in kept else ""),
        "",
        "</details>",
        END,
    ]
    return "\n".join(lines)


def into_readme(readme: Path = README) -> None:
    """Put the table between the markers of `readme`."""
    text = readme.read_text()
    start = text.index(BEGIN)
    end = text.index(END, start) + len(END)
    readme.write_text(text[:start] + readme_table(kept_results()) + text[end:])


if __name__ == "__main__":
    into_readme()
