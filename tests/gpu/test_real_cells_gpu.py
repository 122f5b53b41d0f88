"""Cells as people write them, with about half of the memory that they need: each ends, with the same bits, run once.

The cells are in benchmarks/real_cells_data.py; each run has a process of its own, several share the card.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]

import real_cells  # noqa: E402
from record import record  # noqa: E402

JOBS = 4
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1500)]


@pytest.fixture(scope="session")
def real_rows(request):
    """What each cell that was asked for did: the runs go on side by side while the first results are looked at."""
    wanted = argparse.Namespace(
        modes=["plain", "guard"], tiny=False, twice=False, ways=False, cap=None, factor=None, limit=real_cells.LIMIT
    )
    names = {item.callspec.params["name"] for item in request.session.items if "real_rows" in item.fixturenames}
    with ThreadPoolExecutor(JOBS) as pool:
        runs: dict[str, Future[dict[str, Any]]] = {
            name: pool.submit(real_cells.row_of, cell, wanted)
            for name, cell in real_cells.BY_NAME.items()
            if name in names
        }
        yield runs
        pool.shutdown(cancel_futures=True)


def said(found: dict[str, Any]) -> str:
    """Why a run did not end: its error, with where it was."""
    error = found.get("broken") or found.get("raised") or {}
    return f"{error.get('type')}: {error.get('text')}\n{error.get('where')}"


@pytest.mark.parametrize("name", list(real_cells.BY_NAME))
def test_a_real_cell_ends_with_the_same_numbers(real_rows, name):
    row = real_rows[name].result()
    if "skipped" in row:
        pytest.skip(row["skipped"])
    reference, plain, guard = row["ref"], row.get("plain"), row.get("guard")
    assert "digest" in reference, f"with all the memory: {said(reference)}"
    assert plain["raised"] and plain["raised"]["type"] == "OutOfMemoryError", f"the plain cell: {said(plain)}"
    assert not guard.get("broken") and not guard["raised"], f"guarded: {said(guard)}\n{guard.get('report')}"
    assert not real_cells.repeated(guard["report"]), guard["report"]
    if row["fixed"]:
        assert not real_cells.different(row)
    record(
        f"real_cell_{name}",
        {"cap": row["cap"], "all": figures(reference), "guard": figures(guard), "largest": reference["largest"]},
    )


def figures(found: dict[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in ("seconds", "steps", "peak_allocated", "peak_reserved")}
