"""For child processes: the first card with a cap, so that a heap of a few GiB is full, and blocks strewn over it."""

from __future__ import annotations

import torch

MIB, GIB = 1 << 20, 1 << 30
TOTAL = torch.cuda.get_device_properties(0).total_memory


def cap(nbytes: int) -> None:
    """What this process may reserve."""
    torch.cuda.set_per_process_memory_fraction(nbytes / TOTAL)


def strewn(count: int, live: int, hole: int) -> list[torch.Tensor]:
    """`count` tensors of `live` bytes in one segment, a hole of so many bytes behind each; the n-th is all n + 1."""
    whole = torch.empty(count * (live + hole), dtype=torch.uint8, device="cuda")
    del whole
    blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count) for size in (live, hole)]
    made = blocks[::2]
    for i, tensor in enumerate(made):
        tensor.fill_(i + 1)
    torch.cuda.synchronize()
    return made
