"""`make demo` runs a notebook headless in this interpreter and keeps the page."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from cuda_magic.testing.demo import execute, main, to_html, verdict

ROOT = Path(__file__).resolve().parent.parent.parent


def notebook(*sources):
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def test_the_kernel_is_this_interpreter(tmp_path, monkeypatch):
    """No kernelspec is needed, and cells run in the Python that runs the demo."""
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    made = execute(notebook("import sys\nsys.executable"), tmp_path)
    assert made.cells[0].outputs[0].data["text/plain"] == repr(sys.executable)
    assert "widgets" not in made.metadata and sys.executable in to_html(made, "x")


def test_the_page_and_what_the_doctor_said(tmp_path, monkeypatch, capsys):
    """The page lies in demo/; the words of the doctor are printed, also where its cell is not the last."""
    monkeypatch.chdir(tmp_path)
    nbformat.write(notebook("'all is well'  # %cuda_doctor", "1 + 1"), "some.ipynb")
    assert main(["some.ipynb"]) == 0
    said = capsys.readouterr().out
    assert "all is well" in said and f"demo{'/'}some.html" in said
    assert "all is well" in Path("demo/some.html").read_text()
    assert verdict(notebook("1")) == ""


def test_a_failing_cell_is_told(tmp_path, monkeypatch, capsys):
    """Exit code 1 and the error; nothing is written."""
    monkeypatch.chdir(tmp_path)
    nbformat.write(notebook("1 / 0"), "some.ipynb")
    assert main(["some.ipynb"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err and not Path("demo").exists()


def test_saving_gives_outputs_that_stay(tmp_path, monkeypatch):
    """Saved twice, a notebook is the same file: no times, no widget state, no folder of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "0")
    source = "from cuda_magic.testing import gpu\ncard = gpu()\ncard.full('30 GiB', 1)"
    made = notebook(source)
    made.cells[0].metadata["tags"] = ["raises-exception"]
    nbformat.write(made, "some.ipynb")
    texts = []
    for _ in range(2):
        assert main(["--save", "some.ipynb"]) == 0
        texts.append(Path("some.ipynb").read_text())
    assert texts[0] == texts[1] and "CUDA out of memory" in texts[0] and str(ROOT) not in texts[0]


def test_help(capsys):
    """Asked for, it is no mistake."""
    assert main(["--help"]) == 0 and "--recorded FOLDER" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["nothing.ipynb"], ["--save"]])
def test_wrong_usage(words):
    """A missing notebook is answered by the usage, and exit code 64."""
    done = subprocess.run(
        [sys.executable, "-m", "cuda_magic.testing.demo", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 64 and done.stderr.startswith("usage:") and "Traceback" not in done.stderr
