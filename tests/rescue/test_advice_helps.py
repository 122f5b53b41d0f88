"""Each advice is followed by the letter, as its reader would, and then the cell succeeds."""

from __future__ import annotations

import gc

import pytest

CHEAP = "--only holders,collect,caches"
FAIL = "def fail():\n    held = gpu.empty('2 GiB')\n    gpu.empty('2 GiB')"


@pytest.fixture
def notebook(loaded):
    """A notebook on a practice card with a limit of 3 GiB; errors are met after they are raised."""
    was = gc.isenabled()
    gc.disable()
    loaded.run_cell("%config CudaMagic.at_allocation = False")
    loaded.run_cell("from cuda_magic.testing import gpu as card\ngpu = card(force=True)\ngpu.limit('3 GiB')")
    yield loaded
    loaded.run_cell("gpu.close() if hasattr(gpu, 'close') else None\n%config CudaMagic.at_allocation = True")
    from cuda_magic.machine import use

    use(None)
    if was:
        gc.enable()


def run(shell, cell):
    return shell.run_cell(cell, store_history=True)


def advice(shell, options, cell) -> dict[str, str]:
    """{line: why} after the guarded cell failed."""
    assert not run(shell, f"%%cuda_guard {options} --report found\n{cell}").success
    return {step.line: step.why for step in shell.user_ns["found"].next_steps}


REMEDIES = {
    # line: (what stood there before, options, the cell)
    "del big": ("big = gpu.empty('2 GiB')", CHEAP, "y = gpu.empty('2 GiB')"),
    "del b, c": (
        "gpu.limit('4.5 GiB')\na, b, c = (gpu.empty(f'{n} MiB') for n in (1000, 1100, 1050))",
        CHEAP,
        "y = gpu.empty('3.2 GiB')",
    ),
    "del kept": (f"{FAIL}\ntry:\n    fail()\nexcept Exception as e:\n    kept = e", CHEAP, "y = gpu.empty('2 GiB')"),
    "%%cuda_guard": ("idle = gpu.empty('2 GiB')", "--without spill", "y = gpu.empty('2 GiB').nbytes"),
    "%%cuda_guard --free-outputs": ("gpu.empty('2 GiB')", "--no-move", "y = gpu.empty('2 GiB')"),
    "%%cuda_guard --shrink batch_size": ("batch_size = 128", "", "y = gpu.empty(batch_size << 25)"),
    "%%cuda_guard --shrink bs": ("bs = 128", "--shrink bs=100", "y = gpu.empty(bs << 25)"),
    "%%cuda_guard --repeat": (
        "class N:\n    def __init__(s): s.x = gpu.empty('2 GiB'); s.me = s\ndef use(): return gpu.empty('2 GiB')\n"
        "N(); None",
        "",
        "y = use()",
    ),
    "%gpu_mem --free": (
        "class N:\n    def __init__(s): s.x = gpu.empty('2 GiB'); s.me = s\ndef use(): return gpu.empty('2 GiB')\n"
        "N(); None",
        "",
        "y = use()",
    ),
    "%%cuda_guard --wait 60": (
        "gpu.limit('24 GiB'); gpu.empty('1 MiB'); gpu.other_process('22 GiB', pid=4242, seconds=4)",
        "",
        "y = gpu.empty('6 GiB')",
    ),
}


@pytest.mark.parametrize("line", REMEDIES)
def test_what_is_advised_helps(notebook, line):
    """A magic's line goes on the first line of the cell; another is run before it. Then the cell succeeds."""
    before, options, cell = REMEDIES[line]
    assert run(notebook, before).success
    found = advice(notebook, options, cell)
    assert line in found, found
    if line.startswith("%%"):
        assert run(notebook, f"{line}\n{cell}").success
    else:
        assert run(notebook, line).success
        assert run(notebook, f"%%cuda_guard {options}\n{cell}").success


def test_a_collection_within_the_statement_helps(notebook):
    """The statement's own cycles: with the line in its loop it succeeds."""
    run(notebook, "class N:\n    def __init__(s): s.x = gpu.empty('0.9 GiB'); s.me = s")
    cell = "for _ in range(6):\n    N() and None\n"
    found = advice(notebook, "--repeat", cell)
    assert "import gc; gc.collect()" in found, found
    assert run(notebook, f"%%cuda_guard\n{cell}    import gc; gc.collect()\n").success


def test_a_name_that_was_read_before_is_moved(notebook):
    """The earlier statement goes into a cell of its own, as it is said; the same option then works."""
    run(notebook, "bs = 128")
    found = advice(notebook, "--shrink bs", "n = bs + 1\ny = gpu.empty(bs << 25)")
    line = next(line for line, why in found.items() if why.startswith("move the earlier statement"))
    assert run(notebook, "n = bs + 1").success
    assert run(notebook, f"{line}\ny = gpu.empty(bs << 25)").success


@pytest.mark.parametrize(
    ("before", "cell", "word"),
    [
        ("bs = 2", "y = gpu.empty(bs << 33)", "--shrink"),  # not even 1 would fit
        ("small = gpu.empty('100 MiB')", "y = gpu.empty('20 GiB')", "del "),  # all that may go would not do
    ],
)
def test_what_cannot_help_is_not_said(notebook, before, cell, word):
    """An advice whose end can be seen beforehand is left out."""
    run(notebook, before)
    assert not any(word in line for line in advice(notebook, "", cell))


LOOKS = ("%debug", "%tb", "%cuda_doctor", "%gpu_mem --who", "%gpu_mem --map", "!free -h", "!df -h /dev/shm")


@pytest.mark.parametrize("line", LOOKS[1:])
def test_a_line_that_looks_runs(notebook, line, capsys):
    """Lines that show something: they run after a failure, as they stand."""
    run(notebook, "1 / 0")
    assert run(notebook, line).success
    assert capsys.readouterr().out.strip()


LOOP = """%%cuda_guard --repeat {}
for i in range(6):
    total = i * 10
    seen.append(i)
    history = {{'last': [i, 'x']}}
    big = gpu.empty('0.7 GiB')
    keep.append(big)
    if i == 5: gpu.empty('1 GiB')"""


@pytest.mark.parametrize("options", ["", CHEAP, "--shrink batch=2"])
def test_a_failed_rescue_leaves_what_the_loop_had_made(notebook, options):
    """Numbers, text, lists of them: as the plain cell leaves them, whatever was tried in between."""
    run(notebook, "total, seen, keep, history, batch = -1, [], [], None, 2")
    assert not run(notebook, LOOP.format(options)).success
    names = notebook.user_ns
    last = names["seen"][-1]
    assert names["i"] == last
    assert names["total"] == 10 * last
    assert names["history"] == {"last": [last, "x"]}
    assert names["keep"]


def test_files_stay(notebook, tmp_path):
    """What was written before the error is written."""
    notebook.user_ns["path"] = tmp_path / "log.txt"
    cell = "with path.open('a') as f:\n    f.write('step 1\\n')\n    y = gpu.empty('4 GiB')"
    assert not run(notebook, f"%%cuda_guard\n{cell}").success
    assert (tmp_path / "log.txt").read_text() == "step 1\n"
