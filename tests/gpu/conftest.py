"""What several tests on a card need."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture
def card():
    """torch on a card capped so that a few GiB are all there is; everything is given back afterwards."""
    import torch

    torch.zeros(1, device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory

    def cap(size: int) -> None:
        torch.cuda.set_per_process_memory_fraction(size / total)

    torch.cap = cap
    yield torch
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
