"""Fixtures of the browser tests, and their marker."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from browser.harness import Page, browser, chromium_path, serve

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked ``browser``, and skipped with the reason where a part is missing."""
    missing = [name for name in ("playwright", "jupyterlab", "notebook") if find_spec(name) is None]
    if chromium_path() is None:
        missing.append("Chromium")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))
    items.sort(key=lambda item: HERE in item.path.parents)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory):
    """JupyterLab, one for the session."""
    with serve(tmp_path_factory.mktemp("jupyter") / "lab", "lab") as server:
        yield server


@pytest.fixture(scope="session")
def notebook7(tmp_path_factory: pytest.TempPathFactory):
    """Notebook 7, one for the session."""
    with serve(tmp_path_factory.mktemp("jupyter") / "notebook", "notebook") as server:
        yield server


@pytest.fixture(scope="session")
def chromium():
    """One browser context for the session: its cache makes pages open in a second.

    Playwright's event loop runs until it is closed, so these tests come last.
    """
    with browser() as one:
        yield one.new_context()


@pytest.fixture
def open_page(chromium):
    """``open_page(server, name, cells, size=...)``: a new notebook in a tab of its own, its kernel ended afterwards."""
    pages = []

    def opened(server, name, cells, **options):
        server.notebook(name, cells)
        pages.append(Page(chromium, server, name, **options))
        return pages[-1]

    yield opened
    for page in pages:
        page.close()
    for server in {page.server for page in pages}:
        server.stop_kernels()
