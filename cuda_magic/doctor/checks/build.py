"""torch's build against the driver and the cards."""

from __future__ import annotations

from ..facts import Facts
from ..finding import ERROR, INFO, WARNING, Check, Finding
from ..places import driver_update, install, log, look
from ..startup import doing
from ..versions import cards_of, driver_of, fits, release
from .common import hardware, plural


def cpu_only(facts: Facts) -> Finding | None:
    """A build of torch without CUDA."""
    torch = facts.torch
    if torch is None or torch.cuda or torch.hip:
        return None
    here = hardware(facts)
    # where no driver reaches this process another build changes nothing yet
    reached = facts.startup.ok or facts.nvml.status.ok
    do = f"Install a build for CUDA in its place:\n{install(facts)}"
    return Finding(
        ERROR if here and reached else INFO,
        f"torch {torch.version} is a build without CUDA (torch.version.cuda is None).",
        "torch.cuda.is_available() says False with this build, whatever the driver does."
        if here
        else "That fits a machine without an NVIDIA GPU.",
        "" if not here else do if reached else f"Only after CUDA starts here. {do}",
        "torch/version.py",
        unusable=here and reached,
    )


def rocm(facts: Facts) -> Finding | None:
    """A build of torch for AMD cards on a machine with NVIDIA ones."""
    torch = facts.torch
    if torch is None or not torch.hip or not hardware(facts):
        return None
    return Finding(
        ERROR,
        f"torch {torch.version} is built for AMD's ROCm, and the card here is NVIDIA's.",
        "This build cannot use it.",
        f"Install a build for CUDA in its place:\n{install(facts)}",
        "torch/version.py",
        unusable=True,
    )


def too_old(facts: Facts) -> Finding | None:
    """The driver is too old for torch's CUDA."""
    if facts.torch is None or not facts.torch.cuda or facts.startup.driver_api is None:
        return None
    need, api = release(facts.torch.cuda), facts.startup.driver_api
    if need is None or api // 1000 >= need[0]:
        return None
    row = driver_of(facts.torch.cuda)
    version = facts.nvml.driver_version or facts.driver.module_version
    minimum = f" It needs driver {row.minimum} or newer." if row else ""
    return Finding(
        ERROR,
        f"torch {facts.torch.version} is built for CUDA {facts.torch.cuda}; the driver"
        f"{f' {version}' if version else ''} supports up to CUDA {facts.startup.driver_cuda}.",
        f"The driver is too old for this build.{minimum}",
        f"Either: {driver_update(facts)}\nOr install a build for an older CUDA:\n{install(facts)}",
        row.source if row else "cuDriverGetVersion",
        unusable=True,
    )


def minor(facts: Facts) -> Finding | None:
    """Same major version, driver older than the build."""
    if facts.torch is None or not facts.torch.cuda or facts.startup.driver_api is None:
        return None
    need, api = release(facts.torch.cuda), facts.startup.driver_api
    if need is None or api // 1000 != need[0] or api % 1000 // 10 >= need[1]:
        return None
    return Finding(
        INFO,
        f"torch is built for CUDA {facts.torch.cuda}; the driver supports up to {facts.startup.driver_cuda}.",
        "Fine within the major version. Only code that is translated on the card's machine (PTX of the newer CUDA)"
        " fails, with an error of an unsupported PTX version.",
        source="docs.nvidia.com/deploy/cuda-compatibility, minor version compatibility",
    )


def no_code(facts: Facts) -> Finding | None:
    """The build has no code for a card."""
    torch = facts.torch
    if torch is None or not torch.cuda or not facts.startup.ok:
        return None
    known = [d for d in facts.startup.devices if d.compute_capability is not None]
    row = cards_of(torch.version, torch.cuda)
    # the build's own list comes before the table
    has = facts.startup.arch_list or torch.architectures
    bad = []
    for d in known:
        capability = d.compute_capability
        assert capability is not None
        if has:
            wrong = not fits(capability, has)
        else:
            low, high = (row.lowest, row.highest) if row else (None, None)
            # a card above `highest` within its major version runs; a newer major version does not
            wrong = (low is not None and capability < low) or (high is not None and capability[0] > high[0])
        if wrong:
            bad.append(d)
    if not bad:
        return None
    card = bad[0]
    assert card.compute_capability is not None
    dotted = ".".join(map(str, card.compute_capability))
    return Finding(
        ERROR,
        f"torch {torch.version} (CUDA {torch.cuda}) has no code for {card.name or f'GPU {card.index}'}, compute"
        f" capability {dotted}.",
        'This card needs another build: kernels fail with "no kernel image is available for execution on the device".'
        " It is not about memory.",
        install(facts),
        row.source if row and not has else "the build's own list (torch.cuda.get_arch_list)",
        unusable=len(bad) == len(known),
    )


def broken(facts: Facts) -> Finding | None:
    """torch is installed and cannot be imported (tried with --full)."""
    error = facts.startup.torch_error
    if not error or error.startswith("ModuleNotFoundError: No module named 'torch'"):
        return None
    return Finding(
        ERROR,
        f"torch cannot be imported: {error}.",
        "Its files are damaged, or a library it needs is missing or of another release.",
        install(facts),
        "import in a child process",
        unusable=True,
    )


def ends(facts: Facts) -> Finding | None:
    """torch ends the process, or hangs, while the driver starts (tried with --full)."""
    s = facts.startup
    if not s.with_torch or not (s.signal or s.timed_out or s.failed):
        return None
    how = f"was ended by signal {s.signal}" if s.signal else "did not come to an end" if s.timed_out else s.failed
    return Finding(
        ERROR,
        f"CUDA starts by the driver alone; with torch the child process {how}, in {doing(s.step or 'torch')}.",
        "torch or a library that it loads does that, with the variables as they are: in this kernel it would end the"
        " kernel."
        if s.signal
        else "torch or a library that it loads does that, with the variables as they are.",
        "See what it says last:\n$ python -X faulthandler -c 'import torch; torch.zeros(1, device=\"cuda\")'",
        "torch in a child process",
        unusable=True,
    )


def replaced(facts: Facts) -> Finding | None:
    """Another release of torch was installed while this process had imported one."""
    torch = facts.torch
    if torch is None or torch.imported is None:
        return None
    return Finding(
        WARNING,
        f"This kernel has imported torch {torch.imported}, and torch {torch.version} is installed now.",
        "What is judged here is the installed one; until a restart this kernel works with the other, whose files"
        " are gone.",
        "%cuda_env --restart",
        "torch.__version__ in this process, torch/version.py on disk",
    )


def allocation(facts: Facts) -> Finding | None:
    """A first allocation failed (tried with --full)."""
    bad = [a for a in facts.startup.allocations if not a.ok]
    if not bad:
        return None
    first = bad[0]
    all_of_them = len(bad) == len(facts.startup.allocations)
    means, do = "The context on the card cannot be made.", f"{log(facts)}\n%gpu_mem --who"
    if first.code in (46, 102):
        means = (
            "The card may not be used: a virtual GPU without a licence, or a card in exclusive mode that another"
            " process"
            " holds."
        )
        do = f"{look(facts, '-q')} | grep -i -A 2 -e license -e compute.mode\n%gpu_mem --who"
    elif first.code == 2 or "out of memory" in first.error:
        means = "The card is full or busy, or a limit of the host stops the context from being made."
        do = f"%gpu_mem --who\n{look(facts)}"
    elif first.code == 209 or "no kernel image" in first.error:
        means, do = "The build has no code for this card.", install(facts)
    return Finding(
        ERROR if all_of_them else WARNING,
        f"CUDA starts, and the first allocation on device {first.index} fails: {first.error.rstrip('.')}.",
        means,
        do,
        f"first allocation by {'torch' if first.by == 'torch' else 'the driver'} in a child process",
        unusable=all_of_them,
    )


def torch_start(facts: Facts) -> Finding | None:
    """The driver starts and torch does not (tried with --full)."""
    s = facts.startup
    if s.torch_available is not False or not s.ok or facts.torch is None or not facts.torch.cuda:
        return None
    return Finding(
        ERROR,
        f"cuInit starts {plural(s.device_count or 0, 'device')}, and torch.cuda.is_available() says False.",
        "The driver is well; torch's own CUDA runtime does not start with it.",
        install(facts),
        "torch in a child process",
        unusable=True,
    )


def absent(facts: Facts) -> Finding | None:
    """No torch."""
    if facts.torch is not None:
        return None
    return Finding(
        INFO,
        "torch is not installed.",
        "CUDA was judged by the driver alone.",
        source="importlib.util.find_spec",
    )


CAUSES = (
    Check("torch.cpu-only", cpu_only, ("torch.", "nvml.fails")),
    Check("torch.rocm", rocm, ("torch.",)),
    Check("torch.driver-too-old", too_old, ("torch.not-available", "torch.allocation", "torch.minor-version")),
    Check("torch.no-code-for-card", no_code, ("torch.allocation",)),
    Check("torch.broken", broken),
    Check("torch.ends-process", ends, ("torch.",)),
)
CHECKS = (
    Check("torch.replaced", replaced),
    Check("torch.allocation", allocation),
    Check("torch.not-available", torch_start),
    Check("torch.minor-version", minor),
    Check("torch.none", absent),
)
