"""Allocator settings that can change at run time, put back afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import Refused
from ..compaction.rules import MIB, UNLIMITED, Rules
from . import snapshot

__all__ = ["expandable", "live", "option", "rules", "rules_of", "set_text", "uncached", "with_expandable"]
__all__ += ["with_option", "written"]


def live(torch: Any) -> dict[str, Any]:
    """The allocator's settings as it uses them; empty where it does not tell (cudaMallocAsync, pluggable)."""
    try:
        return dict(snapshot.read(torch).get("allocator_settings", {}))
    except (AttributeError, RuntimeError):
        return {}


def rules(torch: Any) -> Rules:
    """The allocator's sizes under the settings in force."""
    return rules_of(live(torch))


def rules_of(found: Mapping[str, Any]) -> Rules:
    """The same from ``allocator_settings`` of torch's snapshot.

    Two settings do not stand there: max_non_split_rounding_mb and large_segment_size_mb (torch 2.11) are read from the
    text of the configuration, which is the one that was given last.
    """
    split = int(found.get("max_split_size", -1))
    written = {}
    for option in _options(_written(found)):
        name, _, value = option.partition(":")
        if value.strip().isdigit():
            written[name.strip()] = int(value) * MIB
    divisions = found.get("roundup_power2_divisions") or {}
    powers = sorted((int(size), int(parts)) for size, parts in dict(divisions).items())
    large = written.get("large_segment_size_mb", Rules().large_segment)
    return Rules(
        max_split=split if 0 < split < UNLIMITED else UNLIMITED,
        non_split_rounding=written.get("max_non_split_rounding_mb", large),
        divisions=tuple(parts for _, parts in powers) if any(parts > 1 for _, parts in powers) else (),
        large_segment=large,
        expandable=bool(found.get("expandable_segments", False)),
    )


def expandable(torch: Any) -> bool | None:
    """Whether new segments are expandable; None where the allocator does not tell."""
    value = live(torch).get("expandable_segments")
    return None if value is None else bool(value)


def set_text(torch: Any, text: str) -> None:
    """Make `text` the allocator's configuration.

    Expandable segments, large_segment_size_mb and those of pinned memory keep their value where `text` does not name
    them. What else it does not name goes back to its default, on every release: up to torch 2.9
    c10/cuda/CUDAAllocatorConfig.cpp, since 2.10 c10/core/AllocatorConfig.cpp (seen on an H200 with torch 2.11). So the
    whole configuration is given each time.
    """
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # since torch 2.10
    if newer is not None:
        newer(text)
    else:
        torch.cuda.memory._set_allocator_settings(text)


@contextmanager
def with_expandable(torch: Any) -> Iterator[None]:
    """Expandable segments for what is allocated inside, the other options as they were.

    Raises
    ------
    Refused
        If the allocator cannot do it (another backend, torch before 2.1).
    """
    before = live(torch)
    if "expandable_segments" not in before:
        raise Refused("expandable segments cannot be switched on here: the allocator does not tell its settings")
    if before["expandable_segments"]:
        yield
        return
    written = _written(before)
    ours = _switched(written, True)
    try:
        set_text(torch, ours)
        if not expandable(torch):
            raise Refused("expandable segments are not supported on this platform")
        yield
    finally:
        now = _written(live(torch))
        written = written if now == ours else now  # set by the statement itself: that stands
        set_text(torch, _switched(written, False))
        set_text(torch, written)  # the text that the allocator tells is the user's own again


def _written(found: Mapping[str, Any]) -> str:
    """The configuration that was given last."""
    return str(found.get("PYTORCH_CUDA_ALLOC_CONF", "") or "")


def written(torch: Any) -> str:
    """The configuration that the allocator was given last; before CUDA starts, that of the environment."""
    if torch.cuda.is_initialized():
        return _written(live(torch))
    found = os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    return (os.environ.get("PYTORCH_ALLOC_CONF", "") if found is None else found) or ""


def option(text: str, name: str) -> str | None:
    """The value of one option of a configuration; None where it is not in it."""
    for one in _options(text):
        key, _, value = one.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def with_option(text: str, name: str, value: str) -> str:
    """The configuration with one option set."""
    kept = [o for o in _options(text) if o.partition(":")[0].strip() != name]
    return ",".join([*kept, f"{name}:{value}"])


def _switched(text: str, on: bool) -> str:
    """The configuration with expandable segments on or off."""
    return with_option(text, "expandable_segments", str(on))


def _options(text: str) -> list[str]:
    """The options of a configuration; commas inside ``[...]`` do not separate."""
    options, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "," and not depth:
            options.append(text[start:i])
            start = i + 1
    return [o for o in [*options, text[start:]] if o.strip()]


@contextmanager
def uncached(torch: Any) -> Iterator[None]:
    """The caching allocator bypassed inside: each tensor is a cudaMalloc of its own. Since torch 2.6.

    The cache is emptied first, since switching it off does not flush it (seen on an H200, torch 2.11).

    Raises
    ------
    Refused
        If this torch has no such switch.
    """
    switch = getattr(torch.cuda, "caching_allocator_enable", None)
    if switch is None:
        raise Refused(f"torch {torch.__version__} cannot bypass its caching allocator in a running kernel (2.6 can)")
    torch.cuda.empty_cache()
    switch(False)
    try:
        yield
    finally:
        switch(True)
