"""The variables that are set, in the words of another place: each format is proven by the program that reads it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping

from ..errors import Refused, UserError, nearest

__all__ = ["FORMATS", "export"]


def _shell(values: Mapping[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())


def _dotenv(values: Mapping[str, str]) -> str:
    lines = []
    for name, value in values.items():
        if "${" in value:
            raise Refused(f"cuda_env: {name} holds '${{', which readers of .env files replace; use --export shell.")
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"{name}='{escaped}'")
    return "\n".join(lines)


def _dockerfile(values: Mapping[str, str]) -> str:
    for name, value in values.items():
        if "\n" in value:
            raise Refused(f"cuda_env: {name} holds a line break, which a Dockerfile cannot; use --export docker-run.")
    return "\n".join(f"ENV {name}={shlex.quote(value)}" for name, value in values.items())


def _docker_run(values: Mapping[str, str]) -> str:
    options = [f"-e {shlex.quote(f'{name}={value}')}" for name, value in values.items()]
    return " \\\n  ".join(["docker run --gpus all", *options, "IMAGE"])


def _kubernetes(values: Mapping[str, str]) -> str:
    """Kubernetes replaces ``$(NAME)`` in values; a doubled dollar sign stands for one."""
    lines = ["env:"]
    for name, value in values.items():
        lines += [f"  - name: {name}", f"    value: {_yaml(name, value.replace('$', '$$'))}"]
    return "\n".join(lines)


def _yaml(name: str, value: str) -> str:
    """A double-quoted scalar of YAML. What is not printable there is escaped by its number, one for each character."""
    made = json.dumps(value, ensure_ascii=False)
    if any("\ud800" <= c <= "\udfff" for c in made):
        raise Refused(f"cuda_env: {name} holds bytes that are no UTF-8, which Kubernetes cannot; use --export shell.")
    return "".join(
        c
        if "\x20" <= c <= "\x7e" or (c >= "\xa0" and c not in "\u2028\u2029\ufeff\ufffe\uffff")
        else f"\\u{ord(c):04x}"
        for c in made
    )


def _slurm(values: Mapping[str, str]) -> str:
    kept = {name: value for name, value in values.items() if name != "CUDA_VISIBLE_DEVICES"}
    lines = ["#!/bin/bash", "#SBATCH --gpus=1", "# CUDA_VISIBLE_DEVICES is left to Slurm, which sets it for --gpus."]
    return "\n".join([*lines, _shell(kept), 'srun "$@"'])


def _kernelspec(values: Mapping[str, str]) -> str:
    """Jupyter replaces ``$NAME`` in the env of a kernelspec; a doubled dollar sign stands for one."""
    escaped = {name: value.replace("$", "$$") for name, value in values.items()}
    return (
        "from ipykernel.kernelspec import install\n"
        f'install(user=True, kernel_name="cuda-env", display_name="Python (cuda-env)", env={escaped!r})'
    )


def _python(values: Mapping[str, str]) -> str:
    lines = [f"os.environ[{name!r}] = {value!r}" for name, value in values.items()]
    return "\n".join(["import os", "# before torch is imported", *lines])


FORMATS: dict[str, tuple[Callable[[Mapping[str, str]], str], str]] = {
    "shell": (_shell, "bash: paste, or source it"),
    "dotenv": (_dotenv, "a .env file"),
    "dockerfile": (_dockerfile, "lines of a Dockerfile"),
    "docker-run": (_docker_run, "options of docker run"),
    "kubernetes": (_kubernetes, "env of a container"),
    "slurm": (_slurm, "a batch script"),
    "kernelspec": (_kernelspec, "installs a Jupyter kernel that starts with these values"),
    "python": (_python, "the first lines of a script"),
}


def export(form: str, values: Mapping[str, str]) -> str:
    """`values` in the format `form`.

    Raises
    ------
    UserError
        If there is no such format.
    Refused
        If the format cannot hold a value.
    """
    if form not in FORMATS:
        raise UserError(
            f"cuda_env: there is no format {form!r}.{nearest(form, FORMATS) or ' Formats: ' + ', '.join(FORMATS)}"
        )
    return FORMATS[form][0](values)
