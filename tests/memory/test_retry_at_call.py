"""An op that ran out of memory is repeated where that is provably the same, and nowhere else."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from offload_doubles import Card, CardMode, Rescue  # noqa: E402

from cuda_magic.memory.torch.offload.op_retry import Retry  # noqa: E402

KIB = 1024


class Node:
    """A reference cycle around a tensor."""

    def __init__(self, size):
        self.me, self.tensor = self, torch.ones(size // 4)


def guarded(card, rescue):
    session = card.session()
    session.watcher.retry = Retry(torch, rescue)
    return session


@pytest.fixture(autouse=True)
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_leaking_loop_goes_on_at_the_call_with_the_numbers_of_enough_memory():
    """20 steps of AdamW with dropout; each leaks a cycle: nothing is repeated but single ops, bitwise equal."""

    def train(leak):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 64))
        opt = torch.optim.AdamW(net.parameters())
        steps = []
        for step in range(20):
            steps.append(step)
            if leak:
                Node(24 * KIB)
            opt.zero_grad()
            loss = net(torch.randn(32, 64)).square().mean()
            loss.backward()
            opt.step()
        return steps, loss.item(), [p.detach().clone() for p in net.parameters()], torch.rand(3)

    want = train(leak=False)
    card = Card(400 * KIB)
    rescue = Rescue(card)
    with CardMode(card), guarded(card, rescue).watched():
        got = train(leak=True)
    assert rescue.collected >= 1
    assert got[:2] == want[:2]
    assert all(torch.equal(a, b) for a, b in zip((*got[2], got[3]), (*want[2], want[3]), strict=True))


RANDOM = {
    "randn": lambda g: torch.randn(2 * KIB),
    "dropout": lambda g: torch.nn.functional.dropout(torch.ones(2 * KIB), 0.5),
    "bernoulli": lambda g: torch.bernoulli(torch.full((2 * KIB,), 0.5)),
    "generator=": lambda g: torch.rand(2 * KIB, generator=g),
    "generator= of an op on tensors": lambda g: torch.bernoulli(torch.full((2 * KIB,), 0.5), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(2 * KIB), 2 * KIB),
    "randperm": lambda g: torch.randperm(2 * KIB),
    "rrelu": lambda g: torch.nn.functional.rrelu(-torch.ones(2 * KIB), training=True),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_drawn_once(name):
    """The generators stand after a repeat where one run leaves them: same result, same numbers afterwards."""
    torch.manual_seed(3)
    own = torch.Generator().manual_seed(4)
    want = RANDOM[name](own), torch.rand(2), torch.rand(2, generator=own)
    card = Card(27 * KIB)
    rescue = Rescue(card)
    torch.manual_seed(3)
    own = torch.Generator().manual_seed(4)
    with CardMode(card), guarded(card, rescue).watched():
        Node(24 * KIB)
        try:
            got = RANDOM[name](own), torch.rand(2), torch.rand(2, generator=own)
        except torch.OutOfMemoryError:
            assert name == "rrelu"  # it writes its noise: not repeated
            return
    assert rescue.problems
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_batch_norm_updates_its_statistics_once(monkeypatch):
    """Its schema hides what it writes: the running statistics go back before the op runs again."""
    card = Card(1 << 30)
    norm = torch.nn.BatchNorm1d(16)
    other = torch.nn.BatchNorm1d(16)
    x = torch.randn(8, 16)
    want = torch.native_batch_norm(x, norm.weight, norm.bias, norm.running_mean, norm.running_var, True, 0.1, 1e-5)

    class Once(CardMode):
        done = False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if "native_batch_norm" in str(func) and not self.done:
                self.done = True
                card.out(KIB)
            return out

    rescue = Rescue(card)
    rescue.make_room = lambda problem: True
    with Once(card), guarded(card, rescue).watched():
        got = torch.native_batch_norm(
            x, other.weight, other.bias, other.running_mean, other.running_var, True, 0.1, 1e-5
        )
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert torch.equal(norm.running_mean, other.running_mean)
    assert torch.equal(norm.running_var, other.running_var)


class Fails(CardMode):
    """Ops whose name contains `word` run, and then raise, `times` times."""

    def __init__(self, card, word, times=1):
        super().__init__(card)
        self.word, self.times, self.runs = word, times, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if self.word in str(func):
            self.runs += 1
            if self.runs <= self.times:
                self.count.out(KIB)
        return out


def always(card):
    rescue = Rescue(card)
    rescue.make_room = lambda problem: rescue.problems.append(problem) or True
    return rescue


@pytest.mark.parametrize(
    ("word", "run"),
    [
        ("aten.add_", lambda x: x.add_(1)),
        ("aten.add.out", lambda x: torch.add(x, 1, out=x)),
        ("aten._foreach_add_", lambda x: torch._foreach_add_([x], 1)),
        ("aten.index_put_", lambda x: x.index_put_((torch.tensor([0, 0]),), torch.ones(2), accumulate=True)),
    ],
)
def test_what_changes_its_arguments_is_never_repeated(word, run):
    """In place, out= and foreach: the error is raised after one run."""
    card = Card(1 << 30)
    rescue = always(card)
    with Fails(card, word) as card_mode, guarded(card, rescue).watched(), pytest.raises(torch.OutOfMemoryError):
        run(torch.zeros(8))
    assert card_mode.runs == 1
    assert rescue.problems == []


def test_a_custom_op_is_never_repeated():
    """Its schema says that it changes nothing, and nobody knows what it does: one run."""
    count = []

    @torch.library.custom_op("cuda_magic_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        count.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")

    card = Card(1 << 30)
    rescue = always(card)
    with CardMode(card), guarded(card, rescue).watched(), pytest.raises(torch.OutOfMemoryError):
        counted(torch.ones(4))
    assert len(count) == 1
    assert rescue.problems == []


def test_a_subclass_of_tensor_with_a_dispatch_of_its_own_is_never_repeated():
    """What it does around the op is not ours to repeat."""

    class Mine(torch.Tensor):
        @staticmethod
        def __torch_dispatch__(func, types, args=(), kwargs=None):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")

    card = Card(1 << 30)
    rescue = always(card)
    mine = torch.Tensor._make_subclass(Mine, torch.ones(4))
    with guarded(card, rescue).watched(), pytest.raises(torch.OutOfMemoryError):
        mine + 1
    assert rescue.problems == []


def test_an_error_that_is_no_matter_of_memory_is_raised_at_once():
    """Shapes that do not match: unchanged, not judged twice."""
    card = Card(1 << 30)
    rescue = always(card)
    with CardMode(card), guarded(card, rescue).watched(), pytest.raises(RuntimeError, match="shape"):
        torch.ones(3, 4) @ torch.ones(3, 4)
    assert rescue.problems == []


def test_the_first_error_is_raised_when_no_room_can_be_made():
    """With the user's frames below it, none of the failed op's tensors held."""
    card = Card(8 * KIB)
    rescue = Rescue(card)

    def step():
        return torch.ones(4 * KIB)

    with CardMode(card), guarded(card, rescue).watched(), pytest.raises(torch.OutOfMemoryError) as caught:
        step()
    assert "step" in [entry.name for entry in caught.traceback]
    assert len(rescue.problems) == 1


def test_it_works_inside_backward():
    """An op of backward runs out of memory: repeated there, gradients bitwise equal, nothing accumulated twice."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    x = torch.randn(16, 32)
    net(x).sum().backward()
    want = [p.grad.clone() for p in net.parameters()]
    net.zero_grad(set_to_none=True)
    card = Card(1 << 30)
    rescue = always(card)
    with Fails(card, "aten.mm", times=4) as card_mode, guarded(card, rescue).watched():
        loss = net(x).sum()
        assert card_mode.runs < 4
        loss.backward()
    assert {p.op for p in rescue.problems} >= {"aten.mm.default"}
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), want, strict=True))


def test_only_torchs_own_ops_that_change_nothing_are_repeatable():
    """By name: collectives, also those whose schema says that they change nothing, higher-order ops, ops that write."""
    retry = Retry(torch, None)
    aten = torch.ops.aten
    never = [
        torch.ops._c10d_functional.all_reduce.default,  # functional: its schema changes nothing
        torch.ops.c10d.allreduce_.default,
        torch.ops.higher_order.cond,
        aten.add_.Tensor,
        aten.add.out,
        aten._foreach_add_.List,
        aten._fused_adamw_.default,
        aten._cudnn_rnn.default,
        aten.record_stream.default,
    ]
    assert [str(op) for op in never if retry.repeatable(op, ())] == []
    always_ = [aten.add.Tensor, aten._foreach_add.List, aten.native_dropout.default, aten.convolution.default]
    assert all(retry.repeatable(op, ()) for op in always_)
    assert retry.repeatable(aten.add.Tensor, (torch.Tensor, torch.nn.Parameter))
    assert not retry.repeatable(aten.add.Tensor, (type("Mine", (torch.Tensor,), {}),))


def test_every_op_that_draws_random_numbers_says_so():
    """The generators go back where the op has the tag: in this torch no repeatable op draws numbers without it."""
    retry, words = Retry(torch, None), {"generator", "dropout_p", "dropout"}
    untagged = []
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space != "aten" or name.endswith("_backward") or not words & {a.name for a in schema.arguments}:
            continue
        try:
            op = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
            full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
            composite = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        except (AttributeError, RuntimeError):
            continue  # no op of the dispatcher's
        if not composite and retry.repeatable(op, ()) and torch.Tag.nondeterministic_seeded not in op.tags:
            untagged.append(str(op))
    assert [name for name in untagged if "quantized_" not in name] == []  # those drop nothing out
