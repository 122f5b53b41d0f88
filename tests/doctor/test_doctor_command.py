"""The doctor as a magic, a command and a function: against fake driver libraries, and on this machine as it is."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import subprocess
import sys
import textwrap

import pytest
from fakes.build import build, compiler

from cuda_magic import UserError, check_cuda
from cuda_magic.doctor import SITUATIONS, diagnose, situation
from cuda_magic.doctor.command import doctor
from cuda_magic.doctor.private import clean
from cuda_magic.doctor.situations import failing, healthy
from cuda_magic.machine import machine


@pytest.fixture
def driver(nvml_library, fake_nvml, tmp_path_factory):
    """Both driver libraries: `fake_nvml` sets NVML's answers, the function gives a child's environment."""
    if compiler() is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("libcuda")
    build(folder, "cuda.c", "libcuda.so.1")

    def environment(**settings):
        env = fake_nvml.environment
        env["LD_LIBRARY_PATH"] = f"{folder}:{env['LD_LIBRARY_PATH']}"
        return {**env, **{k: str(v) for k, v in settings.items()}}

    return environment


@pytest.fixture
def practising():
    """Goes back to the real machine afterwards."""
    yield situation
    situation(None)


def command(environment, *words):
    """(exit code, the parsed JSON) of ``cuda-magic doctor --json``."""
    done = subprocess.run(
        [sys.executable, "-m", "cuda_magic", "doctor", "--json", *words],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("code", "first"),
    [
        (2, "startup.out-of-memory"),
        (802, "driver.fabric-manager"),
        (804, "driver.compat"),
        (4321, "startup.unknown-code"),
    ],
)
def test_the_command_names_the_cause_of_a_real_answer_of_the_driver(driver, fake_nvml, code, first):
    """libcuda and libnvidia-ml are loaded for real; NVML is well while cuInit fails."""
    fake_nvml.device(0)
    exit_code, found = command(driver(FAKE_CUINIT=code))
    ids = [f["id"] for f in found["findings"]]
    # the tests' torch may be a CPU build, which then is a cause of its own
    assert first in ids
    assert set(ids[:2]) <= {first, "torch.cpu-only"}
    assert exit_code == 2
    nvml, cuda = found["answers"]
    assert (nvml["code"], nvml["devices"]) == (0, 1)
    assert (cuda["code"], cuda["devices"]) == (code, None)


@pytest.mark.parametrize(
    ("code", "name"),
    [(9, "NVML_ERROR_DRIVER_NOT_LOADED"), (18, "NVML_ERROR_LIB_RM_VERSION_MISMATCH"), (999, "NVML_ERROR_UNKNOWN")],
)
def test_nvml_that_fails_is_told_beside_cuda(driver, fake_nvml, code, name):
    """Each of NVML's codes at its start, with a CUDA that starts or not."""
    fake_nvml.error("nvmlInit_v2", code)
    fake_nvml.error("nvmlInitWithFlags", code)
    fake_nvml.error("nvmlInit", code)
    _, found = command(driver())
    assert found["answers"][0]["name"] == name
    assert found["answers"][1]["devices"] == 1
    assert found["checks"]
    assert found["failed_checks"] == []


def test_case_18_with_the_driver_libraries_and_the_files_of_a_wsl_machine(driver, fake_nvml, tmp_path):
    """Four cards by NVML, cuInit 2 by libcuda, WSL by its kernel: fewer cards in the mask, no talk of video memory."""
    from cuda_magic.devices.nvml import Nvml
    from cuda_magic.doctor.gather import gather
    from cuda_magic.doctor.startup import probe

    for i in range(4):
        fake_nvml.device(i)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/version").write_text("Linux version 6.6.87.2-microsoft-standard-WSL2")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    facts = gather(probe(environment=driver(FAKE_CUINIT=2)), Nvml().read(), tmp_path, {})
    found = diagnose(dataclasses.replace(facts, torch=None))
    assert found.findings[0].id == "wsl.many-gpus"
    assert "CUDA_VISIBLE_DEVICES=0,1,2" in found.findings[0].do
    assert found.answers[0].devices == 4


def test_nvml_12_beside_a_cuda_that_starts(driver):
    """libnvidia-ml is missing, libcuda works: said as a warning, not as the end of CUDA."""
    env = driver()
    env["LD_LIBRARY_PATH"] = env["LD_LIBRARY_PATH"].split(":")[0]
    _, found = command(env)
    answers = [a["code"] for a in found["answers"]]
    if answers[0] == 12:  # else this machine has an NVML of its own
        assert answers[1] == 0
        assert "nvml.fails" in {one["id"] for one in (*found["findings"], *found["explained"])}


def test_an_address_space_limit_is_seen_in_the_process_itself(driver, fake_nvml):
    """ulimit -v of the shell that starts the command is what the finding names."""
    fake_nvml.device(0)
    script = f"ulimit -v 12000000; exec {sys.executable} -m cuda_magic doctor --json"
    done = subprocess.run(["sh", "-c", script], env=driver(FAKE_CUINIT=2), capture_output=True, text=True)
    ids = [f["id"] for f in json.loads(done.stdout)["findings"]]
    assert [i for i in ids if i != "torch.cpu-only"][0] == "host.address-space"
    assert done.returncode == 2


def test_exit_codes(practising):
    """0 healthy, 1 findings, 2 unusable."""
    practising("healthy")
    assert doctor([])[1] == 0
    practising("address-space")
    assert doctor(["--full"])[1] == 2
    mixed = dataclasses.replace(healthy(), environment={"PYTORCH_CUDA_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "x"})
    assert diagnose(mixed).exit_code == 1


def test_a_wrong_option_is_one_sentence(loaded):
    """In the magic and in the command, with the nearest right spelling."""
    with pytest.raises(UserError, match="Did you mean .--full"):
        doctor(["--ful"])
    with pytest.raises(UserError, match="Did you mean '--json'"):
        loaded.run_line_magic("cuda_doctor", "--jsn")


def test_the_magic_gives_an_object_and_json(loaded, practising, capsys):
    """Without --json the result; with it, text that parses to the same fields."""
    practising("address-space")
    found = loaded.run_line_magic("cuda_doctor", "")
    assert found.findings[0].id == "host.address-space"
    assert "<div" in found._repr_html_()
    assert loaded.run_line_magic("cuda_doctor", "--json") is None
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    frame = found.to_dataframe()
    assert list(frame["id"])[0] == "host.address-space"


def test_the_json_schema_is_the_documented_one(practising):
    """Fields and their order are a promise; schema_version changes when one changes its meaning."""
    practising("address-space")
    found = doctor([])[0].to_dict()
    assert list(found) == [
        "schema_version", "label", "verdict", "sentence", "safe_to_fork", "answers", "findings", "explained",
        "versions", "checks", "failed_checks", "startup_seconds", "processes",
    ]  # fmt: skip
    assert found["schema_version"] == 1
    finding = ["severity", "seen", "means", "do", "source", "unusable", "id", "family", "explained_by"]
    assert list(found["findings"][0]) == finding
    assert list(found["answers"][0]) == ["who", "code", "name", "devices"]
    assert list(found["versions"][0]) == ["what", "version", "verdict"]


def test_every_id_is_documented():
    """docs/doctor.md lists the ids that checks have, and no other."""
    import re
    from pathlib import Path

    from cuda_magic.doctor.checks import CHECKS

    text = Path(__file__).parents[2].joinpath("docs", "doctor.md").read_text()
    documented = set(re.findall(r"^\| `([a-z-]+\.[a-z0-9-]+)`", text, re.M))
    assert documented == {check.id for check in CHECKS}


def test_the_sample_in_the_documentation_is_real():
    """docs/doctor.md shows what the doctor says of the address-space limit, word by word."""
    from pathlib import Path

    shown = repr(dataclasses.replace(diagnose(SITUATIONS["address-space"].make()), label="")).split("\nasked")[0]
    assert shown in Path(__file__).parents[2].joinpath("docs", "doctor.md").read_text()


@pytest.mark.parametrize("name", SITUATIONS)
def test_situations_are_labelled_and_the_same_each_time(practising, name):
    """PRACTICE stands in every answer; two looks are equal in text and HTML."""
    made = practising(name)
    assert repr(made).startswith("PRACTICE")
    first, second = doctor([])[0], doctor([])[0]
    assert "PRACTICE" in repr(first)
    assert repr(first) == repr(second)
    assert first._repr_html_() == second._repr_html_()
    assert check_cuda().label == "PRACTICE"


def test_an_unknown_situation_is_one_sentence(practising):
    """With the nearest name; the machine in use stays."""
    before = machine()
    with pytest.raises(UserError, match="Did you mean 'full-card'"):
        practising("full-crad")
    assert machine() is before


def test_the_practice_gpu_is_healthy_on_every_host():
    """The doctor on the practice GPU knows nothing of this host."""
    from cuda_magic.machine import use
    from cuda_magic.testing import gpu

    try:
        card = gpu(["24 GiB", "8 GiB"], force=True)
        found, code = doctor([])
        assert code == 0
        assert found.label == "PRACTICE"
        assert found.safe_to_fork
        kept = card.empty("1 GiB")
        found, code = doctor([])
        assert code == 0
        assert not found.safe_to_fork
        del kept
    finally:
        use(None)


@pytest.mark.parametrize(
    ("variables", "refused", "says"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:10"}, True, "20"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb"}, True, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, None, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": ""}, None, ""),
        ({}, None, ""),
    ],
)
def test_the_allocator_configuration_is_judged_before_torch_reads_it(variables, refused, says):
    """By the grammar of the environment room: refused where torch would raise, nothing where it is fine."""
    from cuda_magic.doctor.kernel import allocator_verdict

    verdict = allocator_verdict(variables)
    if refused is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.refused is refused
        assert says in verdict.problem


# -- safe to paste
def test_private_text_is_taken_out(monkeypatch):
    """Home folders, user names, tokens and logins in addresses go; ordinary words stay."""
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    text = "in /home/alice/.venv and /Users/bob/x, alice ran HF_TOKEN=hf_abcdefgh1234 https://me:pw@host/simple"
    seen = clean(text)
    for secret in ("alice", "bob", "hf_abc", "me:pw"):
        assert secret not in seen
    monkeypatch.setattr(getpass, "getuser", lambda: "nvidia")
    assert clean("$ sudo modprobe nvidia") == "$ sudo modprobe nvidia"
    assert clean("/usr/lib/x86_64-linux-gnu/libcuda.so.1, driver 580.65.06") == (
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1, driver 580.65.06"
    )


def test_nothing_private_is_in_the_default_output(monkeypatch):
    """A library below a home folder, a command line and a name: only --show-private tells them."""
    from cuda_magic.doctor.facts import Allocator, Holder

    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    facts = dataclasses.replace(
        failing(34),
        allocator=Allocator("PYTORCH_CUDA_ALLOC_CONF", "/home/alice/conf", "No."),
        holders=(Holder(4000, True, "python", "python train.py --token hf_secretsecret"),),
        startup=dataclasses.replace(healthy().startup, torch_error="ImportError: /home/alice/torch/lib.so"),
    )
    shown, private = diagnose(facts), diagnose(facts, show_private=True)
    for text in (repr(shown), shown._repr_html_(), json.dumps(shown.to_dict())):
        assert "alice" not in text
        assert "train.py" not in text
    assert "alice" in repr(private)
    assert "train.py" in repr(private)


# -- check_cuda
def test_check_cuda_is_frozen_and_says_what_the_doctor_says(practising):
    """True where CUDA can be used; the cause's id where not."""
    practising("healthy")
    good = check_cuda()
    assert good
    assert (good.verdict, good.cause, good.device_count, good.device, good.can_fork) == ("healthy", "", 1, 0, True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        good.usable = False  # type: ignore[misc]
    practising("address-space")
    bad = check_cuda()
    assert not bad
    assert (bad.verdict, bad.cause, bad.device_count, bad.device) == ("unusable", "host.address-space", 0, None)
    assert "cannot be used" in repr(bad)


def test_check_cuda_knows_its_local_rank(practising, monkeypatch):
    """Rank 3 of eight cards has device 3; rank 3 of two cards has none."""
    from cuda_magic.doctor.situations import SituationMachine
    from cuda_magic.machine import use

    monkeypatch.setenv("LOCAL_RANK", "3")
    use(SituationMachine(healthy(8), "eight"))
    assert (check_cuda().local_rank, check_cuda().device) == (3, 3)
    assert "rank 3 of this node" in repr(check_cuda())
    use(SituationMachine(dataclasses.replace(healthy(2), environment={"LOCAL_RANK": "3"}), "two"))
    two = check_cuda()
    assert (two.device, two.cause) == (None, "visible.rank-without-device")
    practising(None)


def test_check_cuda_sets_nothing_and_starts_nothing():
    """Unlike the copied function: no variable is changed, torch is not imported."""
    code = (
        "import os, sys; before = dict(os.environ)\n"
        "from cuda_magic import check_cuda\n"
        "check_cuda(); print(dict(os.environ) == before, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_case_33_safe_to_fork_until_somebody_starts_cuda(driver, fake_nvml):
    """Our magics load no libcuda here; a loaded one is no start; cuInit in this process is, and the doctor says so."""
    fake_nvml.device(0)
    code = """
        import contextlib, ctypes, io
        from IPython.core.interactiveshell import InteractiveShell
        from cuda_magic import check_cuda
        shell = InteractiveShell.instance()
        with contextlib.redirect_stdout(io.StringIO()):
            shell.run_line_magic("load_ext", "cuda_magic")
            for name, line in (("cuda_env", ""), ("gpu_mem", "--once"), ("cuda_doctor", "")):
                shell.run_line_magic(name, line)
        print("libcuda" in open("/proc/self/maps").read(), check_cuda().can_fork)
        library = ctypes.CDLL("libcuda.so.1")
        print(check_cuda().can_fork)
        library.cuInit(0)
        found = shell.run_line_magic("cuda_doctor", "")
        print(check_cuda().can_fork, "kernel.not-safe-to-fork" in [f.id for f in found.findings])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=driver(), capture_output=True, text=True)
    assert done.stdout == "False True\nTrue\nFalse True\n", done.stderr


def test_this_machine_is_diagnosed_without_an_error_of_ours():
    """Case 32: whatever this machine is, every check runs and nothing is raised."""
    found, code = doctor([])
    assert found.failed_checks == ()
    assert code in (0, 1, 2)
    assert os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") is None
