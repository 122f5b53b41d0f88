"""The first real run: a notebook executed on a real GPU, in which two out-of-memory cells are rescued.

(a) the traceback of an earlier failed cell holds gigabytes; (b) a fragmented heap that collecting, emptying the cache
and trying again cannot help. Writes the executed notebook and the figures; fails where a rescue failed.

    python benchmarks/first_run.py benchmarks/results
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

CELLS = [
    "# The first real run",
    "%load_ext cuda_magic\nimport gc, json, time, torch\nG, M = 2**30, 2**20\n"
    "def E(size): return torch.empty(size, dtype=torch.uint8, device='cuda')",
    "%gpu_mem --once",
    "%cuda_doctor",
    "%cuda_env",
    "## (a) The traceback of an earlier failed cell holds 5 GiB",
    "total = torch.cuda.get_device_properties(0).total_memory\n"
    "torch.cuda.set_per_process_memory_fraction(8 * G / total)\n"
    "def f():\n    a = E(5 * G)\n    b = E(5 * G)\nf()",
    "print(torch.cuda.memory_allocated() // G, 'GiB are still held')",
    "%%cuda_guard --report first\nx = E(5 * G)",
    "%cuda_guard",
    "del x",
    "## (b) A fragmented heap: 56 live blocks of 64 MiB strewn over 7 GiB, 3 GiB wanted",
    "whole = E(7 * G)\ndel whole\nblocks = [E(64 * M) for _ in range(112)]\nlive = blocks[::2]\ndel blocks\n"
    "for i, t in enumerate(live): _ = t.fill_(i % 251)\nviews = [t[5:9] for t in live]",
    "gc.collect(); torch.cuda.empty_cache()\ntry:\n    E(3 * G)\nexcept torch.OutOfMemoryError:\n"
    "    print('collect, empty the cache, try again: out of memory')",
    "%%cuda_guard --report second\ny = E(3 * G)",
    "%cuda_guard",
    "torch.cuda.set_per_process_memory_fraction(1.0)\n"
    "print('data intact:', all(bool((t == i % 251).all()) for i, t in enumerate(live))\n"
    "      and all(int(v[0]) == i % 251 for i, v in enumerate(views)))",
    "import platform\nprint(json.dumps({'first': first.to_dict(), 'second': second.to_dict(),\n"
    "    'card': torch.cuda.get_device_name(), 'torch': torch.__version__, 'python': platform.python_version()}))",
]
MUST_FAIL = "f()"


def build() -> nbformat.NotebookNode:
    """The notebook, not executed."""
    cells = []
    for text in CELLS:
        cell = new_markdown_cell(text) if text.startswith("#") else new_code_cell(text)
        if text.endswith(MUST_FAIL):
            cell.metadata.tags = ["raises-exception"]
        cells.append(cell)
    return new_notebook(cells=cells)


def text_of(cell: nbformat.NotebookNode) -> str:
    """What a code cell printed and showed."""
    shown = []
    for out in cell.outputs:
        shown.append(out.get("text", "") or out.get("data", {}).get("text/plain", "") or out.get("evalue", ""))
    return "".join(shown)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    notebook = build()
    NotebookClient(notebook, timeout=300, store_widget_state=False).execute()
    nbformat.write(notebook, folder / "first_run.ipynb")
    code = [c for c in notebook.cells if c.cell_type == "code"]
    for cell in code:
        print(">>> " + cell.source.replace("\n", "\n... "))
        print(text_of(cell))
    figures = json.loads(text_of(code[-1]))
    (folder / "first_run.json").write_text(json.dumps(figures, indent=1) + "\n")
    assert "data intact: True" in text_of(code[-2])
    for name in ("first", "second"):
        assert figures[name]["status"] == "rescued", figures[name]


if __name__ == "__main__":
    main()
