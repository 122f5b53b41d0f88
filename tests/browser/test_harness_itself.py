"""The harness: a cell runs in a real front end, and its output and status are seen."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("app", ["lab", "notebook7"])
def test_a_cell_runs_in_the_front_end(app, request, open_page):
    """Prompt, output and status of a cell are those that a person would see."""
    server = request.getfixturevalue(app)
    wait = "import os, time\nwhile not os.path.exists('go on'):\n    time.sleep(0.05)"
    page = open_page(server, "harness.ipynb", ["print(6 * 7)", wait])
    assert page.execute(0) == "42"
    page.run(1)
    assert page.until(lambda: page.prompts()[1] == "[*]:", 5)
    assert page.until(lambda: page.status() == "busy", 5)
    (server.root / "go on").touch()
    assert page.finished(1)
    assert page.until(lambda: page.status() == "idle", 5)
    assert not page.dialogs()
