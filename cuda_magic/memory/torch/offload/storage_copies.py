"""Copies of whole storages out of a device and back, ordered by streams: no copy waits on the CPU.

A lane belongs to one device. `out` copies while the storage may still be read, after `vacate` its memory may be given
back; `back` gives it new memory. They leave the contents valid in one place if they raise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

__all__ = ["CudaLane", "Lane", "On", "PlainLane", "quiet", "sides", "tight"]

SPARE = 128 << 20
"""Bytes that a card must have free before streams are made: torch makes all of them with the first, which took 70 MiB
of an H200 (torch 2.11). 1 GiB of page-locked memory took 2 MiB."""


def tight(torch: Any) -> bool:
    """Whether a card of this process is so full that pinning may fail for that."""
    cuda = torch.cuda
    used = (i for i in range(cuda.device_count()) if torch._C._cuda_hasPrimaryContext(i))
    return any(cuda.mem_get_info(i)[0] < SPARE for i in used)


def sides(torch: Any, index: int, lent: int = 0) -> tuple[Any, Any] | None:
    """Two streams beside those that compute; None while the card has no room for them beside `lent` bytes."""
    if torch.cuda.mem_get_info(index)[0] < SPARE + lent:
        return None
    return torch.cuda.Stream(index), torch.cuda.Stream(index)


class quiet:  # noqa: N801 - used as a word: with quiet(torch)
    """Our own copies are seen by no mode of the user's and by no autograd. It is entered hundreds of times a second."""

    __slots__ = ("_c", "_dispatch", "_function", "_grad")

    def __init__(self, torch: Any) -> None:
        self._c = torch._C

    def __enter__(self) -> None:
        c = self._c
        self._grad = c.is_grad_enabled()
        self._function = c.DisableTorchFunctionSubclass()
        self._function.__enter__()
        c._set_grad_enabled(False)
        self._dispatch = c._DisableTorchDispatch()  # in force as long as it lives

    def __exit__(self, *error: Any) -> None:
        self._dispatch = None
        self._c._set_grad_enabled(self._grad)
        self._function.__exit__(None, None, None)


class On:
    """The current stream of its device, inside. Done for each copy, so without what torch looks up each time."""

    __slots__ = ("_before", "_c", "_stream")

    def __init__(self, torch: Any, stream: Any) -> None:
        self._c, self._stream = torch._C, stream

    def __enter__(self) -> None:
        stream = self._stream
        self._before = self._c._cuda_getCurrentStream(stream.device_index)
        self._set(stream.stream_id, stream.device_index, stream.device_type)

    def __exit__(self, *error: Any) -> None:
        self._set(*self._before)

    def _set(self, stream: int, index: int, kind: int) -> None:
        self._c._cuda_setStream(stream_id=stream, device_index=index, device_type=kind)


def _bytes(torch: Any, storage: Any, nbytes: int) -> Any:
    """The storage as a tensor of bytes."""
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return whole.set_(storage, 0, (nbytes,), (1,))


class Lane(Protocol):
    """Copies for one device. `events` are those of earlier copies that used the buffer."""

    def out(self, storage: Any, buffer: Any, nbytes: int) -> Any:
        """Start to copy into `buffer.data`; the event of its end, before which nothing may write to the storage."""
        ...

    def vacate(self, event: Any) -> None:
        """Whoever is given the storage's memory after this uses it after `event`."""
        ...

    def back(self, storage: Any, buffer: Any, nbytes: int, left: Any) -> Any:
        """New memory for the storage, and the copy into it started; the event of its end, or None. May raise."""
        ...

    def wait(self, event: Any) -> None:
        """What is enqueued from now on comes after `event`."""
        ...

    def settle(self) -> None:
        """Wait until all copies are done."""
        ...

    @property
    def several(self) -> bool:
        """Whether ops were seen on several streams, so that each copy is waited for."""
        ...


class PlainLane:
    """Copies with no streams: for storages on the CPU, by which the rules are tested.

    `allocate` is asked before a storage gets memory again, and may raise.
    """

    several = False

    def __init__(self, torch: Any, allocate: Callable[[int], None] = lambda nbytes: None) -> None:
        self.torch, self.allocate = torch, allocate

    def out(self, storage: Any, buffer: Any, nbytes: int) -> Any:
        buffer.data.copy_(_bytes(self.torch, storage, nbytes))

    def vacate(self, event: Any) -> None:
        return

    def back(self, storage: Any, buffer: Any, nbytes: int, left: Any) -> Any:
        self.allocate(nbytes)
        storage.resize_(nbytes)
        try:
            _bytes(self.torch, storage, nbytes).copy_(buffer.data)
        except BaseException:
            storage.resize_(0)
            raise

    def wait(self, event: Any) -> None:
        return

    def settle(self) -> None:
        return


class CudaLane:
    """Two streams beside the one that computes. Once ops were seen on another than that, the device is waited for.

    While the card has no room for the two, the default stream stands in for them.
    """

    def __init__(self, torch: Any, index: int) -> None:
        self.torch, self.index = torch, index
        self._sides: tuple[Any, Any] | None = None
        self._lent = 0
        """Bytes that left and will want their room again."""
        self._stream: int | None = None
        self.several = False
        self._streams()  # there may be less room later

    def note(self, stream: int) -> None:
        """An op runs on this stream (its raw handle)."""
        if stream != self._stream:
            if self._stream is not None:
                self.several = True
                self.torch.cuda.synchronize(self.index)
            self._stream = stream

    def _streams(self) -> tuple[Any, Any]:
        """For what leaves and for what comes back."""
        if self._sides is None:
            self._sides = sides(self.torch, self.index, self._lent)
        return self._sides or (self.torch.cuda.default_stream(self.index),) * 2

    def out(self, storage: Any, buffer: Any, nbytes: int) -> Any:
        cuda = self.torch.cuda
        with cuda.device(self.index):
            if self.several:
                cuda.synchronize(self.index)
            main, (leaving, _) = cuda.current_stream(self.index), self._streams()
            leaving.wait_stream(main)
            for event in buffer.events:
                leaving.wait_event(event)
            with cuda.stream(buffer.home) if buffer.home else nullcontext(), On(self.torch, leaving):
                buffer.data.copy_(_bytes(self.torch, storage, nbytes), non_blocking=True)
            done = leaving.record_event()
            if self.several or self._sides is None:
                done.synchronize()
            self._lent += nbytes
        return done

    def vacate(self, event: Any) -> None:
        cuda = self.torch.cuda
        # the memory is given out again in the order of the stream it belongs to: that one, or the default one
        cuda.current_stream(self.index).wait_event(event)
        cuda.default_stream(self.index).wait_event(event)

    def back(self, storage: Any, buffer: Any, nbytes: int, left: Any) -> Any:
        cuda = self.torch.cuda
        with cuda.device(self.index):
            main, home = cuda.current_stream(self.index), cuda.default_stream(self.index)
            _, coming = self._streams()
            if main != home:  # its memory belongs to the default stream, as it did before
                self.several = True
            if self.several:
                cuda.synchronize(self.index)
            with On(self.torch, home):
                storage.resize_(nbytes)  # raises where there is no room, and changes nothing
            try:
                coming.wait_stream(home)
                if left is not None:
                    coming.wait_event(left)
                with cuda.stream(buffer.home) if buffer.home else nullcontext(), On(self.torch, coming):
                    _bytes(self.torch, storage, nbytes).copy_(buffer.data, non_blocking=True)
                done = coming.record_event()
                if self.several or self._sides is None:
                    done.synchronize()
            except BaseException:
                storage.resize_(0)
                raise
            self._lent -= nbytes
        return done

    def wait(self, event: Any) -> None:
        self.torch.cuda.current_stream(self.index).wait_event(event)

    def settle(self) -> None:
        for stream in self._sides or (self.torch.cuda.default_stream(self.index),):
            stream.synchronize()
