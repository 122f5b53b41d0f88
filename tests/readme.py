"""README's snippets: taken out, run on the practice GPU by the tests, and run on a real card for the outputs shown.

    python tests/readme.py record FOLDER   on a machine with a card: FOLDER/readme.ipynb
    python tests/readme.py update          puts the outputs of notebooks/recorded/readme.ipynb into README.md, and
                                           those of the training loop in recorded/06 into the text of tutorial 03

A fence of ``python`` is a cell and one of ``sh`` lines for a shell; a fence of ``text`` below is what the cell shows.
The cells of one section share a kernel, in which cuda_magic is loaded. ``<!-- fails -->`` above a cell: it is meant to.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RECORDED = ROOT / "notebooks" / "recorded" / "readme.ipynb"
TUTORIAL = ROOT / "notebooks" / "03_out_of_memory.ipynb"
LOOP = ROOT / "notebooks" / "recorded" / "06_larger_than_the_card.ipynb"
BLOCK = re.compile(r"(?<=<!-- the loop of 06 -->\n)(.*?)(?=<!-- end of the loop -->)", re.DOTALL)
FENCE = re.compile(r"^(<!-- fails -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOAD = "%load_ext cuda_magic"


@dataclass(frozen=True)
class Snippet:
    """A fence of README: `shown` is the text of the fence below it, None where nothing is shown."""

    section: str
    language: str
    source: str
    fails: bool
    shown: str | None


def snippets(text: str | None = None) -> list[Snippet]:
    """All fences of README in order, those of ``text`` joined to the one above."""
    found: list[Snippet] = []
    for part in re.split(r"^(?=##)", text if text is not None else README.read_text(), flags=re.MULTILINE):
        section = part.split("\n", 1)[0].lstrip("# ")
        for fails, language, body in FENCE.findall(part):
            if language == "text":
                above = found.pop()
                assert above.shown is None and above.section == section, f"an output without a cell in {section}"
                found.append(Snippet(section, above.language, above.source, above.fails, body.rstrip()))
            else:
                found.append(Snippet(section, language, body.rstrip(), bool(fails), None))
    return found


def sections() -> dict[str, list[Snippet]]:
    """The cells by section."""
    cells: dict[str, list[Snippet]] = {}
    for one in snippets():
        if one.language == "python":
            cells.setdefault(one.section, []).append(one)
    return cells


def notebook(cells: list[Snippet], first: str = LOAD) -> nbformat.NotebookNode:
    """A notebook of one section, cuda_magic loaded `first`."""
    made = new_notebook(cells=[new_code_cell(first), *(new_code_cell(one.source) for one in cells)])
    for cell, one in zip(made.cells[1:], cells, strict=True):
        if one.fails:
            cell.metadata.tags = ["raises-exception"]
    return made


def shown_by(cell: nbformat.NotebookNode) -> str:
    """What a code cell printed and showed, as text; of an error its last line."""
    said = []
    for out in cell.outputs:
        if out.output_type == "error":
            said.append(f"{out.ename}: {out.evalue}")
        else:
            said.append(out.get("text") or out.get("data", {}).get("text/plain", ""))
    return "\n".join(line.rstrip() for line in "\n".join(one.rstrip("\n") for one in said).splitlines()).rstrip()


def record(folder: Path) -> None:
    """Run each section on the real card; one notebook of all."""
    from cuda_magic.testing import recorded

    seen = recorded.card_and_releases()
    parts = [new_markdown_cell(f"# README on a card\n{recorded.sentence(seen)}")]
    for section, cells in sections().items():
        made = notebook(cells)
        try:
            done = recorded.record(made, ROOT, seen)
        except Exception:
            print("\n\n".join(f">>> {cell.source}\n{shown_by(cell)}" for cell in made.cells))
            raise
        parts += [new_markdown_cell(f"## {section}"), *(cell for cell in done.cells if cell.cell_type == "code")]
    whole = new_notebook(cells=parts, metadata={**done.metadata})
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(whole, folder / "readme.ipynb")


def cells_on_the_card() -> list[nbformat.NotebookNode]:
    """The recorded cells, one for each of README's, in order."""
    cells: list[nbformat.NotebookNode] = []
    first = False
    for cell in nbformat.read(RECORDED, as_version=4).cells:
        if cell.cell_type == "code" and not first:
            cells.append(cell)
        first = cell.cell_type == "markdown"  # each section begins by loading cuda_magic
    return cells


def loop_on_the_card() -> str:
    """The guarded training loop of tutorial 06 with what it said on a card; empty where that is not recorded yet."""
    recorded = nbformat.read(LOOP, as_version=4)
    cells = [cell for cell in recorded.cells if cell.cell_type == "code"]
    for cell, check, report in zip(cells, cells[1:], cells[2:], strict=False):
        if cell.source.startswith("%%cuda_guard\nmodel") and report.source == "%cuda_guard":
            fences = [("python", cell.source), ("text", shown_by(cell)), ("python", check.source)]
            fences += [("text", shown_by(check)), ("python", report.source), ("text", shown_by(report))]
            text = "".join(f"```{language}\n{body}\n```\n" for language, body in fences)
            return f"{recorded.cells[0].source.strip('*')}\n\n{text}"
    return ""


def update() -> None:
    """README's outputs and tutorial 03's training loop anew from the recordings."""
    tutorial = nbformat.read(TUTORIAL, as_version=4)
    for cell in tutorial.cells:
        if cell.cell_type == "markdown":
            cell.source = BLOCK.sub(lambda _: loop_on_the_card(), cell.source)
    nbformat.write(tutorial, TUTORIAL)
    shown = iter(cells_on_the_card())
    last = ""

    def anew(fence: re.Match[str]) -> str:
        nonlocal last
        if fence[2] == "python":
            last = shown_by(next(shown))
        return f"```text\n{last}\n```" if fence[2] == "text" else fence[0]

    README.write_text(FENCE.sub(anew, README.read_text()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:2] == ["record"]:
        record(Path(sys.argv[2]))
    elif sys.argv[1:] == ["update"]:
        update()
    else:
        sys.exit(__doc__)
