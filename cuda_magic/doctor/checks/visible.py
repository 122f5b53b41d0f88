"""CUDA_VISIBLE_DEVICES, MIG instances, numbering, ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ...devices.model import Device
from ...environment.visible import resolve
from ..facts import Facts
from ..finding import ERROR, INFO, WARNING, Check, Finding
from ..places import admin, get_gpu, look, name_of
from .common import NO_START, failed, gpus, plural

MASK = "CUDA_VISIBLE_DEVICES"
GUIDE = "CUDA C++ programming guide, environment variables"


def _entries(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _lost(value: str, facts: Facts) -> str:
    """What of `value` has no effect, in one sentence."""
    lost = resolve(value, facts.nvml.devices if facts.nvml.status.ok else None).lost
    text = "; ".join(lost) or "no card here goes by that name"
    return f"{text[:1].upper()}{text[1:]}."


def all_hidden(facts: Facts) -> Finding | None:
    """The mask leaves no card."""
    value = facts.environment.get(MASK)
    s = facts.startup
    if value is None or not (s.code in (100, 101) or (s.code == 0 and s.device_count == 0)):
        return None
    there = _cards(facts)
    if not there or not _hides(value, there):
        return None  # what the mask names is there: it is not the mask
    meant = value.strip() in ("", "-1")
    shown = value if value.strip() else "(empty)"
    seen = f"{MASK}={shown} hides every GPU" + (f" of the {gpus(facts)} here." if gpus(facts) > 1 else ".")
    if value.strip().lower() == "nodevfiles":
        return Finding(
            ERROR,
            seen,
            "Slurm writes this value into a job that did not ask for a GPU: none is allotted to it.",
            get_gpu(facts) or "Ask for a GPU in the job:\n$ srun --gpus=1 --pty bash",
            "ray-project/ray#7014; Slurm, generic resources",
            unusable=True,
        )
    return Finding(
        WARNING if meant else ERROR,
        seen,
        "An empty value and -1 are the legal ways to say: no GPU." if meant else _lost(value, facts),
        f"If that is not meant:\n%cuda_env --unset {MASK}\nIf CUDA has been asked for in this kernel:\n%cuda_env"
        " --restart",
        GUIDE,
        unusable=True,
    )


def _cards(facts: Facts) -> Sequence[Device]:
    """The cards as NVML lists them, else as many as the PCI bus shows."""
    if facts.nvml.status.ok:
        return facts.nvml.devices
    return [Device(i) for i in range(len(facts.driver.pci))]


def _hides(value: str, there: Sequence[Device]) -> bool:
    """Whether `value` leaves nothing, as far as that can be known."""
    if value.strip().startswith("MIG-"):
        instances = [d.uuid or "" for d in there if d.parent is not None]
        return bool(instances) and not any(one.startswith(value.split(",", maxsplit=1)[0].strip()) for one in instances)
    if value.strip().startswith("GPU-") and not any(d.uuid for d in there):
        return False
    seen = resolve(value, there).devices
    return seen is not None and not seen


def no_instances(facts: Facts) -> Finding | None:
    """MIG is on and no instance exists."""
    with_mig = [d for d in facts.nvml.devices if d.mig_mode and d.parent is None]
    if not with_mig or facts.startup.ok or not failed(facts):
        return None
    used = {d.parent for d in facts.nvml.devices if d.parent is not None}
    empty = [d.index for d in with_mig if d.index not in used]
    if not empty or len(empty) < gpus(facts):
        return None
    return Finding(
        ERROR,
        f"MIG is on for GPU {', '.join(map(str, empty))}, and no MIG instance exists.",
        "With MIG on, a card offers its instances only; without one it offers nothing.",
        admin(
            facts,
            "create instances, or switch MIG off.",
            "$ sudo nvidia-smi mig -cgi 19 -C",
            "$ sudo nvidia-smi -mig 0",
        ),
        "NVIDIA MIG user guide",
        unusable=True,
    )


def mig_mask(facts: Facts) -> Finding | None:
    """A MIG instance is chosen: the counts of NVML and CUDA differ, and that is right."""
    value = facts.environment.get(MASK, "")
    if not facts.startup.ok or not value.strip().startswith("MIG-"):
        return None
    asked = len(_entries(value))
    more = f" {asked} instances are named: one process uses one." if asked > 1 else ""
    check = (
        " PYTORCH_NVML_BASED_CUDA_CHECK=1 may say False here while CUDA works."
        if facts.environment.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1"
        else ""
    )
    return Finding(
        INFO,
        f"{MASK} names a MIG instance; CUDA sees {plural(facts.startup.device_count or 0, 'device')}.",
        f"All is well: a process uses one MIG instance, and NVML counts cards.{more}{check}",
        source="pytorch/pytorch#102715, #95784",
    )


def fewer(facts: Facts) -> Finding | None:
    """The mask names more than CUDA sees: entries are lost silently."""
    value = facts.environment.get(MASK)
    if value is None or not facts.startup.ok or "MIG-" in value:
        return None
    asked = _entries(value)
    seen = facts.startup.device_count or 0
    if len(asked) <= seen:
        return None
    return Finding(
        WARNING,
        f"{MASK}={value} names {plural(len(asked), 'device')}, and CUDA sees {seen}.",
        f"CUDA stops reading at the first entry that it cannot use, without a word. {_lost(value, facts)}",
        f"{look(facts, '-L')}\n{_what_is_left(value, facts, seen)}",
        GUIDE,
    )


def _what_is_left(value: str, facts: Facts, seen: int) -> str:
    """The line that names what CUDA takes of the mask, so that nothing is lost by running it."""
    left = resolve(value, facts.nvml.devices if facts.nvml.status.ok else None).devices
    entries = _entries(value)[:seen]
    if left is not None and len(left) == seen:
        entries = [e if e.startswith("GPU-") else str(d.index) for e, d in zip(entries, left, strict=False)]
    return f"%cuda_env {MASK}={','.join(entries)}"


def changed(facts: Facts) -> Finding | None:
    """The environment changed after CUDA had started in this kernel."""
    k, s = facts.kernel, facts.startup
    now = 0 if s.code == 100 else s.device_count
    if not k.cuda_started or k.device_count is None or now is None or k.device_count == now:
        return None
    return Finding(
        WARNING,
        f"CUDA in this kernel sees {plural(k.device_count, 'device')}; with the variables as they are now, a new"
        f" process sees {now}.",
        f"{MASK} is read once, when CUDA starts. It was changed after that.",
        "%cuda_env --restart",
        "seen on an H200, driver 580",
    )


def numbering(facts: Facts) -> Finding | None:
    """Cards of different models, numbered differently by CUDA and NVML."""
    names = [d.name for d in facts.nvml.devices if d.parent is None and d.name and not d.error]
    if len(set(names)) < 2 or "CUDA_DEVICE_ORDER" in facts.environment:
        return None
    return Finding(
        WARNING,
        f"The cards differ ({', '.join(sorted({str(n) for n in names}))}), and CUDA_DEVICE_ORDER is not set.",
        "CUDA numbers the fastest card first, nvidia-smi and NVML by PCI bus: GPU 0 of one may be GPU 1 of the other.",
        "%cuda_env CUDA_DEVICE_ORDER=PCI_BUS_ID" + ("\n%cuda_env --restart" if facts.kernel.cuda_started else ""),
        GUIDE,
    )


def rank(facts: Facts) -> Finding | None:
    """A local rank without a device of its own."""
    text = facts.environment.get("LOCAL_RANK", "")
    count = facts.startup.device_count
    if not text.isdigit() or not facts.startup.ok or count is None or int(text) < count:
        return None
    if count == 1 and facts.environment.get(MASK) is not None:
        return None  # the usual launch of one visible card a process
    return Finding(
        ERROR,
        f"LOCAL_RANK={text}, and this process sees {plural(count, 'device')}.",
        "Each process of a node takes the device of its local rank; there is none with this number.",
        "Start no more processes on this node than it has devices:\n"
        + (
            f"$ srun --ntasks-per-node={count} --gpus-per-node={count} COMMAND"
            if name_of(facts) == "slurm"
            else f"$ torchrun --nproc-per-node={count} SCRIPT"
        ),
        "torch.distributed.run, environment variables",
    )


CHECKS = (
    Check("visible.all-hidden", all_hidden, (*NO_START, "visible.")),
    Check("visible.no-mig-instance", no_instances, NO_START),
    Check("visible.changed-after-start", changed),
    Check("visible.rank-without-device", rank),
    Check("visible.fewer-than-named", fewer),
    Check("visible.numbering", numbering),
    Check("visible.mig-instance", mig_mask),
)
