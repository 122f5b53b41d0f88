"""A real JupyterLab or Notebook 7 in a real headless Chromium, for tests marked ``browser``.

>>> with serve(tmp_path, app="lab") as server, browser() as chromium:
...     server.notebook("a.ipynb", ["%load_ext cuda_magic", "%gpu_mem"])
...     page = Page(chromium, server, "a.ipynb")
...     page.run(0); page.finished(0); page.outputs()[0]

Fixtures (tests/browser/conftest.py): ``lab`` and ``notebook7`` are servers, one for the whole session; ``chromium`` is
a browser for the session too; ``open_page(server, name, cells)`` writes a notebook and opens it in a tab.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CALM = {"fetchNews": "false", "checkForUpdates": False}
"""Settings of the notifications: the news toast would open a tab of its own."""
FIND = "[...window.jupyterapp.shell.widgets('main')].find(w => w.context?.path?.endsWith('.ipynb'))"
"""JavaScript for the open notebook's widget; ``currentWidget`` may be another tab."""
_workspaces = count(1)


def chromium_path() -> str | None:
    """Where Chromium is, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Server:
    """A running server; `root` is where its notebooks lie."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, app: str, folder: Path) -> None:
        self.process = process
        self.app = app
        self.folder = folder
        self.root = folder / "notebooks"
        self.base = f"http://127.0.0.1:{port}"

    def api(self, path: str, data: Any = None, method: str | None = None) -> Any:
        """The answer of the server's REST API: ``api("/api/kernels")``."""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.base + path, data=body, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def memory(self) -> int:
        """Resident bytes of the server process (not of its kernels)."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def notebook(self, name: str, cells: Sequence[str], kernel: str = "python3") -> Path:
        """Write a notebook of code cells with no outputs."""
        made = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in cells],
            metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
        )
        path = self.root / name
        nbformat.write(made, path)
        return path

    def stop_kernels(self) -> None:
        """Shut down every kernel of this server."""
        for kernel in self.api("/api/kernels"):
            with contextlib.suppress(OSError):
                self.api(f"/api/kernels/{kernel['id']}", method="DELETE")


@contextlib.contextmanager
def serve(
    folder: Path,
    app: str = "lab",
    *,
    env: dict[str, str] | None = None,
    python: str = sys.executable,
    without: Sequence[str] = (),
) -> Iterator[Server]:
    """A server with directories of its own and no token, on a free port; its kernels import this repository.

    Parameters
    ----------
    folder
        An empty folder for configuration, runtime files, workspaces, notebooks and the log.
    app
        ``lab`` (JupyterLab) or ``notebook`` (Notebook 7).
    env
        More environment for the server, which its kernels inherit.
    python
        The interpreter whose environment holds the server.
    without
        Extensions of the front end that this server does not have: ``["anywidget"]``.
    """
    for name in ("config", "runtime", "settings", "workspaces", "data", "notebooks", "ipython"):
        (folder / name).mkdir(parents=True, mode=0o700)
    calm = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    calm.parent.mkdir(parents=True)
    calm.write_text(json.dumps(CALM))
    pages = folder / "config" / "labconfig" / "page_config.json"
    pages.parent.mkdir()
    pages.write_text(json.dumps({"disabledExtensions": dict.fromkeys(without, True)}))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")])),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **(env or {}),
    }
    port = free_port()
    expose = "--expose-app-in-browser" if app == "lab" else "--JupyterNotebookApp.expose_app_in_browser=True"
    command = [python, "-m", "jupyter", app, "--allow-root", "--no-browser", f"--port={port}", expose]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"]
    command += [f"--ServerApp.root_dir={folder / 'notebooks'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    server = Server(process, port, app, folder)
    try:
        _wait_for(server)
        yield server
        server.stop_kernels()
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(server: Server, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended:\n{server.log()[-3000:]}")
        try:
            server.api("/api/status")
            return
        except OSError:
            if time.monotonic() > end:
                raise RuntimeError(f"no answer from the server in {seconds:g} s:\n{server.log()[-3000:]}") from None
            time.sleep(0.1)


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium (Playwright's sync API)."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=chromium_path(), headless=True, args=FLAGS)
        try:
            yield one
        finally:
            with contextlib.suppress(Exception):
                one.close()


class Page:
    """One browser tab on one notebook, ready with an idle kernel.

    `where` is a browser or a browser context. `received` and `sent` hold (time, frame) of the kernel's websocket,
    `console` the errors and warnings of the browser's console.
    """

    def __init__(self, where: Any, server: Server, name: str, size: tuple[int, int] = (1200, 900)) -> None:
        self.server = server
        self.name = name
        self.received: list[tuple[float, bytes]] = []
        self.sent: list[tuple[float, bytes]] = []
        self.console: list[tuple[str, str]] = []
        self.page = where.new_page()
        self._size(size)
        self.page.on("websocket", self._listen)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.console.append(("pageerror", str(error)[:300])))
        self.goto()

    def _size(self, size: tuple[int, int]) -> None:
        self.page.set_viewport_size({"width": size[0], "height": size[1]})

    def show(self, name: str, size: tuple[int, int] = (1200, 900)) -> None:
        """Another notebook in the same tab of JupyterLab, which spares the seconds that the application takes to load.

        What the notebook before left behind is gone: its tab, other tabs, frames, messages of the console, size.
        """
        self.name = name
        self._size(size)
        self.leave()
        for kept in (self.received, self.sent, self.console):
            kept.clear()
        self.js("path => {window.jupyterapp.commands.execute('docmanager:open', {path});}", name)
        self.ready()

    def leave(self) -> None:
        """Close every tab of JupyterLab without asking, and be a visible page again."""
        self.js(
            "() => {delete document.visibilityState;"
            " for (const w of [...window.jupyterapp.shell.widgets('main')]) {w.dispose();}}"
        )

    def _listen(self, socket: Any) -> None:
        if "/channels" in socket.url:
            socket.on("framereceived", lambda data: self.received.append((time.time(), _as_bytes(data))))
            socket.on("framesent", lambda data: self.sent.append((time.time(), _as_bytes(data))))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.console.append((message.type, message.text[:300]))

    # -- the page
    def goto(self) -> None:
        """Open the notebook, in a workspace of its own (else the last layout comes back)."""
        way = f"lab/workspaces/w{next(_workspaces)}/tree" if self.server.app == "lab" else "notebooks"
        self.page.goto(f"{self.server.base}/{way}/{self.name}")
        self.ready()

    def ready(self) -> None:
        """Wait until the notebook is drawn and its kernel idle."""
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.page.wait_for_function("window.jupyterapp !== undefined", timeout=30_000)
        idle = f"{FIND}?.context?.sessionContext?.session?.kernel?.status"
        self.page.wait_for_function(f"['idle', 'busy'].includes({idle})", timeout=60_000)

    def reload(self, save: bool = True) -> None:
        """Reload the page, the notebook saved before."""
        if save:
            self.save()
        self.page.reload()
        self.ready()

    def save(self) -> None:
        """Save the notebook, and wait until it is."""
        self.js(f"() => {FIND}.context.save()")

    def close(self) -> None:
        self.page.close()

    def js(self, function: str, *argument: Any) -> Any:
        """The value of a JavaScript function; a promise is awaited, so wrap what takes long in ``{ ...; }``."""
        return self.page.evaluate(function, *argument)

    def kernel(self, expression: str) -> Any:
        """The value of an expression over ``k`` (the kernel's connection) and ``s`` (the session context)."""
        return self.js(
            f"() => {{const s = {FIND}.context.sessionContext, k = s.session?.kernel; return {expression};}}"
        )

    def restart(self) -> None:
        """The kernel restarted as from the menu, waited for."""
        self.kernel("k.restart()")
        self.page.wait_for_function(f"{FIND}.context.sessionContext.session.kernel.status === 'idle'", timeout=60_000)

    # -- cells
    def run(self, index: int) -> None:
        """Run one cell as Shift-Enter does, not awaited."""
        self.js(
            f"i => {{const w = {FIND}; window.jupyterapp.shell.activateById(w.id); w.content.activeCellIndex = i;"
            " w.content.deselectAll(); window.jupyterapp.commands.execute('notebook:run-cell');}",
            index,
        )

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")

    def command(self, name: str) -> None:
        """One of the application's commands on the notebook, not awaited."""
        self.js(
            f"c => {{window.jupyterapp.shell.activateById({FIND}.id); window.jupyterapp.commands.execute(c);}}", name
        )

    def prompts(self) -> list[str]:
        """``[1]:``, ``[*]:`` (running) or ``[ ]:`` of each cell."""
        return self._cells("c.inputArea ? c.inputArea.promptNode.textContent.trim() : ''")

    def outputs(self) -> list[str]:
        """The visible text of each cell's output."""
        return self._cells("c.outputArea ? c.outputArea.node.innerText.trim() : ''")

    def finished(self, index: int, seconds: float = 30) -> bool:
        """Wait until a cell has run."""
        return bool(self.until(lambda: self.prompts()[index].strip("[]:").isdigit(), seconds))

    def execute(self, index: int, seconds: float = 30) -> str:
        """Run a cell, wait for its end, and give its output's text."""
        before = self.prompts()[index]
        self.run(index)
        self.until(lambda: self.prompts()[index] != before, seconds)
        assert self.finished(index, seconds), f"cell {index} did not end: {self.prompts()}"
        self.sleep(0.1)
        return self.outputs()[index]

    def status(self) -> str:
        """The kernel's status as the front end shows it: ``idle``, ``busy``, ``restarting`` ..."""
        text: str = self.kernel("k ? k.status : ''")
        return text

    def dialogs(self) -> list[str]:
        """The text of dialogs that stand open."""
        return self.js("() => [...document.querySelectorAll('.jp-Dialog')].map(d => d.innerText)")

    def _cells(self, expression: str) -> list[str]:
        return self.js(f"() => {FIND}.content.widgets.map(c => {expression})")

    # -- waiting and looking
    def until(self, answer: Callable[[], Any], seconds: float = 15, step: float = 0.1) -> Any:
        """The first true value of `answer`, None when there is none in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = answer()
            if value:
                return value
            self.sleep(step)
        return None

    def sleep(self, seconds: float) -> None:
        """Wait while the page goes on (``time.sleep`` would stop Playwright's events)."""
        self.page.wait_for_timeout(seconds * 1000)

    def has(self, selector: str) -> bool:
        return self.page.locator(selector).count() > 0

    def scroll(self, to_end: bool) -> None:
        """Scroll the notebook to its end or its start."""
        self.js(
            f"end => {{const n = {FIND}.content.node, w = n.querySelector('.jp-WindowedPanel-outer') || n;"
            " w.scrollTop = end ? w.scrollHeight : 0;}",
            to_end,
        )

    def hide(self, hidden: bool) -> None:
        """Behave as a tab behind another one; a headless browser hides none by itself."""
        self.js(
            "hidden => {Object.defineProperty(document, 'visibilityState', {configurable: true,"
            " get: () => hidden ? 'hidden' : 'visible'}); document.dispatchEvent(new Event('visibilitychange'));}",
            hidden,
        )

    def theme(self, dark: bool) -> None:
        """JupyterLab's own light or dark theme."""
        self.js(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})",
            "JupyterLab Dark" if dark else "JupyterLab Light",
        )
        self.sleep(0.5)

    def frames(self, *words: str, since: float = 0.0) -> list[bytes]:
        """Frames received after `since` (seconds since the epoch) that hold all `words`."""
        wanted = [word.encode() for word in words]
        return [data for at, data in list(self.received) if at > since and all(word in data for word in wanted)]


def _as_bytes(data: Any) -> bytes:
    return data if isinstance(data, bytes) else str(data).encode()
