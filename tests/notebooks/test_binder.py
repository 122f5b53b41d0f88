"""binder/ is what repo2docker understands: asked of repo2docker's own code, without building an image."""

import contextlib
import io
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BINDER = ROOT / "binder"

pytestmark = pytest.mark.filterwarnings("ignore:pythonjsonlogger:DeprecationWarning")


@pytest.fixture(scope="module")
def buildpack():
    """The buildpack that repo2docker chooses for this repository, and the folder it looked at."""
    from repo2docker.app import Repo2Docker

    before = Path.cwd()
    os.chdir(ROOT)
    try:
        app = Repo2Docker()
        packs = [pack(app.base_image) for pack in app.buildpacks]
        chosen = next(pack for pack in packs if pack.detect())
        chosen.platform = "linux/amd64"  # mybinder.org's
        yield chosen
    finally:
        os.chdir(before)


def test_the_buildpack_is_pythons(buildpack):
    """No conda environment, no Dockerfile, no Julia or R: the quick and small way."""
    assert type(buildpack).__name__ == "PythonBuildPack"
    assert Path(buildpack.binder_dir) == Path("binder")


def test_the_runtime_is_named(buildpack):
    """The Python of the image is ours to name: repo2docker's default changes."""
    assert buildpack.python_version == "3.12"
    classifiers = (ROOT / "pyproject.toml").read_text()
    assert f"Python :: {buildpack.python_version}" in classifiers


def test_the_package_is_installed(buildpack):
    """A binder/ folder means that the package itself must be a line of the requirements."""
    lines = [line for line in BINDER.joinpath("requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == [".[dataframe]"], "JupyterLab and ipywidgets are in the base image, torch would be gigabytes"
    install = re.compile(r'pip install .*-r "binder/requirements\.txt"')
    assert any(install.search(script) for _, script in buildpack.get_assemble_scripts())
    early = [script for _, script in buildpack.get_preassemble_scripts()]
    assert not any(install.search(script) for script in early), "the checkout is not there yet at that point"


def test_the_steps_are_in_the_dockerfile(buildpack):
    """postBuild is run, and no start script is promised that does not exist."""
    assert buildpack.get_post_build_scripts() == ["binder/postBuild"]
    assert buildpack.get_start_script() is None and not BINDER.joinpath("start").exists()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        dockerfile = buildpack.render(build_args={})
    assert "binder/postBuild" in dockerfile and "FROM" in dockerfile
    assert "unspecified" not in said.getvalue()


def test_post_build_is_strict_and_parses():
    """A failing step fails the image; bash accepts the script."""
    script = BINDER / "postBuild"
    text = script.read_text()
    assert text.startswith("#!/bin/bash\n") and "set -euo pipefail" in text
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_what_post_build_names_exists():
    """The notebook that postBuild runs is in the repository, and so is every notebook that README links to."""
    named = re.findall(r"notebooks/[\w-]+\.ipynb", BINDER.joinpath("postBuild").read_text())
    named += re.findall(r"notebooks/[\w-]+\.ipynb", ROOT.joinpath("README.md").read_text())
    assert named and all(ROOT.joinpath(name).is_file() for name in named)
