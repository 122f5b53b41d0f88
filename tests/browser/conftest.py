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


@pytest.fixture(scope="session")
def tabs():
    """The one tab of each JupyterLab that tests go on using."""
    return {}


@pytest.fixture
def open_page(request, chromium, tabs):
    """``open_page(server, name, cells, size=...)``: a notebook in a tab, its kernel ended afterwards.

    JupyterLab's tab is used again by the next test, with the notebook before closed: not after a failure, nor if the
    test closed it.
    """
    used = []

    def opened(server, name, cells, **options):
        server.notebook(name, cells)
        page = tabs.pop(server, None)
        if page is not None:
            page.show(name, **options)
        else:
            page = Page(chromium, server, name, **options)
        used.append(page)
        return page

    failures = request.session.testsfailed
    yield opened
    for page in used:
        server = page.server
        well = request.session.testsfailed == failures and not page.page.is_closed()
        if well and server.app == "lab" and server not in tabs:
            page.leave()
            tabs[server] = page
        else:
            page.close()
    for server in {page.server for page in used}:
        server.stop_kernels()
