"""Mistakes in what is typed, and objects of the user's that fail when they are looked at."""

from __future__ import annotations

import pytest

from cuda_magic.errors import UserError, nearest

MISTAKES = {
    "%cuda_env --export": "cuda_env: --export needs a value, as in --export FORMAT.",
    "%cuda_env --unset": "cuda_env: --unset needs a value, as in --unset NAME.",
    "%cuda_doctor --show": "cuda_doctor: unknown option --show. Did you mean '--show-private'?",
    "%gpu_mem --inter 2": "gpu_mem: unknown option --inter. Did you mean '--interval'?",
    "%gpu_mem --interval x": "gpu_mem: --interval takes a number, not 'x'.",
    "%gpu_mem --interval inf": "gpu_mem: --interval takes seconds from 0.25 to 86400, not inf.",
    "%gpu_mem --interval nan": "gpu_mem: --interval takes seconds from 0.25 to 86400, not nan.",
    "%gpu_mem --alert x": "gpu_mem: --alert takes a whole number, not 'x'.",
    '%gpu_mem --log ""': "gpu_mem: --log takes the name of a file, not an empty one.",
    '%gpu_mem --replay ""': "gpu_mem: --replay takes the name of a file, not an empty one.",
    '%gpu_mem --snapshot ""': "gpu_mem: --snapshot takes the name of a file, not an empty one.",
    '%gpu_mem --once "': "gpu_mem: '--once \"': no closing quotation.",
    "%%gpu_mem --alert 50\n1": ("%%gpu_mem takes a cell and no --alert; write %gpu_mem --alert on a line of its own."),
    "%%cuda_guard --retries x\n1": "cuda_guard: --retries takes a whole number, not 'x'.",
    "%%cuda_guard --park gpu1\n1": "cuda_guard: --park takes another card such as cuda:1, not 'gpu1'.",
    "%%cuda_guard --reserve much\n1": "cuda_guard: --reserve takes a size such as 2GiB or 512MiB, not 'much'.",
    "%%cuda_guard --wait nan\n1": "cuda_guard: --retries and --wait are 0 or more.",
    "%%cuda_guard --report class\n1": "cuda_guard: --report takes the name of a variable, not 'class'.",
    "%%cuda_guard --checkpoint ,\n1": (
        "cuda_guard: --checkpoint names at least one object, as in model,optimizer, not ','."
    ),
    "%%cuda_guard --only ,\n1": "cuda_guard: --only names at least a rung, as in holders,collect, not ','.",
    "%%cuda_guard --quiet=1\n1": "cuda_guard: --quiet takes no value.",
    "%%cuda_guard --retry-at-call --without retry\n1": (
        "cuda_guard: --retry-at-call and --without retry contradict each other."
    ),
    "%%cuda_guard --wait 5 --only holders\n1": "cuda_guard: --wait needs wait in --only, as in --only holders,wait.",
    "%%cuda_guard --park cuda:1 --only holders\n1": (
        "cuda_guard: --park needs spill, activations or page in --only, as in --only holders,spill."
    ),
    "%%cuda_guard --park cuda:1 --without spill,page,activations\n1": (
        "cuda_guard: --park and --without spill,activations,page contradict each other."
    ),
    "%%cuda_guard --only holders --without holders\n1": "cuda_guard: --only and --without leave no rung.",
    "%%cuda_guard --park cuda:1 --no-move\n1": "cuda_guard: --park and --no-move contradict each other.",
    "%%cuda_guard --report out\nout = 1": (
        "cuda_guard: --report out: the cell itself assigns out, and the report would replace it."
    ),
    "%%cuda_guard --shrink bs --grow bs\n1": "cuda_guard: --shrink and --grow name the same variable, bs.",
    "%%cuda_guard --shrink for\n1": "cuda_guard: --shrink takes the name of a variable, not 'for'.",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_sentence_and_nothing_runs(loaded, capsys, typed):
    """The magic's name, what is wrong and what is right, in one line; the cell below does not run."""
    result = loaded.run_cell(typed)
    assert isinstance(result.error_in_exec, UserError) and result.result is None
    assert str(result.error_in_exec) == MISTAKES[typed]
    assert capsys.readouterr().out.strip().splitlines()[-1] == f"UserError: {MISTAKES[typed]}"


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
        result = loaded.run_cell("%%cuda_guard\nx = gpu.empty(25 << 30)")
        assert type(result.error_in_exec).__name__ == "OutOfMemoryError"
    finally:
        cuda_magic.machine.use(None)
