"""How CUDA starts: each answer of cuInit that no more precise check explains, and NVML's answer beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...render.units import bytes_text
from ..codes import CUDA, cuda_name, nvml_name
from ..facts import Facts
from ..finding import ERROR, INFO, WARNING, Check, Finding
from ..places import admin, driver_update, get_gpu, log, look, reset
from .common import cards, failed, gpus, plural
from .trial import dies, hangs, silent, unclear, untried


def _if_clean(facts: Facts) -> str:
    """What makes code 3 without a word in the log."""
    if facts.driver.hmm is False or facts.platform.wsl or facts.platform.jetson or facts.platform.service:
        return ""
    return (
        "Where the log is clean, heterogeneous memory management is a known reason (open-gpu-kernel-modules#901):"
        " the module option nvidia_uvm uvm_disable_hmm=1 switches it off.\n"
    )


@dataclass(frozen=True)
class Row:
    """What one code of cuInit means where nothing more is known."""

    code: int
    id: str
    means: str
    do: Callable[[Facts], str]
    source: str = "cuda.h, CUresult"


CODES: tuple[Row, ...] = (
    Row(
        2,
        "startup.out-of-memory",
        "The driver's start-up failed for want of a resource of the host: address space, memory, a limit of the batch"
        " system or of the container. It says nothing about video memory.",
        lambda facts: (
            "Look at the limits of this process, then try a new process with one card visible:\n"
            "$ ulimit -a\n$ CUDA_VISIBLE_DEVICES=0 cuda-magic doctor"
        ),
        "pytorch/pytorch#124280, #150048; reproduced with ulimit -v on an H200",
    ),
    Row(
        3,
        "startup.not-initialized",
        "The driver refused to start: torch words it as driver initialization failed.",
        lambda facts: f"{log(facts)}\n{_if_clean(facts)}{reset(facts)}",
    ),
    Row(
        46,
        "startup.device-unavailable",
        "A card is busy (in exclusive mode another process holds it), it is being reset, or it is a virtual GPU"
        " without a"
        " licence.",
        lambda facts: f"{look(facts, '-q -d COMPUTE')}\n{look(facts, '-q')} | grep -i -A 2 license",
    ),
    Row(
        100,
        "startup.no-device",
        "The driver works and offers no card to this process.",
        lambda facts: "\n".join(
            filter(
                None,
                [
                    "See which cards the driver has, and whether this process may reach them:",
                    look(facts, "-L"),
                    get_gpu(facts),
                    log(facts),
                ],
            )
        ),
    ),
    Row(
        101,
        "startup.invalid-device",
        "The driver found a device that it cannot use: a MIG instance that is gone, or a number that does not exist.",
        lambda facts: (
            look(facts, "-L")
            + ("\n%cuda_env --unset CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in facts.environment else "")
        ),
    ),
    Row(
        102,
        "startup.not-licensed",
        "A virtual GPU without a licence: it stops working, or works slowly, until it has one.",
        lambda facts: (
            f"{look(facts, '-q')} | grep -i -A 2 license\n"
            + admin(facts, "give the virtual machine its licence (the service nvidia-gridd fetches it).")
        ),
        "cuda.h, CUresult; NVIDIA virtual GPU software, client licensing guide",
    ),
    Row(
        304,
        "startup.operating-system",
        "A call to the operating system failed: a device file, a memory map or a permission.",
        lambda facts: f"$ ls -l /dev/nv*\n{log(facts)}",
    ),
    Row(
        500,
        "startup.not-found",
        "The driver library misses something that it needs, as with an old Docker Desktop under Windows, or a libcuda"
        " that does not fit the kernel module.",
        lambda facts: (
            "See which libcuda is loaded:\n$ ldconfig -p | grep libcuda\n"
            + (
                "Then update the container toolkit or Docker Desktop."
                if facts.platform.container
                else driver_update(facts)
            )
        ),
        "docker/for-win#12733",
    ),
    Row(
        800,
        "startup.not-permitted",
        "The system does not let this process use the card.",
        lambda facts: "\n".join(filter(None, ["$ ls -l /dev/nv*", get_gpu(facts)])),
    ),
    Row(
        801,
        "startup.not-supported",
        "This system has no CUDA: no supported card or platform.",
        lambda facts: look(facts, "-L"),
    ),
    *(
        Row(
            code,
            f"startup.mps-{code}",
            "The MPS service, which shares a card among processes, does not serve this one.",
            lambda facts: (
                admin(facts, "see the service.", "$ echo get_server_list | nvidia-cuda-mps-control")
                + (
                    "\nOr without the service:\n%cuda_env --unset CUDA_MPS_PIPE_DIRECTORY\n%cuda_env --restart"
                    if "CUDA_MPS_PIPE_DIRECTORY" in facts.environment
                    else ""
                )
            ),
            "NVIDIA multi-process service guide",
        )
        for code in (805, 806, 807, 808, 809, 810)
    ),
)
# These have a check of their own: driver.py.
ELSEWHERE = (0, 34, 802, 803, 804, 999)


def _seen(facts: Facts) -> str:
    code = facts.startup.code
    limits = f" {_limits(facts)}" if code == 2 else ""
    beside = f" NVML reads {cards(facts)} without trouble." if facts.nvml.status.ok and gpus(facts) else ""
    return f"cuInit answers {code}, {facts.startup.error or cuda_name(code)}.{beside}{limits}"


def _limits(facts: Facts) -> str:
    """The limits that code 2 may speak of, for the reader to compare."""
    h = facts.host

    def limit(value: int | None) -> str:
        return "unlimited" if value is None else bytes_text(value)

    return (
        f"Limits here: address space {limit(h.address_space)}, locked memory {limit(h.locked_memory)}, control group"
        f" {limit(h.cgroup_limit)}; free host memory {bytes_text(h.memory_available)}."
    )


def _judge(row: Row) -> Callable[[Facts], Finding | None]:
    def judge(facts: Facts) -> Finding | None:
        if facts.startup.code != row.code:
            return None
        return Finding(ERROR, _seen(facts), row.means, row.do(facts), row.source, unusable=True)

    return judge


def unknown_code(facts: Facts) -> Finding | None:
    """A code that the table lacks."""
    code = facts.startup.code
    if code is None or code in ELSEWHERE or code in {row.code for row in CODES}:
        return None
    known = " This table knows its name only." if code in CUDA else " This table does not know it."
    return Finding(
        ERROR,
        _seen(facts) + known,
        "CUDA does not start.",
        f"Look it up in the driver's documentation (CUresult), and look at the kernel's log:\n{log(facts)}",
        "cuda.h, CUresult",
        unusable=True,
    )


def no_devices(facts: Facts) -> Finding | None:
    """cuInit is well and the count is 0."""
    if facts.startup.code != 0 or facts.startup.device_count != 0:
        return None
    return Finding(
        ERROR,
        "cuInit answers 0, and there is no device.",
        "The driver starts and offers no card to this process.",
        "\n".join(filter(None, [look(facts, "-L"), "%cuda_env CUDA_VISIBLE_DEVICES", get_gpu(facts)])),
        "cuDeviceGetCount",
        unusable=True,
    )


def disagree(facts: Facts) -> Finding | None:
    """NVML counts cards and CUDA does not start."""
    if not failed(facts) or not facts.nvml.status.ok or not gpus(facts):
        return None
    count = gpus(facts)
    return Finding(
        INFO,
        f"NVML counts {plural(count, 'GPU')}, and CUDA does not start.",
        f"That is why torch.cuda.device_count() may say {count} while torch.cuda.is_available() says False: the first"
        " asks NVML, the second starts CUDA.",
        source="torch/cuda/__init__.py, device_count and is_available (2.0 to 2.15)",
    )


def nvml_fails(facts: Facts) -> Finding | None:
    """NVML does not answer."""
    status = facts.nvml.status
    if status.ok:
        return None
    works = " CUDA itself starts." if facts.startup.ok else ""
    if status.trouble:
        answer, do = status.sentence.rstrip("."), {"hang": reset(facts), "crash": "$ ldconfig -p | grep libnvidia-ml"}
        return Finding(
            WARNING if facts.startup.ok else INFO,
            f"NVML gave no answer. {answer}.",
            f"Memory, processes and temperatures of the cards cannot be read. This kernel is untouched by it.{works}",
            do.get(status.trouble, ""),
            "NVML in a helper process",
        )
    answer = nvml_name(status.code) if status.code is not None else status.sentence.partition(":")[0] or "not asked"
    inside = status.code == 12 and facts.platform.container
    missing = "nvidia-ml-py" in status.sentence
    return Finding(
        WARNING if facts.startup.ok else INFO,
        f"NVML does not answer: {answer}.",
        f"Memory, processes and temperatures of the cards cannot be read.{works}",
        f"It needs the capability utility. {get_gpu(facts, ' -e NVIDIA_DRIVER_CAPABILITIES=compute,utility')}"
        if inside
        else "%pip install nvidia-ml-py"
        if missing
        else look(facts),
        "nvml.h, nvmlReturn_t",
    )


def weaker_check(facts: Facts) -> Finding | None:
    """torch was told to ask NVML, and CUDA does not start."""
    if facts.environment.get("PYTORCH_NVML_BASED_CUDA_CHECK") != "1" or not failed(facts):
        return None
    return Finding(
        INFO,
        "PYTORCH_NVML_BASED_CUDA_CHECK=1 is set, and CUDA does not start.",
        "torch.cuda.is_available() then only says that NVML counts a card: a weaker statement, not a repair."
        " The first tensor still fails. The variable is there to keep fork safe.",
        source="seen on an H200, torch 2.11",
    )


_SAME = ("startup.disagreement", "nvml.fails", "torch.nvml-check")
CHECKS = (
    Check("startup.not-tried", untried, _SAME),
    Check("startup.silent", silent, _SAME),
    Check("startup.hangs", hangs, _SAME),
    Check("startup.dies", dies, _SAME),
    *(Check(row.id, _judge(row), _SAME) for row in CODES),
    Check("startup.unknown-code", unknown_code, ("startup.disagreement", "torch.nvml-check")),
    Check("startup.no-devices", no_devices, ("startup.disagreement", "torch.nvml-check")),
    Check("startup.unclear", unclear, ("startup.disagreement", "torch.nvml-check")),
    Check("startup.disagreement", disagree),
    Check("nvml.fails", nvml_fails),
    Check("torch.nvml-check", weaker_check),
)
