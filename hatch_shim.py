"""The native shim of cuda_magic/allocation, compiled when a wheel is built; asked by hatchling.

Where it was compiled the wheel is for that machine, and carries the library beside its source; else the wheel is pure,
and says why. A compiler is a build requirement only where none is there, or none that works. Environment variables:

- ``CUDA_MAGIC_NO_SHIM=1``: a pure wheel, without an attempt.
- ``CUDA_MAGIC_SHIM_FOR=aarch64`` (or ``x86_64``): as for a release, by zig for every glibc from 2.17 on, on any
  machine; a shim that cannot be made is then an error.
- ``CI=true``: on Linux x86-64 a shim that cannot be made is an error too.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "cuda_magic/allocation"
MACHINES = ("x86_64", "aarch64")
FLAGS = ["-O2", "-fPIC", "-shared", "-s", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-pthread"]
GLIBC = (2, 17)
"""The oldest glibc that a released wheel asks for: manylinux2014's, which every torch with a slot for us needs too."""


def machine() -> str | None:
    """The machine that the shim is for, or None where there is none for it (other systems, musl)."""
    if os.environ.get("CUDA_MAGIC_NO_SHIM", "0") not in ("", "0"):
        return None
    if released := os.environ.get("CUDA_MAGIC_SHIM_FOR"):
        if released not in MACHINES:
            raise ValueError(f"CUDA_MAGIC_SHIM_FOR is {released!r}; there is a shim for {' and '.join(MACHINES)}.")
        return released
    here = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    return platform.machine() if here and platform.machine() in MACHINES else None


def compilers(target: str) -> list[list[str]]:
    """Commands that may compile, the first choice first: the system's own, and zig where it is installed."""
    found = [shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]]
    own = [words for words in found if words and shutil.which(words[0])]
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{target}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"]
    there = [zig] if importlib.util.find_spec("ziglang") else []
    return there if "CUDA_MAGIC_SHIM_FOR" in os.environ else own + there


def compiled(root: str, target: str, library: Path) -> str:
    """Compile the shim into `library`; what went wrong, or an empty string.

    The file is replaced as a whole: another process may have the earlier one loaded.
    """
    why = []
    for compiler in compilers(target):
        with tempfile.TemporaryDirectory() as folder:
            new, beside = Path(folder, "new.so"), library.with_suffix(f".{os.getpid()}")
            caches = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
            line = [*compiler, *FLAGS, "-o", str(new), str(Path(root, FOLDER, "shim.c")), "-ldl"]
            try:
                subprocess.run(line, capture_output=True, text=True, check=True, env={**os.environ, **caches})
                shutil.copy(new, beside)
                beside.replace(library)
            except subprocess.CalledProcessError as failed:
                why.append(f"{shlex.join(line)}\n{failed.stderr.strip()[-2000:]}")
            except OSError as failed:  # the compiler cannot be started, the folder not written
                why.append(str(failed))
            else:
                return ""
    return "\n".join(why) or "no C compiler was found (cc, gcc, clang, or ziglang from the index)"


def glibc(library: Path) -> tuple[int, int]:
    """The glibc that a library needs: the newest version among those that its symbols name, no older than GLIBC."""
    named = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    return max([GLIBC, *((int(a), int(b)) for a, b in named)])


class Shim(BuildHookInterface):  # type: ignore[type-arg]
    """Asked when a wheel is built, an editable one too; the sdist carries the source only."""

    def dependencies(self) -> list[str]:
        """A compiler from the index (100 MB) where the one that is here cannot make the shim, and for a release."""
        target = machine()
        if target is None:
            return []
        with tempfile.TemporaryDirectory() as folder:
            needed = "CUDA_MAGIC_SHIM_FOR" in os.environ or compiled(self.root, target, Path(folder, "try.so"))
        return ["ziglang"] if needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Into the source tree for an editable install, into the archive else; the archive's tag says for whom."""
        target = machine()
        if target is None:
            return
        name = f"_shim.{target}.so"
        self.made = tempfile.mkdtemp()
        library = Path(self.root, FOLDER, name) if version == "editable" else Path(self.made, name)
        inputs = (Path(self.root, FOLDER, "shim.c"), Path(self.root, "hatch_shim.py"))
        if library.exists() and all(one.stat().st_mtime <= library.stat().st_mtime for one in inputs):
            return  # an editable install's, newer than its source
        if why := compiled(self.root, target, library):
            library.unlink(missing_ok=True)  # one of an older source
            ours = os.environ.get("CI") == "true" and target == "x86_64"
            if ours or "CUDA_MAGIC_SHIM_FOR" in os.environ:
                raise RuntimeError(f"the shim was not made: {why}")
            self.app.display_warning(f"cuda_magic is built without its native shim: {why}")
        elif version != "editable":
            needs = glibc(library)
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_{needs[0]}_{needs[1]}_{target}"
            build_data["force_include"][str(library)] = f"{FOLDER}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "made"):
            shutil.rmtree(self.made)
