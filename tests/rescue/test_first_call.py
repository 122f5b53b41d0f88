"""What is repeated unasked: a statement whose first call failed, where that call makes a new array and nothing else."""

from __future__ import annotations

import pytest

from cuda_magic.machine import use

LOOP = "its loop would start again from the top"
BEFORE = "what it did before the call that failed would be done again"


@pytest.fixture
def full(practice):
    """A card of 3 GiB, 2 of them in a cycle that only a collection frees."""
    practice.plain(
        "gpu.limit('3 GiB')\nimport gc\ndef waste():\n  held = [gpu.empty('2 GiB')]; held.append(held)\n"
        "n, shape, it = 2 << 30, (2 << 30, 2), iter(range(99))\n"
        "class Own(int): pass\nown = Own(n)\ndef make(size): return gpu.empty(size)\nwaste()"
    )
    import gc

    gc.disable()
    yield practice
    gc.enable()


@pytest.mark.parametrize(
    "code",
    [
        "x = gpu.empty('2 GiB')",
        "gpu.full(n, 3)",
        "x = y = gpu.empty(n, device=0)",
        "x = gpu.empty(1 << 31)",
        "x = gpu.empty(n // 2 * 2 - 1)",
        "x = gpu.empty(shape[0])",
        "x = [gpu.empty(n), next(it)]",
        "x = gpu.empty(n).sum() + next(it)",
        "print(gpu.empty(n))",
        "gpu.kept = gpu.empty(n)",
    ],
)
def test_the_first_call_is_repeated(full, code):
    """Rescued, with what the rest of the statement does done once."""
    assert full.guard(code) is None
    assert (full.report.status, full.report.attempts) == ("rescued", 2)
    assert next(full.names["it"]) == code.count("next(it)")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("make(n)", "make() would run again"),
        ("for _ in range(1): gpu.empty(n)", LOOP),
        ("while True: gpu.empty(n)", LOOP),
        ("x = [next(it), gpu.empty(n)]", BEFORE),
        ("x = [gpu.empty(n) for _ in range(1)]", ""),
        ("x = gpu.empty(own)", "what gpu.empty() did before the error would be done again"),
        ("x = gpu.empty(own * 1)", BEFORE),
        ("x = gpu.empty(*[n])", BEFORE),
        ("x = gpu.empty(**{'nbytes': n})", BEFORE),
        ("x = gpu.empty(int(n))", BEFORE),
        ("x = gpu.empty(n) or 1", BEFORE),
        ("x = gpu.empty(n) if n else 1", BEFORE),
        ("if gpu.empty(n): pass", BEFORE),
        ("with open('/dev/null') as f: gpu.empty(n)", BEFORE),
        ("x: int = gpu.empty(n)", BEFORE),
        ("x = (lambda: gpu.empty(n))()", ""),
        ("x = gpu.empty('1 GiB'), gpu.empty('1.5 GiB')", BEFORE),
        ("x = list(map(gpu.empty, [n]))", BEFORE),
    ],
)
def test_anything_else_is_not(full, code, why):
    """The error, one attempt, and the reason in one clause."""
    assert "out of memory" in str(full.guard(code))
    assert (full.report.status, full.report.attempts, full.report.rungs) == ("refused", 1, ())
    [note] = full.report.notes
    assert note == f"not repeated: {why}" if why else note.startswith("not repeated: ")
    assert full.report.next_steps[-1].line == "%%cuda_guard --repeat"
    assert "--repeat" not in full.report.next_steps[0].line
    assert full.guard(code.replace("while True", "for _ in range(1)"), repeat=True) is None


@pytest.mark.parametrize(
    "options", [{"shrink": ("n", 1)}, {"otherwise": (("n", "1"),)}, {"wait": 1.0}, {"repeat": True}]
)
def test_who_names_a_repeat_has_allowed_it(full, options):
    """--shrink, --else, --wait and --repeat."""
    assert full.guard("make(n)", **options) is None
    assert full.report.attempts == 2


def test_a_wait_of_the_configuration_names_no_repeat(full):
    """It holds for every cell, so nobody has said it of this one."""
    assert full.guard("make(n)", wait=1.0, wait_is_set=True) is not None
    assert full.report.attempts == 1


@pytest.fixture
def card(cells, monkeypatch):
    """A card of 8 MiB for torch's own tensors, of which a cycle holds 4."""
    torch = pytest.importorskip("torch")
    from cuda_magic.testing.torch_card import torch_card

    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    import gc

    gc.collect()
    gc.disable()
    cells.names["torch"] = torch
    cells.plain(
        "import torch.nn.functional as F\nclass Sub(torch.Tensor): pass\n"
        "class Mode(torch.overrides.TorchFunctionMode):\n"
        "  def __torch_function__(s, f, types, args=(), kwargs=None): return f(*args, **(kwargs or {}))\n"
    )
    cells.made = made = torch_card(practice="8 MiB")
    cells.plain(
        "a = torch.arange(2.0**18).reshape(512, 512)\np = torch.nn.Parameter(a.clone())\nsub = a.as_subclass(Sub)\n"
        "model = torch.nn.Linear(512, 8)\nrows = [a] * 5\n"
        "def waste():\n  held = [torch.empty(3 << 18)]; held.append(held)\n"
        "def make(): return a.repeat(4, 1)\nwaste()"
    )
    yield cells
    made.close()
    use(None)
    gc.enable()


@pytest.mark.torch
@pytest.mark.parametrize(
    "code",
    [
        "y = torch.cat(rows)",
        "y = torch.randn(5 << 18)",
        "y = torch.stack(rows).sum()",
        "y = a.repeat(5, 1)",
        "y = torch.full((5, 1 << 18), 2.5, dtype=torch.float32, device='cpu')",
        "y = F.pad(a, (0, 4 * 512))",
        "y = torch.tile(a, (5, 1)).T",
        "y = a.to(torch.float64).to(torch.float64)",
        "y = p.repeat(a.shape[0] // 100, 1)",
    ],
)
def test_torchs_own_calls(card, code):
    """Functions and methods on exact tensors: the numbers of a run with enough memory, drawn ones too."""
    torch = card.names["torch"]
    torch.manual_seed(1)
    if code.startswith("y = a.to("):
        card.plain("more = torch.empty(1 << 18)")
    assert card.guard(code) is None
    assert (card.report.status, card.report.attempts) == ("rescued", 2)
    got, after = card.names.pop("y"), torch.rand(2)
    torch.manual_seed(1)
    with card.made.enough():
        card.plain(code)
    assert torch.equal(got, card.names["y"])
    assert torch.equal(after, torch.rand(2))


@pytest.mark.torch
@pytest.mark.parametrize(
    "code",
    [
        "y = make()",
        "y = sub.repeat(5, 1)",
        "y = torch.cat([sub] * 5)",
        "y = torch.nn.Linear(1 << 10, 5 << 8)",
        "a += torch.zeros(5, 512, 512)[0]",
        "y = a.sum() + torch.zeros(5 << 18)",
        "y = torch.randn(5 << 18, generator=torch.Generator())",
        "y = torch.no_grad()(make)()",
        "y = getattr(torch, 'zeros')(5 << 18)",
    ],
)
def test_what_may_do_more_than_make_a_tensor(card, code):
    """Functions and classes of anybody's, subclasses, models, out=, generators, a second call."""
    assert card.guard(code) is not None
    assert (card.report.status, card.report.attempts) == ("refused", 1)


@pytest.mark.torch
@pytest.mark.parametrize("around", ["mode", "hooks"])
def test_what_is_called_around_every_operation(card, around):
    """A mode of the user's, and hooks on what autograd saves, would be called again."""
    torch = card.names["torch"]
    inside = card.names["Mode"]() if around == "mode" else torch.autograd.graph.saved_tensors_hooks(len, len)
    with inside:
        assert card.guard("y = a.repeat(5, 1)") is not None
    assert card.report.status == "refused"
    with torch.device("cpu"), torch.autograd.graph.save_on_cpu():  # torch's own
        assert card.guard("y = a.repeat(5, 1)") is None


@pytest.mark.torch
def test_a_function_that_was_replaced_is_not_torchs(card):
    """Under torch's own name, and as a method."""
    torch = card.names["torch"]
    real = torch.zeros
    card.plain("def zeros(*a): return real(*a)")
    card.names["real"] = real
    try:
        torch.zeros = card.names["zeros"]
        assert card.guard("y = torch.zeros(5 << 18)") is not None
    finally:
        torch.zeros = real
    assert card.report.notes == ("not repeated: zeros() would run again",)
    card.plain("a.repeat = lambda *n: torch.zeros(5 << 18)")
    assert card.guard("y = a.repeat(5, 1)") is not None
    assert card.report.status == "refused"
