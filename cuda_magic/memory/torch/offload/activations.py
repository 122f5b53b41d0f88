"""What autograd saves for the backward pass lives on the host in between, as much of it as is needed.

The numbers are bitwise those of the plain run: every storage goes out and comes back whole, views are rebuilt on it,
and versions are checked as autograd checks them. Copies are ordered as `copies` tells.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter, deque
from types import TracebackType
from typing import Any

from ....errors import Refused
from .budget import Budget
from .recompute import Recipes, again
from .saved_tensor import Kept, Parts, Record, Token, check_version
from .store import Place

__all__ = ["Activations"]

LEAST = 256 << 10
"""Bytes below which a storage stays on the card."""
LOOKS = 16
"""How many of the storages that somebody else held are looked at again each time."""
REACH = 256
"""How many records before the one asked for may be fetched ahead."""
YOUNG = 8
"""So many records back it is not known yet which can be computed again."""
NEAR = 8
"""So many records further on the backward pass is still on its way down: an operation asks in turn."""
AHEAD = ("card", "leaving", "back")
"""What counts against the budget of the backward pass: what never left too, so that the peak stays flat."""


class Activations:
    """Hooks on what autograd saves, in force inside ``with``; graphs that outlive it stay valid.

    Parameters
    ----------
    torch
        The imported torch.
    copies
        The streams of the card.
    place
        Where the contents wait. When it is full, what is saved stays on the card.
    budget
        How much may stay on the card anyway.
    least
        Smallest storage that leaves, in bytes.
    """

    def __init__(self, torch: Any, copies: Any, place: Place, budget: Budget, least: int = LEAST) -> None:
        self._torch, self._copies, self._place, self.budget, self._least = torch, copies, place, budget, least
        self.weak = torch.multiprocessing.reductions.StorageWeakRef
        self.active = False
        self.moved: Counter[str] = Counter()
        """Bytes ``out`` and ``in``; how many storages were ``saved``, fetched ``late``, ``shared``; ``ooms`` met;
        bytes ``dropped`` and ``computed`` again."""
        self.leaves: set[int] = set()
        """Keys of storages that live on anyway: `adopt` gets parameters without their mark."""
        self._high = 0
        """Bytes on the card at most, since a request found no room."""
        self._backward = False
        """Whether the last hook was one of the backward pass."""
        self.most_kept = 0
        """Bytes that stayed on the card by the budget, at most."""
        self._lock = threading.RLock()
        """Taken again by its own thread where a fetch asks for memory and room is made for it (`make_room`)."""
        self._known: weakref.WeakValueDictionary[tuple[int, int], Record] = weakref.WeakValueDictionary()
        self._records: weakref.WeakValueDictionary[int, Record] = weakref.WeakValueDictionary()
        self._count = 0
        self._free = self._sent = self._leaves = self._cheap_bytes = 0
        """Bytes free; in this round: sent out, to be sent out at least, and that can be computed again."""
        self._asked = self._next = 0
        """The record asked for last, and the one that may be fetched ahead next."""
        self._resident: deque[weakref.ref[Record]] = deque()
        self._recipes = Recipes(torch, copies.device)
        self._cheap: deque[weakref.ref[Record]] = deque()
        """Those on the card that can be computed again."""
        self._leaving: deque[weakref.ref[Record]] = deque()
        self._watched: deque[tuple[int, weakref.ref[Record]]] = deque()
        self._bytes = {"watched": 0, "card": 0, "leaving": 0, "back": 0}
        self._ended: deque[Parts] = deque()
        self._full = False
        self._main = copies.stream()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> Activations:
        self.begin()
        self.push()
        return self

    def begin(self) -> None:
        """Take in what `adopt` gives; what is saved from now on is seen once `push` was called."""
        self._main = self._copies.stream()
        self.active = True
        IN_FORCE.add(self)

    def push(self) -> None:
        """Put the hooks on for what this thread saves from now on."""
        self._hooks.__enter__()

    def adopt(self, raw: Any) -> None:
        """Take in what autograd saved before the hooks were there: a `SavedTensor` of a node that has not run back."""
        raw.register_hooks(self._pack, self._unpack)

    def make_room(self, nbytes: int) -> int:
        """Let the oldest wait elsewhere until so many bytes more do, and wait for the copies; the bytes that went.

        What stays from now on is no more than what is here then.
        """
        if not self._lock.acquire(timeout=1.0):
            return 0
        try:
            went = self._bytes["leaving"]
            for seen in list(self._watched):
                record = seen[1]()
                if record is None:
                    self._watched.remove(seen)
                elif not self._held_elsewhere(record):
                    self._watched.remove(seen)
                    record.place = "card"
                    self._bytes["watched"] -= record.nbytes
                    self._bytes["card"] += record.nbytes
                    self._resident.append(seen[1])
            in_order = sorted((r for seen in self._resident if (r := seen()) is not None), key=lambda r: r.index)
            self._resident = deque(weakref.ref(record) for record in in_order)
            del in_order
            went += self._drop_cheap(nbytes - went)
            while went < nbytes and self._resident and not self._full:
                record = self._resident.popleft()()
                if record is not None and record.place == "card" and self._here(record):
                    if self._held_elsewhere(record):
                        self._watched.append((self._count + 1, weakref.ref(record)))
                        record.place = "watched"
                        self._bytes["card"] -= record.nbytes
                        self._bytes["watched"] += record.nbytes
                    else:
                        self._out(record)
                        went += record.nbytes if record.place == "leaving" else 0
                record = None
            self._let_go(0)
            if went < nbytes:
                went += self._bytes["back"] if self._drop_fetched() else 0
            # in a backward pass what stayed is on its way out anyway: so much less may stay the next time
            self._high = self._high - went if self._backward else self._bytes["card"]
            self.budget.no_more(self._high - self.budget.window)
            return went
        finally:
            self._lock.release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.off()
        except RuntimeError:  # a lost context: the user's error tells it
            if error is None:
                raise

    def off(self) -> None:
        """Take the hooks off and let copies end in the order of the streams. Calling it twice does no harm.

        An interrupt may come between any two lines here: whoever has hooks put in force calls this once more when
        the statement is over.
        """
        while self.active and self._on_top():
            self._hooks.__exit__()
        self.active = False
        try:
            with self._lock:
                self._let_go(0)
            self.settle()
            self._copies.join(self._main)
        finally:
            IN_FORCE.discard(self)

    def _on_top(self) -> bool:
        top = self._torch._C._autograd._top_saved_tensors_default_hooks(True)
        return top is not None and top[0] == self._pack

    # -- forward
    def _pack(self, tensor: Any) -> Any:
        if tensor.is_inference():
            return tensor  # it keeps no version
        try:
            return self._save(tensor)
        except Exception:  # noqa: BLE001 - an error of ours must not fail the user's forward pass
            self._full = True
            return Kept(tensor)

    def _save(self, tensor: Any) -> Any:
        if not self._may_leave(tensor):
            return Kept(tensor)
        storage = tensor.untyped_storage()
        if (
            storage.nbytes() < self._least
            or self._copies.stream(self._main) != self._main
            or storage._cdata in self.leaves
        ):
            return Kept(tensor)
        self.settle()
        with self._lock:
            self._backward = False
            record = self._record(tensor, storage)
            token = Token(record, tensor)
            self._find_recipes(tensor, token)
            self._shed()
            self._high = max(self._high, self._bytes["card"])
        self.settle()
        return token

    def _may_leave(self, tensor: Any) -> bool:
        """Parameters, leaves with a gradient and views of them live on anyway: a copy of them frees nothing."""
        if type(tensor) is not self._torch.Tensor or tensor.device != self._copies.device:
            return False
        if tensor.layout is not self._torch.strided or tensor.is_quantized or tensor.is_neg():
            return False
        base = tensor._base if tensor._is_view() else tensor
        return not (base.is_leaf and base.requires_grad)

    def _record(self, tensor: Any, storage: Any) -> Record:
        key = (storage._cdata, tensor._version)
        record = self._known.get(key)
        if record is not None:
            self.moved["shared"] += 1
            return record
        if not self._records:
            alike, budget = self.budget.next_round(), self.budget
            # what leaves anyway leaves as soon as it can: the link is the narrowest place
            self._leaves = min(self._sent, budget.before - self._cheap_bytes - budget.stays) if alike else 0
            self._sent = self._cheap_bytes = 0
            self._full = False
        if self._count % 4 == 0:
            self._look()
        record = Record(self, self._count, tensor, storage, self._copies.mark(self._main))
        self.budget.saved(record.nbytes)
        self.moved["saved"] += 1
        self._count += 1
        self._records[record.index] = self._known[key] = record
        # an input or a mask may be held by the user for good: look again when two more were saved
        if tensor.grad_fn is None:
            record.place = "watched"
            self._watched.append((self._count + 1, weakref.ref(record)))
        else:
            self._resident.append(weakref.ref(record))
        self._bytes[record.place] += record.nbytes
        return record

    def _look(self) -> None:
        """How much is free now: to ask takes longer than all else here, so this is not done for each."""
        self._free = self._copies.free()
        self.budget.seen(self._free)

    def _shed(self) -> None:
        """Send out what is beyond the budget, the oldest first: it is needed last."""
        for _ in range(min(len(self._watched), LOOKS) if self._count % 4 == 0 else 0):
            since, seen = self._watched.popleft()
            record = seen()
            if record is None:
                continue
            if self._count < since or self._held_elsewhere(record):
                self._watched.append((since, seen))
            else:
                record.place = "card"
                self._bytes["watched"] -= record.nbytes
                self._bytes["card"] += record.nbytes
                self._resident.append(seen)
        if self._bytes["card"] > self.budget.stays:
            self._drop_cheap(self._bytes["card"] - self.budget.stays)
        for _ in range(len(self._resident)):
            over = self._bytes["card"] > self.budget.stays
            if self._full or not (over or self._sent < self._leaves):
                break
            record = self._resident[0]()
            if not over and record is not None and record.index > self._count - YOUNG:
                break
            seen = self._resident.popleft()
            if record is not None and record.place == "card" and self._here(record):
                if record.recipe is None:
                    self._out(record)
                elif self._droppable(record):
                    self._drop(record)
                elif over:
                    self._out(record)
                else:
                    self._resident.append(seen)
            del record
            self._let_go(self.budget.window)
        if self.budget.keep:
            self.most_kept = max(self.most_kept, min(self._bytes["card"], self.budget.keep))

    def _find_recipes(self, tensor: Any, token: Token) -> None:
        recipes = self._recipes
        with contextlib.suppress(Exception):  # it is copied then
            recipes.saved(tensor, token)
        for record in recipes.found:
            self._cheap.append(weakref.ref(record))
            self._cheap_bytes += record.nbytes
        recipes.found.clear()

    def _drop_cheap(self, nbytes: int) -> int:
        """Let go of so much that can be computed again, the oldest first; how much went."""
        went = 0
        for _ in range(len(self._cheap)):
            if went >= nbytes:
                break
            seen = self._cheap.popleft()
            record = seen()
            if record is None or record.place != "card":
                continue
            if not self._droppable(record):
                self._cheap.append(seen)
                continue
            self._drop(record)
            went += record.nbytes
        return went

    def _drop(self, record: Record) -> None:
        record.place, record.gpu = "gone", None
        self._bytes["card"] -= record.nbytes
        self.moved["dropped"] += record.nbytes

    def _droppable(self, record: Record) -> bool:
        """Whether nobody can change what it is computed from any more."""
        if record.gpu._version != record.version or self._held_elsewhere(record):
            return False
        assert record.recipe is not None
        for one in (token.record for token in record.recipe.tokens()):
            if one.version < 0:
                return False
            if one.gpu is not None and (one.gpu._version != one.version or self._held_elsewhere(one)):
                return False
        return True

    def _held_elsewhere(self, record: Record) -> bool:
        return bool(self._torch._C._storage_Use_Count(record.gpu.untyped_storage()._cdata) > 2)  # ours and its wrapper

    def _here(self, record: Record) -> bool:
        """Whether its memory is where it was: a parked storage is empty."""
        return bool(record.gpu.untyped_storage().nbytes() == record.nbytes)

    def _out(self, record: Record) -> None:
        try:
            buffer = self._place.take(record.nbytes)
            source = self._bytes_of(record.gpu.untyped_storage(), record.nbytes)
            record.out = self._copies.out(source, buffer, record.packed)
        except (Refused, RuntimeError):
            self._full = True  # it stays where it is; a buffer that was taken is lost until the arena's release
            return
        record.host, record.place = buffer, "leaving"
        self._bytes["card"] -= record.nbytes
        self._bytes["leaving"] += record.nbytes
        self._leaving.append(weakref.ref(record))
        self.moved["out"] += record.nbytes
        self._sent += record.nbytes

    def _let_go(self, window: int) -> None:
        while self._bytes["leaving"] > window and self._leaving:
            record = self._leaving.popleft()()
            if record is None or record.place != "leaving":
                continue
            self._copies.wait(self._main, (record.out,))
            if record.gpu._version != record.version:
                record.version = -1  # changed in place while it was copied: never handed out
            record.place, record.gpu = "host", None
            self._bytes["leaving"] -= record.nbytes

    def _bytes_of(self, storage: Any, nbytes: int) -> Any:
        empty = self._torch.empty(0, dtype=self._torch.uint8, device=self._copies.device)
        return empty.set_(storage, 0, (nbytes,), (1,))

    # -- backward
    def _unpack(self, token: Any) -> Any:
        if type(token) is Kept:
            check_version(token.data, token.version, token.data.size())
            return token.data
        if type(token) is not Token:
            return token
        self.settle()
        record, stream = token.record, self._copies.stream(self._main)
        with self._lock:
            self._backward = True
            if record.gpu is not None or record.version < 0:
                check_version(record.gpu, record.version, token.size)
                if not self._here(record):  # parked since: an op that names it brings it back
                    record.gpu.as_strided(record.gpu.size(), record.gpu.stride(), record.gpu.storage_offset())
                storage = record.gpu.untyped_storage()
            else:
                storage = self._returned(record, stream)
            found = token.on(self._torch, self._copies.device, storage)
            if record.index % 4 == 0:
                self._look()
            self._prefetch(record.index, stream)
        self.settle()
        return found

    def _alive(self, record: Record) -> Any:
        """The storage that it came back into, if somebody still has it."""
        if isinstance(record.back, self.weak):
            return self._torch.UntypedStorage._new_with_weak_ptr(record.back.cdata)
        return record.back

    def _computed(self, record: Record, stream: Any) -> Any:
        """The storage of what was let go of, computed again."""
        storage = self._alive(record)
        if storage is not None:
            return storage
        assert record.recipe is not None

        def read(token: Token) -> Any:
            one = token.record
            if one.gpu is not None:
                check_version(one.gpu, one.version, token.size)
                held = one.gpu.untyped_storage()
            elif one.place == "gone":
                held = self._computed(one, stream)
            else:
                held = self._alive(one)
                if held is None:
                    self._fetch_now(one, stream)
                    held = one.back  # it stays: its own operation asks for it next
                self._copies.wait(stream, (one.came,))
            return token.on(self._torch, self._copies.device, held)

        with again(self._torch):
            storage = record.recipe.compute(read).untyped_storage()
        record.back = self.weak(storage)
        self.moved["computed"] += record.nbytes
        return storage

    def _returned(self, record: Record, stream: Any) -> Any:
        if record.place == "gone":
            return self._computed(record, stream)
        storage = self._alive(record)
        if storage is None:
            self.moved["late"] += 1
            self._fetch_now(record, stream)
            storage = record.back
        record.asked += 1
        # it stays until all who saved it have asked, each once in a backward pass
        if record.asked % record.tokens == 0 and not isinstance(record.back, self.weak):
            record.back = self.weak(storage)
            self._bytes["back"] -= record.nbytes
        self._copies.wait(stream, (record.came,))
        return storage

    def _fetch_now(self, record: Record, stream: Any) -> None:
        try:
            self._fetch(record, stream)
        except RuntimeError:
            if not self._drop_fetched():
                raise
            self.moved["ooms"] += 1
            self._fetch(record, stream)

    def _fetch(self, record: Record, stream: Any) -> None:
        assert record.host is not None
        storage = self._torch.UntypedStorage(record.nbytes, device=self._copies.device)
        target = self._bytes_of(storage, record.nbytes)
        came = self._copies.back(record.host, target, stream, record.out)
        record.came, record.stream, record.back = came, stream, storage
        self._free -= record.nbytes
        self._bytes["back"] += record.nbytes
        self.moved["in"] += record.nbytes

    def _prefetch(self, index: int, stream: Any) -> None:
        """Fetch what was saved before `index`, the latest first; what was looked at on the way down is not again."""
        if index > self._asked + NEAR:
            self._next = index - 1
        self._asked = index
        last, ahead = max(-1, index - 1 - REACH), self.budget.ahead
        for before in range(min(self._next, index - 1), last, -1):
            self._next = before
            if sum(self._bytes[place] for place in AHEAD) >= ahead:
                return
            record = self._records.get(before)
            if record is None or record.place != "host" or record.back is not None or record.version < 0:
                continue
            if self._free < record.nbytes + self.budget.largest:
                return  # it comes when it is asked for
            try:
                self._fetch(record, stream)
            except RuntimeError:
                self.moved["ooms"] += 1
                return
        self._next = min(self._next, last)

    def _drop_fetched(self) -> bool:
        """Let go of what was fetched and not asked for yet; whether there was any."""
        found = [r for r in list(self._records.values()) if isinstance(r.back, self._torch.UntypedStorage)]
        for record in found:
            self._copies.wait(record.stream, (record.came,))
            record.back = None
            self._bytes["back"] -= record.nbytes
        return bool(found)

    # -- the end of a record
    def ended(self, parts: Parts) -> None:
        """Called by a finalizer, anywhere; settled by the next hook, or at once where no more will come."""
        self._ended.append(parts)
        if not self.active:
            self.settle()

    def settle(self) -> None:
        """Give back what ended records held, in the order of the streams; nothing if somebody is at work."""
        while self._ended and not self._lock._is_owned() and self._lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                while self._ended:
                    self._wait_for(self._ended[0])  # an interrupt here leaves it to the next
                    self._account(self._ended.popleft())
            finally:
                self._lock.release()

    def _wait_for(self, parts: Parts) -> None:
        try:
            if parts.back is not None:  # fetched and never used
                self._copies.wait(parts.stream, (parts.came,))
            if parts.gpu is not None:
                self._copies.wait(self._main, (parts.out,))
        except RuntimeError:
            return  # a lost context, or the end of the process

    def _account(self, parts: Parts) -> None:
        if parts.place in self._bytes:
            self._bytes[parts.place] -= parts.size
        if parts.back is not None:
            self._bytes["back"] -= parts.size
        if parts.host is not None:
            self._place.give(parts.host, (parts.came or parts.out,))


IN_FORCE: weakref.WeakSet[Activations] = weakref.WeakSet()
"""Hooks that are on now. While any is, nothing else may empty a storage: a copy of it may be under way."""
