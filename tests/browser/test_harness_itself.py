"""The harness: a cell runs in a real front end, and its output and status are seen."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("app", ["lab", "notebook7"])
def test_a_cell_runs_in_the_front_end(app, request, open_page):
    """Prompt, output and status of a cell are those that a person would see."""
    page = open_page(request.getfixturevalue(app), "harness.ipynb", ["print(6 * 7)", "import time; time.sleep(1.5)"])
    assert page.execute(0) == "42"
    page.run(1)
    assert page.until(lambda: page.prompts()[1] == "[*]:", 5)
    assert page.until(lambda: page.status() == "busy", 1.4)
    assert page.finished(1)
    assert page.until(lambda: page.status() == "idle", 5)
    assert not page.dialogs()
