"""A repeat that the user allowed: what goes back before it, and what it never hides. And the guard of scripts."""

import gc
import random

import pytest

OOM = "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB')"
ONCE = f"""
import types
Times = types.ModuleType("times")
Times.n = 0
def oom_once():
    Times.n += 1
    if Times.n == 1: {OOM}
"""


@pytest.fixture
def once(cells):
    """A namespace with ``oom_once()``, which runs out of memory the first time; every statement may run again."""
    cells.plain(ONCE)
    cells.repeat = True
    return cells


def test_random_states_of_python_and_numpy_go_back(once):
    """A rescued statement draws the numbers that it would have drawn with enough memory."""
    numpy = pytest.importorskip("numpy")
    once.plain("import random, numpy")
    random.seed(1)
    numpy.random.seed(2)
    wanted = (random.random(), numpy.random.rand())
    random.seed(1)
    numpy.random.seed(2)
    assert once.guard("for _ in range(1):\n  a = (random.random(), numpy.random.rand()); oom_once()") is None
    assert once.names["a"] == wanted
    assert once.report.attempts == 2


@pytest.mark.torch
def test_torch_draws_the_same_numbers(once):
    """torch's CPU generator."""
    once.plain("import torch\ntorch.manual_seed(7)")
    assert once.guard("for _ in range(1):\n  a = torch.rand(3); oom_once()") is None
    import torch

    torch.manual_seed(7)
    assert torch.equal(once.names["a"], torch.rand(3))


@pytest.mark.torch
def test_a_training_loop_is_never_silently_started_again(once):
    """Out of memory at step 7 of 20: seven steps stay taken, the reason is said, and how to go on from there."""
    once.plain(
        "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)\ndata = torch.randn(20, 8, 4)"
    )
    loop = (
        "for step in range(20):\n    optimizer.zero_grad()\n    loss = model(data[step]).square().mean()\n"
        "    if step == 7: oom_once()\n    loss.backward()\n    optimizer.step()\n"
    )
    assert "out of memory" in str(once.guard(loop, repeat=False))
    assert (once.report.status, once.report.attempts) == ("refused", 1)
    assert once.report.notes == ("not repeated: its loop would start again from the top",)
    assert once.names["optimizer"].state[once.names["model"].weight]["step"] == 7
    assert "--repeat" not in once.report.next_steps[0].line


@pytest.mark.torch
def test_a_graph_that_an_earlier_statement_made_is_used_up(once):
    """The backward pass of the repeat cannot run: the first error shows and not torch's own; the report says why."""
    from cuda_magic import guard

    once.plain("import torch\nmodel = torch.nn.Linear(4, 1)\nloss = model(torch.ones(8, 4)).square().sum()\n")
    once.names["guarded"] = guarded = guard(repeat=True, quiet=True)
    once.plain("@guarded\ndef step():\n  loss.backward(); oom_once()")
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        once.plain("step()")
    report = guarded.report
    assert (report.status, report.attempts) == ("failed", 2)
    assert any("used up the graph" in note for note in report.notes)


REPEATS_OWN = {
    "an index": ("seen = [1]", "x = (seen.pop(), oom_once())", "IndexError: pop from empty list"),
    "an attribute": ("class A: n = 1\na = A(); a.m = 2", "x = (delattr(a, 'm'), oom_once())", "AttributeError: "),
    "an iterator": ("it = iter([1])", "x = (next(it), oom_once())", "StopIteration"),
    "a class whose text fails": (
        "class Bad(Exception):\n    def __str__(s): raise ValueError\n"
        "def f():\n    if Times.n: raise Bad\n    oom_once()",
        "f()",
        "Bad",
    ),
}


@pytest.mark.parametrize(("setup", "code", "said"), REPEATS_OWN.values(), ids=REPEATS_OWN)
def test_what_the_repeat_itself_raises_never_hides_the_memory_error(once, setup, code, said):
    """The memory error is raised; how the repeat ended is a note."""
    once.plain(setup)
    assert "out of memory" in str(once.guard(code))
    assert (once.report.status, once.report.attempts, once.report.kind) == ("failed", 2, "gpu-memory")
    assert any(note.startswith(f"the repeat ended with {said}") for note in once.report.notes)


@pytest.mark.torch
def test_a_pruned_module_says_that_memory_ran_out(once):
    """prune.l1_unstructured takes the weight away before it fails: its repeat finds none."""
    once.plain(
        "import torch\nfrom torch.nn.utils import prune\nm = torch.nn.Linear(2, 2)\n"
        "def cut():\n    del m._parameters['weight']\n    oom_once()\n    prune.l1_unstructured(m, 'weight', 1)"
    )
    for options in ({}, {"repeat": False}):
        once.plain("m.weight = torch.nn.Parameter(torch.ones(2, 2)); Times.n = 0")
        assert "out of memory" in str(once.guard("cut()", **options))
        assert once.report.kind == "gpu-memory"


def test_the_users_own_error_after_a_first_call_is_the_users(practice):
    """Nothing had happened before the repeat: what it raises is what a run with enough memory raises."""
    practice.plain("gpu.limit('3 GiB')\nheld = [gpu.empty('2 GiB')]; held.append(held); del held")
    assert type(practice.guard("x = gpu.empty('2 GiB').nothing")) is AttributeError
    assert practice.report.status == "error"


def test_a_value_that_is_gone_forbids_the_repeat(practice, loaded):
    """x was rebound and its old value has died: a repeat would start from another x, so --repeat cannot help."""
    loaded.user_ns["gpu"] = practice.gpu
    loaded.run_cell("gpu.limit('3 GiB')\nx = gpu.empty('1 MiB')")
    code = "%%cuda_guard --repeat --report r\nfor i in range(2): y = x.sum(); x = gpu.empty('1.9 GiB')"
    assert not loaded.run_cell(code).success
    report = loaded.user_ns["r"]
    assert (report.status, report.notes[-1]) == ("refused", "not repeated: the earlier value of x is gone")
    assert not any("--repeat" in step.line for step in report.next_steps)


def test_guard_as_a_decorator_and_as_a_context_manager(practice, capsys):
    """A function is repeated only with repeat=True; else, and for a block, there is the report below the error."""
    import cuda_magic

    gpu = practice.gpu
    gpu.limit("3 GiB")
    gc.disable()

    def waste():
        cycle = [gpu.empty("2 GiB")]
        cycle.append(cycle)

    def work(size):
        return gpu.empty(size)

    waste()
    plain = cuda_magic.guard(work)
    with pytest.raises(RuntimeError, match="out of memory"):
        plain("2 GiB")
    report = plain.guard.report
    assert (report.status, report.attempts) == ("refused", 1)
    assert [step.line for step in report.next_steps][-1] == "cuda_magic.guard(repeat=True)"
    assert "cuda_guard: not repeated" in capsys.readouterr().err
    again = cuda_magic.guard(repeat=True)(work)
    assert again("2 GiB").nbytes == 2 << 30
    gc.enable()
    assert again.guard.report.status == "rescued"
    assert "the function ran out of GPU memory" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="out of memory"):
        again("4 GiB")
    assert again.guard.report.status == "failed"
    with pytest.raises(RuntimeError, match="out of memory"), cuda_magic.guard() as block:
        gpu.empty("4 GiB")
    assert block.report.status == "refused"
    with pytest.raises(cuda_magic.UserError, match="Did you mean 'retries'"):
        cuda_magic.guard(retrys=1)


def test_before_a_statement_next_to_nothing_is_done(practice):
    """In a namespace of 500 names: microseconds, and no name is looked at."""
    import ast
    import time

    from cuda_magic.cells.rescuer import Step
    from cuda_magic.rescue.guard import GuardRun
    from cuda_magic.rescue.options import GuardOptions

    names = {f"n{i}": [i] if i % 5 == 0 else i for i in range(500)}
    node = ast.parse("f(n1)").body[0]
    steps = [Step(i, "f(n1)", 1, 1, frozenset(), False, node) for i in range(50)]
    run, took = GuardRun(GuardOptions()), []
    for step in steps:
        started = time.perf_counter()
        run.before(step, names)
        took.append(time.perf_counter() - started)
    assert min(took) < 2e-4


def test_numbers_after_a_rescue_are_those_of_a_run_with_enough_memory(practice):
    """The practice GPU: python's and numpy's draws and a sum over them, bit by bit, with room and rescued."""
    numpy = pytest.importorskip("numpy")
    code = (
        "total = []\n"
        "for i in range(4):\n"
        "  a = gpu.empty('0.9 GiB'); total = total + [random.random() * numpy.random.rand()]\n"
        "  last = numpy.random.rand(3)"
    )
    practice.plain("import random, numpy\ngpu.limit('3 GiB')")

    def run(fill):
        random.seed(3)
        numpy.random.seed(4)
        if fill:
            practice.plain("held = [gpu.empty('2.5 GiB')]\nheld.append(held)\ndel held")
        assert practice.guard(code, repeat=True) is None
        return practice.names["total"], practice.names["last"].tobytes(), random.random(), numpy.random.rand()

    wanted = run(False)
    assert practice.report.status == "ok"
    practice.plain("a = None")
    rescued = run(True)
    assert practice.report.status == "rescued"
    assert rescued == wanted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shrink": "bs=x"}, "guard: shrink bs=x: the smallest value is an integer of 1 or more, as in bs=8."),
        ({"grow": "accum"}, "guard: grow needs shrink, whose variable goes down."),
        ({"retries": -1}, "guard: retries and wait are 0 or more."),
        ({"wait": float("nan")}, "guard: retries and wait are 0 or more."),
        ({"move_anyway": True}, "guard: move_anyway is gone: what makes room keeps every address, and where one is"),
        ({"retry_at_call": True}, "guard: retry_at_call is gone: room is now made where an operation asks for memory"),
        ({"repeat_anyway": True}, "guard: repeat_anyway is gone: repeat=True says that the statement may run again."),
        (
            {"checkpoint": "model"},
            "guard: checkpoint is gone: room is now made before the error and nothing is repeated; repeat=True says",
        ),
        ({"park": "1"}, "guard: park is gone: what has to wait waits on the host, at the speed of the link."),
        ({"only": ("colect",)}, "guard: no rung 'colect'. Did you mean 'collect'?"),
    ],
)
def test_a_mistake_in_a_script_is_one_sentence(options, said):
    """cuda_magic.guard(...): told when it is called, not when memory runs out."""
    import cuda_magic

    with pytest.raises(cuda_magic.UserError) as caught:
        cuda_magic.guard(**options)
    assert str(caught.value).startswith(said)


async def _coroutine():
    return 1


def _generator():
    yield 1


async def _async_generator():
    yield 1


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (3, "guard: 3 is no function; options are given by name, as in guard(retries=2)."),
        (_coroutine, "guard: _coroutine is a coroutine function, which runs only when it is awaited; "),
        (_generator, "guard: _generator is a generator, which runs only when it is looped over; "),
        (_async_generator, "guard: _async_generator is a generator, which runs only when it is looped over; "),
    ],
)
def test_what_runs_later_is_not_guarded_in_vain(function, sentence):
    """A call of these runs nothing, so no error could be caught: said where they are decorated."""
    import cuda_magic

    with pytest.raises(cuda_magic.UserError) as caught:
        cuda_magic.guard(function)
    assert str(caught.value).startswith(sentence)
    with pytest.raises(cuda_magic.UserError):
        cuda_magic.guard(retries=1)(function)


def test_names_as_one_text():
    """only and without take what a cell's first line takes: names with commas between them."""
    import cuda_magic

    assert cuda_magic.guard(only="holders, collect").options.only == ("holders", "collect")
    with pytest.raises(cuda_magic.UserError, match="no rung 'colect'. Did you mean 'collect'"):
        cuda_magic.guard(without="colect")
