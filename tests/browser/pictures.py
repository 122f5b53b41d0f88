"""Makes the pictures of README anew, in a real JupyterLab.

    python tests/browser/pictures.py docs/images

``rescue.png`` is the recording of README's cells on a card, opened in JupyterLab without a kernel's help;
``panel_light.png`` and ``panel_dark.png`` are the live panel on a model of eight cards. ``panel_cluster.png`` is the
``cluster_lost.png`` that ``SCREENSHOTS=folder pytest tests/browser/test_panel_cluster.py`` leaves there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1])]

import nbformat  # noqa: E402
import readme  # noqa: E402
from browser.harness import Page, browser, serve  # noqa: E402
from browser.panel_words import setup  # noqa: E402

EDGE = 8


def shot(page, elements, path):
    """A picture of the rectangle around some elements."""
    boxes = [element.bounding_box() for element in elements]
    left, top = min(b["x"] for b in boxes), min(b["y"] for b in boxes)
    right, bottom = max(b["x"] + b["width"] for b in boxes), max(b["y"] + b["height"] for b in boxes)
    box = {"x": left, "y": top - EDGE, "width": right - left + EDGE, "height": bottom - top + 2 * EDGE}
    page.page.screenshot(path=str(path), clip=box)


def rescue(context, server, folder):
    """A model and a batch, the guarded training loop, and its report: as the card showed them."""
    cells = readme.cells_on_the_card()
    guarded = [i for i, cell in enumerate(cells) if cell.source.startswith("%%cuda_guard")][0]
    recorded = nbformat.read(readme.RECORDED, as_version=4)
    recorded.cells = cells[guarded - 1 : guarded + 2]
    nbformat.write(recorded, server.root / "rescue.ipynb")
    page = Page(context, server, "rescue.ipynb", size=(960, 1200))
    page.js("() => {window.jupyterapp.shell.collapseLeft();}")
    page.js(
        "() => document.body.append(Object.assign(document.createElement('style'),"
        " {textContent: '.jp-cell-toolbar, .jp-Collapser {display: none}"
        " .jp-Notebook .jp-Cell {border-color: transparent !important; box-shadow: none !important}'}))"
    )
    page.sleep(1.5)
    shot(page, page.page.query_selector_all(".jp-Notebook .jp-Cell"), folder / "rescue.png")
    page.close()


def panel(context, server, folder):
    """The live panel, light and dark, one row open."""
    server.notebook("panel.ipynb", [setup(8), "%gpu_mem --interval 0.25"])
    page = Page(context, server, "panel.ipynb", size=(1250, 900))
    page.execute(0)
    page.run(1)
    assert page.until(lambda: page.has(".cmg-row"), 10)
    page.sleep(15)  # some history
    page.page.locator(".cmg-name").nth(1).click()
    for dark in (False, True):
        page.theme(dark)
        page.page.locator(".cmg").screenshot(path=str(folder / f"panel_{'dark' if dark else 'light'}.png"))
    page.theme(False)
    page.close()


def main(folder: Path, wanted: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, serve(Path(place) / "lab") as server, browser() as chromium:
        context = chromium.new_context(device_scale_factor=1.5)
        for make in (rescue, panel):
            if not wanted or make.__name__ in wanted:
                make(context, server, folder)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
