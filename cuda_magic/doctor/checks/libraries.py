"""The driver's libraries: missing, broken, a stub, or of another release than the kernel module."""

from __future__ import annotations

from ..facts import Facts
from ..finding import ERROR, WARNING, Finding
from ..places import admin, anew, driver_update, get_gpu
from .common import broken_library, cards, gpus, hardware, in_path, not_found, without

__all__ = ["broken", "compat", "library_missing", "mismatch", "stub"]

USUAL = ("/usr/lib/", "/usr/lib64/", "/lib/", "/lib64/")
FILES = "$ ldconfig -p | grep libcuda.so"


def mismatch(facts: Facts) -> Finding | None:
    """Kernel module and libraries of two releases."""
    if facts.startup.code != 803 and facts.nvml.status.code != 18:
        return None
    module = facts.driver.module_version
    other = [lib for lib in facts.driver.libraries if lib.version and lib.version != module]
    versions = f": module {module}, library {other[0].version}" if module and other else ""
    # the loader takes what LD_LIBRARY_PATH names first: a compat folder of another toolkit there is the reason
    early = [lib for lib in other if lib.name == "libcuda" and in_path(facts, lib.path)]
    compat = [lib for lib in other if "/compat" in lib.path]
    if facts.startup.ok:
        means = "CUDA starts all the same; NVML does not until the machine was restarted."
        do = "Nothing is urgent: it is mended by the next restart of the machine."
    elif early:
        folder = early[0].path.rpartition("/")[0]
        means = f"LD_LIBRARY_PATH names {folder}, whose libcuda belongs to another driver and is loaded first."
        do = f"Take that folder out:\n{without(facts, {lib.path.rpartition('/')[0] for lib in early})}"
    elif facts.platform.container:
        means = "The image has libraries of another driver, which are loaded before those of the host."
        do = (
            f"Take {compat[0].path.rpartition('/')[0]} out of the loader's path in the image (/etc/ld.so.conf.d),"
            " then: "
            if compat
            else "Build the image without NVIDIA's driver packages, then: "
        ) + anew(facts)
    elif compat:
        folder = compat[0].path.rpartition("/")[0]
        means = f"The compat libraries in {folder} belong to another driver and are loaded first."
        do = admin(facts, f"take {folder} out of the loader's path (/etc/ld.so.conf.d), then run ldconfig.", FILES)
    else:
        means = "The driver was updated while the old module stayed loaded, or another driver's libraries come first."
        do = f"{FILES}\n{admin(facts, 'reload the modules, or restart the machine.')}"
    return Finding(
        WARNING if facts.startup.ok else ERROR,
        f"The driver's kernel module and its libraries are of different releases{versions}.",
        means,
        do,
        "cuInit 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, NVML 18; herro#76",
        unusable=not facts.startup.ok,
    )


def stub(facts: Facts) -> Finding | None:
    """The toolkit's stub in place of the driver's library."""
    if facts.startup.code != 34:
        return None
    path = facts.environment.get("LD_LIBRARY_PATH", "").split(":")
    stubs = [folder for folder in path if "stubs" in folder]
    return Finding(
        ERROR,
        "cuInit answers 34: the libcuda that was loaded is the toolkit's stub, made for linking only.",
        "A folder named stubs stands in LD_LIBRARY_PATH or in the loader's cache before the driver's own library.",
        f"Take the stubs folder out:\n{without(facts, stubs)}"
        if stubs
        else f"See which libcuda the loader finds, and take the stubs folder out of its path:\n{FILES}",
        "cuda.h, CUDA_ERROR_STUB_LIBRARY",
        unusable=True,
    )


def library_missing(facts: Facts) -> Finding | None:
    """A driver is there and libcuda.so.1 is not found."""
    if not not_found(facts) or facts.platform.wsl or not hardware(facts):
        return None
    if not (facts.driver.module or facts.nvml.status.ok or facts.driver.nodes or facts.platform.jetson):
        return None
    on_disk = [
        lib.path
        for lib in facts.driver.libraries
        if lib.name == "libcuda"
        and lib.path.endswith(".so.1")
        and not lib.path.startswith(USUAL)
        and "/compat" not in lib.path
    ]
    if on_disk:
        folder = on_disk[0].rpartition("/")[0]
        old = facts.environment.get("LD_LIBRARY_PATH", "")
        path = f"{old}:{folder}" if old else folder
        lines = f"%cuda_env LD_LIBRARY_PATH={path}\n%cuda_env --restart"
        do = f"It lies at {on_disk[0]}, where the loader does not look:\n{lines}"
    elif facts.platform.container:
        do = get_gpu(facts, " -e NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    else:
        do = f"{FILES}\n{admin(facts, 'if that is empty, install the CUDA library of the driver, and run ldconfig.')}"
    return Finding(
        ERROR,
        "The NVIDIA driver is loaded, and its library libcuda.so.1 is not found.",
        "NVML and nvidia-smi work without it; CUDA does not.",
        do,
        "dlopen(3) of libcuda.so.1 in a child process",
        unusable=True,
    )


# What the loader's sentence means, by a part of it (dlopen(3), glibc's elf/dl-load.c).
LOADER = (
    ("wrong ELF class", "A library for 32-bit programs comes before the one for this Python."),
    ("invalid ELF header", "The file is damaged, or no library at all (a text, a placeholder of an image)."),
    ("file too short", "The file is empty or cut off: a copy or an installation that did not end."),
    ("GLIBC", "The library was made for a newer system (glibc) than the one here: an old image on a new host, say."),
    ("version `", "A library that it needs is of an older release."),
    ("undefined symbol", "A library that it needs is of another release."),
    ("Permission denied", "This user may not read the file, or its file system forbids programs (noexec)."),
    ("failed to map segment", "Memory for it is not to be had, or its file system forbids programs (noexec)."),
    ("cannot allocate memory", "Memory for it is not to be had."),
    ("cannot open shared object file", "A library that it needs is missing."),
)


def broken(facts: Facts) -> Finding | None:
    """A libcuda.so.1 is there and cannot be loaded."""
    if not broken_library(facts):
        return None
    text = facts.startup.load_error
    means = next((what for part, what in LOADER if part.lower() in text.lower()), "The loader refuses it.")
    path = text.partition(":")[0]
    if "/" in path and in_path(facts, path):
        do = f"LD_LIBRARY_PATH names its folder:\n{without(facts, [path.rpartition('/')[0]])}"
    elif facts.platform.container:
        do = f"The image and the host's driver do not fit, or the image is damaged. {anew(facts)}"
    else:
        do = f"{FILES}\n{admin(facts, 'install the library of the driver anew.')}"
    return Finding(
        ERROR,
        f"libcuda.so.1 is there and cannot be loaded: {text}.",
        f"{means} Without it CUDA does not start.",
        do,
        "dlopen(3) of libcuda.so.1 in a child process",
        unusable=True,
    )


def compat(facts: Facts) -> Finding | None:
    """Forward compatibility on a card that has none."""
    if facts.startup.code != 804:
        return None
    version = facts.nvml.driver_version or facts.driver.module_version
    where = f"{cards(facts)}, host driver {version}" if gpus(facts) and version else "this card"
    early = [lib.path for lib in facts.driver.libraries if lib.name == "libcuda" and in_path(facts, lib.path)]
    path = f"Or take the compat library out:\n{without(facts, {p.rpartition('/')[0] for p in early})}" if early else ""
    image = (
        "use an image with an older CUDA" if facts.platform.container else "install a build of torch for an older CUDA"
    )
    return Finding(
        ERROR,
        f"cuInit answers 804: forward compatibility was attempted on hardware that does not support it ({where}).",
        "A compat libcuda, newer than the host's driver, was loaded (the image's /usr/local/cuda/compat). It works on"
        " data-centre cards only.",
        "\n".join(filter(None, [f"Either: {driver_update(facts)} Or {image}.", path])),
        "NVIDIA/libnvidia-container#131, NVIDIA/nvidia-docker#1294",
        unusable=True,
    )
