"""PYTORCH_CUDA_ALLOC_CONF read as torch reads it, by release: what it would refuse, and what it would silently accept.

torch cuts the text at ``,`` ``:`` ``[`` ``]`` and drops white space. Up to 2.9 each separator is checked; from 2.10 on
it is only stepped over, so that ``expandable_segments,True`` is taken for ``expandable_segments:True`` (compared with
the parser of 2.13). From 2.10 on two parsers read the text one after the other, and both must accept it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import nearest
from .allocator_options import BACKENDS, OPTIONS, TRAPS, AllocatorOption, known
from .numbers import WORD, power_of_two, read_int, read_real, read_size
from .release import NEWEST

__all__ = ["Reading", "read"]

_LARGE_MB = 20  # size of a large segment unless large_segment_size_mb changes it
_MOST_MB = (WORD - 1) // 2**20
_C_SPACES = " \t\n\v\f\r"


@dataclass(frozen=True)
class Reading:
    """What torch makes of a configuration.

    `refused` is why it would raise, empty where it would not; `options` are the values that it would use.
    """

    refused: str
    options: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """``refused``, ``accepted with a warning`` or ``accepted``."""
        return "refused" if self.refused else "accepted with a warning" if self.notes else "accepted"


class _Refused(Exception):
    """torch would raise here."""


def read(text: str, release: tuple[int, int] = NEWEST, *, cuda: bool = True, loaded: str | None = None) -> Reading:
    """How torch of `release` reads `text`.

    Parameters
    ----------
    text
        The value of the variable.
    release
        torch's (major, minor).
    cuda
        Judge keys and backend too; a build without CUDA judges only structure and ranges.
    loaded
        The backend that torch has already loaded, None before it is imported.
    """
    parser = _Parser(text, release, cuda, loaded)
    try:
        parser.run()
    except _Refused as error:
        return Reading(str(error), dict(parser.options))
    return Reading("", dict(parser.options), tuple(dict.fromkeys([*parser.notes, *_combinations(parser)])))


def _tokens(text: str, spaces: str) -> list[str]:
    found, word = [], ""
    for c in text:
        if c in ",:[]":
            found += [word, c] if word else [c]
            word = ""
        elif c not in spaces:
            word += c
    return [*found, word] if word else found


class _Parser:
    """One reading of one text."""

    def __init__(self, text: str, release: tuple[int, int], cuda: bool, loaded: str | None) -> None:
        self.text, self.release, self.cuda, self.loaded = text, release, cuda, loaded
        self.strict = release < (2, 10)
        self.tokens = _tokens(text, " " if self.strict else _C_SPACES)
        self.large = _LARGE_MB
        self.key = ""
        self.options: dict[str, str] = {}
        self.notes: list[str] = []

    def run(self) -> None:
        if self.strict:
            self.walk(None)
            return
        if self.release >= (2, 11):
            self.large_first()
        self.walk(False)
        if self.cuda:
            self.walk(True)

    # -- the two kinds of walk
    def large_first(self) -> None:
        """From 2.11 on the size of large segments is looked for first, wherever the word stands."""
        i = 0
        while i < len(self.tokens):
            if self.tokens[i] == "large_segment_size_mb":
                self.key = self.tokens[i]
                self.separator(i + 1, ":")
                i += 2
                self.large = min(self.number(i, 11), _MOST_MB)
            i += 1

    def walk(self, own: bool | None) -> None:
        """Read options from left to right; `own` is the CUDA parser's turn, None where there is only one parser."""
        i = 0
        while i < len(self.tokens):
            self.key = self.tokens[i]
            option = known(self.key)
            if option is None or option.since > self.release:
                self.unknown(option)
                i = self.skip(i)
            else:
                first = own is None or option.cuda == own
                self.separator(i + 1, ":")
                start = i + 2
                i = self.value(option, start) if first else self.skip(i)
                if first:
                    if self.key in self.options:
                        self.notes.append(f"{option.key} stands twice; the last one counts")
                    self.options[option.key] = "".join(self.tokens[start : i + 1])
            if i + 1 < len(self.tokens):
                i += 1
                self.separator(i, ",")
            i += 1

    def unknown(self, option: AllocatorOption | None) -> None:
        if not self.cuda:
            return
        have = f"{self.release[0]}.{self.release[1]}"
        if option is not None:
            older = [o.key for o in OPTIONS if o.since <= self.release and o.kind == "split"]
            more = f" ({older[0]}:N exists there)" if older and option.key == "expandable_segments" else ""
            raise _Refused(f"{self.key} needs torch >= {option.since[0]}.{option.since[1]}, you have {have}{more}")
        if self.release > NEWEST:
            self.notes.append(
                f"{self.key} is not known to this version of cuda_magic, which ends at torch {NEWEST[0]}.{NEWEST[1]}"
            )
            return
        raise _Refused(_unknown(self.key, self.release))

    def skip(self, i: int) -> int:
        """The index of the last token of the value of the key at `i`."""
        self.at(i + 1)
        i += 2
        if self.at(i) != "[":
            return i
        while i < len(self.tokens) and self.tokens[i] != "]":
            i += 1
        self.at(i)
        return i

    # -- tokens
    def at(self, i: int) -> str:
        if i >= len(self.tokens):
            raise _Refused(f"{self.key}: the value is missing or half-written")
        return self.tokens[i]

    def separator(self, i: int, wanted: str) -> None:
        if self.at(i) == wanted:
            return
        if self.strict:
            raise _Refused(f"{wanted!r} is expected where {self.tokens[i]!r} stands")
        self.notes.append(f"{self.tokens[i]!r} stands where {wanted!r} belongs; torch steps over it")

    # -- values: each gives the index of its last token
    def value(self, option: AllocatorOption, i: int) -> int:
        kind = option.kind
        if kind == "roundup":
            return self.roundup(i)
        if kind == "classes":
            return self.classes(i)
        token = self.at(i)
        if kind == "flag":
            if token not in ("True", "False"):
                raise _Refused(f"{option.key} takes True or False, not {token!r}")
        elif kind == "backend":
            self.backend(token)
        elif kind in ("open", "closed"):
            self.fraction(token, kind == "closed")
        elif kind == "threads":
            threads = self.number(i, 0)
            if not power_of_two(threads) or threads > 128:
                raise _Refused(f"{option.key} takes a power of two up to 128, not {token!r}")
        elif kind == "split":
            self.number(i, self.large)
        elif kind == "size":
            self.number(i, option.low)
        return i

    def number(self, i: int, low: int) -> int:
        token = self.at(i)
        try:
            value, rest = (read_int if self.strict else read_size)(token)
        except ValueError as error:
            raise _Refused(f"{self.key}: {error}, not {token!r}") from None
        if value < low:
            raise _Refused(f"{self.key} takes at least {low}, not {token!r}")
        if token.startswith("-"):
            self.notes.append(f"{self.key}: {token!r} is read as {value}")
        elif rest:
            self.notes.append(f"{self.key}: {token!r} is read as {value}; {rest!r} is dropped")
        return value

    def fraction(self, token: str, closed: bool) -> None:
        try:
            value, rest = read_real(token)
        except ValueError as error:
            raise _Refused(f"{self.key}: {error}, not {token!r}") from None
        if not (0.0 <= value <= 1.0 if closed else 0.0 < value < 1.0):
            raise _Refused(f"{self.key} takes a number {'from 0 to 1' if closed else 'between 0 and 1'}, not {token!r}")
        if rest:
            self.notes.append(f"{self.key}: {token!r} is read as {value:g}; {rest!r} is dropped")

    def backend(self, token: str) -> None:
        if token not in BACKENDS:
            plain = (
                "; PYTORCH_NO_CUDA_MEMORY_CACHING=1 switches caching off (for debugging, slow)"
                if token.lower() in ("cudamalloc", "cudart")
                else ""
            )
            raise _Refused(f"there is no backend {token!r}, only {' and '.join(BACKENDS)}{plain}")
        if self.loaded is not None and token != self.loaded:
            raise _Refused(
                f"torch is already imported with the backend {self.loaded}, and another one makes the next CUDA call"
                " fail; with --force and --restart on this line a new process has it from its start"
            )

    def roundup(self, i: int) -> int:
        if self.at(i) != "[":
            if not power_of_two(self.number(i, 0)):
                raise _Refused(f"{self.key} takes a power of two, not {self.tokens[i]!r}")
            return i
        i += 1
        while i < len(self.tokens) and self.tokens[i] != "]":
            border = i
            self.separator(i + 1, ":")
            i += 2
            divisions = self.number(i, 0)
            if divisions and not power_of_two(divisions):
                raise _Refused(f"{self.key}: divisions are a power of two, or 0, not {self.tokens[i]!r}")
            if self.tokens[border] != ">" and not power_of_two(self.number(border, 0)):
                raise _Refused(f"{self.key}: intervals are a power of two in MB, not {self.tokens[border]!r}")
            if self.at(i + 1) != "]":
                i += 1
                self.separator(i, ",")
            i += 1
        self.at(i)
        return i

    def classes(self, i: int) -> int:
        self.separator(i, "[")
        while self.at(i + 1) != "]":
            self.separator(i + 2, ":")
            i += 3
            self.at(i)
            if self.at(i + 1) == ",":
                i += 1
        return i + 1


def _unknown(key: str, release: tuple[int, int]) -> str:
    if key in TRAPS:
        return f"there is no option {key}: {TRAPS[key]}"
    if key[0] in "'\"":
        return f"the quotes are part of the value: {key!r}"
    before, mark, _ = key.partition("=")
    if mark and known(before):
        return f"write {before}:VALUE with a colon, not {key!r}"
    there = [o.key for o in OPTIONS if o.since <= release]
    hint = nearest(key, there) or f" There are {', '.join(there)}."
    return f"there is no option {key!r}.{hint}"


def _combinations(parser: _Parser) -> list[str]:
    """What is legal and still does not do what one may think."""
    options, notes = parser.options, []
    if options.get("backend") == "cudaMallocAsync":
        ignored = [k for k in options if (row := known(k)) is not None and row.native]
        if ignored:
            notes.append(f"the backend cudaMallocAsync ignores {', '.join(ignored)}")
    if options.get("expandable_segments") == "True" and "max_split_size_mb" in options:
        notes.append("with expandable_segments:True the limit max_split_size_mb is mostly not used")
    if "garbage_collection_threshold" in options and "per_process_memory_fraction" not in options:
        notes.append(
            "garbage_collection_threshold does nothing until torch.cuda.set_per_process_memory_fraction sets a limit"
        )
    return notes
