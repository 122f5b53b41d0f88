"""What to do next, ranked by cause: a table of rules, each with a line to run. Nothing already in force is advised."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Sequence

from psutil import virtual_memory

from ..render.units import bytes_text
from .classify import OWN_LIMIT
from .growing import leaks, results
from .libraries import HELD, imported
from .lines import RESTART, allocator_option, variable
from .other_options import left_out, other_ranks, read_before, refused, smaller
from .reads import names_read, uses
from .situation import CONTEXT, Situation
from .step import Case, NextStep
from .survey import CHILD, Survey

__all__ = ["NextStep", "next_steps"]

MIB = 1 << 20
ISSUES = "https://github.com/cuda-magic/cuda-magic/issues"
MOST = 3
"""Variables that are named together."""


def _lost(c: Case) -> list[NextStep]:
    if c.kind not in ("lost-context", "lost-allocator"):
        return []
    first = NextStep("nothing on the GPU works until the kernel is restarted", RESTART)
    if c.kind == "lost-allocator":
        why, line = "without expandable segments it does not happen again", _expandable("False")
    else:
        why = "after it, the line that failed is named if kernels run one by one"
        line = variable("CUDA_LAUNCH_BLOCKING", "1")
    return [first] if line == RESTART else [first, NextStep(why, line)]


def _expandable(value: str) -> str:
    return allocator_option("expandable_segments", value)


def _mapping(c: Case) -> list[NextStep]:
    if c.s.fault.row.kind != "mapping" or c.s.fault.kind.repeat == "ladder":
        return []
    why = "without expandable segments nothing has to be mapped (from the next start of the kernel)"
    return [NextStep(why, _expandable("False"))]


def _start_up(c: Case) -> list[NextStep]:
    wanted = c.kind in ("start-up", "wrong-device", "library-failed") and c.s.fault.row.kind != "mapping"
    return [NextStep("find out why, cause first", "%cuda_doctor")] if wanted else []


def _unknown(c: Case) -> list[NextStep]:
    if c.kind != "unknown":
        return []
    why = f"tell the wording, as this line shows it, and the release of the library that raised it: {ISSUES}"
    return [NextStep("see what each process and this kernel hold", "%gpu_mem --who"), NextStep(why, "%tb")]


def _setting(c: Case) -> list[NextStep]:
    if c.kind != "setting":
        return []
    return [
        NextStep("the option that the error names decides; see what is free and who holds the rest", "%gpu_mem --who")
    ]


def _host(c: Case) -> list[NextStep]:
    if c.kind == "shared-host":
        return [
            NextStep("see what /dev/shm has left; a DataLoader with fewer workers needs less of it", "!df -h /dev/shm")
        ]
    if c.kind != "host-memory":
        return []
    if c.request > virtual_memory().total:
        return [NextStep(f"{bytes_text(c.request)} is more than this host has: wrong shape, or to be split", "%debug")]
    return [NextStep("see what the host has left", "!free -h")]


_LIMITS = {
    "cupy": ("see CuPy's limit in bytes (0: none)", "cupy.get_default_memory_pool().get_limit()"),
    "jax": ("see which share of the card JAX may take", "%cuda_env XLA_PYTHON_CLIENT_MEM_FRACTION"),
}


def _own_limit(c: Case) -> list[NextStep]:
    if c.s.fault.sentence != OWN_LIMIT:
        return []
    return [NextStep(*_LIMITS.get(c.s.fault.row.library, ("see what this kernel holds", "%gpu_mem --who")))]


def _worker(c: Case) -> list[NextStep]:
    if c.kind != "worker":
        return []
    return [NextStep("fewer workers, or less in each, leave more room: see what each process holds", "%gpu_mem --who")]


def _too_large(c: Case) -> list[NextStep]:
    capacity = c.s.fault.sizes.capacity or c.where.capacity
    if c.kind == "wrong-size":
        return [NextStep("look at the shape: its size is beyond any card", "%debug")]
    if c.kind != "too-large":
        return []
    times = f"{c.request / capacity:.1f} times the card" if capacity else "more than the card has"
    return [NextStep(f"one tensor of {bytes_text(c.request)} is {times}: wrong shape, or to be split", "%debug")]


def _others(c: Case) -> list[NextStep]:
    if not c.crowded:
        return []
    held = sorted((h for h in c.where.holders if h.kind == "process"), key=lambda h: -(h.nbytes or 0))
    steps = [
        NextStep(
            f"{h.name} ({h.detail}) holds {bytes_text(h.nbytes)}: end it if its work is done",
            f"import os, signal; os.kill({h.name.split()[-1]}, signal.SIGTERM)",
        )
        for h in held[:MOST]
        if CHILD in h.detail and (h.nbytes or 0) >= max(c.request // 4, CONTEXT)
    ]
    most = f", most of it {held[0].name} ({held[0].detail})" if held and held[0].detail else ""
    why = f"other processes hold {bytes_text(c.where.others)}{most}: see whose they are"
    steps.append(NextStep(why, "%gpu_mem --who"))
    need = max(c.request, CONTEXT)
    index, free = next(((i, f) for i, f in c.where.elsewhere if f > need), (None, 0))
    if index is not None:
        why = f"GPU {index} has {bytes_text(free)} free (takes effect at the next start of the kernel)"
        set_already = os.environ.get("CUDA_VISIBLE_DEVICES") == str(index)
        steps.append(NextStep(why, RESTART if set_already else f"%cuda_env --devices {index}"))
    if c.s.options.wait <= 0:
        steps.append(NextStep("wait for them to finish", "%%cuda_guard --wait 60"))
    return steps


def _libraries(c: Case) -> list[NextStep]:
    """What another library of this kernel holds: no batch of torch's makes room for it."""
    held = sum(h.nbytes or 0 for h in c.where.holders if h.kind == HELD)
    if c.s.fault.kind.repeat != "ladder" or held < max(c.request // 4, CONTEXT):
        return []
    found = [step for step in (library.step for library in imported()) if step is not None]
    why = f"another library in this kernel holds {bytes_text(held)}"
    if not found:
        return [NextStep(f"{why}, and gives it back when the kernel restarts", RESTART)]
    return [NextStep(f"{why}: {text}", line) for text, line in found[:MOST]]


def _holders(c: Case) -> list[NextStep]:
    """Those that give what is missing, each by itself, else all together; none where all would not do."""
    missing, found = _missing(c), _letting_go(c)
    alone = [step for size, step in found if size >= missing]
    if alone or sum(size for size, _ in found) < missing:
        return alone
    return [step for _, step in found]


def _letting_go(c: Case) -> list[tuple[int, NextStep]]:
    """(bytes, step) of shown values, kept exceptions and private pools."""
    steps: list[tuple[int, NextStep]] = []
    names = c.s.names()
    for holder in c.where.holders:
        size = holder.nbytes or 0
        if size < max(c.request // 4, MIB):
            continue
        if holder.kind == "output" and not c.s.options.free_outputs:
            why = f"{holder.name}, a shown value, holds {bytes_text(size)}"
            steps.append((size, NextStep(why, "%%cuda_guard --free-outputs")))
        elif holder.kind == "variable" and issubclass(type(names.get(holder.name)), BaseException):
            why = f"the exception kept as {holder.name} holds {bytes_text(size)} through its traceback"
            steps.append((size, NextStep(why, f"del {holder.name}")))
        elif holder.kind == "private-pool":
            steps += [(size, step) for step in _pools(c, size)]
    return steps


def _pools(c: Case, size: int) -> list[NextStep]:
    for name, value in c.s.names().items():
        kind = type(value).__name__
        if kind in ("CUDAGraph", "MemPool"):
            line = f"{name}.reset()" if kind == "CUDAGraph" else f"del {name}"
            return [NextStep(f"private pools hold {bytes_text(size)}, {name} is a live {kind}", line)]
    return [NextStep(f"private pools of live CUDA graphs or MemPools hold {bytes_text(size)}", "%gpu_mem --map")]


def _fragmented(c: Case) -> list[NextStep]:
    room = c.where.room
    sizes = c.s.fault.sizes
    free = room.total if room else (sizes.free or 0) + (sizes.unallocated or 0)
    cached = room.cached if room else sizes.unallocated or 0
    # None: an allocator without such segments
    can_be = c.s.allocator is None or not c.s.allocator.started() or c.s.allocator.expandable() is False
    if not c.s.fault.torch_allocator or not c.request or not can_be or free < c.request or cached < c.request // 8:
        return []
    if room is not None and room.largest >= c.request:  # in pieces, but one of them holds it
        return []
    largest = f", the largest piece {bytes_text(room.largest)}" if room else ""
    return [
        NextStep(
            f"{bytes_text(cached)} is cached and free in pieces{largest}: from the next start of the kernel segments "
            "can grow instead (it may still not fit)",
            _expandable("True"),
        )
    ]


def _limited(c: Case) -> list[NextStep]:
    """This process may take less than the card has: a limit of its own."""
    room, allocator = c.where.room, c.s.allocator
    if room is None or allocator is None or c.s.device is None or c.s.fault.kind.repeat != "ladder":
        return []
    if allocator.label:  # the practice GPU's is set in another way
        return []
    limit, memory = allocator.memory_limit(c.s.device), allocator.driver_memory(c.s.device)
    if limit is None or memory is None or not c.request or memory[0] + room.cached < max(c.s.need or 0, c.request):
        return []
    why = f"the card has {bytes_text(memory[0])} free, and this process has a limit of {bytes_text(limit)}: lift it"
    return [NextStep(why, f"torch.cuda.set_per_process_memory_fraction(1.0, {c.s.device})")]


def _cycles(c: Case) -> list[NextStep]:
    """The statement itself leaves cycles behind, which only a collection within it would free."""
    made = c.s.memory.get("cycles made", {})
    name = max(made, key=lambda one: made[one], default="")
    if not name or made[name] < max(c.request // 4, MIB) or c.s.fault.kind.repeat != "ladder":
        return []
    why = f"the statement leaves {bytes_text(made[name])} in reference cycles of {name}: collect them within it"
    return [NextStep(why, "import gc; gc.collect()")]


def _variables(c: Case) -> list[NextStep]:
    if c.crowded or c.s.fault.kind.repeat != "ladder":
        return []
    held = [h for h in c.where.holders if h.kind == "variable" and (h.nbytes or 0) >= MIB]
    held = [h for h in held if not issubclass(type(c.s.names().get(h.name)), BaseException)]
    held = [h for h in held if not uses(h.name, c.node_names, c.s.namespace)]  # the statement needs it itself
    missing = _missing(c)
    shared = dict(c.where.shared)
    frees = {h.name: (h.nbytes or 0) - shared.get(h.name, 0) for h in held}
    held = sorted((h for h in held if frees[h.name] >= MIB), key=lambda h: -frees[h.name])
    enough, sum_of = [], 0
    for one in held[:MOST]:
        enough.append(one)
        sum_of += frees[one.name]
        if sum_of >= missing:
            break
    if not enough or sum_of < missing:  # all that may be let go of would not do
        return []
    names = [one.name for one in enough]
    if len(names) == 1:
        return [NextStep(f"{names[0]} holds {bytes_text(sum_of)}; if it is no longer needed", f"del {names[0]}")]
    which = f"{', '.join(names[:-1])} and {names[-1]}"
    why = f"{which} hold {bytes_text(sum_of)}, together enough; if they are no longer needed"
    return [NextStep(why, f"del {', '.join(names)}")]


def _missing(c: Case) -> int:
    """Bytes that the statement needs and that are not free."""
    room = c.where.room
    return max(c.s.need or 0, c.request) - (room.total if room else 0)


RULES: tuple[Callable[[Case], list[NextStep]], ...] = (
    # in order of cause: what must happen first stands first
    _lost,
    _mapping,
    _start_up,
    _unknown,
    _setting,
    _host,
    _worker,
    _own_limit,
    _too_large,
    other_ranks,
    _libraries,
    _others,
    leaks,
    results,
    _limited,
    _holders,
    _fragmented,
    _cycles,
    read_before,
    left_out,
    smaller,
    _variables,
    refused,
)


def next_steps(
    s: Situation, where: Survey, reasons: Sequence[str], node: ast.AST | None, earlier: Sequence[ast.AST] = ()
) -> tuple[NextStep, ...]:
    """The ranked next steps.

    Parameters
    ----------
    reasons
        Why a repeat was refused.
    node, earlier
        The statement that failed (None for a function of a script), and those of the cell that had ended.
    """
    named = [n for one in (*earlier, *([node] if node is not None else [])) for n in ast.walk(one)]
    bound = [n.id for n in named if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
    touched = frozenset(bound).union(*map(names_read, earlier))
    case = Case(s, where, reasons, names_read(node) if node is not None else frozenset(), touched)
    return tuple(step for rule in RULES for step in rule(case)) or tuple(_itself(case))


def _itself(c: Case) -> list[NextStep]:
    """Where nothing else can be said: the statement asks for too much."""
    if c.s.fault.kind.repeat != "ladder":
        return []
    need, room = max(c.s.need or 0, c.request), c.where.room
    why = "nothing else can be let go of, and the statement needs more than is free"
    if need and room:
        free = bytes_text(room.total)
        why = f"nothing else can be let go of: the statement takes {bytes_text(need)}, and {free} is free"
    return [NextStep(why, "%debug")]
