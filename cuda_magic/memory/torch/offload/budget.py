"""How much of what autograd saves may stay on the card: nothing at first, more where a whole round left room."""

from __future__ import annotations

__all__ = ["Budget"]

FLOOR = 8 << 20
"""Bytes of copies under way at least."""
WIDE = 8
"""The margin's part of the limit where a request that finds no room fails."""


class Budget:
    """Sizes in bytes.

    Beside what is kept, twice the largest storage lies on the card: in the forward pass one is on its way out, and the
    newest, which the backward pass asks for first, has not left; in the backward pass two come. With that the link is
    never idle (measured on an H200), and the newest crosses it neither way.

    A round goes from the first tensor saved to the moment when none is left: one training step. In it the least free
    memory is seen; what was free beyond a wide margin is used by the next round: half of it, and exactly as much after
    two rounds that saved the same. An iteration of a loop that has begun cannot be taken back, so the margin is wide:
    twice the largest storage and the request that failed, and an eighth of the card for what is not seen between two
    looks. Where a request that finds no room is met, a smaller part of the card does.

    Parameters
    ----------
    request
        The request that failed.
    limit
        What this process may have on the card.
    most
        Bound of `keep`; None: none.
    share
        Which part of the limit the margin has: `WIDE`, or less where a request that finds no room is met.
    """

    def __init__(self, request: int = 0, limit: int = 0, most: int | None = None, share: int = WIDE) -> None:
        self.keep = 0
        self.largest = 0
        self._request, self._limit, self._most, self._share = request, limit, most, share
        self._low: int | None = None
        self._round = self.before = 0
        """Bytes saved in this round and in the one before."""

    @property
    def window(self) -> int:
        """Copies out under way, whose memory is not free yet."""
        return max(FLOOR, self.largest)

    @property
    def stays(self) -> int:
        """What has not left in the forward pass: beyond it the oldest goes."""
        return self.keep + self.window

    @property
    def ahead(self) -> int:
        """What may lie on the card in the backward pass, fetched or never left."""
        return self.keep + 2 * self.window

    @property
    def margin(self) -> int:
        return 2 * (self.largest + self._request) + self._limit // self._share

    def no_more(self, keep: int) -> None:
        """A request found no room: so much may stay from now on, at most."""
        self.keep = max(0, min(self.keep, keep))
        self._most = self.keep if self._most is None else min(self._most, self.keep)

    def saved(self, nbytes: int) -> None:
        """A storage of this size was saved."""
        self.largest = max(self.largest, nbytes)
        self._round += nbytes

    def seen(self, free: int) -> None:
        """So much was free at a moment of this round."""
        self._low = free if self._low is None else min(self._low, free)

    def next_round(self) -> bool:
        """All that was saved is gone: judge the round; whether it saved as much as the one before."""
        low, self._low = self._low, None
        alike = self._round == self.before
        self._round, self.before = 0, self._round
        if low is None:
            return alike
        spare = low - self.margin
        if alike:
            self.keep = max(0, self.keep + spare)
        else:
            self.keep = self.keep + spare // 2 if spare > 0 else self.keep // 2
        if self._most is not None:
            self.keep = min(self.keep, self._most)
        return alike
