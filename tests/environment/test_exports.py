"""Each export is read by the program it is for, and every value arrives as it was."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys

import dotenv
import pytest
import yaml

from cuda_magic.environment.exports import FORMATS, export
from cuda_magic.errors import Refused, UserError

HARD = {
    "CUDA_VISIBLE_DEVICES": "0,2",
    "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[256:1, 512:2,>:8]",
    "CUDA_CACHE_PATH": '/home/a b/it\'s $HOME "x" \\n $$ $(id) `id` #1 é',
    "CUPY_CACHE_DIR": "first\nsecond line",
    "NCCL_SOCKET_IFNAME": "",
}
FLAT = {name: value for name, value in HARD.items() if "\n" not in value}


def _bash(script: str, names) -> dict[str, str]:
    code = "import json,os,sys; print(json.dumps({n: os.environ.get(n) for n in sys.argv[1:]}))"
    command = f"{script}\n{shlex.quote(sys.executable)} -c {shlex.quote(code)} {' '.join(names)}"
    clean = {k: v for k, v in os.environ.items() if k not in HARD}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, env=clean)
    return json.loads(done.stdout.splitlines()[-1])


def test_shell_is_what_bash_reads():
    """bash evaluates the lines to the same values."""
    assert _bash(export("shell", HARD), HARD) == HARD


def test_slurm_is_what_bash_reads():
    """bash runs the batch script to the same values; the devices are left to Slurm."""
    script = export("slurm", HARD)
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash" and lines[1].startswith("#SBATCH --")
    expected = {**HARD, "CUDA_VISIBLE_DEVICES": None}
    assert _bash(script.replace('srun "$@"', ""), HARD) == expected


def test_dotenv_is_what_python_dotenv_reads():
    """python-dotenv reads the same values, with its interpolation on."""
    assert dict(dotenv.dotenv_values(stream=io.StringIO(export("dotenv", HARD)))) == HARD
    with pytest.raises(Refused, match="replace"):
        export("dotenv", {"CUDA_CACHE_PATH": "${HOME}"})


def test_dockerfile_and_docker_run_parse():
    """The ENV lines and the options of docker run give the same values; a Dockerfile holds no line break."""
    words = [shlex.split(line) for line in export("dockerfile", FLAT).splitlines()]
    assert all(w[0] == "ENV" and len(w) == 2 for w in words)
    assert dict(w[1].split("=", 1) for w in words) == FLAT
    with pytest.raises(Refused, match="line break"):
        export("dockerfile", HARD)
    words = shlex.split(export("docker-run", HARD))
    words = [w for w in words if w != "\n"]
    assert words[:2] == ["docker", "run"] and words[-1] == "IMAGE"
    assert dict(words[i + 1].split("=", 1) for i, w in enumerate(words) if w == "-e") == HARD


def _kubernetes_expands(text: str) -> str:
    """The kubelet's rule: $$ is one dollar, $(NAME) a variable (here: marked)."""
    out, i = "", 0
    while i < len(text):
        if text.startswith("$$", i):
            out, i = out + "$", i + 2
        elif text.startswith("$(", i):
            out, i = out + "<variable>", i + 2
        else:
            out, i = out + text[i], i + 1
    return out


def test_kubernetes_is_yaml_of_the_right_shape():
    """The YAML is a list of {name, value} strings, and after the kubelet's expansion the values are the same."""
    parsed = yaml.safe_load(export("kubernetes", HARD))
    assert list(parsed) == ["env"]
    assert all(
        set(entry) == {"name", "value"} and all(isinstance(v, str) for v in entry.values()) for entry in parsed["env"]
    )
    assert {e["name"]: _kubernetes_expands(e["value"]) for e in parsed["env"]} == HARD


def test_python_sets_the_same_values():
    """The script sets the same values."""
    code = export("python", HARD) + f"\nimport json; print(json.dumps({{n: os.environ[n] for n in {list(HARD)!r}}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == HARD


def test_kernelspec_starts_with_the_values(tmp_path, monkeypatch):
    """The kernel that ipykernel's own function installs starts, and has the same values in its environment."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import start_new_kernel

    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    for name in HARD:
        monkeypatch.delenv(name, raising=False)
    done = subprocess.run([sys.executable, "-c", export("kernelspec", HARD)], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-500:]
    assert "cuda-env" in KernelSpecManager().find_kernel_specs()
    manager, client = start_new_kernel(kernel_name="cuda-env", startup_timeout=60)
    try:
        said = []
        client.execute_interactive(
            f"import os, json; print(json.dumps({{n: os.environ[n] for n in {list(HARD)!r}}}))",
            timeout=60,
            output_hook=lambda m: said.append(m["content"].get("text", "")),
        )
        assert json.loads("".join(said)) == HARD
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_formats_are_the_ones_that_tab_offers():
    """The magic's list of formats is that of the exports; a wrong one is answered with the nearest."""
    from cuda_magic.environment.presets import PRESETS
    from cuda_magic.magics.cuda_env import _FORMATS, _PRESETS

    assert list(_FORMATS) == list(FORMATS)
    assert list(_PRESETS) == [p.name for p in PRESETS]
    with pytest.raises(UserError, match="kubernetes"):
        export("kubernets", HARD)


def test_a_terminal_prints_nothing_but_the_export():
    """What `cuda-magic env --export shell` prints is what bash evaluates."""
    environment = {**os.environ, "CUDA_CACHE_PATH": HARD["CUDA_CACHE_PATH"], "CUPY_CACHE_DIR": HARD["CUPY_CACHE_DIR"]}
    command = [sys.executable, "-m", "cuda_magic", "env", "--export", "shell"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert _bash(done.stdout, ["CUPY_CACHE_DIR"]) == {"CUPY_CACHE_DIR": HARD["CUPY_CACHE_DIR"]}
