"""A repeat starts from the same state, or there is none: names, random states, tensors, gradients, iterators."""

import random

import pytest

OOM = "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB')"
ONCE = f"""
import types
Times = types.ModuleType("times")  # attributes of modules are not looked at
Times.n = 0
def oom_once():
    Times.n += 1
    if Times.n == 1: {OOM}
"""


@pytest.fixture
def once(cells):
    """A namespace with ``oom_once()``, which runs out of memory the first time."""
    cells.plain(ONCE)
    return cells


def test_random_states_of_python_numpy_and_own_generators_go_back(once):
    """A rescued statement draws the numbers that it would have drawn with enough memory."""
    numpy = pytest.importorskip("numpy")
    once.plain("import random, numpy\nrng = numpy.random.default_rng(3)\nown = random.Random(4)")
    draw = "a = (random.random(), numpy.random.rand(), rng.random(), own.random()); oom_once()"
    random.seed(1)
    numpy.random.seed(2)
    wanted = (random.random(), numpy.random.rand(), numpy.random.default_rng(3).random(), random.Random(4).random())
    random.seed(1)
    numpy.random.seed(2)
    assert once.guard(f"for _ in range(1):\n  {draw}") is None
    assert once.names["a"] == wanted
    assert once.report.attempts == 2


@pytest.mark.torch
def test_torch_draws_the_same_numbers(once):
    """torch's CPU generator and a generator of the user's own."""
    once.plain("import torch\ntorch.manual_seed(7)\ng = torch.Generator().manual_seed(8)")
    code = "a = (torch.rand(3), torch.rand(2, generator=g)); oom_once()"
    assert once.guard(f"for _ in range(1):\n  {code}") is None
    import torch

    torch.manual_seed(7)
    assert torch.equal(once.names["a"][0], torch.rand(3))
    assert torch.equal(once.names["a"][1], torch.rand(2, generator=torch.Generator().manual_seed(8)))


TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
data = torch.randn(20, 8, 4)
"""
LOOP = """
for step in range(20):
    optimizer.zero_grad()
    loss = model(data[step]).square().mean()
    if step == 7: oom_once()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.torch
def test_a_training_loop_is_never_silently_started_again(once):
    """Out of memory at step 7 of 20: refused with the reason, and the lines that would help."""
    once.plain(TRAIN)
    error = once.guard(LOOP)
    assert "out of memory" in str(error)
    assert once.report.status == "refused"
    assert once.report.attempts == 1
    assert "parameters were updated: model" in once.report.notes[0]
    assert [s.line for s in once.report.next_steps[:3]] == [
        "%%cuda_guard --retry-at-call",
        "%%cuda_guard --checkpoint model,optimizer",
        "%%cuda_guard --repeat-anyway",
    ]


@pytest.mark.torch
def test_with_a_checkpoint_the_loop_gives_the_numbers_of_a_run_with_enough_memory(once):
    """--checkpoint model,optimizer: started again from the state before it, bitwise the same weights."""
    import torch

    once.plain(TRAIN)
    assert once.guard(LOOP, checkpoint=("model", "optimizer")) is None
    assert once.report.status == "rescued"
    assert once.report.loops is False  # told only below an error
    rescued = once.names["model"].weight.clone()
    once.plain(TRAIN)
    once.plain(LOOP)
    assert torch.equal(rescued, once.names["model"].weight)


@pytest.mark.torch
def test_scenario_10_gradients_are_not_counted_twice(once):
    """A backward that fails after some gradients were accumulated is refused; with a checkpoint they are put back."""
    once.plain(TRAIN + "model(data[0]).sum().backward()\n")
    import torch

    before = once.names["model"].weight.grad.clone()
    code = "for _ in range(1):\n  model(data[1]).sum().backward(); oom_once()"
    assert once.guard(code) is not None
    assert "gradients were accumulated" in once.report.notes[0]
    once.names["Times"].n = 0
    once.names["model"].weight.grad.copy_(before)
    assert once.guard(code, checkpoint=("model", "optimizer")) is None, once.report
    expected = before + once.names["data"][1].sum(0, keepdim=True)
    assert torch.allclose(once.names["model"].weight.grad, expected)


@pytest.mark.torch
def test_gradients_that_were_not_there_are_taken_away_for_the_repeat(once):
    """A backward that failed half way through the first step: repeated without a checkpoint, nothing counted twice."""
    once.plain(TRAIN + "for p in model.parameters(): p.grad = None\n")
    import torch

    assert once.guard("for _ in range(1):\n  model(data[1]).sum().backward(); oom_once()") is None, once.report
    assert once.report.status == "rescued"
    assert torch.equal(once.names["model"].weight.grad, once.names["data"][1].sum(0, keepdim=True))


@pytest.mark.torch
def test_a_graph_that_an_earlier_statement_made_is_used_up(once):
    """The backward pass of the repeat cannot run: the first error shows and not torch's own; the report says why."""
    from cuda_magic import guard

    once.plain(TRAIN + "for p in model.parameters(): p.grad = None\nloss = model(data[0]).square().sum()\n")
    once.names["guarded"] = guarded = guard(quiet=True)
    once.plain("@guarded\ndef step():\n  loss.backward(); oom_once()")
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        once.plain("step()")
    report = guarded.report
    assert (report.status, report.attempts) == ("failed", 2)
    assert any("used up the graph" in note for note in report.notes)


@pytest.mark.torch
def test_with_retain_graph_it_is_not_used_up(once):
    """Then the repeat gives the plain gradients."""
    once.plain(TRAIN + "for p in model.parameters(): p.grad = None\nloss = model(data[0]).square().sum()\n")
    import torch

    assert once.guard("for _ in range(1):\n  loss.backward(retain_graph=True); oom_once()") is None
    rescued = once.names["model"].weight.grad.clone()
    once.plain("model.zero_grad(); loss.backward()")
    assert torch.equal(rescued, once.names["model"].weight.grad)


@pytest.mark.parametrize(
    ("setup", "code", "said"),
    [
        ("losses = []", "for i in range(3):\n  losses.append(i); oom_once()", "changed in place: losses"),
        ("log = {'a': []}", "for i in range(3):\n  log['a'].append(i); oom_once()", "changed in place: log"),
        ("it = iter([1, 2, 3])", "x = (next(it), oom_once())", "iterators may have moved on: it"),
        ("gen = (i for i in range(9))", "x = (next(gen), oom_once())", "iterators may have moved on: gen"),
        ("z = zip([1, 2], [3, 4])", "x = (next(z), oom_once())", "iterators may have moved on: z"),
        (
            "total = 0\ndef f():\n  global total\n  total += 1\n  oom_once()",
            "f()",
            "names changed by a function (global): total",
        ),
    ],
    ids=["list", "nested list", "iterator", "generator", "unknown iterator", "global"],
)
def test_what_cannot_be_put_back_is_not_repeated(once, setup, code, said):
    """One attempt, the reason; with --repeat-anyway two attempts."""
    once.plain(setup)
    assert once.guard(code) is not None
    assert (once.report.status, once.report.attempts) == ("refused", 1)
    assert said in once.report.notes[0]
    once.plain(setup)
    once.names["Times"].n = 0
    assert once.guard(code, repeat_anyway=True) is None
    assert once.report.attempts == 2


def test_a_list_kept_by_a_checkpoint_goes_back(once):
    """--checkpoint losses: three entries after the rescue, not four."""
    once.plain("losses = [0]")
    assert once.guard("for i in range(3):\n  losses.append(i); oom_once()", checkpoint=("losses",)) is None
    assert once.names["losses"] == [0, 0, 1, 2]


def test_a_statement_that_reads_only_is_repeated(once):
    """Nothing changed in place: one repeat, although lists and generators stand in the namespace."""
    once.plain("losses = [1, 2]\ngen = (i for i in range(9))\nnext(gen)")
    assert once.guard("x = [sum(losses), oom_once()]") is None
    assert once.report.attempts == 2
    assert next(once.names["gen"]) == 1


def test_guard_as_a_decorator_and_as_a_context_manager(practice, capsys):
    """The decorated function is repeated as a whole; a block only gets the report below the error."""
    import cuda_magic

    gpu = practice.gpu
    gpu.limit("3 GiB")
    cycle = [gpu.empty("2 GiB")]
    cycle.append(cycle)
    del cycle

    @cuda_magic.guard
    def work(size):
        return gpu.empty(size)

    assert work("2 GiB").nbytes == 2 << 30
    assert work.guard.report.status == "rescued"
    assert "the function ran out of GPU memory" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="out of memory"):
        work("4 GiB")
    assert work.guard.report.status == "failed"
    with pytest.raises(RuntimeError, match="out of memory"), cuda_magic.guard() as block:
        gpu.empty("4 GiB")
    assert block.report.status == "failed"
    with pytest.raises(cuda_magic.UserError, match="Did you mean 'retries'"):
        cuda_magic.guard(retrys=1)


def test_marks_cost_microseconds(practice):
    """Before a statement, in a namespace of 500 names: well under the 0.3 ms of a whole cell."""
    import ast
    import time

    from cuda_magic.cells.rescuer import Step
    from cuda_magic.rescue.guard import GuardRun
    from cuda_magic.rescue.options import GuardOptions

    names = {f"n{i}": [i] if i % 5 == 0 else i for i in range(500)}
    node = ast.parse("f(n1)").body[0]
    step = Step(0, "f(n1)", 1, 1, frozenset(), False, node)
    run = GuardRun(GuardOptions())
    run.before(step, names)
    best = min(_timed(lambda: run.before(step, names)) for _ in range(50))
    assert best < 1e-3
    del time


def _timed(call) -> float:
    import time

    started = time.perf_counter()
    call()
    return time.perf_counter() - started


WHOLE = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
scaler = torch.amp.GradScaler("cpu", growth_interval=3)
ema = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
data = torch.randn(20, 8, 4)
def step(i):
    optimizer.zero_grad()
    scaler.scale(model(data[i]).square().mean()).backward()
    scaler.unscale_(optimizer)
    if i == 7: oom_once()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    ema.update_parameters(model)
"""


@pytest.mark.torch
@pytest.mark.parametrize("already", [0, 3], ids=["from the start", "after three steps"])
def test_a_checkpoint_of_a_whole_training_is_bitwise(once, already):
    """Scheduler, GradScaler (failed between unscale_ and update) and EMA module as in a run with enough memory."""
    torch = pytest.importorskip("torch")
    names = ("model", "optimizer", "scheduler", "scaler", "ema")

    def states():
        found = {name: once.names[name].state_dict() for name in names}
        return [*_leaves(found), torch.get_rng_state(), *(p.grad for p in once.names["model"].parameters())]

    first = WHOLE + f"for i in range({already}):\n  step(i)\n"
    loop = f"for i in range({already}, 20):\n  step(i)"
    once.plain(first)
    assert once.guard(loop, checkpoint=names) is None, once.report
    assert once.report.attempts == 2
    rescued = states()
    once.plain(first)
    once.plain(loop)  # oom_once() raises no more
    wanted = states()
    assert len(rescued) == len(wanted) > 30
    for one, other in zip(rescued, wanted, strict=True):
        assert torch.equal(one, other) if isinstance(other, torch.Tensor) else one == other


def _leaves(value):
    if isinstance(value, dict):
        return [leaf for key in value for leaf in (key, *_leaves(value[key]))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def test_a_name_that_is_no_string_costs_neither_marks_nor_report(practice, capsys):
    """globals()[5] = a tensor: no error of ours, and a change of that tensor forbids the repeat like any other."""
    practice.plain("gpu.limit('1 GiB')\nglobals()[5] = gpu.empty('1 MiB')\nglobals()[(1,)] = [gpu.empty('1 MiB')]")
    assert practice.guard("y = 5\nz = abs(y)") is None
    error = practice.guard("globals()[5].fill_(1)\ny = gpu.empty('2 GiB')", only=("holders", "collect"))
    assert "out of memory" in str(error)
    assert repr(practice.report)
    error = practice.guard("for i in (1, 2):\n  globals()[5].fill_(i)\n  if i == 2: y = gpu.empty('1023 MiB')")
    assert practice.report.status == "refused"
    assert "globals()[5]" in " ".join(practice.report.notes)
    assert "an error of its own" not in capsys.readouterr().err


def test_an_object_without_state_dict_is_kept_as_a_deep_copy(once):
    """--checkpoint counter: its fields go back, and it stays the same object."""
    once.plain("class Counter:\n  def __init__(self): self.n, self.seen = 0, [1]\ncounter = Counter()\nsame = counter")
    code = "for i in range(2):\n  counter.n += 1; counter.seen.append(i); oom_once()"
    assert once.guard(code, checkpoint=("counter",), repeat_anyway=True) is None
    assert (once.names["counter"].n, once.names["counter"].seen) == (2, [1, 0, 1])
    assert once.names["counter"] is once.names["same"]


def test_an_object_that_cannot_be_copied_is_said(once):
    """A lock can be neither asked for its state nor copied: a note, and the cell runs."""
    once.plain("import threading\nclass Held:\n  def __init__(self): self.lock = threading.Lock()\nheld = Held()")
    assert once.guard("x = (held, oom_once())", checkpoint=("held",)) is None
    assert any("cannot be kept by --checkpoint" in note for note in once.report.notes)


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
        assert practice.guard(code) is None
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
        ({"no_move": True, "move_anyway": True}, "guard: no_move and move_anyway contradict each other."),
        ({"park": "1"}, "guard: park takes another card such as cuda:1, not '1'."),
        ({"only": ("colect",)}, "guard: no rung 'colect'. Did you mean 'collect'?"),
    ],
)
def test_a_mistake_in_a_script_is_one_sentence(options, said):
    """cuda_magic.guard(...): told when it is called, not when memory runs out."""
    import cuda_magic

    with pytest.raises(cuda_magic.UserError) as caught:
        cuda_magic.guard(**options)
    assert str(caught.value) == said


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
    """only, without and checkpoint take what a cell's first line takes: names with commas between them."""
    import cuda_magic

    made = cuda_magic.guard(only="holders, collect", checkpoint="model,optimizer")
    assert made.options.only == ("holders", "collect") and made.options.checkpoint == ("model", "optimizer")
    with pytest.raises(cuda_magic.UserError, match="no rung 'colect'. Did you mean 'collect'"):
        cuda_magic.guard(without="colect")
