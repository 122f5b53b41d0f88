"""%%cuda_guard inside %%px, and in functions that a view sends: rescued on the engine, told in the notebook."""

from __future__ import annotations

import time

import pytest

START = "%load_ext cuda_magic\nfrom cuda_magic.testing import gpu as practice\ngpu = practice(['8 GiB'])"
FAIL = "def f():\n    a = gpu.empty('3 GiB')\n    b = gpu.empty('6 GiB')\nf()"
"""Its traceback holds 3 GiB."""


@pytest.fixture
def px(loaded, running, capsys):
    """``px(code)``: what %%px shows of it on engines 0 and 1, and the exception that it raises."""
    running.client.activate(targets=[0, 1])

    def run(code):
        capsys.readouterr()
        error = None
        try:
            loaded.run_cell_magic("px", "", code)
        except Exception as caught:
            error = caught
        shown = capsys.readouterr()
        return shown.out + shown.err, error

    run(START)
    yield run
    run("%unload_ext cuda_magic\nimport gc\nfrom cuda_magic.machine import use\nuse(None)\n%reset -f")
    loaded.magics_manager.registry.pop("ParallelMagics")


def test_rescued_on_the_engines_and_told_in_the_notebook(px):
    """The line at the end and the report come back from every engine; the value is there once."""
    _, error = px(FAIL)
    assert error is not None
    shown, error = px("%%cuda_guard\nx = gpu.empty('5 GiB')\nx.nbytes")
    assert error is None
    assert shown.count("GPU memory ran out once; room was made and nothing was repeated") == 2
    assert "[stderr:0]" in shown and "[stderr:1]" in shown
    assert shown.count(str(5 << 30)) == 2
    report, error = px("%cuda_guard")
    assert error is None and report.count("cuda_guard: rescued") == 2 and report.count("3.00 GiB") >= 2
    px("del x, f")


def test_a_failing_cell_keeps_ipyparallels_own_rendering(px):
    """Same error and traceback as a plain %%px cell, with the report of that engine below it."""
    plain, one = px("y = gpu.empty('50 GiB')")
    shown, error = px("%%cuda_guard --no-move\ny = gpu.empty('50 GiB')")
    assert type(error) is type(one)
    for engine in "01":
        assert f"[{engine}:execute]" in shown and f"[{engine}:execute]" in plain
        assert f"[output:{engine}]" in shown
    assert shown.count("CUDA out of memory. Tried to allocate 50.00 GiB") == plain.count(
        "CUDA out of memory. Tried to allocate 50.00 GiB"
    )
    assert shown.count("the request is larger than the card") == 2
    shown, error = px("%%cuda_guard\n1 / 0")
    assert type(error) is type(one) and shown.count("division by zero") == 2 and "cuda_guard: not" not in shown


WORK = """
import cuda_magic
@cuda_magic.guard(no_move=True)
def work(size):
    from IPython import get_ipython
    return get_ipython().user_ns["gpu"].empty(size).nbytes
"""


def test_a_function_that_a_view_sends_is_rescued_there(px, running, loaded):
    """The decorator travels with the function; its line comes back as its stderr."""
    px(FAIL)
    loaded.run_cell(WORK)
    work = loaded.user_ns["work"]
    jobs = running.client[[0, 1]].apply_async(work, "5 GiB")
    assert jobs.get(timeout=20) == [5 << 30] * 2
    ends = time.monotonic() + 10
    while not all(jobs.stderr) and time.monotonic() < ends:  # it comes by another channel than the value
        jobs.wait_for_output(1)
        time.sleep(0.1)
    assert all("GPU memory ran out once; room was made" in text for text in jobs.stderr), jobs.stderr
    from ipyparallel.error import CompositeError

    with pytest.raises(CompositeError, match=r"Tried to allocate 50.00 GiB"):
        running.client[[0, 1]].apply_sync(work, "50 GiB")


def test_guarding_every_cell_of_an_engine(px):
    """%cuda_guard --all on the engines: plain %%px cells are rescued."""
    px(FAIL)
    px("%cuda_guard --all")
    shown, error = px("x = gpu.empty('5 GiB')")
    assert error is None and shown.count("room was made") == 2
    px("%cuda_guard --off")
