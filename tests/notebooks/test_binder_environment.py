"""What Binder does to build the image, done in a fresh environment of the Python that runtime.txt names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# what repo2docker's base image brings, and nbval to compare
BASE = ["ipykernel", "ipywidgets", "nbclient", "nbconvert", "nbval", "pytest"]


def interpreter(version):
    """A Python of this version, or None."""
    known = (Path.home() / ".pyenv" / "versions").glob(f"{version}*/bin/python")
    for python in (shutil.which(f"python{version}"), *map(str, sorted(known))):
        if python and not subprocess.run([python, "-c", ""], capture_output=True).returncode:  # not an empty shim
            return python
    return None


@pytest.mark.stack
@pytest.mark.timeout(600)
def test_the_tutorials_in_binders_environment(tmp_path):
    """Requirements install without torch, postBuild succeeds, and every tutorial shows what is saved."""
    version = ROOT.joinpath("binder", "runtime.txt").read_text().strip().removeprefix("python-")
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    home = tmp_path / "checkout"
    shutil.copytree(ROOT, home, ignore=shutil.ignore_patterns(".*", "demo", "build", "dist", "__pycache__"))
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--seed", "--python", python, str(tmp_path / "env")], check=True)
    bin_ = tmp_path / "env" / "bin"
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CUDA_MAGIC_PRACTICE", "VIRTUAL_ENV")}
    env["PATH"] = os.pathsep.join([str(bin_), env.get("PATH", "")])

    def run(*words, **more):
        done = subprocess.run(words, cwd=home, env={**env, **more}, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    pip = [*uv, "pip", "install", "-q", "--python", str(bin_ / "python")]
    run(*pip, "-c", "constraints/tests.txt", *BASE)
    run(*pip, "-c", "constraints/tests.txt", "-r", "binder/requirements.txt")
    run("bash", "binder/postBuild")
    assert "torch" not in run(str(bin_ / "python"), "-m", "pip", "list").split()
    words = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(home)]
    words += ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", "notebooks/sanitize.cfg", "notebooks"]
    run(str(bin_ / "python"), "-m", "pytest", "-q", *words, CUDA_MAGIC_PRACTICE="1")
