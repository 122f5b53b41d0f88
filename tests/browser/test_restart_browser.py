"""The kernel replaced in place, as a person in JupyterLab and Notebook 7 sees it."""

from __future__ import annotations

import re

import pytest

RESTART = "import os; os.environ['FOO'] = {!r}; from cuda_magic.kernel.restart import restart; restart(get_ipython())"
SHOW = "import os; print(os.getpid(), os.environ.get('FOO'), 'old' in globals())"
WIDGETS = """import ipywidgets as w
button, label = w.Button(description='press'), w.Label('new')
button.on_click(lambda _: setattr(label, 'value', 'pressed'))
display(button, label)"""

CELLS = [
    "import os, ipywidgets; old = 1; display(ipywidgets.IntSlider()); print(os.getpid())",
    RESTART.format("one"),
    SHOW,
    RESTART.format("two"),
    SHOW,
    WIDGETS,
    "import time; time.sleep(30)",
    "%load_ext cuda_magic\nprint('loaded')",
]

APPS = pytest.mark.parametrize("app", ["lab", "notebook7"])


@APPS
def test_page_stays_connected_and_everything_works_afterwards(app, request, open_page):
    """No dialog, no dropped connection; new process twice; widgets, interrupt, menu restart and shutdown work."""
    server = request.getfixturevalue(app)
    page = open_page(server, "restart.ipynb", CELLS)
    pid = page.execute(0).split()[-1]
    page.kernel(
        "(window.seen = [], k.statusChanged.connect((_, s) => window.seen.push(s)),"
        " k.connectionStatusChanged.connect((_, s) => window.seen.push('connection ' + s)), 1)"
    )
    assert page.execute(1) == ""
    assert page.execute(2) == f"{pid} one False"
    assert page.execute(3) == ""
    assert page.execute(4) == f"{pid} two False"
    seen = page.js("() => window.seen")
    assert set(seen) <= {"busy", "idle", "starting"}, seen
    assert page.until(lambda: page.status() == "idle", 5)
    assert page.until(lambda: [k["execution_state"] for k in server.api("/api/kernels")] == ["idle"], 5)
    assert not page.dialogs()
    assert page.has(".widget-slider"), "the widget of the old process was removed from the page"

    page.execute(5)
    page.page.click("button.jupyter-button")
    assert page.until(lambda: "pressed" in page.outputs()[5], 10)

    page.run(6)
    page.until(lambda: page.status() == "busy", 10)
    page.sleep(0.5)
    page.command("notebook:interrupt-kernel")
    assert page.until(lambda: "KeyboardInterrupt" in page.outputs()[6], 10)
    assert page.until(lambda: page.status() == "idle", 10)  # what is sent earlier is aborted with the error, as always
    assert page.execute(7) == "loaded"

    page.restart()
    assert page.execute(2).endswith(" None False")
    assert not page.dialogs()
    assert not re.search("AsyncIOLoopKernelRestarter|kernel died", server.log())
    server.stop_kernels()
    assert server.api("/api/kernels") == []


@APPS
def test_run_all_goes_on_in_the_new_process(app, request, open_page):
    """A restart in the middle of Run All: later cells run after it, an error stops the rest as ever."""
    server = request.getfixturevalue(app)
    cells = [
        "import os; print(os.getpid()); old = 1",
        RESTART.format("all"),
        SHOW + "; y = 1",
        "print(y + 1)",
        "1 / 0",
        "print('not run')",
    ]
    page = open_page(server, "run_all.ipynb", cells)
    page.run_all()
    assert page.until(lambda: "ZeroDivisionError" in page.outputs()[4], 30), (page.prompts(), page.outputs())
    page.sleep(1)
    outputs, prompts = page.outputs(), page.prompts()
    pid = outputs[0]
    assert outputs[1:4] == ["", f"{pid} all False", "2"]
    assert outputs[5] == ""
    assert "[*]:" not in prompts
    assert prompts[:5] == ["[1]:", "[2]:", "[1]:", "[2]:", "[3]:"]
    assert page.until(lambda: page.status() == "idle", 5)
    assert not page.dialogs()
