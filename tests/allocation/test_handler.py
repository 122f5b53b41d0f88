"""The handler decides: which way is tried when, who is heard, and that nothing of ours hides torch's own error."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from cuda_magic.allocation.handler import WAYS, Handler
from cuda_magic.allocation.native import NO_ROOM, TRY_AGAIN, USE_HOST

MIB = 1 << 20


class FakeRoom:
    """A card of which `gives` says how much each way makes free; `did` are the ways in the order of the calls."""

    def __init__(self, **gives: int) -> None:
        self.gives, self.did, self.room, self.used = gives, [], 0, 16 << 30
        self.fails: dict[str, BaseException] = {}
        self.stopped = self.unmoved = self.no_host = ""

    def _do(self, way: str, nbytes: int = 0) -> int:
        self.did.append(way)
        if way in self.fails:
            raise self.fails[way]
        made = self.gives.pop(way, 0)
        self.room += made
        return made

    def refused(self, device):
        return self.stopped

    def free(self, device):
        return self.room

    def in_use(self, device):
        return self.used

    def caches(self, device):
        self._do("caches")
        return "cupy's pool" if "caches" in self.gives else ""

    def holes(self, device, nbytes):
        assert nbytes > 0
        return self._do("holes", nbytes)

    def saved(self, device, nbytes):
        return self._do("saved", nbytes)

    def pages(self, device, nbytes):
        return self._do("pages", nbytes)

    def moving_refused(self, device):
        return self.unmoved

    def host_room(self, nbytes):
        self.did.append("host")
        return self.no_host


def ways(room: FakeRoom) -> list[str]:
    """Those that were tried, each once."""
    return list(dict.fromkeys(room.did))


@pytest.fixture(autouse=True)
def collections(monkeypatch):
    """How often garbage was collected; nothing is."""
    done = []
    monkeypatch.setattr(gc, "collect", lambda *generation: done.append(1) or 0)
    return done


def test_all_ways_in_their_order(collections):
    """What helps nobody leads to the next; the last is a segment on the host, which always can."""
    room = FakeRoom()
    handler = Handler(room, errors=lambda device: room.did.append("errors") or "")
    assert handler(0, MIB, 0) == USE_HOST
    assert ways(room) == ["caches", "errors", "holes", "saved", "pages", "host"]
    assert collections == [1]
    assert [done.id for done in handler.helped()] == ["host"]
    assert (handler.requests, handler.failed, handler.asked) == (1, 0, (0, MIB))


@pytest.mark.parametrize("way", ["caches", "holes", "saved", "pages"])
def test_the_first_way_that_makes_room_is_the_last_one_tried(way):
    """And the report has its bytes."""
    room = FakeRoom(**{way: 3 * MIB})
    handler = Handler(room)
    assert handler(0, 2 * MIB, 0) == TRY_AGAIN
    assert [(done.id, done.times, done.nbytes) for done in handler.helped()] == [(way, 1, 3 * MIB)]
    tried = [one for one in WAYS[:-1] if one in handler.done]
    assert tried == [*WAYS[: WAYS.index(way) + 1]]


def test_ways_add_up():
    """Two that give a part each."""
    room = FakeRoom(caches=MIB, pages=MIB)
    handler = Handler(room)
    assert handler(0, 2 * MIB, 0) == TRY_AGAIN
    assert [done.id for done in handler.helped()] == ["caches", "pages"]


def test_earlier_errors_are_named_and_their_cycles_collected(collections):
    """Letting go of a traceback frees nothing before the collector has run."""
    room = FakeRoom()
    handler = Handler(room, errors=lambda device: room.gives.update(caches=MIB) or "the traceback of In[3]")
    assert handler(0, MIB, 0) == TRY_AGAIN
    assert handler.done["errors"].notes == ["let go of the traceback of In[3]"]
    assert collections == [1]


def test_a_way_that_raises_does_not_stop_the_next():
    """The report says it; the request is met."""
    room = FakeRoom(pages=MIB)
    room.fails = {"holes": RuntimeError("ours"), "saved": RuntimeError("ours too")}
    handler = Handler(room)
    assert handler(0, MIB, 0) == TRY_AGAIN
    assert str(handler.broken) == "ours too"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, MemoryError])
def test_an_error_of_ours_leaves_torchs_own(error):
    """Whatever it is, and wherever: no room is answered, the error is kept for the report, the lock is free."""
    room = FakeRoom()
    handler = Handler(room)
    room.host_room = lambda nbytes: (_ for _ in ()).throw(error("ours"))
    for turn in range(2):
        assert handler(0, MIB, 0) == NO_ROOM
        assert type(handler.broken) is error
        assert handler.failed == turn + 1


def test_the_users_own_way_comes_first():
    """Caches, earlier errors and garbage only; then the error is let out, and the report says why."""
    room = FakeRoom(pages=MIB)
    handler = Handler(room, errors=lambda device: room.did.append("errors") or "", own_way=lambda: True)
    assert handler(0, MIB, 0) == NO_ROOM
    assert ways(room) == ["caches", "errors"]
    assert handler.handled_by_user
    assert handler.reasons == ["code of the cell deals with the error itself"]
    room.gives["caches"] = MIB
    assert handler(0, MIB, 0) == TRY_AGAIN


def test_no_move_moves_nothing():
    """As --no-move says; why it ended is told."""
    room = FakeRoom(pages=MIB, holes=MIB)
    handler = Handler(room, moves=False)
    assert handler(0, MIB, 0) == NO_ROOM
    assert ways(room) == ["caches"]
    assert handler.reasons == ["nothing may be moved, by the options"]


def test_while_a_graph_is_captured_nothing_is_done():
    """Not even a cache is given back."""
    room = FakeRoom(caches=MIB)
    room.stopped = "a CUDA graph is being captured"
    handler = Handler(room)
    assert handler(0, MIB, 0) == NO_ROOM
    assert room.did == []
    assert handler.reasons == [room.stopped]


def test_where_pages_are_refused_the_rest_still_helps():
    """The reason is kept; the host serves."""
    room = FakeRoom(pages=MIB)
    room.unmoved = "another thread (worker) may use CUDA meanwhile"
    handler = Handler(room)
    assert handler(0, MIB, 0) == USE_HOST
    assert "pages" not in room.did
    assert handler.done["pages"].refused == room.unmoved


def test_a_host_that_is_full_says_so():
    """With numbers, and torch's error stands."""
    room = FakeRoom()
    room.no_host = "the host can give 1.00 GiB, 2.00 GiB was asked for"
    handler = Handler(room)
    assert handler(0, MIB, 0) == NO_ROOM
    assert handler.reasons == [room.no_host]


def test_a_request_that_failed_with_room_asks_for_more():
    """The driver tells of more than it can give: each try wants more, and after six the host serves."""
    room = FakeRoom(caches=MIB, holes=100 * MIB)
    handler = Handler(room)
    assert handler(0, MIB, 0) == TRY_AGAIN
    assert room.did == ["caches"]
    assert handler(0, MIB, 1) == TRY_AGAIN  # 1 MiB is free, and more is wanted now
    assert room.did[-1] == "holes"
    assert handler.requests == 1
    assert handler(0, MIB, 6) == USE_HOST


def test_garbage_is_not_collected_twice_in_a_row(monkeypatch):
    """A collection that took a while is not made again for each request; where a request failed it is."""
    done = []
    monkeypatch.setattr(gc, "collect", lambda *generation: done.append(1) or time.sleep(0.02))
    handler = Handler(FakeRoom())
    for _ in range(5):
        handler(0, MIB, 0)
    assert len(done) == 1
    handler(0, MIB, 1)
    assert len(done) == 2


def test_what_takes_long_is_said_once():
    """One line before the first move of each kind, none for what costs nothing."""
    said = []
    room = FakeRoom(caches=MIB)
    handler = Handler(room, say=said.append)
    handler(0, MIB, 0)
    assert said == []
    for _ in range(3):
        room.room, room.gives = 0, {"saved": MIB}
        handler(0, MIB, 0)
        room.room, room.gives = 0, {"pages": MIB}
        handler(0, MIB, 0)
        room.room = 0
        handler(0, MIB, 0)
    assert [line.rpartition(": ")[2] for line in said] == [
        "what autograd saved for the backward pass waits on the host",
        "tensors that are needed last wait on the host",
        "new tensors lie on the host, which is slower",
    ]


def test_two_threads_take_turns():
    """The second one waits until the first one is done."""
    room, order = FakeRoom(), []
    inside, go = threading.Event(), threading.Event()

    def pages(device, nbytes):
        order.append("in")
        inside.set()
        go.wait(5)
        order.append("out")
        return room._do("pages")

    room.pages = pages
    handler = Handler(room)
    threads = [threading.Thread(target=handler, args=(0, MIB, 0)) for _ in range(2)]
    threads[0].start()
    assert inside.wait(5)
    threads[1].start()
    time.sleep(0.05)
    assert order == ["in"]
    go.set()
    for one in threads:
        one.join()
    assert order == ["in", "out", "in", "out"]


def test_a_thread_does_not_wait_for_ever(monkeypatch):
    """It gets torch's error, and the one that is at work goes on."""
    monkeypatch.setattr("cuda_magic.allocation.handler._WAIT", 0.05)
    handler = Handler(FakeRoom())
    handler._lock.acquire()
    try:
        assert handler(0, MIB, 0) == NO_ROOM
    finally:
        handler._lock.release()
    assert handler(0, MIB, 0) == USE_HOST


def test_the_time_is_counted():
    """In all, and of each way."""
    room = FakeRoom()
    room.pages = lambda device, nbytes: time.sleep(0.02) or 0
    handler = Handler(room)
    handler(0, MIB, 0)
    assert handler.seconds >= handler.done["pages"].seconds >= 0.02


def test_at_the_end_it_holds_nobody():
    """What it was given is let go of; a thread that asks late still gets an answer."""
    room = FakeRoom()
    handler = Handler(room, errors=lambda device: "x", say=print, own_way=lambda: True)
    handler.forget()
    assert handler(0, MIB, 0) == USE_HOST


def test_a_line_comes_before_what_takes_long():
    """Moving 6 GiB takes over a second; a request of more than everything moves nothing, and nothing is said of it."""
    said = []
    room = FakeRoom(pages=6 << 30)
    real = room.pages
    room.pages = lambda device, nbytes: said.append("it begins") or real(device, nbytes)
    assert Handler(room, say=said.append)(0, 6 << 30, 0) == TRY_AGAIN
    assert said[0] == "the GPU's memory is full: making room"
    assert said.index("it begins") == 1
    said.clear()
    Handler(FakeRoom(), say=said.append)(0, 100 << 30, 0)
    assert not [line for line in said if "making room" in line]
