"""`cuda-magic` in a terminal: help wherever one asks for it, and mistakes in one sentence."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from cuda_magic import cli
from cuda_magic.doctor.command import FLAGS
from cuda_magic.environment.exports import FORMATS


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], ["help", "nothing"]])
def test_help_names_each_command_with_its_options(capsys, words):
    """A line for each command, and the exit codes."""
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert re.findall(r"^  cuda-magic (\w+)", said, re.MULTILINE) == ["doctor", "mem", "env"]
    assert "[--who]" in said and "[--export FORMAT]" in said and "64 wrong usage" in said


@pytest.mark.parametrize("command", ["doctor", "mem", "env"])
@pytest.mark.parametrize("asked", ["{} --help", "{} -h", "help {}", "{} --json --help"])
def test_each_command_has_help(capsys, command, asked):
    """It explains every option, and nothing is looked at."""
    assert cli.main(asked.format(command).split()) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: cuda-magic {command} ")
    flags = set(re.findall(r"--[a-z-]+", said.splitlines()[0]))
    assert flags == set(re.findall(r"^  (--[a-z-]+)", said, re.MULTILINE)) and "--json" in flags


def test_help_names_what_the_commands_take(capsys):
    """The doctor's flags and the formats of an export are those of the commands themselves."""
    cli.main(["doctor", "--help"])
    assert set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)) == {*FLAGS, "--json"}
    cli.main(["env", "--help"])
    assert ", ".join(FORMATS) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["doctr"], "cuda-magic: no command 'doctr'; there are doctor, mem and env"),
        (["doctor", "--jsn"], "cuda-magic doctor: unknown option --jsn. Did you mean '--json'?"),
        (["mem", "--whoo"], "cuda-magic mem: no option '--whoo'; there are --json and --who. Did you mean '--who'?"),
        (["env", "FOO"], "cuda-magic env: FOO is not in the catalogue and not set."),
        (["env", "A=1"], "cuda-magic env: a terminal's variables are set in its shell: export NAME=VALUE"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, words, sentence):
    """On stderr, named after the command as it was typed; exit code 64."""
    assert cli.main(words) == cli.USAGE
    out, err = capsys.readouterr()
    assert err.strip() == sentence and not out


def test_no_words_at_all(capsys):
    """The help, and the exit code of wrong usage."""
    assert cli.main([]) == cli.USAGE
    assert capsys.readouterr().out.startswith("usage: cuda-magic COMMAND")


def test_a_reader_that_has_seen_enough():
    """`cuda-magic ... | head`: no traceback when the other end of the pipe is closed."""
    words = [sys.executable, "-u", "-m", "cuda_magic", "env", "CUDA_VISIBLE_DEVICES"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
        done.stdout.close()
        assert done.stderr.read() == ""
    assert done.returncode == cli.PIPE
