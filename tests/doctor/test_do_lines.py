"""What to do, on each platform: no line that cannot work there, none that harms; and with several faults the cause first."""

# ruff: noqa: E501 - one situation a line is a table
from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from test_doctor_situations import ROWS, bare, cards, docker, env, nvml, with_, wsl

from cuda_magic.devices.model import Reading, Status
from cuda_magic.doctor import diagnose
from cuda_magic.doctor.facts import Allocator, Facts, Library, PciGpu, Torch
from cuda_magic.doctor.places import index, name_of
from cuda_magic.doctor.situations import failing, healthy
from cuda_magic.doctor.startup import Startup
from cuda_magic.magics.cuda_env import SPEC

NOT_FOUND = "libcuda.so.1: cannot open shared object file: No such file or directory"


def platform(**fields):
    return lambda facts: with_(facts, platform=fields)


def jetson(facts: Facts) -> Facts:
    return with_(facts, platform={"jetson": True, "machine": "aarch64"}, driver={"pci": (), "nodes": ()})


def vgpu(facts: Facts) -> Facts:
    return cards(facts, name="NVIDIA A40-8Q")


def mig(facts: Facts) -> Facts:
    return env(cards(facts, mig_mode=True), CUDA_VISIBLE_DEVICES="MIG-11111111-0000-0000-0000-000000000000")


PLATFORMS = {
    "bare": lambda facts: facts,
    "docker": docker,
    "podman": platform(container="podman"),
    "kubernetes": platform(container="kubernetes"),
    "apptainer": platform(container="apptainer", batch="slurm"),
    "lxc": platform(container="lxc"),
    "nspawn": platform(container="systemd-nspawn"),
    "slurm": platform(batch="slurm"),
    "wsl": wsl,
    "docker_under_wsl": lambda facts: docker(wsl(facts)),
    "jetson": jetson,
    "colab": platform(service="colab", container="docker"),
    "kaggle": platform(service="kaggle", container="docker"),
    "vgpu": vgpu,
    "mig": mig,
}
ROOT = ("sudo", "modprobe", "systemctl", "sysctl", "dmesg", "reboot", "nvidia-smi -pm", "dkms", "lspci", "apt ")
"""In a line to copy: what needs the machine itself, or its administrator."""
FORBIDDEN = {
    "docker": (*ROOT, "podman"),
    "podman": (*ROOT, "docker run"),
    "kubernetes": (*ROOT, "docker", "podman"),
    "apptainer": (*ROOT, "docker", "podman", "srun"),
    "lxc": (*ROOT, "docker", "podman"),
    "container": (*ROOT, "docker", "podman"),
    "wsl": ("modprobe", "systemctl", "nvidia-modprobe", "reboot", "docker", "nvrm"),
    "jetson": ("nvidia-smi", "/dev/nvidia", "download.pytorch.org", "ubuntu-drivers"),
    "colab": (*ROOT, "docker", "podman"),
    "kaggle": (*ROOT, "docker", "podman"),
    "slurm": ("docker", "podman"),
    "": ("docker", "podman", "srun"),
}


def lines(do: str) -> list[str]:
    return [line for line in do.split("\n") if line[:2] == "$ " or line[:1] == "%"]


@pytest.mark.parametrize("place", PLATFORMS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_line_that_cannot_work_there(row, place):
    """Each situation on each platform: the lines of every finding are for that platform, and can be run as they stand."""
    facts = PLATFORMS[place](row.make())
    found = diagnose(facts)
    assert found.failed_checks == ()
    for one in (*found.findings, *found.explained):
        for line in lines(one.do):
            # where NVML answers on a Jetson, the tools of the driver are there too
            there = facts.platform.jetson and facts.nvml.status.ok
            bad = [] if there else [word for word in FORBIDDEN.get(name_of(facts), ()) if word in line]
            assert not bad, (one.id, line)
            if facts.startup.ok:
                assert not any(word in line for word in ("reboot", "modprobe -r", "purge", "gpu-reset")), (one.id, line)
            assert "..." not in line and "IMAGE" not in line.replace(" IMAGE", "", 1), (one.id, line)
            if line.startswith("%cuda_env"):
                SPEC.parse(line.removeprefix("%cuda_env").strip())
                assert (
                    not line.startswith("%cuda_env --unset") or line.split()[-1] in facts.environment or facts.allocator
                ), line
        if name_of(facts) in ("docker", "podman", "kubernetes", "lxc", "container") and "administrator" in one.do:
            assert (
                "On the host" in one.do
                or "On the node" in one.do
                or "the administrator gives the device" in one.do
                or "'s driver" in one.do
                or "is theirs to lift" in one.do
            ), one.do


def test_the_lines_are_shell():
    """bash reads each line for a shell without a complaint."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    every = {
        line[2:]
        for row in ROWS
        for make in PLATFORMS.values()
        for one in diagnose(make(row.make())).findings
        for line in lines(one.do)
        if line[:2] == "$ "
    }
    done = subprocess.run([bash, "-n"], input="\n".join(sorted(every)), capture_output=True, text=True)
    assert len(every) > 15 and done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize(
    ("api", "capabilities", "expected"),
    [
        (13000, ((9, 0),), "cu130"),
        (13000, ((7, 0),), "cu126"),
        (13000, ((6, 1),), "cu126"),
        (12080, ((10, 0),), "cu128"),
        (12080, ((12, 0), (8, 6)), "cu128"),
        (12020, ((8, 6),), "cu126"),
        (11040, ((8, 0),), "cu118"),
        (13000, ((11, 0),), "cu130"),
        (12000, ((3, 5),), ""),
        (None, (), ""),
    ],
)
def test_the_build_that_is_named_runs_there(api, capabilities, expected):
    """For the driver and for the cards: no build without code for the card, none that the driver cannot run."""
    assert index(api, capabilities) == expected


# -- the found faults, and their kin


def first(facts: Facts):
    found = diagnose(facts)
    assert found.failed_checks == ()
    return found.findings[0]


def missing(facts: Facts, text: str = NOT_FOUND) -> Facts:
    return replace(facts, startup=Startup(load_error=text))


def library(facts: Facts, path: str, version: str, **variables: str) -> Facts:
    facts = with_(facts, driver={"libraries": (Library("libcuda", path, version), *facts.driver.libraries)})
    return env(facts, **variables) if variables else facts


@pytest.mark.parametrize("value", ["0", "0,1", "GPU-00000000", "1"])
@pytest.mark.parametrize("place", ["kubernetes", "bare", "slurm", "docker"])
def test_a_mask_that_names_a_card_is_not_the_reason(value, place):
    """cuInit 100 for another reason, with a mask as the platform sets it: the mask is not blamed, nothing unsets it."""
    one = first(env(PLATFORMS[place](failing(100, healthy(2))), CUDA_VISIBLE_DEVICES=value))
    assert one.id == "startup.no-device" and "--unset" not in one.do


@pytest.mark.parametrize("value", ["2", "GPU-9", "a", "0,0", "NoDevFiles", "", "-1", "none", "gpu-00000000"])
def test_a_mask_that_names_no_card_is_the_reason(value):
    """The kin of it: what hides every card."""
    assert first(env(failing(100, healthy(2)), CUDA_VISIBLE_DEVICES=value)).id == "visible.all-hidden"


def test_a_virtual_gpu_is_not_reset_from_inside():
    """No reset of a card that is a part of one: the virtual machine is restarted."""
    one = first(vgpu(replace(healthy(), startup=Startup(timed_out=True, step="init"))))
    assert "virtual machine" in one.do and "gpu-reset" not in one.do


def test_no_gpu_asked_of_slurm():
    """NoDevFiles: ask for a GPU; the mask is not to be unset."""
    one = first(env(PLATFORMS["slurm"](failing(100)), CUDA_VISIBLE_DEVICES="NoDevFiles"))
    assert one.id == "visible.all-hidden" and "srun --gpus=1" in one.do and "--unset" not in one.do


@pytest.mark.parametrize(
    ("mask", "line"), [("0,1,9", "0,1"), ("1,0,7", "1,0"), ("GPU-00000001,GPU-9", "GPU-00000001"), ("0, 1,x", "0,1")]
)
def test_the_mask_line_keeps_what_cuda_sees(mask, line):
    """Only the lost entries go."""
    facts = env(healthy(2), CUDA_VISIBLE_DEVICES=mask)
    n = len(line.split(","))
    one = first(with_(facts, startup={"device_count": n, "devices": facts.startup.devices[:n]}))
    assert one.id == "visible.fewer-than-named" and f"%cuda_env CUDA_VISIBLE_DEVICES={line}" in one.do.split("\n")


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("/usr/lib/libcuda.so.1: wrong ELF class: ELFCLASS32", "32-bit"),
        ("/usr/lib/libcuda.so.1: invalid ELF header", "damaged"),
        (
            "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by /usr/lib/libcuda.so.1)",
            "newer system",
        ),
        (
            "libnvidia-ptxjitcompiler.so.1: cannot open shared object file: No such file or directory",
            "needs is missing",
        ),
        ("libcuda.so.1: cannot open shared object file: Permission denied", "may not read"),
        ("/usr/lib/libcuda.so.1: undefined symbol: foo", "another release"),
        ("/usr/lib/libcuda.so.1: failed to map segment from shared object: Operation not permitted", "noexec"),
    ],
)
def test_the_loaders_sentence_is_shown(text, means):
    """There and not to be loaded is not "not found", on a card's machine or without one."""
    for facts in (healthy(), bare()):
        one = first(missing(facts, text))
        assert one.id == "driver.library-broken" and text in one.seen and means in one.means


def test_a_lost_card_comes_before_the_numbering():
    """One of two cards lost: that is said first, and no name of None."""
    f = healthy(2)
    lost = replace(f.nvml.devices[1], name=None, error="The GPU has fallen off the bus: the machine must be restarted.")
    facts = with_(f, nvml={"devices": (f.nvml.devices[0], lost)})
    found = diagnose(facts)
    assert found.findings[0].id == "devices.lost" and "visible.numbering" not in {x.id for x in found.findings}
    assert "None" not in repr(found)
    named = with_(facts, nvml={"devices": (f.nvml.devices[0], replace(lost, name="NVIDIA T4"))})
    assert diagnose(named).findings[0].id == "devices.lost"


def test_a_compat_library_in_the_path_is_the_reason_of_803():
    """The folder is taken out of LD_LIBRARY_PATH; no restart of the machine."""
    facts = library(
        failing(803),
        "/usr/local/cuda-12.8/compat/libcuda.so.570.1.1",
        "570.1.1",
        LD_LIBRARY_PATH="/usr/local/cuda-12.8/compat:/opt/x",
    )
    one = first(facts)
    assert one.id == "driver.mismatch" and "%cuda_env LD_LIBRARY_PATH=/opt/x\n%cuda_env --restart" in one.do
    assert "eboot" not in one.do and "restart the machine" not in one.do


def test_nvml_18_where_cuda_works_is_not_urgent():
    """No line to copy, and CUDA is said to start."""
    one = first(nvml(healthy(), 18))
    assert one.id == "driver.mismatch" and not lines(one.do) and "CUDA starts" in one.means and not one.unusable


@pytest.mark.parametrize(
    ("place", "words"), [("colab", "Change runtime type"), ("kaggle", "Accelerator"), ("slurm", "srun --gpus=1")]
)
def test_a_session_without_a_gpu_asks_for_one(place, words):
    """Colab with a CPU runtime: something can be done, and it is said."""
    found = diagnose(PLATFORMS[place](bare()))
    assert found.findings[0].id == "driver.none" and words in found.findings[0].do
    assert "nothing to repair" not in found.sentence


def test_torch_for_the_cpu_in_a_container_without_a_driver():
    """The card has to come into the container first; another build of torch is not the first thing."""
    facts = replace(
        docker(missing(nvml(with_(healthy(), driver={"nodes": (), "libraries": ()}), 12))), torch=Torch("2.11.0+cpu")
    )
    one = first(facts)
    assert one.family in ("driver", "container") and "docker run --gpus all" in one.do and "pip install" not in one.do
    only_pci = replace(docker(bare(pci=(PciGpu("0000:17:00.0"),), module=None)), torch=Torch("2.11.0+cpu"))
    assert first(missing(only_pci)).id == "container.no-gpu"


def test_docker_under_wsl_without_gpus():
    """Windows' driver is not to be installed; the container is to be started with a GPU."""
    facts = with_(docker(wsl(missing(nvml(healthy(), 12)))), driver={"nodes": (), "libraries": ()})
    one = first(facts)
    assert "docker run --gpus all" in one.do and "in Windows" not in one.do


def test_heterogeneous_memory_management():
    """Code 3 with HMM on: the setting is named; off, the log is."""
    one = first(with_(failing(3), driver={"hmm": True}))
    assert one.id == "driver.hmm" and "uvm_disable_hmm=1" in one.do
    assert first(with_(failing(3), driver={"hmm": False})).id == "startup.not-initialized"


@pytest.mark.parametrize("capability", [(6, 1), (6, 0), (5, 2)])
@pytest.mark.parametrize(
    "build", [("2.9.1+cu128", "12.8"), ("2.8.0+cu129", "12.9"), ("2.7.1+cu128", "12.8"), ("2.10.0+cu128", "12.8")]
)
def test_a_card_below_the_lowest_of_a_build(capability, build):
    """The table has a lowest capability for every build; the build's own list comes before it."""
    facts = replace(healthy(name="NVIDIA TITAN Xp", capability=capability), torch=Torch(*build))
    one = first(facts)
    assert one.id == "torch.no-code-for-card" and "cu126" in one.do
    own = replace(facts, torch=replace(facts.torch, architectures=("sm_50", "sm_60", "sm_90")))
    assert diagnose(own).verdict == "healthy"


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"), (6, 1), False),
        (("sm_70", "sm_120"), (12, 1), True),
        (("sm_80", "sm_90a"), (9, 0), True),
        (("sm_80", "sm_100a"), (10, 3), False),
        (("sm_80", "sm_100f"), (10, 3), True),
        (("sm_80", "compute_90"), (12, 0), True),
        (("sm_80", "compute_90a"), (12, 0), False),
        (("sm_86",), (8, 0), False),
    ],
)
def test_the_builds_own_list_decides(architectures, capability, runs):
    """Machine code within its major version, PTX upwards, an "a" for exactly that card."""
    facts = replace(healthy(capability=capability), torch=Torch("2.9.1+cu128", "12.8", architectures=architectures))
    assert (diagnose(facts).verdict == "healthy") is runs


def test_the_list_is_read_from_the_builds_own_files(tmp_path, monkeypatch):
    """As torch.cuda.get_arch_list would give it, without importing torch."""
    from cuda_magic.doctor import installed

    (tmp_path / "torch/lib").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text("__version__ = '2.9.1+cu128'\ncuda: str = '12.8'\n")
    text = b"\x7fELF sm_1 ipc_hsm_70 sm_75 sm_90a compute_120\0sm_version\0sm_90\0"
    (tmp_path / "torch/lib/libtorch_python.so").write_bytes(text)
    monkeypatch.setattr(installed, "_origin", lambda name: tmp_path / "torch/__init__.py")
    assert installed.torch_build().architectures == ("sm_70", "sm_75", "sm_90a", "compute_120")


def test_a_torch_that_was_replaced_under_the_kernel():
    """After %pip install -U torch: both releases are named, and the restart."""
    one = first(replace(healthy(), torch=Torch("2.13.0+cu130", "13.0", imported="2.11.0+cu130")))
    assert one.id == "torch.replaced" and "2.11.0" in one.seen and "2.13.0" in one.seen and "--restart" in one.do


# -- several faults at once: (name, what is wrong together, the cause to act on first)
def no_uvm(f: Facts) -> Facts:
    return with_(f, driver={"nodes": ("/dev/nvidia0", "/dev/nvidiactl")})


def closed(f: Facts) -> Facts:
    return with_(f, driver={"closed_nodes": ("/dev/nvidia0",)})


def cpu(f: Facts) -> Facts:
    return replace(f, torch=Torch("2.11.0+cpu"))


def bad_conf(f: Facts) -> Facts:
    return replace(f, allocator=Allocator("PYTORCH_CUDA_ALLOC_CONF", "x", "there is no option 'x'."))


def mask(f: Facts) -> Facts:
    return env(f, CUDA_VISIBLE_DEVICES="7")


def hung(f: Facts) -> Facts:
    return replace(
        f, nvml=Reading(0.0, status=Status(False, None, "The NVIDIA driver did not answer NVML in time.", "hang"))
    )


def tight(f: Facts) -> Facts:
    return with_(f, host={"address_space": 12 << 30})


def old(f: Facts) -> Facts:
    return with_(f, startup={"driver_api": 12020}, nvml={"driver_version": "535.1.1"})


def lost(f: Facts) -> Facts:
    return cards(f, error="The GPU has fallen off the bus.")


def capabilities(f: Facts) -> Facts:
    return env(f, NVIDIA_DRIVER_CAPABILITIES="utility")


FAULTS = {f.__name__: f for f in (no_uvm, closed, cpu, bad_conf, mask, hung, tight, old, lost, capabilities)}
START = {
    "2": lambda: failing(2, healthy(2)),
    "3": lambda: failing(3),
    "100": lambda: failing(100, healthy(2)),
    "802": lambda: failing(802, healthy(8)),
    "803": lambda: failing(803),
    "999": lambda: failing(999),
    "hang": lambda: replace(healthy(), startup=Startup(timed_out=True, step="init")),
    "crash": lambda: replace(healthy(), startup=Startup(signal=11, step="init")),
    "missing": lambda: missing(healthy()),
    "broken": lambda: missing(healthy(), "/x/libcuda.so.1: invalid ELF header"),
    "untried": lambda: replace(healthy(), startup=Startup(failed="Too many open files", errno=24)),
    "well": healthy,
}
COMPOSED = """
2 tight                    host.address-space
2 tight bad_conf           allocator.refused host.address-space
2 tight cpu                torch.cpu-only host.address-space
2 tight hung               host.address-space
2 tight mask               host.address-space
2 no_uvm                   driver.no-uvm-node
2 hung                     startup.out-of-memory
3 hung                     startup.not-initialized
3 closed                   driver.closed-nodes
3 no_uvm                   driver.no-uvm-node
3 lost                     devices.lost
100 mask                   visible.all-hidden
100 mask no_uvm            driver.no-uvm-node visible.all-hidden
100 mask closed            driver.closed-nodes visible.all-hidden
100 mask bad_conf          allocator.refused visible.all-hidden
100 closed                 driver.closed-nodes
100 hung                   startup.no-device
100 lost                   devices.lost
100 closed hung            driver.closed-nodes
100 no_uvm hung            driver.no-uvm-node
802 lost                   driver.fabric-manager devices.lost
802 hung                   driver.fabric-manager
802 mask                   driver.fabric-manager
802 bad_conf               allocator.refused driver.fabric-manager
803 hung                   driver.mismatch
803 no_uvm                 driver.mismatch
803 closed                 driver.mismatch
803 mask                   driver.mismatch
803 cpu                    torch.cpu-only driver.mismatch
999 no_uvm                 driver.no-uvm-node
999 closed                 driver.closed-nodes
999 no_uvm closed          driver.no-uvm-node driver.closed-nodes
999 lost                   driver.uvm-state
999 hung                   driver.uvm-state
999 mask                   driver.uvm-state
999 bad_conf               allocator.refused driver.uvm-state
hang hung                  startup.hangs
hang lost                  devices.lost
hang mask                  startup.hangs
hang tight                 startup.hangs
crash hung                 startup.dies
crash lost                 devices.lost
crash tight                startup.dies
missing capabilities       container.capabilities
missing hung               driver.library-missing
missing mask               driver.library-missing
missing closed             driver.library-missing driver.closed-nodes
missing cpu                torch.cpu-only driver.library-missing
broken hung                driver.library-broken
broken mask                driver.library-broken
broken cpu                 torch.cpu-only driver.library-broken
broken closed              driver.library-broken driver.closed-nodes
untried hung               startup.not-tried
untried mask               startup.not-tried
untried cpu                torch.cpu-only startup.not-tried
untried tight              startup.not-tried
well old bad_conf          allocator.refused torch.driver-too-old
well old lost              torch.driver-too-old devices.lost
well cpu lost              torch.cpu-only devices.lost
well hung                  nvml.fails
well hung bad_conf         allocator.refused nvml.fails
well tight hung            nvml.fails host.address-space
well old mask lost         torch.driver-too-old devices.lost
"""


@pytest.mark.parametrize("row", COMPOSED.strip().splitlines())
def test_the_cause_comes_first_of_several(row):
    """The causes named stand first, in that order; a symptom of theirs is no finding of its own."""
    words = row.split()
    facts = START[words[0]]()
    variables = {}
    for name in (w for w in words[1:] if w in FAULTS):
        facts = FAULTS[name](facts)
        variables |= facts.environment
    facts = replace(facts, environment=variables)
    expected = [w for w in words[1:] if "." in w]
    found = [one.id for one in diagnose(facts).findings]
    assert found[: len(expected)] == expected, found
    if not facts.startup.ok:
        assert not [i for i in found if i in ("startup.disagreement", "nvml.fails")]


def test_sixty_are_composed():
    """As many as promised."""
    assert len(set(COMPOSED.strip().splitlines())) >= 60
