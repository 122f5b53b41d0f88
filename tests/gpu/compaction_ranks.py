"""Child process: one of two NCCL ranks, each with a card of its own, whose heap is compacted. Prints JSON.

python compaction_ranks.py RANK FILE, the file being where the ranks meet
"""

from __future__ import annotations

import json
import os
import sys

import torch
from capped import MIB, TOTAL, cap, strewn
from torch import distributed as dist

from cuda_magic.memory.compaction import compact
from cuda_magic.memory.torch import allocator

os.environ["NCCL_NVLS_ENABLE"] = "0"


def step(model: torch.nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of one step, averaged over the ranks."""
    model.zero_grad(set_to_none=False)
    model(batch).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def summed(live: list[torch.Tensor], rank: int) -> bool:
    """Whether the sum over the ranks of each tensor is right; each is put back to what it was."""
    right = True
    for i, tensor in enumerate(live):
        dist.all_reduce(tensor)
        right &= bool((tensor == 2 * i + 3).all())
        tensor.fill_(i + 1 + rank)
    return right


def main(rank: int, meet: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meet}", rank=rank, world_size=2)
    torch.manual_seed(0)
    live = strewn(40, 8 * MIB, 8 * MIB)
    for tensor in live:
        tensor.add_(rank)
    layers = [torch.nn.Linear(1024, 1024, device="cuda") for _ in range(4)]  # in the holes of the heap
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), device_ids=[rank], gradient_as_bucket_view=True
    )
    batch = torch.rand(64, 1024, device="cuda") + rank
    step(model, batch)
    before = step(model, batch)
    assert summed(live, rank)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    cap(torch.cuda.memory_reserved())
    own = allocator()
    request = int(0.5 * (torch.cuda.memory_reserved() - torch.cuda.memory_allocated()))
    addresses = [t.data_ptr() for t in live]
    refused = compact(own, rank, request)
    stayed = addresses == [t.data_ptr() for t in live]
    cap(TOTAL)
    intact = all(bool((t == i + 1 + rank).all()) for i, t in enumerate(live))
    dist.barrier()
    collectives = summed(live, rank)
    after = step(model, batch)
    figures = {
        "rank": rank,
        "refused": refused.reason,
        "moved when refused": not stayed,
        "intact": intact,
        "collectives right": collectives,
        "step bitwise the same": all(torch.equal(a, b) for a, b in zip(before, after, strict=True)),
    }
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
