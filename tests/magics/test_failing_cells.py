"""A user's mistake fails the cell for every tool that runs notebooks."""

from __future__ import annotations

import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output


@pytest.fixture
def notebook(tmp_path):
    """A notebook whose second cell has a mistake, and whose third must not run."""
    cells = ["%load_ext cuda_magic", "%gpu_mem --onze", "open('ran', 'w').close()"]
    made = new_notebook(cells=[new_code_cell(c) for c in cells])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = tmp_path / "mistake.ipynb"
    nbformat.write(made, path)
    return path


def test_nbclient_stops_at_the_mistake_with_one_short_error(notebook):
    """One error output with one sentence; the next cell does not run."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    made = nbformat.read(notebook, 4)
    client = NotebookClient(made, resources={"metadata": {"path": notebook.parent}})
    with pytest.raises(CellExecutionError, match="Did you mean '--once'"):
        client.execute()
    outputs = made.cells[1].outputs
    assert [o.output_type for o in outputs] == ["error"]
    assert outputs[0].ename == "UserError"
    assert len(outputs[0].traceback) == 1
    assert "File" not in outputs[0].traceback[0]
    assert not (notebook.parent / "ran").exists()


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("1/0", "ZeroDivisionError"),
        ("x = = 1", "SyntaxError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise SystemExit(1)", "SystemExit"),
        ("import asyncio\nawait asyncio.sleep(0)\n[][1]", "IndexError"),
        ("gpu.empty('99 GiB')", "OutOfMemoryError"),
        ("kept = gpu.empty('20 GiB')\nmore = gpu.empty('20 GiB')", "OutOfMemoryError"),
    ],
)
def test_case_37_a_guarded_cell_that_fails_stops_the_run(notebook, body, name):
    """nbclient: CellExecutionError, one error output with the user's line, and the next cell does not run."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    made = nbformat.read(notebook, 4)
    made.cells[0].source += "\nfrom cuda_magic.testing import gpu\ngpu = gpu(force=True)"
    made.cells[1].source = f"%%cuda_guard --no-move\n{body}"
    client = NotebookClient(made, resources={"metadata": {"path": notebook.parent}})
    with pytest.raises(CellExecutionError):
        client.execute()
    errors = [output for output in made.cells[1].outputs if output.output_type == "error"]
    assert [error.ename for error in errors] == [name]
    if name != "SystemExit":
        assert body.splitlines()[-1] in re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(errors[0].traceback))
    assert made.cells[2].outputs == [] and made.cells[2].execution_count is None
    assert not (notebook.parent / "ran").exists()


def test_papermill_stops_at_the_mistake(notebook):
    """papermill raises, with our name and sentence."""
    import papermill

    with pytest.raises(papermill.exceptions.PapermillExecutionError, match="UserError"):
        papermill.execute_notebook(
            str(notebook), str(notebook.parent / "out.ipynb"), cwd=str(notebook.parent), progress_bar=False
        )
    assert not (notebook.parent / "ran").exists()


def test_nbval_fails_a_notebook_that_must_fail(notebook):
    """A recorded success against a mistake: nbval reports a failure (IPython's UsageError would pass)."""
    made = nbformat.read(notebook, 4)
    for count, cell in enumerate(made.cells, 1):
        cell.execution_count = count
    made.cells[1].outputs = [new_output("stream", name="stdout", text="never printed\n")]
    nbformat.write(made, notebook)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--nbval-lax",
            "--nbval-current-env",
            notebook,
        ],
        capture_output=True,
        text=True,
        cwd=notebook.parent,
    )
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout
