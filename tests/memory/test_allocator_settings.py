"""Expandable segments at run time: every other setting is put back, on releases that merge and on those that reset."""

from __future__ import annotations

import types

import pytest

from cuda_magic.errors import Refused
from cuda_magic.memory.torch import settings

DEFAULTS = {"max_split_size": -1, "garbage_collection_threshold": 0.0, "roundup_power2_divisions": "", "backend": ""}
KEYS = {"max_split_size_mb": "max_split_size", "backend": "backend", "expandable_segments": "expandable_segments"}


class Old:
    """torch 2.1 to 2.9: one string, and what it does not name goes back to its default (CUDAAllocatorConfig.cpp)."""

    merges = False

    def __init__(self, conf, supported=True):
        self.supported = supported
        self.text = ""
        self.now = {**DEFAULTS, "expandable_segments": False}
        self.set(conf)
        self.cuda = types.SimpleNamespace(
            memory=types.SimpleNamespace(_snapshot=self.snapshot, _set_allocator_settings=self.set)
        )
        self._C = types.SimpleNamespace()
        if self.merges:
            self._C._accelerator_setAllocatorSettings = self.set

    def set(self, text):
        self.text = text
        if not self.merges:
            self.now.update(DEFAULTS)  # expandable_segments is not among what is reset
        for option in settings._options(text):
            key, _, value = option.strip().partition(":")
            if key == "expandable_segments":
                self.now[key] = value == "True" and self.supported
            else:
                self.now[KEYS.get(key, key)] = int(value) << 20 if key == "max_split_size_mb" else value

    def snapshot(self):
        return {"allocator_settings": {**self.now, "PYTORCH_CUDA_ALLOC_CONF": self.text}}


class New(Old):
    """torch 2.10 and later: options merge."""

    merges = True


CONFIGURATIONS = [
    "",
    "max_split_size_mb:200",
    "max_split_size_mb:200,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,>:4]",
    " backend:native , garbage_collection_threshold:0.6,",
    "expandable_segments:False,max_split_size_mb:64",
]


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@pytest.mark.parametrize("release", [Old, New])
def test_the_other_settings_hold_inside_and_afterwards(release, conf):
    """Only the one option differs inside; afterwards everything is as before, after an error too."""
    torch = release(conf)
    before = dict(torch.now)
    with pytest.raises(KeyError), settings.with_expandable(torch):
        assert torch.now == {**before, "expandable_segments": True}
        raise KeyError
    assert torch.now == before
    with settings.with_expandable(torch):
        assert settings.expandable(torch)
    assert torch.now == before


@pytest.mark.parametrize("release", [Old, New])
def test_what_is_on_stays_on(release):
    """Nothing is set where they are in force already."""
    torch = release("expandable_segments:True,max_split_size_mb:64")
    before, text = dict(torch.now), torch.text
    with settings.with_expandable(torch):
        assert torch.now == before
    assert (torch.now, torch.text) == (before, text)


@pytest.mark.parametrize("release", [Old, New])
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
