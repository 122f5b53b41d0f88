"""The global generators of python and numpy: their state is read only when their memory has changed.

Reading a Mersenne twister makes 625 integers, 20 to 100 microseconds; looking at some of its words takes less than one.
The guard marks every statement, and few draw. A draw moves the position, or makes all 624 words anew; so does a seed.
Where the bytes lie is checked against a state that was really read, once in a process; where they are not found the
state is read each time.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["numpy_state", "python_state"]

_WORDS = 624
"""32-bit words of a Mersenne twister; its position follows (numpy) or stands before (CPython)."""
_NUMPY_BYTES = 4 * _WORDS + 4
"""sizeof(mt19937_state): numpy/random/src/mt19937/mt19937.h, ``key`` and ``pos``, since numpy 1.17."""


_LOOKED_AT = 8
"""Words that are looked at beside the position: two states that differ agree in them once in 2**256."""


class _Kept:
    """The last state that was read, and some bytes of the generator then.

    Parameters
    ----------
    read
        Reads the state.
    as_bytes
        The bytes in which a state shows in memory.
    """

    def __init__(self, read: Callable[[], Any], as_bytes: Callable[[Any], bytes]) -> None:
        self.read, self._as_bytes = read, as_bytes
        self._state: Any = None
        self._bytes: tuple[bytes, ...] | None = None
        self._extra: Any = None
        self._address = 0
        self._look: tuple[Callable[[], bytes], ...] = ()
        """Read the position and some words, wherever they lie."""
        self._known: bool | None = None
        """Whether a state was found in the bytes; None: not looked yet."""

    def unchanged(self, extra: Any) -> Any:
        """The last state where it is known to hold still; else None."""
        before = self._bytes
        if before is None or extra != self._extra:
            return None
        return self._state if tuple([look() for look in self._look]) == before else None

    def forget(self) -> None:
        """The state is read next time."""
        self._bytes = None

    def state(self, address: int, size: int, extra: Any = None) -> Any:
        """The state now. `extra` is what belongs to it and lies elsewhere."""
        if self._known is False:
            return self.read()
        if address != self._address:
            self._address, self._bytes, self._known = address, None, None
        if (known := self.unchanged(extra)) is not None:
            return known
        state = self.read()
        mine = self._as_bytes(state)
        if self._known is None:
            at = ctypes.string_at(address, size).find(mine)
            self._known = at >= 0
            ends = (0, len(mine) - 4 * _LOOKED_AT)  # the position is at one of them
            self._look = tuple([_reader(address + at + start, 4 * _LOOKED_AT) for start in ends])
        now = tuple([look() for look in self._look])
        # a draw by another thread in between: then these bytes are not this state's
        if self._known and now == (mine[: 4 * _LOOKED_AT], mine[-4 * _LOOKED_AT :]):
            self._state, self._bytes, self._extra = state, now, extra
        else:
            self._bytes = None
        return state


def _reader(address: int, size: int) -> Callable[[], bytes]:
    read: Callable[[], bytes] = memoryview((ctypes.c_char * size).from_address(address)).tobytes
    return read


_python: list[_Kept] = []
_numpy: list[_Kept] = []


def python_state(random: Any) -> Any:
    """``random.getstate()`` of the module `random`."""
    read = random.getstate
    generator: Any = getattr(read, "__self__", None)
    if _python and _python[0].read is read and (known := _python[0].unchanged(generator.gauss_next)) is not None:
        return known
    kind = type(generator)
    if kind is not getattr(random, "Random", None) or sys.implementation.name != "cpython":
        return read()
    if not _python or _python[0].read != read:
        _python[:] = [_Kept(read, lambda state: struct.pack(f"i{_WORDS}I", state[1][-1], *state[1][:-1]))]
    header = object.__basicsize__
    return _python[0].state(id(generator) + header, kind.__base__.__basicsize__ - header, generator.gauss_next)


_bits: list[Any] = [None, 0]
"""The last bit generator of numpy's global state, and where its state lies."""


def numpy_state(module: Any) -> Any:
    """``numpy.random.get_state()`` of the module ``numpy.random``."""
    read = module.get_state
    bits: Any = getattr(getattr(read, "__self__", None), "_bit_generator", None)
    if type(bits).__name__ != "MT19937" or type(bits).__module__ != "numpy.random._mt19937":
        return read()
    if not _numpy or _numpy[0].read != read:
        _numpy[:] = [_Kept(read, lambda state: state[1].tobytes() + struct.pack("i", state[2]))]
    kept = _numpy[0]
    if kept._state is not None and kept._state[3]:
        kept.forget()  # a second normal number is waiting: it is drawn without a change of these bytes
    if _bits[0] is not bits:
        _bits[:] = [bits, bits.ctypes.state_address]
    return kept.state(_bits[1], _NUMPY_BYTES)
