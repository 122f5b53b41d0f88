"""``python -m cuda_magic.testing.demo NOTEBOOK``: run a tutorial headless, print the doctor's verdict, keep the HTML.

On the GPU where CUDA works, else on the practice GPU. The kernel is this very interpreter, whether or not a kernelspec
is installed for it. ``--save NOTEBOOK ...`` runs on the practice GPU and puts the outputs into the notebooks,
free of what differs from run to run: that is how the outputs which the tests compare are made.
``--recorded FOLDER NOTEBOOK ...`` runs on the real card and writes what it showed to `FOLDER`, card and releases named.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import Missing

__all__ = ["clean", "execute", "main", "save", "to_html", "verdict"]

_USAGE = """usage: python -m cuda_magic.testing.demo [--save | --recorded FOLDER] NOTEBOOK ...

  NOTEBOOK                        run it, print what the doctor said, keep it as an HTML page
  --save NOTEBOOK ...             put the practice GPU's outputs into the notebooks
  --recorded FOLDER NOTEBOOK ...  run them on the real card, into FOLDER"""


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
            # newer kernels warn of unencrypted TCP at each start: here it is this machine's own loopback
            words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
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


_INSTALLED = re.compile(r"(?:/[\w.+@-]+)+/(?=(?:site-packages|dist-packages|python3\.\d+)/)")
"""Where Python and its packages lie on this machine."""


def save(path: Path) -> None:
    """Run the notebook at `path` on the practice GPU and write its outputs into it."""
    import nbformat

    os.environ["CUDA_MAGIC_PRACTICE"] = "1"
    notebook = nbformat.read(path, as_version=4)
    nbformat.write(clean(execute(notebook, path.parent)), path)


def clean(notebook: Any) -> Any:
    """The executed notebook without what names this machine: folders in tracebacks, its kernel's name and release."""
    from nbformat import from_dict

    root = f"{Path(__file__).resolve().parent.parent.parent}{os.sep}"
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                output.traceback = [_INSTALLED.sub("", line).replace(root, "") for line in output.traceback]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    return notebook


def main(words: Sequence[str]) -> int:
    """Run the notebook named in `words`; gives the exit code."""
    if {"-h", "--help"} & set(words):
        print(_USAGE)
        return 0
    try:
        import ipykernel  # noqa: F401, TID251 - only asked whether it is there
        import nbformat
        from nbclient.exceptions import CellExecutionError

        if not {"--save", "--recorded"} & set(words):
            import nbconvert  # noqa: F401 - for the page
    except ImportError as error:
        print(f"running a notebook needs {error.name}: pip install ipykernel nbclient nbconvert", file=sys.stderr)
        return 1
    saving, recording = "--save" in words, "--recorded" in words
    paths = [Path(word) for word in words if word not in ("--save", "--recorded")]
    folder = paths.pop(0) if recording and paths else None
    alone = not (saving or recording)
    if not paths or (saving and recording) or (len(paths) > 1 and alone) or not all(path.is_file() for path in paths):
        print(_USAGE, file=sys.stderr)
        return 64
    try:
        if saving:
            for path in paths:
                save(path)
                print(f"Saved the outputs of {path}")
            return 0
        if folder is not None:
            from .recorded import card_and_releases, record

            seen = card_and_releases()
            folder.mkdir(parents=True, exist_ok=True)
            for path in paths:
                done = record(nbformat.read(path, as_version=4), path.parent, seen)
                nbformat.write(done, folder / path.name)
                print(f"Recorded {folder / path.name}", flush=True)
            return 0
        path = paths[0]
        notebook = nbformat.read(path, as_version=4)
        code = sum(cell.cell_type == "code" for cell in notebook.cells)
        print(f"Running {path} ({code} code cells) ...", flush=True)
        execute(notebook, path.parent)
    except (CellExecutionError, Missing) as error:
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
