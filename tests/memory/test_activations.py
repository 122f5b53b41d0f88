"""Activations on the host, on CPU tensors: the copies are plain ones, everything else is the real thing."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cuda_magic.memory.torch.offload.activations import Activations  # noqa: E402
from cuda_magic.memory.torch.offload.budget import Budget  # noqa: E402
from cuda_magic.memory.torch.offload.host_pool import HostPool, NoHostMemory  # noqa: E402

pytestmark = pytest.mark.torch
nn = torch.nn
KIB = 1 << 10


class Plain:
    """Copies that are done when they are made; what left the "card" is overwritten, so that a stale read shows."""

    device = torch.device("cpu")
    limit = 0

    def __init__(self):
        self.fail_out = self.fail_back = 0

    def stream(self, known=None):
        return 0

    def mark(self, stream):
        return None

    def wait(self, stream, events):
        pass

    def out(self, source, buffer, after):
        if self.fail_out:
            self.fail_out -= 1
            raise RuntimeError("copy failed")
        buffer.data.copy_(source)

    def back(self, buffer, target, stream, after):
        if self.fail_back:
            self.fail_back -= 1
            raise RuntimeError("CUDA out of memory")
        target.copy_(buffer.data)

    def join(self, stream):
        pass

    def free(self):
        return 1 << 40


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors on busy cores: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


ARENA = HostPool(torch, pin=False, limit=512 << 20)


def made(keep=0, arena=None, copies=None, least=256, window=None):
    budget = Budget(most=keep)
    budget.keep = keep
    if window is not None:
        budget = type("Small", (Budget,), {"window": property(lambda self: window)})(most=keep)
        budget.keep = keep
    return Activations(torch, copies or Plain(), arena or ARENA, budget, least=least)


def mlp():
    return nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.GELU())])


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1), 2)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 32, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(mlp(), nn.Dropout(0.2)) for _ in range(2)])
        self.reentrant = reentrant

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Views(nn.Module):
    """Chunks, expands, transposes, indices, changes in place through views."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.w(x).chunk(3, -1)
        a = torch.softmax(q @ k.transpose(-1, -2) / 16, -1)
        z = torch.zeros_like(v)
        z[:, ::2] = (a @ v)[:, ::2]
        z.mul_(1.5)
        at = torch.randperm(z.shape[1])
        return z[:, at].exp().clamp(max=50) * x.mean(-1, keepdim=True).expand_as(z)


CASES = {
    "mlp": (mlp, (512, 64), False, False),
    "cnn": (cnn, (8, 3, 16, 16), False, False),
    "encoder bf16 dropout": (encoder, (4, 16, 64), True, False),
    "lstm": (Lstm, (4, 16, 32), False, False),
    "checkpoint": (lambda: Checkpointed(False), (64, 64), False, False),
    "checkpoint reentrant": (lambda: Checkpointed(True), (64, 64), False, True),
    "views": (Views, (4, 32, 32), False, False),
}


def step(model, x, hooks=None, amp=False):
    """Loss, gradients, buffers and random state after one step from a fixed start."""
    for p in model.parameters():
        p.grad = None
    kept = [b.clone() for b in model.buffers()]
    torch.manual_seed(3)
    with hooks or contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16, enabled=amp):
        loss = model(x).float().square().mean()
        loss.backward()
    out = [loss.detach(), *[p.grad.clone() for p in model.parameters()], *[b.clone() for b in model.buffers()]]
    out.append(torch.get_rng_state())
    for buffer, old in zip(model.buffers(), kept, strict=True):
        buffer.copy_(old)
    return out


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("keep", "window"), [(0, 0), (0, None), (64 * KIB, 8 * KIB)])
def test_the_numbers_are_those_of_the_plain_step(case, keep, window):
    """Loss, gradients, buffers and random state bitwise, whatever stays on the card; nothing is left behind."""
    make, shape, amp, grad = CASES[case]
    torch.manual_seed(0)
    model, x = make(), torch.randn(*shape).requires_grad_(grad)
    reference = step(model, x, amp=amp)
    used = ARENA.held - ARENA.free
    for _ in range(3):
        hooks = made(keep, window=window)
        assert same(step(model, x, hooks, amp), reference)
        gc.collect()
        hooks.settle()
        assert not hooks._known and not hooks._records
        assert hooks._bytes == {"watched": 0, "card": 0, "leaving": 0, "back": 0}
    if keep == 0 and window == 0:
        assert hooks.moved["out"] > 0
        assert hooks.moved["in"] > 0
    assert ARENA.held - ARENA.free == used


class NoPin:
    """A weak reference that does not pin the StorageImpl: the address of a dead storage comes back."""

    def __init__(self, storage):
        self.cdata = 0


def _recycled(hooks):
    """Values of 40 tensors, each dead when the next is made, as the backward pass would see them."""
    tokens = []
    with hooks:
        for number in range(40):
            t = torch.full((1000,), float(number), requires_grad=True) * 1
            tokens.append(hooks._pack(t))
            del t
    return [hooks._unpack(token)[0].item() for token in tokens]


def test_a_recycled_address_is_not_taken_for_the_same_storage():
    """Each tensor comes back as itself although the next one may get its storage's address."""
    assert _recycled(made(window=0)) == list(range(40))


def test_without_the_pin_addresses_do_come_back():
    """The trap is real: with a key of addresses alone another tensor's data comes back, so the test above can fail."""
    hooks = made(window=0)
    hooks.weak = NoPin
    real = hooks._record

    def forgetful(tensor, storage):
        record = real(tensor, storage)
        record.storage = None
        return record

    hooks._record = forgetful
    hooks._returned = lambda record, stream: record.host and _copy(record)
    seen = []
    with hooks:
        tokens = []
        for number in range(40):
            t = torch.full((1000,), float(number), requires_grad=True) * 1
            tokens.append(hooks._pack(t))
            del t
    seen = [token.record.host.data.view(torch.float32)[0].item() for token in tokens]
    assert seen != list(range(40))


def _copy(record):
    return record.host.data.untyped_storage()


def test_a_change_in_place_raises_as_in_plain_torch():
    """What left, what is leaving, what stayed and a parameter: each is checked when the backward pass asks."""
    x = torch.randn(100, 100, requires_grad=True)
    for hooks in (None, made(1 << 30), made(), made(window=0), made(least=1 << 30)):
        with hooks or contextlib.nullcontext():
            y = x.exp()
            y.add_(1)
            if hooks is None or hooks.moved["out"] == 0 or hooks._leaving:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    y.sum().backward()
    w = nn.Parameter(torch.randn(100, 100))
    for hooks in (None, made()):
        with hooks or contextlib.nullcontext():
            y = (x * 2) @ w
            with torch.no_grad():
                w.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def test_what_left_before_it_was_changed_gives_the_numbers_of_the_moment_of_saving():
    """Plain torch raises there; here the saved numbers are still known, and they are the right ones."""
    x = torch.randn(100, 100, requires_grad=True)
    with made(window=0):
        y = x.exp()
        expected = y.detach().clone()
        z = y * 2
        (x * 3).exp()  # two more are saved: the first has left
    y.detach().zero_()
    z.sum().backward()
    assert torch.equal(x.grad, expected * 2)


def test_while_they_are_in_force_nothing_else_parks():
    """The table of what forbids parking sees it; afterwards it does not, an error or not."""
    from cuda_magic.memory.torch import offload

    with made():
        assert offload.saving()
    assert not offload.saving()
    with pytest.raises(ValueError), made():
        raise ValueError
    assert not offload.saving()


@pytest.mark.parametrize("case", ["cnn", "encoder bf16 dropout", "checkpoint reentrant"])
def test_under_the_mode_that_watches_each_op(case):
    """Spill, paging and the retry at the call watch every op, the hooks' own too: the numbers stay the plain ones."""
    from cuda_magic.memory.torch.offload.op_control import OpControl

    class Never:
        def judge(self, error):
            return None

        def make_room(self, problem):
            return False

    make, shape, amp, grad = CASES[case]
    torch.manual_seed(0)
    model, x = make(), torch.randn(*shape).requires_grad_(grad)
    reference = step(model, x, amp=amp)
    with OpControl(torch, kind="cpu").at_call(Never()):
        hooks = made(window=0)
        assert same(step(model, x, hooks, amp), reference)
    assert hooks.moved["in"] > 0


def test_what_was_parked_since_is_brought_back_by_an_op_that_names_it():
    """Parking empties storages that stayed on the card: an op names the tensor before it is handed out."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch.manual_seed(0)
    model, x = mlp(), torch.randn(512, 64)
    reference = step(model, x)
    parked = {}

    class Back(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.as_strided.default:
                storage = args[0].untyped_storage()
                kept = parked.pop(storage._cdata, None)
                if kept is not None:
                    storage.resize_(kept.nbytes())
                    storage.copy_(kept)
            return func(*args, **(kwargs or {}))

    for p in model.parameters():
        p.grad = None
    torch.manual_seed(3)
    with made(keep=1 << 30) as hooks:
        loss = model(x).float().square().mean()
    for record in list(hooks._records.values()):
        storage = record.gpu.untyped_storage()
        if record.place == "card":
            parked[storage._cdata] = storage.clone()
            storage.resize_(0)
    assert parked
    with Back():
        loss.backward()
    assert not parked
    assert same([loss.detach(), *[p.grad for p in model.parameters()]], reference[:-1])


def test_a_graph_that_outlives_the_hooks_is_valid():
    """Backward after the end, and twice with retain_graph, gives the plain gradients."""
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(128, 64)
    model(x).square().mean().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    with made():
        loss = model(x).square().mean()
    for retain in (True, True, False):
        for p in model.parameters():
            p.grad = None
        loss.backward(retain_graph=retain)
        assert same([p.grad for p in model.parameters()], plain)


def test_second_derivatives():
    """create_graph works through what came back."""
    torch.manual_seed(0)
    x = torch.randn(64, 64, requires_grad=True)

    def second():
        (g,) = torch.autograd.grad(x.exp().sin().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    plain = second()
    with made():
        assert torch.equal(second(), plain)


def test_nothing_leaks():
    """Saved outputs that stay hold no cycle with their graph: storages die with their tensors."""
    weak = torch.multiprocessing.reductions.StorageWeakRef
    for hooks in (made(least=1 << 30), made()):
        with hooks:
            x = torch.randn(1000, requires_grad=True)
            y = x.exp()
            z = y.tanh()
            seen = [weak(y.untyped_storage()), weak(z.untyped_storage())]
            del y, z
        gc.collect()
        assert all(one.expired() for one in seen)


def test_parameters_stay():
    """Weights and views of them are never copied: they live on anyway."""
    model, x = nn.Linear(256, 256), torch.randn(8, 256)
    hooks = made(window=0)
    with hooks:
        model(model(x)).sum().backward()
    assert 0 < hooks.moved["out"] < 256 * 256 * 4


def test_an_input_that_the_user_holds_stays():
    """A copy of it would free nothing."""
    x = torch.randn(64, 1024)
    w = torch.randn(1024, requires_grad=True)
    hooks = made(window=0)
    with hooks:
        y = x * w
        for _ in range(5):
            y = y.sin()
        y.sum().backward()
    assert hooks._bytes["watched"] == 0
    assert hooks.moved["out"] <= 5 * x.numel() * 4


def test_a_full_host_leaves_the_rest_on_the_card():
    """No error: what finds no room stays where it is."""
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(512, 64)
    reference = step(model, x)
    small = HostPool(torch, pin=False, limit=0)
    with pytest.raises(NoHostMemory):
        small.take(1)
    hooks = made(arena=small)
    assert same(step(model, x, hooks), reference)
    assert hooks.moved["out"] == 0


@pytest.mark.parametrize("number", [1, 3])
def test_failing_copies_out_lose_nothing(number):
    """A copy that raises leaves its tensor, and those after it, on the card."""
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(512, 64)
    reference = step(model, x)
    copies = Plain()
    copies.fail_out = number
    assert same(step(model, x, made(copies=copies)), reference)


def test_out_of_memory_while_fetching_lets_go_of_what_was_fetched_ahead():
    """One failure while something else lies fetched: that goes, the fetch is repeated, the numbers are right."""
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(512, 64)
    reference = step(model, x)
    for failures in range(1, 8):
        copies = Plain()
        hooks = made(copies=copies, window=0)
        for p in model.parameters():
            p.grad = None
        torch.manual_seed(3)
        with hooks:
            loss = model(x).square().mean()
            model[6].register_full_backward_hook(lambda *a, c=copies, n=failures: setattr(c, "fail_back", n % 2))
            loss.backward()
        assert same([loss.detach(), *[p.grad for p in model.parameters()]], reference[:-1])


def test_out_of_memory_in_the_backward_pass_is_the_users_error_and_backward_can_be_repeated():
    """The error of the fetch is what shows; gradients set back, the same graph gives the plain numbers."""
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(512, 64)
    reference = step(model, x)
    copies = Plain()
    with made(copies=copies, window=0):
        loss = model(x).square().mean()
        copies.fail_back = 1 << 30
        with pytest.raises(RuntimeError, match="out of memory"):
            loss.backward(retain_graph=True)
        copies.fail_back = 0
        for p in model.parameters():
            p.grad = None
        loss.backward()
    assert same([loss.detach(), *[p.grad for p in model.parameters()]], reference[:-1])


def test_hooks_are_made_anew_for_each_statement(monkeypatch):
    """As the rung makes them: twice, on the shared arena; a torch that tells too little is refused."""
    from cuda_magic.errors import Refused
    from cuda_magic.memory.torch import offload
    from cuda_magic.memory.torch.offload import host_pool, tensor_copies

    monkeypatch.setattr(tensor_copies, "Copies", lambda *_: Plain())
    monkeypatch.setattr(host_pool, "_shared", [])
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(512, 64)
    reference = step(model, x)
    for _ in range(2):
        assert same(step(model, x, offload.hooks(torch, 0, 1 << 20, 1 << 30)), reference)
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    with pytest.raises(Refused, match="does not tell enough"):
        offload.hooks(torch, 0, 1 << 20, 1 << 30)


def test_an_error_of_ours_leaves_the_tensor_where_it_is(monkeypatch):
    """Whatever goes wrong while saving, the forward pass goes on and the numbers are right."""
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(512, 64)
    reference = step(model, x)
    hooks = made(window=0)
    monkeypatch.setattr(hooks, "_shed", lambda: 1 / 0)
    assert same(step(model, x, hooks), reference)


def test_an_error_of_the_users_shows_and_the_hooks_are_off():
    """Whatever is raised inside goes on; afterwards nothing is saved by us."""
    hooks = made()
    with pytest.raises(ValueError, match="mine"), hooks:
        torch.randn(1000, requires_grad=True).exp()
        raise ValueError("mine")
    assert not _hooks_on()
    hooks.off()
    mine = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with mine:  # off again takes nobody else's hooks
        hooks.off()
        assert _hooks_on()


def test_interrupts_at_random_moments_cost_nothing():
    """150 SIGINTs: KeyboardInterrupt shows or the step ends, hooks are off, weights intact, the next step is right."""
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(64, 64)
    reference = step(model, x)
    weights = [p.detach().clone() for p in model.parameters()]
    rng = random.Random(5)
    start = time.perf_counter()
    step(model, x, made())
    length = time.perf_counter() - start
    arrived, arena = 0, HostPool(torch, pin=False, limit=256 << 20)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(150):
            hooks = made(arena=arena)
            timer = threading.Timer(rng.random() * length, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                step(model, x, hooks)
                timer.join()
                time.sleep(0)
            except KeyboardInterrupt:
                arrived += 1
            timer.join()
            hooks.off()  # as the guard does at the end of each attempt
            assert not _hooks_on()
            assert same([p.detach() for p in model.parameters()], weights)
    finally:
        signal.signal(signal.SIGINT, before)
    assert arrived > 50
    assert same(step(model, x, made(arena=arena)), reference)
    del hooks
    gc.collect()
    arena.release()


def _hooks_on():
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def test_what_stays_grows_from_nothing_with_the_room_that_a_round_left():
    """Half of what was free beyond the margin, all of it after rounds alike; less when it was tight; a bound holds."""
    budget = Budget(request=100, limit=8000)
    assert budget.keep == 0
    budget.next_round()
    assert budget.keep == 0  # nothing was seen yet
    budget.saved(200)
    for free in (5000, 3000, 4000):
        budget.seen(free)
    assert budget.margin == 2 * 300 + 1000
    budget.next_round()
    assert budget.keep == (3000 - 1600) // 2
    budget.seen(2000)
    budget.next_round()
    assert budget.keep == 700 + 200
    budget.saved(100)
    budget.seen(1000)
    budget.next_round()
    assert budget.keep == 450
    for _ in range(2):
        budget.saved(200)
        budget.seen(2000)
        budget.next_round()
    assert budget.keep == 450 + 200 + 400
    budget.saved(200)
    budget.seen(1500)
    budget.next_round()
    assert budget.keep == 1050 - 100  # what was too much, and no more
    bound = Budget(most=10)
    bound.seen(1 << 40)
    bound.next_round()
    assert bound.keep == 10


def test_a_loop_uses_the_room_that_is_there():
    """In the second round part of what is saved stays, in the third more, with the same numbers."""
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(512, 64)
    copies = Plain()
    copies.free = lambda: 400 * KIB
    budget = Budget()
    hooks = Activations(torch, copies, ARENA, budget, least=256)
    reference, out = step(model, x), []
    budget_of = type("Small", (Budget,), {"window": property(lambda self: 0), "margin": property(lambda self: 0)})
    hooks.budget = budget_of()
    for _ in range(4):
        before = hooks.moved["out"]
        assert same(step(model, x, hooks), reference)
        out.append(hooks.moved["out"] - before)
    assert out[0] > out[1] > out[2] >= out[3]
