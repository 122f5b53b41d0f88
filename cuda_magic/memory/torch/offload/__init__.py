"""Tensors' contents in another place for a while: the host pool, and what parks there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import Session

__all__ = ["hooks", "release", "saving", "session_if_any"]


def hooks(torch: Any, device: int, request: int, limit: int, *, share: int = 8) -> Any:
    """Hooks, to be entered, that let what autograd saves on `device` wait on the host.

    `request` is the one that failed, `limit` what this process may have on the card, both in bytes; `share` as for
    `budget.Budget`.

    Raises
    ------
    Refused
        If this torch lacks what it takes (seen in torch 2.11 and 2.13).
    """
    from ....errors import Refused
    from .activations import Activations
    from .budget import Budget
    from .host_pool import shared
    from .tensor_copies import Copies

    try:
        torch._C._autograd._top_saved_tensors_default_hooks(True)
        _ = torch._C._storage_Use_Count, torch.UntypedStorage._new_with_weak_ptr
    except (AttributeError, TypeError):
        raise Refused(f"torch {torch.__version__} does not tell enough of what autograd saves") from None
    return Activations(torch, Copies(torch, device, limit), shared(torch), Budget(request, limit, share=share))


def saving() -> bool:
    """Whether hooks on what autograd saves are in force."""
    module = sys.modules.get(f"{__name__}.activations")
    return bool(module.IN_FORCE) if module is not None else False


def release(excess: bool = False) -> int:
    """Give back what the shared pool holds and nobody uses; bytes of host memory, 0 where nothing was ever parked.

    `excess`: only where it is more than a quarter of what the host can still give.
    """
    pool = sys.modules.get(f"{__name__}.host_pool")  # not imported for this
    if pool is None:
        return 0
    return sum(one.release() for one in pool.existing() if not excess or one.excessive())


def session_if_any() -> Session | None:
    """The session of what is parked, if there ever was one."""
    module = sys.modules.get(f"{__name__}.session")  # not imported for this
    return module.existing() if module is not None else None
