"""This process: fork safety, allocator configuration."""

from __future__ import annotations

from ...environment.verdict import ALLOCATOR_NAMES
from ..facts import Facts
from ..finding import ERROR, INFO, WARNING, Check, Finding
from ..versions import release


def bad_fork(facts: Facts) -> Finding | None:
    """A child of a process that had started CUDA."""
    if not facts.kernel.bad_fork:
        return None
    return Finding(
        ERROR,
        "This process was forked from one in which CUDA had started.",
        "CUDA cannot be started again in such a child, whatever torch.cuda.is_available() says here.",
        "Start workers with spawn:\nmultiprocessing.set_start_method('spawn')",
        "torch/cuda/__init__.py, _is_in_bad_fork; seen on an H200, torch 2.11",
        unusable=True,
    )


def fork(facts: Facts) -> Finding | None:
    """CUDA is started here, so that forked workers cannot use it."""
    if not facts.kernel.cuda_started or facts.kernel.bad_fork:
        return None
    return Finding(
        INFO,
        "CUDA has started in this kernel, so it is not safe to fork.",
        "Forked workers (accelerate's notebook_launcher, a DataLoader that returns CUDA tensors) cannot use CUDA."
        " torch.cuda.is_available() is enough to start it.",
        "To launch forked workers, start this kernel anew and launch before anything asks for CUDA:\n"
        "%cuda_env --restart",
        "huggingface/accelerate#1293; cuDeviceGetCount answers 3 until cuInit was called",
    )


def allocator(facts: Facts) -> Finding | None:
    """An allocator configuration that torch refuses or partly ignores."""
    verdict = facts.allocator
    if verdict is None or not verdict.problem or facts.torch is None or not facts.torch.cuda:
        return None  # a torch without CUDA makes no CUDA allocation
    if not verdict.refused:
        return Finding(
            WARNING,
            f"{verdict.variable}={verdict.value}",
            verdict.problem,
            f"%cuda_env {verdict.variable}",
            "torch's allocator configuration, by release",
        )
    return Finding(
        ERROR,
        f"{verdict.variable}={verdict.value} is not a configuration that torch takes.",
        f"{verdict.problem[:1].upper()}{verdict.problem[1:].rstrip('.')}. {_harm(facts, verdict.problem)}",
        f"{'Before torch is imported' if _at_import(facts, verdict.problem) else 'Before CUDA starts'}:\n"
        f"%cuda_env --unset {verdict.variable}"
        + ("\n%cuda_env --restart" if facts.kernel.torch_imported or facts.kernel.cuda_started else ""),
        "seen on an H200, torch 2.11; on torch 2.14.1+cu130",
        unusable=True,
    )


def _at_import(facts: Facts, problem: str) -> bool:
    """From 2.14 on torch reads the value when it is imported, and one that breaks off ends the process there."""
    version = release(facts.torch.version) if facts.torch is not None else None
    return version is not None and version >= (2, 14) and "half-written" in problem


def _harm(facts: Facts, problem: str) -> str:
    if _at_import(facts, problem):
        return "import torch ends the process (signal 6): in a notebook the kernel dies."
    return "The first CUDA allocation raises, and with torch 2.11 the second one ends the kernel."


def two_names(facts: Facts) -> Finding | None:
    """Several names of the allocator configuration are set."""
    given = [name for name in ALLOCATOR_NAMES if name in facts.environment]
    if len({facts.environment[name] for name in given}) < 2:
        return None
    return Finding(
        WARNING,
        f"{' and '.join(given)} are {'both' if len(given) == 2 else 'all'} set, to different values.",
        f"torch takes {given[0]}, even where it is empty; the other one is shadowed.",
        f"%cuda_env --unset {' '.join(given[1:])}",
        "seen on torch 2.11 (H200) and 2.13",
    )


CAUSES = (
    Check("kernel.forked-after-start", bad_fork),
    Check("allocator.refused", allocator, ("torch.ends-process", "torch.allocation", "torch.not-available")),
)
CHECKS = (
    Check("allocator.two-names", two_names),
    Check("kernel.not-safe-to-fork", fork),
)
