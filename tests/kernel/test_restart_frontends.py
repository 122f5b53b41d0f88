"""The same notebook cells under nbclient, nbval and `jupyter console`, each with a restart in the middle."""

from __future__ import annotations

import os
import subprocess
import sys

import nbformat
import pytest
from running_kernel import PATHS, RESTART

v4 = nbformat.v4
SET = "import os; os.environ['FOO'] = {!r}; " + RESTART
SHOW = "import os; print(os.environ['FOO'], 'x' in globals())"
ENV = {**os.environ, "PYTHONPATH": PATHS, "PYTHONWARNINGS": ""}


@pytest.fixture
def notebook(monkeypatch):
    """A function from cells to a notebook whose kernel finds this copy of cuda_magic."""
    monkeypatch.setenv("PYTHONPATH", PATHS)
    monkeypatch.delenv("FOO", raising=False)

    def build(*cells):
        spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        return v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": spec})

    return build


def _texts(book):
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in book.cells]


def test_nbclient_goes_on_in_the_new_process(notebook):
    """A restart in the middle, then twice in a row: the cells after it see the new environment and no old names."""
    from nbclient import NotebookClient

    book = notebook("x = 1", SET.format("one"), SHOW, "x = 2", SET.format("two"), SET.format("three"), SHOW)
    NotebookClient(book, timeout=30).execute()
    assert _texts(book) == ["", "", "one False\n", "", "", "", "three False\n"]


def test_nbclient_ends_when_the_last_cell_restarts(notebook):
    """No time-out while nbclient waits for the reply and the outputs of the last cell."""
    from nbclient import NotebookClient

    book = notebook("x = 1", SET.format("last") + "\nprint('asked')")
    NotebookClient(book, timeout=30).execute()
    assert _texts(book) == ["", "asked\n"]


def test_nbval_passes(notebook, tmp_path):
    """nbval compares each cell's output and finds no difference."""
    book = notebook("x = 1\nprint(x)", SET.format("nbval"), SHOW)
    for cell, text in zip(book.cells, ("1\n", None, "nbval False\n"), strict=True):
        cell.outputs = [v4.new_output("stream", name="stdout", text=text)] if text else []
        cell.execution_count = 1
    path = tmp_path / "restart.ipynb"
    nbformat.write(book, path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--nbval",
        "--nbval-current-env",
        "-p",
        "no:cacheprovider",
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, cwd=tmp_path, timeout=90)
    assert "3 passed" in done.stdout, done.stdout[-2000:]


def test_console_has_its_prompt_back():
    """`jupyter console`: the prompt returns, the next line runs in the new process."""
    pexpect = pytest.importorskip("pexpect")
    pytest.importorskip("jupyter_console")
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--simple-prompt", "--ZMQTerminalInteractiveShell.kernel_timeout=60"],
        encoding="utf8",
        timeout=30,
        env={**ENV, "TERM": "dumb"},
    )
    try:
        console.expect(r"In \[1\]: ")
        console.sendline("x = 1; " + SET.format("console"))
        console.expect(r"In \[\d+\]: ")
        console.sendline(SHOW)
        console.expect("console False")
        console.expect(r"In \[\d+\]: ")
        console.sendline("exit")
        console.expect(pexpect.EOF)
    finally:
        console.close(force=True)
