"""The tutorials are compared with what they showed when they were saved, and the comparison bites."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
FOLDER = ROOT / "notebooks"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def compare(path):
    env = {**os.environ, "PYTHONPATH": PATHS, "CUDA_MAGIC_PRACTICE": "1"}
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(path.parent), "-c", os.devnull]
    words += ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(FOLDER / "sanitize.cfg"), str(path)]
    return subprocess.run(
        [sys.executable, *words], cwd=path.parent, env=env, capture_output=True, text=True, timeout=150
    )


def test_a_wrong_output_is_noticed(tmp_path):
    """The first tutorial passes as saved; with one number of one output changed, just that cell fails."""
    saved = nbformat.read(FOLDER / "01_first_steps.ipynb", as_version=4)
    wrong = copy.deepcopy(saved)
    changed = False
    for cell in wrong.cells:
        if cell.cell_type == "code" and cell.source.startswith("%%cuda_guard"):
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.data["text/plain"] = "1" + output.data["text/plain"]
                    changed = True
            if changed:
                break
    assert changed
    (tmp_path / "same").mkdir()
    for folder, notebook, failures in ((tmp_path / "same", saved, 0), (tmp_path, wrong, 1)):
        path = folder / "compared.ipynb"
        nbformat.write(notebook, path)
        done = compare(path)
        assert (done.returncode, len(re.findall(r"^FAILED", done.stdout, re.M))) == (failures, failures), done.stdout


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_tutorials_are_saved_clean(path):
    """Restarted and run from top to bottom, no widget state, no error that is not announced, PRACTICE shown."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", [])), cell.source
    assert any("PRACTICE" in str(cell.outputs) for cell in cells)
    text = path.read_text()
    assert "0x" not in re.sub(r'"image/png": "[^"]*"', "", text), "addresses change from run to run"


def test_few_sanitizers():
    """Each sanitizer weakens the comparison; there are at most four."""
    rules = FOLDER.joinpath("sanitize.cfg").read_text().splitlines()
    assert sum(line.startswith("regex:") for line in rules) <= 4
