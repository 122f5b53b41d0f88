"""The table of `rescue.py`, from its figures alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rescue_cases import CASES, Case
from rescue_ways import WAYS

__all__ = ["BEGIN", "END", "into_page", "markdown", "page_table"]

BEGIN, END = "<!-- the table of benchmarks/rescue.py -->", "<!-- end of the table -->"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def cell(case: Case, found: dict[str, Any] | None) -> str:
    """One pair in a few words: what came of it, tries, seconds, and data that did not survive."""
    if found is None or found["outcome"] == "not run":
        return "not run"
    if found["outcome"] == "does not apply":
        return "–"
    words = {"no": "no", "wrong": "**wrong numbers**", "yes": "yes"}
    text = words.get(found["outcome"]) or f"{found['bs']} of {case.wanted}"
    if "right" in found:
        if case.right == "told" and found["right"]:
            text = "no, and says why"
        elif found["outcome"] in ("yes", "smaller") and found["right"]:
            text = f"**{text}**"
    tries = found.get("tries")
    many = "" if not isinstance(tries, int) else f"{tries} tries, " if tries != 1 else "1 try, "
    lost = f"; {case.damage}" if found.get("intact") is False else ""
    return f"{text} ({many}{_seconds(found.get('seconds'))}{lost})"


def _dates(kept: dict[str, Any]) -> str:
    """The day of the first pair and of the last."""
    found = sorted({pair["date"] for ways in kept["rows"].values() for pair in ways.values() if "date" in pair})
    return f", measured {' to '.join(sorted({found[0], found[-1]}))}" if found else ""


def _releases(kept: dict[str, Any]) -> str:
    where = kept["where"]
    names = {"driver": "driver", "torch": "torch", "python": "Python", "pytorch-lightning": "Lightning"}
    rest = [f"{names.get(k, k)} {v}" for k, v in where.items() if k != "card"]
    return ", ".join([where["card"], *rest]) + _dates(kept)


def _table(kept: dict[str, Any], ways: list[Any]) -> list[str]:
    rows = kept["rows"]
    lines = ["| cause | " + " | ".join(w.title for w in ways) + " |", "|---" * (len(ways) + 1) + "|"]
    for case in CASES:
        if case.id in rows:
            name = f"{case.id}: {case.what}" if re.fullmatch(r"S\d+[a-z]?", case.id) else case.what
            lines.append("| " + " | ".join([name, *(cell(case, rows[case.id].get(w.id)) for w in ways)]) + " |")
    return lines


def _legend(kept: dict[str, Any]) -> list[str]:
    notes = [f"{c.id}: {c.note}" for c in CASES if c.note and c.id in kept["rows"]]
    return [
        "A number is the batch that ran, of the one wanted; – means that the tool searches a batch size and there is"
        " none. Lightning is run with its defaults, which double from 2."
        " What lived before was intact wherever nothing else is said."
        " *Wrong numbers*: it ran to the end and the result is not that of a run with enough memory."
        " *No, and says why*: a row that no tool can or may rescue; the guard tries nothing in vain, keeps the data and"
        " names the next step. A plain *no* of the guard is a row that it does not manage."
        + (f" {'; '.join(notes)}." if notes else "")
    ]


def markdown(kept: dict[str, Any]) -> str:
    """The page of results."""
    head = ["# What rescues a cell that runs out of GPU memory", f"On {_releases(kept)}.", ""]
    return "\n".join([*head, *_table(kept, list(WAYS)), "", *_legend(kept)]) + "\n"


def _in_short(kept: dict[str, Any]) -> str:
    """The plain cell and the guard in one sentence."""
    causes = {case.id: case for case in CASES if case.id in kept["rows"]}
    found = [(causes[name], ways["guard"], ways["plain"]) for name, ways in kept["rows"].items() if name in causes]
    done = sum(guard["outcome"] == "yes" for _, guard, _ in found)
    smaller = sum(guard["outcome"] == "smaller" for _, guard, _ in found)
    told = sum(case.right == "told" and bool(guard.get("right")) for case, guard, _ in found)
    plain = sum(plain["outcome"] == "yes" for _, _, plain in found)
    return (
        f"{len(found)} causes, each in a fresh kernel on an {kept['where']['card']}:"
        f" the plain cell gets through {plain}. Guarded, {done} run as they are, {smaller} with the smaller batch that"
        f" was asked for, and of {told} that nothing can or may rescue the guard says why."
    )


def page_table(kept: dict[str, Any]) -> str:
    """What is between the two markers of docs/rescues.md."""
    legend = f"{_legend(kept)[0]} On {_releases(kept)}."
    return "\n".join([BEGIN, _in_short(kept), "", *_table(kept, list(WAYS)), "", legend, END])


def into_page(page: Path, kept: dict[str, Any]) -> None:
    """Put the table between the markers of `page`."""
    text = page.read_text()
    start, end = text.index(BEGIN), text.index(END) + len(END)
    page.write_text(text[:start] + page_table(kept) + text[end:])
