"""CUDA_VISIBLE_DEVICES as torch's parser reads it, resolved to the real cards, with what is silently lost.

The rules are those of torch.cuda._parse_visible_devices and _device_count_nvml (compared with both); the driver stops
at the first bad entry too, as its documentation says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..devices.model import Device

__all__ = ["Visible", "parse", "resolve"]

MOST = 64
"""torch lists so many devices where the variable is not set."""


@dataclass(frozen=True)
class Visible:
    """`devices` in the order in which the process numbers them: cuda:0 is the first.

    None where they cannot be told (MIG, no reading). `lost` says what of the value has no effect.
    """

    devices: tuple[Device, ...] | None
    lost: tuple[str, ...] = ()


def _leading_number(text: str) -> tuple[int, str]:
    """(number that starts `text` or -1, dropped rest)."""
    end = 0
    while end < len(text) and (text[end].isdigit() or (end == 0 and text[end] in "+-")):
        end += 1
    return (int(text[:end]) if end else -1), text[end:]


def parse(value: str | None) -> list[int] | list[str]:
    """Indices, or UUIDs, that torch takes from `value`.

    Raises
    ------
    ValueError
        For a sign without digits, on which torch's parser raises too.
    """
    if value is None:
        return list(range(MOST))
    for prefix in ("GPU-", "MIG-"):
        if value.startswith(prefix):
            names: list[str] = []
            for entry in value.split(","):
                if entry in names:
                    return []
                if not entry.startswith(prefix):
                    break
                names.append(entry)
            return names
    indices: list[int] = []
    for entry in value.split(","):
        index, _ = _leading_number(entry.strip())
        if index in indices:
            return []
        if index < 0:
            break
        indices.append(index)
    return indices


def resolve(value: str | None, devices: Sequence[Device] | None) -> Visible:
    """The cards that `value` leaves visible; `devices` is the reading, None where there is none."""
    cards = None if devices is None else [d for d in devices if d.parent is None]
    if value is None:
        return Visible(None if cards is None else tuple(cards))
    if value.strip() in ("", "-1"):
        return Visible((), ("all GPUs are hidden, which is a legal way to say: no GPU",))
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return Visible((), ("the quotes are part of the value: CUDA reads this as no device",))
    try:
        taken = parse(value)
    except ValueError:
        return Visible((), (f"{value!r} holds a sign without a number: torch raises on it",))
    entries = value.split(",")
    if not taken:
        doubled = len({e.strip() for e in entries}) < len(entries) or _same_numbers(entries)
        return Visible((), ("a device stands twice: CUDA then sees no device" if doubled else _first_bad(entries[0]),))
    if isinstance(taken[0], str):
        return _by_name([str(t) for t in taken], entries, cards)
    return _by_index([int(t) for t in taken], entries, cards)


def _same_numbers(entries: Sequence[str]) -> bool:
    numbers = []
    for entry in entries:
        try:
            number, _ = _leading_number(entry.strip())
        except ValueError:
            break
        if number < 0:
            break
        numbers.append(number)
    return len(set(numbers)) < len(numbers)


def _first_bad(entry: str) -> str:
    near = " (a UUID begins with GPU- in capitals)" if entry.lower().startswith("gpu") else ""
    return f"{entry.strip()!r} is no index and no UUID{near}: all GPUs are hidden"


def _by_index(taken: Sequence[int], entries: Sequence[str], cards: Sequence[Device] | None) -> Visible:
    lost = []
    for entry, index in zip(entries, taken, strict=False):
        rest = _leading_number(entry.strip())[1]
        if rest:
            lost.append(f"{entry.strip()!r} is read as {index}; {rest!r} is dropped")
    if len(taken) < len(entries):
        lost.append(f"reading stops at {entries[len(taken)].strip()!r}; {_behind(entries[len(taken) :])}")
    if cards is None:
        return Visible(None, tuple(lost))
    found = []
    for place, index in enumerate(taken):
        if index >= len(cards):
            have = (
                f"you have GPUs 0..{len(cards) - 1}"
                if len(cards) > 1
                else "you have GPU 0 only"
                if cards
                else "you have no GPU"
            )
            what = "this hides all of them" if not place and cards else _behind(entries[place:])
            lost.append(f"there is no GPU {index}: {have}; {what}")
            break
        found.append(cards[index])
    return Visible(tuple(found), tuple(lost))


def _behind(entries: Sequence[str]) -> str:
    rest = ", ".join(repr(e.strip()) for e in entries)
    return f"{rest} {'is' if len(entries) == 1 else 'are'} lost without a word"


def _by_name(taken: Sequence[str], entries: Sequence[str], cards: Sequence[Device] | None) -> Visible:
    lost = []
    if len(taken) < len(entries):
        lost.append(f"reading stops at {entries[len(taken)]!r}; {_behind(entries[len(taken) :])}")
    if cards is None or taken[0].startswith("MIG-"):
        return Visible(None, tuple(lost))
    found: list[Device] = []
    for place, name in enumerate(taken):
        fits = [d for d in cards if (d.uuid or "").startswith(name)]
        if len(fits) != 1:
            why = "fits several GPUs" if fits else "is the UUID of no GPU here"
            lost.append(f"{name!r} {why}; {_behind(entries[place:])}")
            break
        if fits[0] in found:
            return Visible((), (*lost, "a device stands twice: CUDA then sees no device"))
        found.append(fits[0])
    return Visible(tuple(found), tuple(lost))
