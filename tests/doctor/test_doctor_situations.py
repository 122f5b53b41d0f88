"""Situations and the finding that must come first; cases 18 to 34 of public reports are among them."""

# ruff: noqa: E501 - one situation a line is a table
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from cuda_magic.devices.model import Memory, Process, Reading, Status
from cuda_magic.doctor import SITUATIONS, diagnose
from cuda_magic.doctor.checks import CHECKS
from cuda_magic.doctor.facts import Allocator, Facts, Host, Kernel, Library, Package, PciGpu, Torch
from cuda_magic.doctor.situations import failing, healthy
from cuda_magic.doctor.startup import Allocation, Startup

GIB = 1 << 30
MASK = "CUDA_VISIBLE_DEVICES"
MISSING = Startup(load_error="libcuda.so.1: cannot open shared object file")


def with_(facts: Facts, **rooms) -> Facts:
    """`facts` with some fields of its rooms changed: ``with_(f, host={"address_space": 1})``."""
    new = {
        k: replace(getattr(facts, k), **v) if isinstance(v, dict) and k != "environment" else v
        for k, v in rooms.items()
    }
    return replace(facts, **new)


def cards(facts: Facts, **fields) -> Facts:
    return with_(facts, nvml={"devices": tuple(replace(d, **fields) for d in facts.nvml.devices)})


def nvml(facts: Facts, code: int) -> Facts:
    return replace(facts, nvml=Reading(0.0, status=Status(False, code, f"NVML {code}")))


def env(facts: Facts, **variables: str) -> Facts:
    return replace(facts, environment=variables)


def bare(**driver) -> Facts:
    """No driver; what `driver` says is there nevertheless."""
    return with_(nvml(replace(SITUATIONS["no-driver"].make(), startup=MISSING), 12), driver=driver)


def wsl(facts: Facts) -> Facts:
    library = Library("libcuda", "/usr/lib/wsl/lib/libcuda.so.1.1")
    return with_(
        facts,
        platform={"wsl": True},
        driver={"module": False, "module_version": None, "nodes": ("/dev/dxg",), "libraries": (library,), "pci": ()},
    )


def docker(facts: Facts) -> Facts:
    return with_(facts, platform={"container": "docker"})


def mixed() -> Facts:
    f = healthy(2)
    return with_(f, nvml={"devices": (f.nvml.devices[0], replace(f.nvml.devices[1], name="NVIDIA T4"))})


def full_start(facts: Facts, **fields) -> Facts:
    return with_(facts, startup={"full": True, **fields})


def count(facts: Facts, n: int) -> Facts:
    return with_(facts, startup={"device_count": n, "devices": facts.startup.devices[:n]})


def unified() -> Facts:
    return cards(
        healthy(name="NVIDIA GB10", capability=(12, 1)), memory=Memory(119 * GIB, 9 * GIB, 110 * GIB, unified=True)
    )


PCI = (PciGpu("0000:17:00.0"),)


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[], Facts]
    first: str
    """Id of the first finding; empty for none."""
    exit: int
    has: tuple[str, ...] = ()
    """Must be in what is shown."""
    lacks: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()


ROWS = [
    # -- healthy, with notes
    Row("healthy", healthy, "", 0),
    Row("healthy_eight_cards", lambda: healthy(8), "", 0),
    Row("healthy_limit_on_addresses", lambda: with_(healthy(), host={"address_space": 64 * GIB}), "host.address-space", 0),
    Row("no_torch", lambda: replace(healthy(), torch=None), "torch.none", 0),
    Row("minor_version", lambda: with_(replace(healthy(), torch=Torch("2.15.0", "13.2"))), "torch.minor-version", 0, ("Fine within",)),
    Row("cuda_started_here", lambda: replace(healthy(), kernel=Kernel(True, True, 1)), "kernel.not-safe-to-fork", 0, ("safe to fork: no",)),
    Row("case_56_unified_memory", unified, "devices.unified-memory", 0),
    Row("no_peer_access", lambda: with_(healthy(2), startup={"no_peers": ((0, 1),)}), "devices.no-peer-access", 0),
    Row("narrow_link", lambda: with_(healthy(), driver={"pci": (PciGpu("0000:01:00.0", "nvidia", 4, 16),)}), "devices.narrow-link", 0, ("x4",)),
    # -- cuInit 2: limits of the host, never video memory
    Row("address_space", SITUATIONS["address-space"].make, "host.address-space", 2, ("11.44 GiB", "not about video memory", "ulimit -v unlimited"), ("batch size",), ("startup.out-of-memory", "startup.disagreement")),
    Row("address_space_with_nvml_check", lambda: env(SITUATIONS["address-space"].make(), PYTORCH_NVML_BASED_CUDA_CHECK="1"), "host.address-space", 2, ("not a repair",), explained=("torch.nvml-check",)),
    Row("control_group", lambda: with_(failing(2), platform={"container": "kubernetes"}, host={"cgroup_limit": 4 * GIB, "cgroup_used": 4 * GIB - 1}), "host.cgroup-memory", 2, ("resources.limits.memory",)),
    Row("little_memory", lambda: with_(failing(2, healthy(8)), host={"memory_available": GIB}), "host.memory", 2),
    Row("overcommit", lambda: with_(failing(2), host={"overcommit": 2, "commit_limit": 8 * GIB, "committed": 7 * GIB}), "host.overcommit", 2, ("sysctl",)),
    Row("out_of_memory_alone", lambda: failing(2), "startup.out-of-memory", 2, ("nothing about video memory", "address space unlimited, locked memory 8.00 MiB")),
    Row("case_18_wsl_four_cards", lambda: wsl(failing(2, healthy(4))), "wsl.many-gpus", 2, ("CUDA_VISIBLE_DEVICES=0,1,2", "not for video memory", "does not repair"), ("batch size",), ("startup.disagreement",)),
    # -- every other code of cuInit
    Row("code_3", lambda: failing(3), "startup.not-initialized", 2),
    Row("code_34", lambda: failing(34), "driver.stub", 2, ("stubs",)),
    Row("code_46", lambda: failing(46), "startup.device-unavailable", 2),
    Row("code_100", lambda: failing(100), "startup.no-device", 2),
    Row("code_101", lambda: failing(101), "startup.invalid-device", 2),
    Row("code_304", lambda: failing(304), "startup.operating-system", 2),
    Row("code_500", lambda: failing(500), "startup.not-found", 2, ("Docker Desktop",)),
    Row("code_801", lambda: failing(801), "startup.not-supported", 2),
    Row("case_20_code_802", lambda: failing(802, healthy(8)), "driver.fabric-manager", 2, ("nvidia-fabricmanager", "580.65.06"), ("%cuda_env", "export ")),
    Row("code_803", lambda: with_(failing(803), driver={"module_version": "575.1.1"}), "driver.mismatch", 2, ("575.1.1", "580.65.06")),
    Row("case_22_code_804", lambda: docker(with_(failing(804, healthy(name="NVIDIA GeForce RTX 3090", capability=(8, 6))), nvml={"driver_version": "525.60.13"})), "driver.compat", 2, ("GeForce", "525.60.13", "updates the host's driver", "older CUDA"), ("reinstall", "pip install")),
    Row("code_805", lambda: failing(805), "startup.mps-805", 2),
    Row("case_23_code_999", lambda: failing(999), "driver.uvm-state", 2, ("modprobe -r nvidia_uvm", "rarely the reason")),
    Row("code_999_without_uvm_node", lambda: with_(failing(999), driver={"nodes": ("/dev/nvidia0", "/dev/nvidiactl")}), "driver.no-uvm-node", 2, ("nvidia-modprobe",)),
    Row("code_777", lambda: failing(777), "startup.unknown-code", 2, ("777",)),
    Row("hang", lambda: replace(healthy(), startup=Startup(timed_out=True)), "startup.hangs", 2),
    Row("crash", lambda: replace(healthy(), startup=Startup(signal=11)), "startup.dies", 2),
    Row("count_zero", lambda: count(healthy(), 0), "startup.no-devices", 2),
    # -- driver
    Row("case_32_no_driver", SITUATIONS["no-driver"].make, "driver.none", 2, ("nothing to repair",), ("ERROR", "asked")),
    Row("no_driver_cpu_torch", lambda: replace(bare(), torch=Torch("2.11.0+cpu")), "driver.none", 2, (), ("ERROR",)),
    Row("card_without_driver", lambda: bare(pci=PCI, module=False), "driver.missing", 2),
    Row("nouveau", lambda: bare(pci=(PciGpu("0000:17:00.0", "nouveau"),), module=False, nouveau=True), "driver.nouveau", 2),
    Row("nvml_9_module_not_loaded", lambda: nvml(with_(failing(100), driver={"module": False, "module_version": None, "nodes": (), "pci": PCI}), 9), "driver.not-loaded", 2, ("modprobe nvidia",)),
    Row("nvml_18_mismatch", lambda: nvml(with_(failing(803), driver={"module_version": "575.1.1"}), 18), "driver.mismatch", 2),
    Row("libcuda_missing", lambda: replace(healthy(), startup=MISSING), "driver.library-missing", 2, ("ldconfig",)),
    Row("no_device_nodes", lambda: nvml(with_(failing(100), driver={"nodes": ()}), 999), "driver.no-nodes", 2),
    Row("closed_nodes", lambda: with_(failing(100), driver={"closed_nodes": ("/dev/nvidia0",)}), "driver.closed-nodes", 2, ("/dev/nvidia0",)),
    # -- containers and WSL
    Row("container_started_without_gpus", lambda: docker(nvml(with_(replace(healthy(), startup=MISSING), driver={"nodes": (), "libraries": ()}), 12)), "driver.no-nodes", 2, ("--gpus all",)),
    Row("case_25_lost_in_container", SITUATIONS["lost-in-container"].make, "container.lost-gpu", 2, ("create the container anew",), explained=("nvml.fails",)),
    Row("no_compute_capability", lambda: docker(env(replace(healthy(), startup=MISSING), NVIDIA_DRIVER_CAPABILITIES="utility")), "container.capabilities", 2, ("compute,utility",)),
    Row("container_without_card", lambda: docker(env(bare(module=True, module_version="580.65.06"), NVIDIA_VISIBLE_DEVICES="void")), "container.no-gpu", 2, ("--gpus all",)),
    Row("wsl_without_bridge", lambda: nvml(with_(wsl(replace(healthy(), startup=MISSING)), driver={"nodes": ()}), 12), "wsl.no-gpu", 2, ("in Windows",)),
    Row("wsl_linux_driver", lambda: with_(wsl(failing(100)), driver={"libraries": (Library("libcuda", "/usr/lib64/libcuda.so.535.1", "535.1"),)}), "wsl.linux-driver", 2),
    # -- visible devices
    Row("case_13_index_that_no_card_has", lambda: env(failing(100, healthy(2)), CUDA_VISIBLE_DEVICES="2"), "visible.all-hidden", 2, ("no GPU 2", "GPUs 0..1"), explained=("startup.no-device",)),
    Row("hidden_on_purpose", lambda: env(failing(100), CUDA_VISIBLE_DEVICES=""), "visible.all-hidden", 2, ("legal", "WARNING:"), ("ERROR:",)),
    Row("quotes_in_the_mask", lambda: env(failing(100), CUDA_VISIBLE_DEVICES='"0"'), "visible.all-hidden", 2, ("quotes",)),
    Row("duplicate_in_the_mask", lambda: env(failing(100), CUDA_VISIBLE_DEVICES="0,0"), "visible.all-hidden", 2, ("twice",)),
    Row("fewer_than_named", lambda: env(count(healthy(4), 1), CUDA_VISIBLE_DEVICES="0,9,1"), "visible.fewer-than-named", 1, ("no GPU 9",)),
    Row("changed_after_start", lambda: replace(count(healthy(2), 1), kernel=Kernel(True, True, 2)), "visible.changed-after-start", 1, ("--restart",)),
    Row("case_15_two_models", mixed, "visible.numbering", 1, ("PCI_BUS_ID",)),
    Row("case_15_two_models_ordered", lambda: env(mixed(), CUDA_DEVICE_ORDER="PCI_BUS_ID"), "", 0),
    Row("rank_without_device", lambda: env(healthy(2), LOCAL_RANK="2"), "visible.rank-without-device", 1, ("--nproc-per-node=2",)),
    Row("one_card_for_each_rank", lambda: env(healthy(1), LOCAL_RANK="3", CUDA_VISIBLE_DEVICES="3"), "", 0),
    Row("mig_without_instances", lambda: cards(failing(100), mig_mode=True), "visible.no-mig-instance", 2, ("mig -cgi",)),
    Row("case_28_mig_instance", lambda: env(cards(healthy(), mig_mode=True), CUDA_VISIBLE_DEVICES="MIG-11", PYTORCH_NVML_BASED_CUDA_CHECK="1"), "visible.mig-instance", 0, ("may say False",)),
    # -- torch
    Row("case_27_cpu_only_wheel", SITUATIONS["cpu-only-torch"].make, "torch.cpu-only", 2, ("--index-url",), ("NVML_BASED",)),
    Row("cpu_only_and_start_fails", lambda: replace(failing(2), torch=Torch("2.11.0+cpu")), "torch.cpu-only", 2),
    Row("rocm", lambda: replace(healthy(), torch=Torch("2.11.0+rocm6.4", None, "6.4")), "torch.rocm", 2),
    Row("old_driver", SITUATIONS["old-driver"].make, "torch.driver-too-old", 2, ("580", "cu126")),
    Row("old_card", lambda: healthy(name="Tesla V100", capability=(7, 0)), "torch.no-code-for-card", 2, ("cu126", "7.0")),
    Row("new_card", lambda: replace(healthy(name="NVIDIA B200", capability=(10, 0)), torch=Torch("2.6.0+cu124", "12.4")), "torch.no-code-for-card", 2, ("cu128", "no kernel image")),
    Row("card_not_in_arch_list", lambda: full_start(healthy(capability=(6, 1)), arch_list=("sm_75", "sm_80", "compute_90")), "torch.no-code-for-card", 2),
    Row("broken_torch", lambda: full_start(healthy(), torch_error="OSError: libcudart.so.13: cannot open"), "torch.broken", 2, ("libcudart",)),
    Row("first_allocation_fails", lambda: full_start(healthy(), allocations=(Allocation(0, "torch", False, 2, "CUDA error: out of memory"),)), "torch.allocation", 2),
    Row("torch_does_not_start", lambda: full_start(healthy(), torch_available=False), "torch.not-available", 2),
    # -- this process
    Row("case_33_forked_after_start", lambda: replace(healthy(), kernel=Kernel(True, bad_fork=True)), "kernel.forked-after-start", 2, ("spawn", "safe to fork: no")),
    Row("bad_allocator", lambda: replace(healthy(), allocator=Allocator("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMalloc", "No such backend.")), "allocator.refused", 2, ("first CUDA allocation raises",)),
    Row("bad_allocator_and_no_torch", lambda: replace(healthy(), torch=None, allocator=Allocator("PYTORCH_CUDA_ALLOC_CONF", "x", "No.")), "torch.none", 0),
    Row("questionable_allocator", lambda: replace(healthy(), allocator=Allocator("PYTORCH_CUDA_ALLOC_CONF", "x", "Has no effect.", False)), "allocator.refused", 1),
    Row("two_allocator_names", lambda: env(healthy(), PYTORCH_CUDA_ALLOC_CONF="", PYTORCH_ALLOC_CONF="expandable_segments:True"), "allocator.two-names", 1),
    Row("case_31_two_pynvml", lambda: replace(healthy(), packages=(Package("nvidia-ml-py", "12.560", True), Package("pynvml", "11.4.1", True)), pynvml_file="pynvml/__init__.py"), "packages.two-pynvml", 1, ("pynvml 11.4.1", "nvidia-ml-py 12.560", "force-reinstall")),
    Row("case_31_third_package_alone", lambda: replace(healthy(), packages=(Package("nvidia-ml-py3", "7.352", True),)), "packages.two-pynvml", 1),
    Row("deprecated_pynvml", lambda: replace(healthy(), packages=(Package("nvidia-ml-py", "13.0", True), Package("pynvml", "13.0", False))), "packages.deprecated-pynvml", 0),
    # -- the cards
    Row("full_card", SITUATIONS["full-card"].make, "devices.full", 2, ("3.00 MiB", "4000")),
    Row("full_card_that_is_not_visible", lambda: env(with_(healthy(2), nvml={"devices": (replace(healthy().nvml.devices[0], memory=Memory(80 * GIB, 80 * GIB, 0, 0), processes=(Process(7, 80 * GIB),)), healthy(2).nvml.devices[1])}), CUDA_VISIBLE_DEVICES="1"), "", 0),
    Row("one_of_two_full", lambda: with_(healthy(2), nvml={"devices": (replace(healthy().nvml.devices[0], memory=Memory(80 * GIB, 80 * GIB, 0, 0), processes=(Process(7, 80 * GIB),)), healthy(2).nvml.devices[1])}), "devices.full", 1, ("GPU 1 has 79.00 GiB",)),
    Row("memory_of_nobody", lambda: cards(healthy(), memory=Memory(80 * GIB, 30 * GIB, 50 * GIB, 0)), "devices.memory-of-nobody", 1, ("29.00 GiB", "fuser")),
    Row("case_60_processes_outside", lambda: docker(cards(healthy(), processes=(), memory=Memory(80 * GIB, 30 * GIB, 50 * GIB, 0))), "devices.memory-of-nobody", 1, ("outside this container",)),
    Row("case_58_unknown_process_memory", lambda: cards(healthy(), processes=(Process(79, None),), memory=Memory(80 * GIB, 30 * GIB, 50 * GIB, 0)), "", 0),
    Row("prohibited", lambda: cards(failing(100), compute_mode="prohibited"), "devices.prohibited", 2, ("-c DEFAULT",)),
    Row("exclusive", lambda: cards(failing(46), compute_mode="exclusive-process"), "devices.exclusive", 2, ("4000",)),
    Row("lost_card", lambda: cards(failing(999, healthy(1)), error="A GPU has fallen off the bus."), "driver.uvm-state", 2, ("fallen off the bus",)),
    Row("nvml_12_and_cuda_works", lambda: docker(nvml(healthy(), 12)), "nvml.fails", 1, ("utility",)),
    Row("nvml_999_and_cuda_works", lambda: nvml(healthy(), 999), "nvml.fails", 1, ("CUDA itself starts",)),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_first_finding_is_the_cause(row):
    """The expected finding comes first, says what it must, and explains the symptoms; no check fails."""
    found = diagnose(row.make())
    assert found.failed_checks == ()
    assert (found.findings[0].id if found.findings else "") == row.first, found
    assert found.exit_code == row.exit
    text = repr(found)
    for words in row.has:
        assert words in text
    for words in row.lacks:
        assert words not in text
    assert {*row.explained} <= {one.id for one in found.explained}
    for one in found.explained:
        assert one.explained_by in {f.id for f in found.findings} | {e.id for e in found.explained}
    for one in (*found.findings, *found.explained):
        assert one.seen
        assert one.means
        assert one.source
        assert one.severity in ("info", "warning", "error")


def test_there_are_at_least_forty_situations_and_ids_are_unique():
    """The table is as long as promised; no id of a check or of a row is used twice."""
    assert len(ROWS) >= 40
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_symptoms_that_are_explained_exist():
    """Each id or beginning that a check says it explains is one of the table's."""
    ids = [check.id for check in CHECKS]
    for check in CHECKS:
        for symptom in check.explains:
            assert any(i.startswith(symptom) if symptom.endswith(".") else i == symptom for i in ids), symptom


def test_contradictory_symptoms_are_explained_by_one_finding():
    """device_count() 4 with is_available() False: one cause stands, the contradiction is below it."""
    found = diagnose(with_(failing(2, healthy(4)), host={"address_space": 12 * GIB}))
    assert [f.id for f in found.findings] == ["host.address-space"]
    below = {one.id: one for one in found.explained}
    assert "device_count() may say 4" in below["startup.disagreement"].means
    assert below["startup.disagreement"].explained_by == "host.address-space"


def test_the_nvml_check_is_never_called_a_repair():
    """Whatever the situation, no finding tells anyone to set PYTORCH_NVML_BASED_CUDA_CHECK."""
    for row in ROWS:
        for one in (*(found := diagnose(row.make())).findings, *found.explained):
            assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in one.do


def test_a_check_that_fails_hides_nothing(monkeypatch):
    """An error inside one check is named as not checked; the others still answer."""
    from cuda_magic.doctor import diagnosis
    from cuda_magic.doctor.finding import Check

    def broken(facts):
        raise KeyError("ours")

    monkeypatch.setattr(diagnosis, "CHECKS", (Check("driver.broken", broken), *CHECKS))
    found = diagnose(failing(802))
    assert found.failed_checks == ("driver.broken",)
    assert found.findings[0].id == "driver.fabric-manager"
    assert "not checked" in repr(found)


def test_facts_of_nothing_are_judged_calmly():
    """Facts that say nothing make no check fail."""
    found = diagnose(Facts(host=Host()))
    assert found.failed_checks == ()
