"""A release is ready: both archives are complete and clean, and the wheel works in a clean environment."""

from __future__ import annotations

import ctypes
import email
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import cuda_magic

ROOT = Path(__file__).resolve().parents[2]
VERSION = cuda_magic.__version__
SMOKE = Path(__file__).with_name("smoke.py")
RUBBISH = re.compile(r"__pycache__|\.py[co]$|\.(pytest|mypy|ruff)_cache|\.ipynb_checkpoints|/\.|\.hypothesis|\.so$|~$")
PYTHONS = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
# In a clean environment nothing of this one counts.
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "CUDA_MAGIC"))}
MACHINE = platform.machine()
SHIM = "cuda_magic/allocation/_shim.{}.so"
has_shim = pytest.mark.skipif(
    not (sys.platform == "linux" and MACHINE in ("x86_64", "aarch64")), reason="there is no shim for this machine"
)


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, timeout=170, **more)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """(sdist, wheel): the wheel is built from the sdist, by the backend that the tests have installed."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    wheel, sdist = sorted(folder.iterdir())
    assert wheel.name.startswith(f"cuda_magic-{VERSION}-py3-none-") and sdist.name == f"cuda_magic-{VERSION}.tar.gz"
    return sdist, wheel


def kept():
    """Every file of the project, as git knows them (in an unpacked sdist: as they lie there)."""
    if not (ROOT / ".git").exists():
        return {str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file() and not RUBBISH.search(f"/{p}")}
    return set(run("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard").splitlines())


def test_the_sdist_is_the_project(archives):
    """Package, tests, tutorials, pages and what builds them: all of it, and nothing that a run left behind."""
    with tarfile.open(archives[0]) as sdist:
        names = {str(PurePosixPath(*PurePosixPath(m.name).parts[1:])) for m in sdist.getmembers() if m.isfile()}
    assert not [name for name in names if RUBBISH.search(f"/{name}") and name != ".gitignore"]
    apart = {".gitignore", "PKG-INFO"}
    expected = {name for name in kept() if not name.startswith((".ci/", ".github/")) and (ROOT / name).is_file()}
    assert names - apart == expected - apart
    for name in ("LICENSE", "tests/notebooks/test_comparison.py", "notebooks/01_first_steps.ipynb", "docs/guard.md"):
        assert name in names


def test_the_wheel_is_the_package(archives):
    """Every file of the package, JavaScript, CSS and py.typed too; the licence; no test, notebook or page."""
    with zipfile.ZipFile(archives[1]) as wheel:
        names = set(wheel.namelist())
    shims = {name for name in names if name.endswith(".so")}
    assert shims <= {SHIM.format(MACHINE)}
    inside = {name for name in names if name.startswith("cuda_magic/")} - shims
    assert inside == {name for name in kept() if name.startswith("cuda_magic/") and (ROOT / name).is_file()}
    assert {"cuda_magic/panel/panel.js", "cuda_magic/panel/panel.css", "cuda_magic/py.typed"} <= inside
    info = f"cuda_magic-{VERSION}.dist-info"
    expected = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    expected.add(f"{info}/licenses/cuda_magic/panel/js/uPlot.LICENSE")
    assert names - inside - shims == expected


def tag(wheel):
    """(tag, is it pure): the name and the metadata must agree."""
    with zipfile.ZipFile(wheel) as opened:
        said = email.message_from_string(opened.read(f"cuda_magic-{VERSION}.dist-info/WHEEL").decode())
    assert wheel.name == f"cuda_magic-{VERSION}-{said['Tag']}.whl"
    return said["Tag"], said["Root-Is-Purelib"] == "true"


@has_shim
def test_the_shim_is_in_the_wheel_and_loads(archives, tmp_path):
    """For this machine, and for no older glibc than its symbols name."""
    with zipfile.ZipFile(archives[1]) as wheel:
        library = Path(wheel.extract(SHIM.format(MACHINE), tmp_path))
    found, pure = tag(archives[1])
    oldest = re.fullmatch(rf"py3-none-manylinux_2_(\d+)_{MACHINE}", found)
    assert oldest and not pure
    assert int(oldest[1]) >= max(int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes()))
    assert ctypes.CDLL(str(library)).cm_malloc


@has_shim
def test_a_wheel_without_the_shim(archives, tmp_path):
    """Asked for, or because the shim cannot be compiled: said, pure, and no failure; in CI a failure."""
    with tarfile.open(archives[0]) as sdist:
        sdist.extractall(tmp_path)  # noqa: S202 - our own archive
    source = tmp_path / f"cuda_magic-{VERSION}"
    build = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--wheel", str(source)]
    env = {k: v for k, v in CLEAN.items() if k != "CI"}
    run(*build, "--outdir", str(tmp_path / "asked"), env={**env, "CUDA_MAGIC_NO_SHIM": "1", "CI": "true"})
    (source / "cuda_magic/allocation/shim.c").write_text('#error "no such machine"\n')
    done = subprocess.run([*build, "--outdir", str(tmp_path / "failed")], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "without its native shim" in done.stdout + done.stderr, done
    for folder in ("asked", "failed"):
        (wheel,) = (tmp_path / folder).iterdir()
        assert tag(wheel) == ("py3-none-any", True)
        with zipfile.ZipFile(wheel) as opened:
            assert not [name for name in opened.namelist() if name.endswith(".so")]
    for strict in ({"CI": "true"}, {"CUDA_MAGIC_SHIM_FOR": "x86_64"})[MACHINE != "x86_64" :]:
        done = subprocess.run(build, env={**env, **strict}, capture_output=True, text=True)
        assert done.returncode and "the shim was not made" in done.stdout + done.stderr, strict
    python = tmp_path / "env" / "bin" / "python"
    run(sys.executable, "-m", "uv", "venv", "-q", "--python", sys.executable, str(tmp_path / "env"), env=CLEAN)
    run(sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--python", str(python), str(wheel), env=CLEAN)
    assert run(str(python), "-I", "-c", "import cuda_magic; print(cuda_magic.__version__)").strip() == VERSION


@pytest.mark.stack
@has_shim
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "no compiler"])
def test_zig_makes_the_wheels_of_a_release(machine, archives, tmp_path):
    """Both architectures for glibc 2.17, and the same where no C compiler is: the build asks the index for one."""
    env = {**CLEAN, "CUDA_MAGIC_SHIM_FOR": machine}
    if machine == "no compiler":
        (tmp_path / "bin").mkdir()
        env = {**CLEAN, "PATH": str(tmp_path / "bin"), "CC": ""}
    with tarfile.open(archives[0]) as sdist:
        sdist.extractall(tmp_path)  # noqa: S202 - our own archive
    source = str(tmp_path / f"cuda_magic-{VERSION}")
    build = [sys.executable, "-m", "build", "--installer", "uv", "--wheel", "--outdir", str(tmp_path / "dist"), source]
    run(*build, env=env)
    (wheel,) = (tmp_path / "dist").iterdir()
    target = MACHINE if machine == "no compiler" else machine
    assert tag(wheel) == (f"py3-none-manylinux_2_17_{target}", False)
    with zipfile.ZipFile(wheel) as opened:
        header = opened.read(SHIM.format(target))[:20]
    assert (header[:4], int.from_bytes(header[18:20], "little")) == (b"\x7fELF", {"x86_64": 62, "aarch64": 183}[target])


def test_metadata(archives):
    """Version from the one place, licence by its SPDX name, README with whole addresses, no torch required."""
    with zipfile.ZipFile(archives[1]) as wheel:
        said = email.message_from_string(wheel.read(f"cuda_magic-{VERSION}.dist-info/METADATA").decode())
        scripts = wheel.read(f"cuda_magic-{VERSION}.dist-info/entry_points.txt").decode()
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("cuda-magic", VERSION, "MIT")
    assert said["Requires-Python"] == ">=3.10" and said["Description-Content-Type"] == "text/markdown"
    shown = said.get_payload()
    where = "https://github.com/cuda-magic/cuda-magic"
    assert re.sub(rf"{where}/(blob|raw)/main/", "", shown).strip() == (ROOT / "README.md").read_text().strip()
    assert not [target for target in re.findall(r"\]\(([^)]+)\)", shown) if "://" not in target and target[0] != "#"]
    assert f"({where}/raw/main/docs/images/rescue.png)" in shown and f"({where}/blob/main/docs/guard.md)" in shown
    always = [one for one in said.get_all("Requires-Dist") if "extra ==" not in one]
    assert len(always) <= 7 and not any(one.startswith(("torch", "numpy", "pandas")) for one in always)
    assert "cuda-magic = cuda_magic.cli:main" in scripts


def test_the_version_stands_in_one_place():
    """Only the package's own line has it; everything else asks there."""
    found = [
        name
        for name in kept()
        if name.endswith((".py", ".toml", ".cfg", "Makefile")) and f'"{VERSION}"' in (ROOT / name).read_text()
    ]
    assert found == ["cuda_magic/__init__.py"]


def test_twine_finds_nothing(archives):
    """`twine check --strict`: the long description can be shown by the index."""
    assert run(sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)).count("PASSED") == 2


def interpreter(release):
    """A Python of that release: this one, one on the path, or pyenv's."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in (sys.executable, f"python{release}", *map(str, sorted(pyenv.glob(f"{release}.*/bin/python")))):
        try:
            done = subprocess.run([python, "-c", code], capture_output=True, text=True)
        except FileNotFoundError:
            continue
        if done.stdout.strip() == release:
            return python
    return None


@pytest.mark.stack
@pytest.mark.parametrize("release", PYTHONS)
def test_the_wheel_works_in_a_clean_environment(release, archives, tmp_path):
    """On each Python that the classifiers name: it installs with its requirements alone, and the smoke test passes."""
    uv = [sys.executable, "-m", "uv"]
    base = interpreter(release) or release  # one that is not here uv brings, where it may
    made = subprocess.run([*uv, "venv", "-q", "--python", base, str(tmp_path / "env")], env=CLEAN, capture_output=True)
    if made.returncode:
        pytest.skip(f"no Python {release} here: {made.stderr.decode()[-300:]}")
    python = str(tmp_path / "env" / "bin" / "python")
    run(*uv, "pip", "install", "-q", "--python", python, str(archives[1]), env=CLEAN)
    run(*uv, "pip", "check", "--python", python, env=CLEAN)
    (tmp_path / "away").mkdir()
    said = run(python, "-I", str(SMOKE), cwd=tmp_path / "away", env=CLEAN)
    assert said.splitlines()[-1] == f"cuda_magic {VERSION} on Python {release}: well"
