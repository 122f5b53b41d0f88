"""Expandable segments at run time: every other setting is put back, on releases that merge and on those that reset."""

from __future__ import annotations

import types

import pytest

from cuda_magic.errors import Refused
from cuda_magic.memory.torch import settings

MIB = 1 << 20
RESET = {"max_split_size": -1, "garbage_collection_threshold": 0.0, "roundup_power2_divisions": {}}
"""What every parse puts back first."""
NAMES = {"max_split_size_mb": "max_split_size"}


class Old:
    """torch 2.1 to 2.9: what a text does not name goes back to its default, all but some options.

    c10/cuda/CUDAAllocatorConfig.cpp: parseArgs.
    """

    def __init__(self, conf, supported=True):
        self.supported, self.texts = supported, []
        self.now = {
            "expandable_segments": False,
            "backend": "",
            "pinned_num_register_threads": 1,
            "large_segment_size_mb": 20,
            "max_non_split_rounding_mb": 20,
        }
        self.set(conf)
        self.cuda = types.SimpleNamespace(
            memory=types.SimpleNamespace(_snapshot=self.snapshot, _set_allocator_settings=self.set)
        )
        self._C = types.SimpleNamespace()

    def reset(self, given):
        self.now.update(RESET)

    def set(self, text):
        self.texts.append(text)
        given = dict(option.strip().partition(":")[::2] for option in settings._options(text))
        self.reset(given)
        for key, value in given.items():
            if key == "expandable_segments":
                self.now[key] = value == "True" and self.supported
            elif key == "roundup_power2_divisions":
                parts = (part.split(":") for part in value.strip("[]").split(","))
                self.now[key] = {1 << 16 if size == ">" else int(size): int(part) for size, part in parts}
            else:
                self.now[NAMES.get(key, key)] = int(value) * MIB if key == "max_split_size_mb" else value

    def snapshot(self):
        return {"allocator_settings": {**self.now, "PYTORCH_CUDA_ALLOC_CONF": self.texts[-1]}}


class New(Old):
    """torch 2.10 on: another function, the same reset. c10/core/AllocatorConfig.cpp: parseArgs."""

    def __init__(self, conf, supported=True):
        super().__init__(conf, supported)
        self.cuda.memory._set_allocator_settings = None
        self._C._accelerator_setAllocatorSettings = self.set


class Newer(New):
    """With large_segment_size_mb (torch 2.11 on): it stays, and what depends on it is reset with the others."""

    def reset(self, given):
        super().reset(given)
        large = given.get("large_segment_size_mb", self.now["large_segment_size_mb"])
        self.now["max_non_split_rounding_mb"] = large


RELEASES = [Old, New, Newer]

CONFIGURATIONS = [
    "",
    "max_split_size_mb:200",
    "max_split_size_mb:200,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,>:4]",
    " backend:native , garbage_collection_threshold:0.6,",
    "expandable_segments:False,max_split_size_mb:64",
    "pinned_num_register_threads:4,max_non_split_rounding_mb:60,large_segment_size_mb:40,max_split_size_mb:64",
]


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@pytest.mark.parametrize("release", RELEASES)
def test_the_other_settings_hold_inside_and_afterwards(release, conf):
    """Only the one option differs inside; afterwards everything is as before, the text too, after an error too."""
    torch = release(conf)
    before = dict(torch.now)
    with pytest.raises(KeyError), settings.with_expandable(torch):
        assert torch.now == {**before, "expandable_segments": True}
        raise KeyError
    assert torch.now == before
    with settings.with_expandable(torch):
        assert settings.expandable(torch)
        assert settings.rules_of(settings.live(torch)).large_segment == int(before["large_segment_size_mb"]) * MIB
    assert (torch.now, torch.texts[-1]) == (before, conf)


@pytest.mark.parametrize("release", RELEASES)
def test_what_the_statement_itself_sets_stands(release):
    """The option alone is switched off then."""
    torch = release("max_split_size_mb:64")
    with settings.with_expandable(torch):
        torch.set("max_split_size_mb:128")
    assert (torch.now["max_split_size"], torch.now["expandable_segments"]) == (128 * MIB, False)
    assert torch.texts[-1] == "max_split_size_mb:128"


@pytest.mark.torch
@pytest.mark.parametrize("conf", CONFIGURATIONS)
def test_torchs_own_parser_takes_what_is_set(conf, monkeypatch):
    """Every text that is given, the last of which is the user's own."""
    torch = pytest.importorskip("torch")
    given = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if given is None:
        pytest.skip("no such function before torch 2.10")
    double = Newer(conf)
    double._C._accelerator_setAllocatorSettings = lambda text: (given(text), double.set(text))
    try:
        with settings.with_expandable(double):
            assert torch._C._accelerator_getAllocatorSettings() == double.texts[-1]
        assert torch._C._accelerator_getAllocatorSettings() == conf
    finally:
        given("")


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_on_stays_on(release):
    """Nothing is set where they are in force already."""
    torch = release("expandable_segments:True,max_split_size_mb:64")
    before, text = dict(torch.now), torch.texts[-1]
    with settings.with_expandable(torch):
        assert torch.now == before
    assert (torch.now, torch.texts[-1]) == (before, text)


@pytest.mark.parametrize("release", RELEASES)
def test_a_platform_without_them_is_said_and_nothing_stays_changed(release):
    """The allocator takes the option and stays as it is."""
    torch = release("max_split_size_mb:64", supported=False)
    before = dict(torch.now)
    with pytest.raises(Refused, match="not supported"), settings.with_expandable(torch):
        pass
    assert torch.now == before


def test_an_allocator_that_does_not_tell_its_settings():
    """cudaMallocAsync: refused before anything is set."""
    torch = Old("")
    torch.cuda.memory._snapshot = dict
    with pytest.raises(Refused, match="does not tell"), settings.with_expandable(torch):
        pass


def test_plain_cuda_malloc_is_switched_back_after_an_error():
    """The cache is emptied first; the switch is back on whatever happens; torch without it is named."""
    calls = []
    cuda = types.SimpleNamespace(
        empty_cache=lambda: calls.append("empty"), caching_allocator_enable=lambda on: calls.append(on)
    )
    with pytest.raises(KeyError), settings.uncached(types.SimpleNamespace(cuda=cuda, __version__="2.11.0")):
        raise KeyError
    assert calls == ["empty", False, True]
    old = types.SimpleNamespace(cuda=types.SimpleNamespace(), __version__="2.5.1")
    with pytest.raises(Refused, match=r"torch 2\.5\.1"), settings.uncached(old):
        pass
