"""Mistakes in what is typed, and objects of the user's that fail when they are looked at."""

from __future__ import annotations

import pytest

from cuda_magic.errors import UserError, nearest

MISTAKES = {
    "%cuda_env --export": "cuda_env: --export needs a value, as in --export FORMAT.",
    "%cuda_env --unset": "cuda_env: --unset needs a value, as in --unset NAME.",
    "%cuda_doctor --show": "cuda_doctor: unknown option --show. Did you mean '--show-private'?",
    "%gpu_mem --inter 2": "gpu_mem: unknown option --inter. Did you mean '--interval'?",
    "%gpu_mem --interval x": "gpu_mem: --interval takes a number of seconds, not 'x'.",
    "%gpu_mem --df --json": "gpu_mem: --df and --json are two forms of one answer; ask for one.",
    "%gpu_mem --interval inf": "gpu_mem: --interval takes seconds from 0.25 to 86400, not inf.",
    "%gpu_mem --interval nan": "gpu_mem: --interval takes seconds from 0.25 to 86400, not nan.",
    "%gpu_mem --alert x": "gpu_mem: --alert takes a whole number, not 'x'.",
    '%gpu_mem --log ""': "gpu_mem: --log takes the name of a file, not an empty one.",
    '%gpu_mem --replay ""': "gpu_mem: --replay takes the name of a file, not an empty one.",
    '%gpu_mem --snapshot ""': "gpu_mem: --snapshot takes the name of a file, not an empty one.",
    '%gpu_mem --once "': "gpu_mem: '--once \"': no closing quotation.",
    "%%gpu_mem --alert 50\n1": ("%%gpu_mem takes a cell and no --alert; write %gpu_mem --alert on a line of its own."),
    "%%cuda_guard --retries x\n1": "cuda_guard: --retries takes a whole number, not 'x'.",
    "%%cuda_guard --park cuda:1\n1": (
        "cuda_guard: --park is gone: what has to wait waits on the host, at the speed of the link."
    ),
    "%%cuda_guard --reserve 1GiB\n1": (
        "cuda_guard: --reserve is gone: room is now made at the request that finds none, without memory that "
        "waits for it."
    ),
    "%%cuda_guard --wait nan\n1": "cuda_guard: --wait is 0 seconds or more, not nan.",
    "%%cuda_guard --wait -5\n1": "cuda_guard: --wait is 0 seconds or more, not -5.",
    "%%cuda_guard --wait 1m\n1": "cuda_guard: --wait takes a number of seconds, not '1m'.",
    "%%cuda_guard --retries -1\n1": "cuda_guard: --retries is 0 or more, not -1.",
    "%%cuda_guard --retries 1 --retries 2\n1": (
        "cuda_guard: --retries is given twice; write it once, as in --retries N."
    ),
    "%%cuda_guard --checkpoint bs,name\n1": (
        "cuda_guard: --checkpoint is gone: room is now made before the error and nothing is repeated; "
        "--repeat says that the statement may run again."
    ),
    "%%cuda_guard --repeat-anyway\n1": (
        "cuda_guard: --repeat-anyway is gone: --repeat says that the statement may run again."
    ),
    "%%cuda_guard --repaet\n1": "cuda_guard: unknown option --repaet. Did you mean '--repeat'?",
    "%%cuda_guard --limit 1 GiB\n1": (
        "cuda_guard: takes no argument 'GiB'; --limit takes one word, as in --limit SIZE."
    ),
    "%%cuda_guard --limit -1GiB\n1": ("cuda_guard: --limit takes a size such as 2GiB or 512MiB, not '-1GiB'."),
    "%%cuda_guard --shrink Bs\n1": "cuda_guard: --shrink names 'Bs', which does not exist. Did you mean 'bs'?",
    "%%cuda_guard --shrink name\n1": ("cuda_guard: --shrink name: name is no whole number (int) but of the class str."),
    "%%cuda_guard --shrink flag\n1": (
        "cuda_guard: --shrink flag: flag is no whole number (int) but of the class bool."
    ),
    "%%cuda_guard --shrink bs --grow name\n1": (
        "cuda_guard: --grow name: name is no whole number (int) but of the class str."
    ),
    "%%cuda_guard --shrink bs=128\n1": "cuda_guard: --shrink bs=128: bs is 64 already, below that.",
    "%%cuda_guard --shrink cfg.bs\n1": (
        "cuda_guard: --shrink takes the name of a variable, not 'cfg.bs'; "
        "give it a name of its own in an earlier cell, as in size = cfg.bs."
    ),
    "%%cuda_guard --shrink bs=0\n1": (
        "cuda_guard: --shrink bs=0: the smallest value is an integer of 1 or more, as in bs=8."
    ),
    "%%cuda_guard --else name=cpu\n1": (
        "cuda_guard: --else name=cpu: there is no cpu; a text stands in quotes, as in name='cpu'."
    ),
    "%%cuda_guard --else bs=half(bs)\n1": "cuda_guard: --else bs=half(bs): there is no half.",
    "%%cuda_guard --else bs=1 bs=2\n1": "cuda_guard: --else gives bs two values.",
    "%%cuda_guard --else name = 'cpu'\n1": (
        "cuda_guard: --else takes NAME=EXPR with no space around =, as in device='cpu', not 'name'."
    ),
    "%%cuda_guard --only shrink\n1": "cuda_guard: --only shrink needs --shrink NAME.",
    "%%cuda_guard --only retry\n1": "cuda_guard: --only leaves no rung that makes room.",
    "%%cuda_guard --only compact,spill --no-move\n1": "cuda_guard: --only compact,spill and --no-move leave no rung.",
    "%%cuda_guard --report print\n1": (
        "cuda_guard: --report print: print is a name of Python's or IPython's own; choose another."
    ),
    "%%cuda_guard --report bs\n1": (
        "cuda_guard: --report bs: bs is there already (int), and the report would replace it."
    ),
    "%%cuda_guard --help\n1": "cuda_guard: unknown option --help. %cuda_guard? shows all of them.",
    "%cuda_guard --all --shrink nobody": "cuda_guard: --shrink names 'nobody', which does not exist.",
    "%cuda_guard --off --retries 4": "cuda_guard: --off ends --all, and goes with no other option.",
    "%%cuda_guard --report class\n1": "cuda_guard: --report takes the name of a variable, not 'class'.",
    "%%cuda_guard --only ,\n1": "cuda_guard: --only names at least a rung, as in holders,collect, not ','.",
    "%%cuda_guard --quiet=1\n1": "cuda_guard: --quiet takes no value.",
    "%cuda_guard --all --retry-at-call": (
        "cuda_guard: --retry-at-call is gone: room is now made where an operation asks for memory, "
        "in every guarded cell."
    ),
    "%%cuda_guard --wait 5 --only holders\n1": "cuda_guard: --wait needs wait in --only, as in --only holders,wait.",
    "%%cuda_guard --only holders --without holders\n1": (
        "cuda_guard: --only and --without leave no rung that makes room."
    ),
    "%%cuda_guard --report out\nout = 1": (
        "cuda_guard: --report out: the cell itself assigns out, and the report would replace it."
    ),
    "%%cuda_guard --shrink bs --grow bs\n1": "cuda_guard: --shrink and --grow name the same variable, bs.",
    "%%cuda_guard --shrink for\n1": "cuda_guard: --shrink takes the name of a variable, not 'for'.",
}


@pytest.fixture
def names(loaded):
    """Variables, and two practice cards."""
    import cuda_magic.testing

    cuda_magic.testing.gpu(["24 GiB", "8 GiB"], force=True)
    loaded.user_ns.update(bs=64, accum=1, name="a", flag=True, device="cuda")
    yield
    cuda_magic.machine.use(None)


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_runs(loaded, names, capsys, typed):
    """The magic's name, what is wrong and what is right, in one line; the cell below does not run."""
    result = loaded.run_cell(typed)
    assert isinstance(result.error_in_exec, UserError) and result.result is None
    assert str(result.error_in_exec) == MISTAKES[typed]
    assert capsys.readouterr().out.strip().splitlines()[-1] == f"UserError: {MISTAKES[typed]}"


@pytest.mark.parametrize(
    "line",
    [
        "--else device='cpu' bs=bs//2",
        "--else bs=max(n for n in (1, accum))",
        "--else bs=(lambda n: n)(1)",
        "--else bs=made",
        "--wait '60'",
        "--repeat",
        "--shrink bs=64",
        "--report r",
        "--limit '512 MiB'",
        "--only holders,retry",
        "--retries 0 --wait 0",
    ],
)
def test_what_may_be_right_is_not_refused(loaded, names, line):
    """Names that the cell makes, builtins, quoted values, a card that may be full or not: twice the same cell."""
    for _ in range(2):
        result = loaded.run_cell(f"%%cuda_guard {line}\nmade = 1\nmade + 1")
        assert result.error_in_exec is None
        assert result.result == 2


def test_options_of_all_that_a_cell_cannot_take_are_left_out_there(loaded, names, capsys):
    """--all --shrink bs: a cell that assigns bs itself runs as ever, without the option; the next has it again."""
    loaded.run_cell("%cuda_guard --all --shrink bs --grow accum --report r")
    assert loaded.run_cell("bs = 32\nr = 5\nbs + r").result == 37
    assert loaded.user_ns["r"] == 5
    assert loaded.run_cell("del r").error_in_exec is None
    assert loaded.run_cell("bs + 1").result == 33
    assert loaded.run_cell("r.status").result == "ok"
    loaded.run_cell("%cuda_guard --off")
    assert "Error" not in capsys.readouterr().out


def test_a_namespace_may_hold_keys_that_are_no_names(loaded):
    """globals()[5] = ... is legal Python, and does not hide the sentence about a mistake."""
    loaded.user_ns[5] = 1
    result = loaded.run_cell("%%cuda_guard --shrink batchsize\n1")
    assert str(result.error_in_exec).startswith("cuda_guard: --shrink names 'batchsize', which does not exist.")
    assert nearest("abd", [5, "abc"]) == " Did you mean 'abc'?"


@pytest.mark.parametrize("error", ["SystemExit", "ValueError", "GeneratorExit"])
@pytest.mark.parametrize("where", ["__class__", "__dict__"])
def test_an_object_that_fails_when_looked_at_does_not_hide_the_users_error(loaded, error, where):
    """The search for holders meets such an object: the cell still ends with its own out of memory."""
    import cuda_magic.testing

    loaded.user_ns["gpu"] = cuda_magic.testing.gpu(["24 GiB"], force=True)
    try:
        loaded.run_cell(f"class Bad:\n    @property\n    def {where}(self): raise {error}\nbad = Bad()")
        result = loaded.run_cell("%%cuda_guard\nx = gpu.empty(1 << 50)")
        assert type(result.error_in_exec).__name__ == "OutOfMemoryError"
    finally:
        cuda_magic.machine.use(None)
