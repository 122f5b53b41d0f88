"""Facts of a machine, read from files below a root folder."""

from __future__ import annotations

from cuda_magic.devices.model import Reading, Status
from cuda_magic.doctor.gather import driver, gather, host, platform
from cuda_magic.doctor.startup import Startup

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max locked memory         8388608              8388608              bytes
Max address space         12288000000          unlimited            bytes
"""
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.3.0\n"


def write(root, path, text=""):
    path = root / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_memory_and_overcommit_are_read(tmp_path):
    """From proc: bytes, and None for unlimited."""
    write(tmp_path, "proc/self/limits", LIMITS)
    write(
        tmp_path, "proc/meminfo", "MemTotal: 1024 kB\nMemAvailable: 512 kB\nCommitLimit: 256 kB\nCommitted_AS: 8 kB\n"
    )
    write(tmp_path, "proc/sys/vm/overcommit_memory", "2\n")
    seen = host(tmp_path)
    assert seen.address_space == 12288000000
    assert seen.locked_memory == 8388608
    assert (seen.memory_total, seen.memory_available) == (1 << 20, 1 << 19)
    assert (seen.overcommit, seen.commit_limit, seen.committed) == (2, 1 << 18, 1 << 13)
    assert host(tmp_path / "nothing").address_space is None


def test_the_tightest_control_group_counts_in_both_versions(tmp_path):
    """Version 2: a parent's limit below the leaf's; version 1: its number for no limit is none."""
    write(tmp_path, "proc/self/cgroup", "0::/slurm/job_1/step\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job_1/step/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job_1/memory.max", "1000\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job_1/memory.current", "900\n")
    write(tmp_path, "sys/fs/cgroup/slurm/memory.max", "5000\n")
    seen = host(tmp_path)
    assert (seen.cgroup_limit, seen.cgroup_used) == (1000, 900)

    old = tmp_path / "old"
    write(old, "proc/self/cgroup", "4:memory:/docker/abc\n2:cpu:/\n")
    write(old, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n")
    assert host(old).cgroup_limit is None
    write(old, "sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n")
    write(old, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1999\n")
    assert (host(old).cgroup_limit, host(old).cgroup_used) == (2000, 1999)


def test_modules_nodes_libraries_and_cards_are_read(tmp_path):
    """A server with one card, seen through its files."""
    write(tmp_path, "proc/driver/nvidia/version", VERSION)
    write(tmp_path, "sys/module/nvidia/version")
    write(tmp_path, "sys/module/nvidia_uvm/version")
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        write(tmp_path, f"dev/{node}")
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    write(tmp_path, "usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08")
    (folder / "libcuda.so.1").symlink_to("libcuda.so.575.57.08")
    card = "sys/bus/pci/devices/0000:17:00.0"
    for name, text in {
        "vendor": "0x10de", "class": "0x030200", "current_link_width": "8", "max_link_width": "16", "numa_node": "-1",
    }.items():  # fmt: skip
        write(tmp_path, f"{card}/{name}", text + "\n")
    write(tmp_path, "sys/bus/pci/devices/0000:17:00.1/vendor", "0x10de\n")  # the card's sound device
    write(tmp_path, "sys/bus/pci/devices/0000:17:00.1/class", "0x040300\n")
    seen = driver(tmp_path, {})
    assert seen.module_version == "580.65.06"
    assert (seen.module, seen.uvm, seen.nouveau) == (True, True, False)
    assert seen.nodes == ("/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl")
    assert seen.closed_nodes == ()
    assert [(lib.name, lib.version) for lib in seen.libraries] == [("libcuda", "575.57.08")]
    assert [(c.bus_id, c.link_width, c.link_width_max, c.numa_node) for c in seen.pci] == [
        ("0000:17:00.0", 8, 16, None)
    ]


def test_the_loaders_path_comes_first(tmp_path):
    """LD_LIBRARY_PATH is searched before the usual folders, as the loader does."""
    write(tmp_path, "usr/lib64/libcuda.so.580.65.06")
    write(tmp_path, "opt/old/libcuda.so.535.1.1")
    seen = driver(tmp_path, {"LD_LIBRARY_PATH": "/opt/old:relative"})
    assert [lib.path for lib in seen.libraries] == ["/opt/old/libcuda.so.535.1.1", "/usr/lib64/libcuda.so.580.65.06"]


def test_platforms_are_told_apart(tmp_path):
    """WSL by its kernel, Jetson by its release file, containers by their marks."""
    write(tmp_path, "w/proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2\n")
    write(tmp_path, "j/etc/nv_tegra_release", "# R36\n")
    write(tmp_path, "d/.dockerenv")
    write(tmp_path, "p/run/.containerenv")
    write(tmp_path, "k/proc/1/cgroup", "0::/kubepods/burstable/pod1\n")
    assert platform(tmp_path / "w", {}).wsl
    assert platform(tmp_path / "j", {}).jetson
    assert platform(tmp_path / "d", {}).container == "docker"
    assert platform(tmp_path / "p", {}).container == "podman"
    assert platform(tmp_path / "p", {"APPTAINER_CONTAINER": "/x.sif"}).container == "apptainer"
    assert platform(tmp_path / "none", {"SLURM_JOB_ID": "1"}).batch == "slurm"
    assert platform(tmp_path / "none", {"COLAB_RELEASE_TAG": "x"}).service == "colab"
    assert platform(tmp_path / "none", {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}).service == "kaggle"
    assert platform(tmp_path / "k", {}).container == "kubernetes"
    assert platform(tmp_path / "d", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).container == "kubernetes"
    plain = platform(tmp_path / "none", {})
    assert (plain.wsl, plain.jetson, plain.container) == (False, False, "")


def test_gathering_keeps_only_the_variables_that_the_checks_look_at(tmp_path):
    """No other variable (a token) gets into the facts."""
    env = {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "hf_abcdefghijkl"}
    seen = gather(Startup(), Reading(0.0, status=Status(False, 12)), tmp_path, env)
    assert seen.environment == {"CUDA_VISIBLE_DEVICES": "0"}


def test_this_machine_is_read_without_an_error():
    """The real files of the machine that the tests run on, whatever it is."""
    seen = gather(Startup(), Reading(0.0, status=Status(False, 12)))
    assert seen.host.memory_total is None or seen.host.memory_total > 1 << 28
