"""torch's build against the driver and the cards."""

from __future__ import annotations

from ..facts import Facts
from ..finding import ERROR, INFO, WARNING, Check, Finding
from ..versions import cards_of, driver_of, fits, release
from .common import hardware, plural

PICK = "pytorch.org/get-started/locally names the line for this driver."


def cpu_only(facts: Facts) -> Finding | None:
    """A build of torch without CUDA."""
    torch = facts.torch
    if torch is None or torch.cuda or torch.hip:
        return None
    here = hardware(facts)
    do = (
        f"Install a build for CUDA in its place, then restart the kernel:\n{_install(facts.startup.driver_api)}\n{PICK}"
    )
    return Finding(
        ERROR if here else INFO,
        f"torch {torch.version} is a build without CUDA (torch.version.cuda is None).",
        "torch.cuda.is_available() says False with this build, whatever the driver does."
        if here
        else "That fits a machine without an NVIDIA GPU.",
        do if here else "",
        "torch/version.py",
        unusable=here,
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
        f"Install a build for CUDA in its place. {PICK}",
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
        f"Either the administrator updates the driver, or install a build for an older CUDA:\n{_install(api)}\n{PICK}",
        row.source if row else "cuDriverGetVersion",
        unusable=True,
    )


def _install(api: int | None) -> str:
    """The line that installs a build for a driver: builds of one major version run on every driver of that version."""
    builds = {13: "cu130", 12: "cu126", 11: "cu118"}
    index = builds.get(min(api // 1000, max(builds))) if api is not None else None
    where = f" --index-url https://download.pytorch.org/whl/{index}" if index else ""
    return f"%pip install --force-reinstall torch{where}"


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
    bad = []
    for d in known:
        capability = d.compute_capability
        assert capability is not None
        if facts.startup.arch_list:
            wrong = not fits(capability, facts.startup.arch_list)
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
    newer = card.compute_capability[0] >= 10
    index = "cu128" if newer else "cu126"
    return Finding(
        ERROR,
        f"torch {torch.version} (CUDA {torch.cuda}) has no code for {card.name or f'GPU {card.index}'}, compute"
        f" capability {dotted}.",
        'This card needs another build: kernels fail with "no kernel image is available for execution on the device".'
        " It is not about memory.",
        f"%pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{index}\n{PICK}",
        row.source if row and not facts.startup.arch_list else "torch.cuda.get_arch_list()",
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
        "%pip install --force-reinstall torch\nThen restart the kernel.",
        "import in a child process",
        unusable=True,
    )


def allocation(facts: Facts) -> Finding | None:
    """A first allocation failed (tried with --full)."""
    bad = [a for a in facts.startup.allocations if not a.ok]
    if not bad:
        return None
    first = bad[0]
    all_of_them = len(bad) == len(facts.startup.allocations)
    return Finding(
        ERROR if all_of_them else WARNING,
        f"CUDA starts, and the first allocation on device {first.index} fails: {first.error.rstrip('.')}.",
        "The card is full or busy, or a limit of the host stops the context from being made.",
        "$ nvidia-smi\n%gpu_mem --who",
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
        "%pip install --force-reinstall torch\nThen restart the kernel.",
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
)
CHECKS = (
    Check("torch.allocation", allocation),
    Check("torch.not-available", torch_start),
    Check("torch.minor-version", minor),
    Check("torch.none", absent),
)
