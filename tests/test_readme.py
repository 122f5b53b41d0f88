"""Every snippet of README runs, and what it shows is what a card showed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import readme

ROOT = Path(__file__).resolve().parent.parent
SNIPPETS = readme.snippets()
CELLS = [one for one in SNIPPETS if one.language == "python"]
LINES = [line for one in SNIPPETS if one.language == "sh" for line in one.source.splitlines()]
# the words that only the card's outputs have
CARDS = {"nvidia", "nvml_success", "cuda_success", "nccl", "cublas", "workspaces", "root", "python3", "held", "nobody"}
CARDS |= {"gib"}  # the practice card for torch is smaller


def words(text):
    """The words of an output, without figures: what it says, on whatever card."""
    return set(re.findall(r"[a-z_]{3,}", text.lower()))


def test_every_fence_is_run_or_compared():
    """A fence is a cell, lines for a shell, or the output of the cell above it; there are enough of them."""
    assert {one.language for one in SNIPPETS} == {"python", "sh"}
    assert len(CELLS) >= 12 and len(LINES) >= 6
    for magic in ("%%cuda_guard", "%%gpu_mem", "%gpu_mem --who", "%cuda_doctor", "%cuda_env"):
        assert any(magic in one.source and one.shown for one in CELLS), magic


def test_outputs_shown_are_the_cards():
    """Cells and outputs are those of the notebook that ran on a card, word for word; README names that card."""
    recorded = readme.cells_on_the_card()
    assert [cell.source for cell in recorded] == [one.source for one in CELLS]
    for cell, one in zip(recorded, CELLS, strict=True):
        if one.shown is not None:
            assert readme.shown_by(cell) == one.shown
    seen = readme.nbformat.read(readme.RECORDED, as_version=4).metadata["recorded"]
    text = readme.README.read_text()
    python = seen["python"].rpartition(".")[0]
    assert f"one {seen['card']} with driver {seen['driver']}, torch {seen['torch']} and Python {python}" in text


@pytest.mark.parametrize("section", readme.sections())
def test_cells_run_on_the_practice_gpu(section, tmp_path, monkeypatch):
    """In a real kernel: each cell ends as README says, and says there, in other figures, what README shows."""
    from cuda_magic.testing.demo import execute

    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    cells = readme.sections()[section]
    if any("import torch" in one.source for one in cells):
        pytest.importorskip("torch")
    first = f"{readme.LOAD}\nfrom cuda_magic.testing import gpu\n_ = gpu()"  # the doctor too is asked about that GPU
    ran = execute(readme.notebook(cells, first), tmp_path).cells[1:]
    for cell, one in zip(ran, cells, strict=True):
        assert any(output.output_type == "error" for output in cell.outputs) == one.fails
        said = readme.shown_by(cell)
        if one.shown is not None:
            assert words(one.shown) - CARDS <= words(said), said
        if one.source.startswith("%%cuda_guard"):
            assert "room was made" in said and "nothing was repeated" in said


def test_lines_for_a_shell(tmp_path):
    """`cuda-magic` answers with one of its exit codes, `make` has the goals; nothing else is shown as a line."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for line in LINES:
        program, *rest = shlex.split(line)
        if program == "make":
            done = subprocess.run(["make", "-n", *rest], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0 and "notebooks/01_first_steps.ipynb" in done.stdout
        else:
            assert program == "cuda-magic", line
            words = [sys.executable, "-m", "cuda_magic", *rest]
            done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode in (0, 1, 2) and done.stdout and not done.stderr, done


def test_the_badge_opens_the_first_tutorial():
    """Binder's address names the repository of the project's other links, JupyterLab, and a notebook that exists."""
    address = re.search(r"\]\(https://mybinder\.org/v2/gh/([\w/-]+)/([\w.]+)\?urlpath=lab/tree/(\S+?)\)", _text())
    assert address is not None
    repository, reference, path = address.groups()
    assert f"github.com/{repository}" in (ROOT / "pyproject.toml").read_text()
    assert reference == "HEAD" and (ROOT / path).name == "01_first_steps.ipynb" and (ROOT / path).is_file()


def _text():
    return readme.README.read_text()
