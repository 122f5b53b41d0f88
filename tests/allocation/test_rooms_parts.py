"""Pages, holes and uses on a shim of our own: what leaves first, what is fetched, and that the mode goes off."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from cuda_magic.allocation.native import CARD, HOST, NOWHERE, Chunk, Counts  # noqa: E402
from cuda_magic.memory.torch import snapshot  # noqa: E402
from cuda_magic.memory.torch.room import holes, pages, uses  # noqa: E402

pytestmark = pytest.mark.torch
MIB = 1 << 20
SIZE = 2 * MIB


class FakeShim:
    """Chunks of 2 MiB in a row from `start`; exchanging them writes down what was asked."""

    def __init__(self, start=64 * MIB, count=8):
        self.table = {start + SIZE * i: Chunk(start + SIZE * i, SIZE, 0, CARD) for i in range(count)}
        self.did = []
        self.error = 0

    def chunks(self):
        return [self.table[at] for at in sorted(self.table)]

    def exchange(self, addresses, where, *, copy=True):
        self.did.append((list(addresses), where, copy))
        if self.error:
            return 0, self.error
        moved = 0
        for at in addresses:
            if self.table[at].where != where:
                self.table[at] = self.table[at]._replace(where=where)
                moved += SIZE
        return moved, 0

    def counts(self, device):
        here = [chunk for chunk in self.table.values() if chunk.where == CARD]
        return Counts(SIZE * len(here), 0, 0, 0, 0, 0, 0, 0, 0)

    def at(self, i):
        return sorted(self.table)[i]

    def where(self):
        return [chunk.where for chunk in self.chunks()]


def segments(monkeypatch, *blocks, start=64 * MIB, pool=(0, 0)):
    """One segment; each block is (size in chunks, state)."""
    rows = [{"size": int(size * SIZE), "state": state} for size, state in blocks]
    one = {"device": 0, "address": start, "stream": 0, "segment_pool_id": pool, "blocks": rows}
    monkeypatch.setattr(snapshot, "read", lambda torch: {"segments": [one]})


LIVE, FREE = "active_allocated", "inactive"


# -- pages


@pytest.fixture
def paged(monkeypatch):
    """Eight chunks with a live block each; the ranks are those of `rank`."""
    made = pages.Pages(torch, FakeShim())
    segments(monkeypatch, *[(1, LIVE)] * 8)
    made.rank = {}
    monkeypatch.setattr(pages, "ranks", lambda *given: made.rank)
    return made


def test_what_is_needed_last_leaves_first(paged):
    """Idle, then optimizer state, then data by age, then what nobody knows, parameters at last."""
    shim = paged._shim
    order = [pages.PARAMETER, pages.DATA, pages.IDLE, pages.STATE, None, pages.DATA, pages.IDLE, pages.PARAMETER]
    ages = [0, 7, 0, 0, 0, 2, 0, 0]
    paged.rank = {
        shim.at(i): (rank, age) for i, (rank, age) in enumerate(zip(order, ages, strict=True)) if rank is not None
    }
    left = []
    for _ in range(8):
        assert paged.leave(0, SIZE) >= SIZE
        left += [at for at in shim.did[-1][0] if at not in left]
    assert [sorted(shim.table).index(at) for at in left] == [2, 6, 3, 5, 1, 4, 0, 7]
    assert paged.leave(0, SIZE) == 0
    assert paged.out_bytes == 8 * SIZE
    assert paged.nbytes(0) == 8 * SIZE


def test_a_chunk_is_worth_what_its_most_needed_tensor_is(paged, monkeypatch):
    """A large tensor lies in several chunks, several small ones in one."""
    shim = paged._shim
    segments(monkeypatch, (2.5, LIVE), (0.5, LIVE), (1, LIVE), (4, FREE))
    paged.rank = {shim.at(0): (pages.IDLE, 0), shim.at(0) + int(2.5 * SIZE): (pages.PARAMETER, 0)}
    worth = paged.worth(0, shim.chunks())
    idle, parameter, unknown = (pages.IDLE, 0), (pages.PARAMETER, 0), (pages.UNKNOWN, 0)
    assert worth == [idle, idle, parameter, unknown, *[(-1, 0)] * 4]


def test_graphs_leave_last(paged, monkeypatch):
    """Private pools hold what a CUDA graph writes to."""
    segments(monkeypatch, *[(1, LIVE)] * 8, pool=(1, 0))
    assert set(paged.worth(0, paged._shim.chunks())) == {(pages.GRAPH, 0)}


def test_free_blocks_never_lie_on_the_host(paged, monkeypatch):
    """They would be torch's next choice."""
    segments(monkeypatch, (2, LIVE), (6, FREE))
    assert paged.leave(0, 8 * SIZE) == 2 * SIZE
    assert paged._shim.where() == [HOST] * 2 + [CARD] * 6


def test_what_is_used_again_latest_leaves_first_where_that_is_known(paged):
    """But what the cell cannot reach goes before."""
    shim = paged._shim
    paged.rank = {shim.at(i): (pages.DATA, i) for i in range(7)} | {shim.at(7): (pages.IDLE, 0)}
    soon = [3.0, 9.0, 1.0, 5.0, 2.0, 8.0, 4.0, 0.0]
    paged.leave(0, 3 * SIZE, lambda chunks: soon[: len(chunks)])
    assert shim.where() == [CARD, HOST, CARD, CARD, CARD, HOST, CARD, HOST]


def test_what_is_needed_first_comes_back_first(paged):
    """As much as there is room for; the rest is told."""
    shim = paged._shim
    paged.rank = {shim.at(i): (pages.IDLE if i < 4 else pages.PARAMETER, 0) for i in range(8)}
    shim.exchange(sorted(shim.table), HOST)
    assert paged.come_back(0, 3 * SIZE + 5) == 5 * SIZE
    assert shim.where() == [HOST] * 4 + [HOST] + [CARD] * 3
    assert paged.come_back(0, 0) == 5 * SIZE
    assert paged.come_back(0, 100 * SIZE) == 0


def test_ranks_of_real_tensors(monkeypatch):
    """Parameters, optimizer state outside of a step, what a namespace reaches and what only others do; by age."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(torch.Tensor, "device", property(lambda self: torch.device("cuda", 0)))
    old, shown = torch.ones(1000), torch.ones(1000)
    model = torch.nn.Linear(50, 50, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    state = torch.zeros(50, 50)
    optimizer.state[model.weight] = {"exp_avg": state}
    new = [torch.ones(1000)]
    at = {name: t.untyped_storage().data_ptr() for name, t in
          (("old", old), ("shown", shown), ("weight", model.weight), ("state", state), ("new", new[0]))}  # fmt: skip
    gc.collect()
    found = pages.ranks(torch, 0, [old, model, new], [{"Out": [shown]}, old])
    assert {name: found[at[name]][0] for name in at} == {
        "old": pages.DATA,
        "shown": pages.IDLE,
        "weight": pages.PARAMETER,
        "state": pages.STATE,
        "new": pages.DATA,
    }

    def step(file="torch/optim/adam.py"):
        return pages.ranks(torch, 0, [old, model, new], [])

    step.__code__ = step.__code__.replace(co_filename="torch/optim/adam.py")
    assert step()[at["state"]][0] == pages.DATA  # while it steps its state is in use


# -- holes


@pytest.fixture
def punched(monkeypatch):
    """Holes whose plugs are storages at addresses that the test sets."""
    made = holes.Holes(torch, FakeShim())
    made.taken = []

    class Plug:
        def __init__(self, address):
            self.address = address

        def data_ptr(self):
            return self.address

    monkeypatch.setattr(torch, "UntypedStorage", lambda size, device: Plug(made.taken.pop(0)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: type("S", (), {"cuda_stream": 0}))
    return made


def test_whole_chunks_below_free_blocks_go(punched, monkeypatch):
    """The largest block first, as many as are needed; what is cut by a live block stays."""
    shim = punched._shim
    segments(monkeypatch, (1.5, LIVE), (2, FREE), (0.5, LIVE), (3, FREE), (1, LIVE))
    punched.taken = [shim.at(4)]
    assert punched.punch(0, 2 * SIZE) == 3 * SIZE
    assert shim.where() == [CARD] * 4 + [NOWHERE] * 3 + [CARD]
    assert shim.did == [([shim.at(4), shim.at(5), shim.at(6)], NOWHERE, False)]
    punched.taken = [shim.at(0) + int(1.5 * SIZE)]
    segments(monkeypatch, (1.5, LIVE), (2, FREE), (0.5, LIVE), (3, LIVE), (1, LIVE))
    assert punched.punch(0, SIZE) == SIZE
    assert punched.nbytes == 4 * SIZE


def test_holes_are_filled_where_there_is_room(punched, monkeypatch):
    """A plug goes with its chunks' memory back; one for which there is none stays."""
    shim = punched._shim
    segments(monkeypatch, (3, FREE), (1, LIVE), (2, FREE), (2, LIVE))
    punched.taken = [shim.at(0), shim.at(4)]
    assert punched.punch(0, 5 * SIZE) == 5 * SIZE
    punched.fill(0, 3 * SIZE)
    assert punched.nbytes == 2 * SIZE
    assert shim.where() == [CARD] * 4 + [NOWHERE] * 2 + [CARD] * 2
    punched.fill(0, 100 * SIZE)
    assert punched.nbytes == 0
    assert set(shim.where()) == {CARD}


def test_a_plug_alone_in_its_segment_is_released(punched, monkeypatch):
    """Its stretch gets memory before it is torch's again."""
    shim = punched._shim
    segments(monkeypatch, (7, FREE), (1, LIVE))
    punched.taken = [shim.at(0)]
    punched.punch(0, SIZE)
    segments(monkeypatch, (7, LIVE), (1, LIVE))
    assert punched.release(0) is False
    segments(monkeypatch, (7, LIVE), (1, FREE))
    assert punched.release(0) is True
    assert set(shim.where()) == {CARD}
    assert punched.nbytes == 0


def test_other_pools_are_left_alone(punched, monkeypatch):
    """A graph's private pool is its own."""
    segments(monkeypatch, (8, FREE), pool=(1, 0))
    assert punched.punch(0, SIZE) == 0


# -- uses


@pytest.fixture
def used(monkeypatch):
    """Uses of CPU tensors; `tell` puts a tensor's storage under chunks of the shim's."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    shim = FakeShim(count=0)
    made = uses.Uses(
        torch,
        shim,
        free=lambda device: made.room,
        refused=lambda device: made.no,
        cached=lambda device: made.emptied.append(device),
        worth=lambda device, chunks: [(pages.DATA, 0)] * len(chunks),
    )
    made.room, made.no, made.emptied, made.kind = 1 << 40, "", [], "cpu"

    def tell(tensor, where):
        at = tensor.untyped_storage().data_ptr()
        shim.table[at] = Chunk(at, tensor.untyped_storage().nbytes(), 0, where)
        made.refresh()

    made.tell = tell
    yield made
    made.end()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def on(made):
    """Put the mode on as the next bytecode of the main thread does."""
    made.begin()
    for _ in range(200):
        pass
    assert made._mode is not None


def test_the_mode_goes_on_at_the_next_bytecode_and_off_at_the_end(used):
    """And torch's function that runs a backward pass is torch's own again."""
    before = torch.autograd.graph._engine_run_backward
    on(used)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is used._mode
    assert torch.autograd.graph._engine_run_backward != before
    used.begin()  # twice: no second one
    used.end()
    used.end()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert torch.autograd.graph._engine_run_backward is before
    assert torch.autograd._engine_run_backward is before


def test_a_mode_that_ends_before_it_is_on_never_is(used):
    """The cell was over first."""
    used.begin()
    used.end()
    for _ in range(200):
        pass
    assert used._mode is None


def test_below_a_mode_of_the_users_it_stays_off(used):
    """Its operations would be seen twice."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Users(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Users():
        used.begin()
        for _ in range(200):
            pass
        assert used._mode is None


def test_what_an_operation_reads_again_and_again_is_fetched_before(used):
    """A matrix product of many rows; not one of few, and nothing elementwise."""
    a, b = torch.ones(512, 512), torch.ones(512, 512)
    used.tell(a, HOST)
    used.tell(b, CARD)
    on(used)
    _ = b @ torch.ones(512, 1)
    _ = a + b
    assert used._shim.did == []
    _ = torch.ones(8, 512) @ a
    assert used._shim.did == []
    _ = a @ b
    assert used._shim.did == [([a.untyped_storage().data_ptr()], CARD, True)]
    assert used._host == []


def test_it_is_left_where_it_is_if_nothing_may_be_exchanged(used):
    """A thread, or no room that could be made: right, and slower."""
    a = torch.ones(512, 512)
    used.tell(a, HOST)
    on(used)
    used.no = "another thread may use CUDA"
    assert float((a @ a)[0, 0]) == 512
    used.no, used.room = "", 0
    assert float((a @ a)[0, 0]) == 512
    assert used._shim.did == []


def test_what_is_used_again_latest_makes_way(used):
    """And never an operand of the operation itself."""
    ones = [torch.ones(512, 512) for _ in range(4)]
    for one in ones[:3]:
        used.tell(one, CARD)
    used.tell(ones[3], HOST)
    on(used)
    for _ in range(3):  # 0 and 1 are used each round, 2 once
        _ = ones[0] + ones[1]
    _ = ones[2] + 1
    _ = ones[0] + ones[1]
    used.room = 0
    _ = ones[3] @ ones[0]
    (left, where, _), (came, back, _) = used._shim.did
    assert (where, back) == (HOST, CARD)
    assert came == [ones[3].untyped_storage().data_ptr()]
    assert left == [ones[2].untyped_storage().data_ptr()]


def test_due_tells_how_soon_each_chunk_is_used_again(used):
    """By its last two uses; what was used once is later than that, what never was is last."""
    often, rarely, once, never = (torch.ones(512, 512) for _ in range(4))
    chunks = []
    for one in (often, rarely, once, never):
        used.tell(one, CARD)
    on(used)
    _ = once + 1
    for i in range(6):
        _ = often + 1
        if i % 3 == 0:
            _ = rarely + 1
    assert used.on
    chunks = used._shim.chunks()
    due = dict(zip([chunk.address for chunk in chunks], used.due(chunks), strict=True))
    of = [due[one.untyped_storage().data_ptr()] for one in (often, rarely, once, never)]
    assert of == sorted(of)
    assert len(set(of)) == 4


@pytest.mark.parametrize(
    ("name", "shapes", "again"),
    [
        ("aten::mm", ((512, 8), (8, 8)), True),
        ("aten::mm", ((256, 8), (8, 8)), False),
        ("aten::addmm", ((8,), (512, 8), (8, 8)), True),
        ("aten::bmm", ((2, 16, 8), (2, 8, 8)), False),
        ("aten::convolution", ((1, 3, 8, 8), (4, 3, 3, 3)), True),
        ("aten::_scaled_dot_product_flash_attention", ((1, 2, 3, 4),), True),
        ("aten::add.Tensor", ((512, 512), (512, 512)), False),
    ],
)
def test_which_operations_read_an_operand_again_and_again(name, shapes, again):
    """Products of many rows, convolutions and attention."""
    assert uses._reads_again(name, tuple(torch.empty(shape) for shape in shapes)) is again


def test_backward_runs_without_the_mode_where_its_formulas_would_change(used):
    """prod and cumprod ask whether a mode is on; a graph that began before the mode may hold one."""
    seen = []

    class Tell(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch.utils._python_dispatch._len_torch_dispatch_stack())
            return grad

    def run(prod):
        x = torch.ones(4, requires_grad=True)
        y = Tell.apply(x)
        (y.prod() if prod else y.sum()).backward()

    on(used)
    run(False)  # not known what the forward pass before it was
    run(False)
    run(True)
    assert seen == [0, 1, 0]
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is used._mode


def test_the_bits_of_prod_are_those_of_a_plain_run(used):
    """Forward and backward under the mode."""
    torch.manual_seed(0)
    x = torch.rand(64, 33, dtype=torch.float32)

    def grad():
        leaf = x.clone().requires_grad_()
        (leaf.prod(1).sum() + leaf.cumprod(1).sum()).backward()
        return leaf.grad

    want = grad()
    on(used)
    assert all(torch.equal(grad(), want) for _ in range(2))
