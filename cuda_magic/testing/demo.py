"""``python -m cuda_magic.testing.demo NOTEBOOK``: run a tutorial headless, print the doctor's verdict, keep the HTML.

On the GPU where CUDA works, else on the practice GPU. The kernel is this very interpreter, whether or not a kernelspec
is installed for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["execute", "main", "to_html"]


def execute(notebook: Any, folder: Path, timeout: int = 300) -> Any:
    """`notebook` (nbformat's node) with the outputs of a run in a kernel of this interpreter.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
        Changed in place.
    folder : Path
        The kernel's working directory.
    timeout : int
        Seconds for one cell.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails that is not tagged ``raises-exception``.
    """
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class ThisInterpreter(AsyncKernelManager):  # type: ignore[misc]
        """A kernel manager that needs no kernelspec on the disk."""

        @property
        def kernel_spec(self) -> Any:
            words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=words, display_name="Python 3", language="python")

    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisInterpreter,
        timeout=timeout,
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute()


def to_html(notebook: Any, name: str) -> str:
    """The executed notebook as one HTML page, nothing executed again."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter()
    exporter.embed_images = True
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": name}})
    return str(body)


def verdict(notebook: Any) -> str:
    """What the last ``%cuda_doctor`` of an executed notebook said, empty where none ran."""
    for cell in reversed(notebook.cells):
        if cell.cell_type == "code" and "%cuda_doctor" in cell.source:
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    return str(output.data.get("text/plain", ""))
    return ""


def main(words: Sequence[str]) -> int:
    """Run the notebook named in `words`; gives the exit code."""
    try:
        import ipykernel  # noqa: F401, TID251 - only asked whether it is there
        import nbconvert  # noqa: F401
        import nbformat
        from nbclient.exceptions import CellExecutionError
    except ImportError as error:
        print(f"running a notebook needs {error.name}: pip install ipykernel nbclient nbconvert", file=sys.stderr)
        return 1
    if len(words) != 1 or not Path(words[0]).is_file():
        print("usage: python -m cuda_magic.testing.demo NOTEBOOK.ipynb", file=sys.stderr)
        return 64
    path = Path(words[0])
    notebook = nbformat.read(path, as_version=4)
    code = sum(cell.cell_type == "code" for cell in notebook.cells)
    print(f"Running {path} ({code} code cells) ...", flush=True)
    try:
        execute(notebook, path.parent)
    except CellExecutionError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    said = verdict(notebook)
    if said:
        print(f"\nThe doctor says:\n\n{said}\n")
    folder = Path("demo")
    folder.mkdir(exist_ok=True)
    page = folder / f"{path.stem}.html"
    page.write_text(to_html(notebook, path.stem), encoding="utf-8")
    print(f"All cells ran. The executed notebook: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
