"""What the tutorials showed on a real card stands beside them: the same cells, with card and releases named."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
import readme

from cuda_magic.testing import recorded

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks" / "recorded"
NOT_YET: tuple[str, ...] = ()
"""Those whose cells have changed since a card was at hand: they have no recording until there is one again."""
TUTORIALS = sorted(path.name for path in FOLDER.parent.glob("0*.ipynb") if path.name not in NOT_YET)
EVERYWHERE = ("02_environment.ipynb", "05_diagnosis.ipynb")
"""Those that say of themselves that they give the same answers on every machine."""
NAMED = {"card", "driver", "torch", "python", "ipython", "ipykernel", "cuda_magic"}


def test_no_notebook_names_a_folder_of_a_machine():
    """Tracebacks show files of packages from site-packages on, and ours from the repository on."""
    for path in (*FOLDER.glob("*.ipynb"), *FOLDER.parent.glob("*.ipynb")):
        assert not re.findall(r"/(?:tmp|home|root|opt|usr|work)/\S*", path.read_text()), path.name


def read(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell):
    return [out.get("text") or out.get("data", {}).get("text/plain") or out.get("evalue") for out in cell.outputs]


def test_a_recording_that_is_not_there_is_not_named():
    """README links to the recordings that there are."""
    links = set(re.findall(r"notebooks/recorded/(0\w+\.ipynb)", (ROOT / "README.md").read_text()))
    assert links == set(TUTORIALS) == {path.name for path in FOLDER.glob("0*.ipynb")}


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_recording_is_of_these_cells(name):
    """The cells are the tutorial's, and the tags too; `demo --recorded` makes it anew where they are not."""
    mine, tutorial = read(FOLDER / name), read(ROOT / "notebooks" / name)
    assert [cell.source for cell in code(mine)] == [cell.source for cell in code(tutorial)]
    for cell in code(mine):
        failed = any(out.output_type == "error" for out in cell.outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", [])), cell.source


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_recording_names_card_and_releases(name):
    """In its metadata and for the reader, first of all; it is clean of widgets and of the machine's folders."""
    mine = read(FOLDER / name)
    seen = mine.metadata[recorded.KEY]
    assert set(seen) == NAMED and all(seen.values())
    assert mine.cells[0].source == f"*{recorded.sentence(seen)}*" and seen["card"] in mine.cells[0].source
    text = (FOLDER / name).read_text()
    assert "widgets" not in mine.metadata and "/tmp/" not in text and "/home/" not in text
    assert seen["card"] in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_recording_is_from_the_card(name):
    """What a tutorial says of the card is said of that card and not of the practice GPU."""
    mine, tutorial = read(FOLDER / name), read(ROOT / "notebooks" / name)
    if name in EVERYWHERE:
        assert [texts(cell) for cell in code(mine)] == [texts(cell) for cell in code(tutorial)]
        return
    assert "PRACTICE" not in str([cell.outputs for cell in code(mine)])
    assert mine.metadata[recorded.KEY]["card"] in str([cell.outputs for cell in code(mine)])
    for cell, other in zip(code(mine), code(tutorial), strict=True):
        if "nbval-check-output" in cell.metadata.get("tags", []):
            assert texts(cell) == texts(other)


def test_the_training_loop_in_03_is_that_of_the_recording():
    """The text of tutorial 03 shows what 06 said on a card: ``python tests/readme.py update``."""
    text = "".join(cell.source for cell in read(ROOT / "notebooks" / "03_out_of_memory.ipynb").cells)
    assert [readme.loop_on_the_card()] == readme.BLOCK.findall(text)
