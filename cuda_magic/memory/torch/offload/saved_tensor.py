"""What stands for a tensor that autograd saved: a token in the graph, and one record for each storage and version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activations import Activations
    from .host_pool import Buffer
    from .recompute import Recipe

__all__ = ["Kept", "Parts", "Record", "Token", "check_version"]


def check_version(tensor: Any, expected: int, size: tuple[int, ...]) -> None:
    """As autograd does for what it saves itself; with hooks it leaves that to them.

    Raises
    ------
    RuntimeError
        If the tensor was changed in place since it was saved.
    """
    if tensor is None or tensor._version != expected:
        now = "" if tensor is None else f" is at version {tensor._version}; expected version {expected} instead"
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation:"
            f" [{list(size)}]{now}."
        )


class Kept:
    """A tensor that stays where it is: only its version is watched. Detached, for it would hold its own graph."""

    __slots__ = ("data", "version")

    def __init__(self, tensor: Any) -> None:
        self.data, self.version = tensor.detach(), tensor._version


class Parts:
    """What a record leaves behind when nothing in a graph needs it any more. Nothing here waits or copies."""

    __slots__ = ("back", "came", "gpu", "host", "out", "place", "size", "stream")

    def __init__(self, record: Record) -> None:
        self.host, self.out, self.came, self.stream = record.host, record.out, record.came, record.stream
        self.place, self.size = record.place, record.nbytes
        # memory on the card is held on only where a copy may be under way
        self.gpu = record.gpu if record.place == "leaving" else None
        self.back = None if isinstance(record.back, record.owner.weak) else record.back


class Record:
    """One storage at one version.

    It holds a weak reference to the StorageImpl, which pins that struct: its address, the key, is used again by the
    next storage as soon as nothing refers to it, and a key of addresses alone gives another tensor's data.

    `place` is ``watched`` (held by somebody else too), ``card`` (not copied), ``leaving`` (copied, not let go yet) or
    ``host``, or ``gone`` (computed again when it is asked for, by `recipe`).
    Only tokens hold a record; it ends with the last of them.
    """

    __slots__ = (
        "__weakref__",
        "asked",
        "back",
        "came",
        "gpu",
        "host",
        "index",
        "nbytes",
        "out",
        "owner",
        "packed",
        "place",
        "recipe",
        "storage",
        "stream",
        "tokens",
        "version",
    )

    def __init__(self, owner: Activations, index: int, tensor: Any, storage: Any, packed: Any) -> None:
        self.owner, self.index, self.nbytes = owner, index, storage.nbytes()
        self.storage = owner.weak(storage)
        self.gpu, self.version, self.packed = tensor.detach(), tensor._version, packed
        self.host: Buffer | None = None
        self.out: Any = None
        self.back: Any = None
        """The storage it came back into; a weak reference once it was handed out to all who saved it."""
        self.came: Any = None
        """The event of that copy's end."""
        self.stream: Any = None
        self.recipe: Recipe | None = None
        """How it is computed anew from others, where that is known."""
        self.tokens = self.asked = 0
        """How many operations saved it, and how often one has asked for it."""
        self.place = "card"

    def __del__(self) -> None:
        owner = getattr(self, "owner", None)
        if owner is not None and hasattr(self, "place"):  # else it was interrupted while it was made
            owner.ended(Parts(self))


class Token:
    """One view of a record's storage, kept in the graph."""

    __slots__ = ("__weakref__", "conj", "dtype", "offset", "record", "size", "stride")

    def __init__(self, record: Record, tensor: Any) -> None:
        self.record, self.dtype, self.conj = record, tensor.dtype, tensor.is_conj()
        record.tokens += 1
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()

    def on(self, torch: Any, device: Any, storage: Any) -> Any:
        """The view, on this storage."""
        found = torch.empty(0, dtype=self.dtype, device=device).set_(storage, self.offset, self.size, self.stride)
        return found.conj() if self.conj else found
