"""A user's mistake fails the cell for every tool that runs notebooks."""

from __future__ import annotations

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
