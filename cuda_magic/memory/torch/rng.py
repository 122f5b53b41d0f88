"""torch's random states: the CPU's and that of each CUDA device in use. Reading them is no CUDA call."""

from __future__ import annotations

from typing import Any

__all__ = ["put_back", "take"]


def take(torch: Any) -> tuple[Any, dict[int, Any]]:
    """The states now: (CPU, {device: state}); a generator keeps seed and offset on the host."""
    cuda = {}
    if torch.cuda.is_initialized():
        has_context = torch._C._cuda_hasPrimaryContext
        cuda = {i: g.get_state() for i, g in enumerate(torch.cuda.default_generators) if has_context(i)}
    return torch.default_generator.get_state(), cuda


def put_back(torch: Any, state: tuple[Any, dict[int, Any]]) -> None:
    """Set the states that `take` gave."""
    cpu, cuda = state
    torch.default_generator.set_state(cpu)
    for device, saved in cuda.items():
        torch.cuda.default_generators[device].set_state(saved)
