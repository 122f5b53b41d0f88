"""What people type, paste and overlook: forms of other shells, files, secrets, hints, and verdicts that are dropped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from test_env_cases import CONF, Cards, clean, one, torch  # noqa: F401 - `clean` is a fixture

from cuda_magic.devices import driver
from cuda_magic.devices.model import Device, Reading, Status
from cuda_magic.doctor.private import clean as pasted
from cuda_magic.environment import change, command
from cuda_magic.environment.catalogue import CATALOGUE, find, near
from cuda_magic.environment.exports import export
from cuda_magic.environment.state import Progress
from cuda_magic.environment.typed import dotenv, words
from cuda_magic.errors import Refused, UserError
from cuda_magic.machine import use
from cuda_magic.memory.split import cuda_to_reading

PLAIN = "CUDA_LAUNCH_BLOCKING"


@pytest.mark.parametrize(
    "line",
    [
        f"export {PLAIN}=1",
        f"export {PLAIN}=1;",
        f"{PLAIN}=1  # slow",
        f"{PLAIN}='1'",
        f"$ export {PLAIN}=1",
        f"set {PLAIN}=1",
        f"declare -x {PLAIN}=1",
        f"setenv {PLAIN} 1",
        f"set -gx {PLAIN} 1",
        f'$env:{PLAIN} = "1"',
        f"os.environ['{PLAIN}'] = '1'",
        f'os.environ["{PLAIN}"]="1"',
        f'os.putenv("{PLAIN}", "1")',
        f"-e {PLAIN}=1",
        f"{PLAIN}: '1'",
        f"{PLAIN}: 1",
        f"ENV {PLAIN}=1",
        f"env {PLAIN}=1",
        f"%env {PLAIN}=1",
        f"export A_OTHER=2 && export {PLAIN}=1",
        f"export A_OTHER=2; export {PLAIN}=1",
    ],
)
def test_forms_of_other_places_are_taken(loaded, line):
    """What was copied from a shell, a Dockerfile, PowerShell or a script is set."""
    loaded.run_line_magic("cuda_env", line)
    assert os.environ[PLAIN] == "1"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("CUDA_VISIBLE_DEVICES=0 1", "CUDA_VISIBLE_DEVICES=0,1"),
        ("CUDA_VISIBLE_DEVICES=0, 1", "CUDA_VISIBLE_DEVICES=0,1"),
        ("CUDA_VISIBLE_DEVICES=0 python train.py", "no command is run"),
        (f"{PLAIN}=$NOT_THERE", "$NOT_THERE is not set"),
        (f"{PLAIN} = 1", "without spaces"),
        (f"{PLAIN}='1", "not closed"),
    ],
)
def test_a_mistake_of_the_hand_is_one_sentence(loaded, line, said):
    """And nothing is set."""
    with pytest.raises(UserError) as caught:
        loaded.run_line_magic("cuda_env", line)
    assert said in str(caught.value) and "CUDA_VISIBLE_DEVICES" not in os.environ and PLAIN not in os.environ


def test_home_and_names_are_replaced(loaded, monkeypatch):
    """$HOME, ${HOME} and ~ stand for what they are, except in single quotes; a brace that is left is said."""
    monkeypatch.setenv("HOME", "/home/someone")
    name = "TORCH_EXTENSIONS_DIR"
    for text, value in {
        "$HOME/x": "/home/someone/x",
        "${HOME}/x": "/home/someone/x",
        '"$HOME/a b"': "/home/someone/a b",
        "~/x": "/home/someone/x",
        "'$HOME/x'": "$HOME/x",
        "a~b": "a~b",
    }.items():
        result = loaded.run_line_magic("cuda_env", f"{name}={text}")
        assert os.environ[name] == value
        assert any("replaced" in hint for hint in result.hints) is (value not in text)
    result = loaded.run_line_magic("cuda_env", f"{name}={{typo}}/x")
    assert any("no name typo" in hint for hint in result.hints)


@pytest.mark.parametrize("magic", ["cuda_env", "cuda_doctor", "gpu_mem", "cuda_guard"])
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_is_help(loaded, capsys, magic, word):
    """Printed, and nothing else is done."""
    assert loaded.run_line_magic(magic, word) is None
    assert "Examples" in capsys.readouterr().out


def test_a_file_of_assignments(loaded, tmp_path):
    """Comments, export, quotes of both kinds, references, lines inside quotes; all or none; secrets not shown."""
    file = tmp_path / ".env"
    file.write_text(
        "# settings\nexport CUDA_LAUNCH_BLOCKING=1  # slow\nMY_NAME='a # b'\nMY_LINES=\"one\\ntwo\nthree\"\n\n"
        "MY_NEXT=${MY_NAME}/x\nMY_EMPTY=\nHF_TOKEN=hf_abcdefghijklmnop\n"
    )
    shown = repr(loaded.run_line_magic("cuda_env", f"--file {file}"))
    assert os.environ[PLAIN] == "1" and os.environ["MY_NAME"] == "a # b" and os.environ["MY_NEXT"] == "a # b/x"
    assert os.environ["MY_LINES"] == "one\ntwo\nthree" and os.environ["MY_EMPTY"] == ""
    assert os.environ["HF_TOKEN"] == "hf_abcdefghijklmnop" and "abcdefgh" not in shown
    file.write_text("MY_THING=1\nCUDA_DEVICE_ORDER=wrong\n")
    with pytest.raises(UserError, match="CUDA_DEVICE_ORDER"):
        loaded.run_line_magic("cuda_env", f"--file {file}")
    assert "MY_THING" not in os.environ
    file.write_text("A=1\nno assignment\n")
    with pytest.raises(UserError, match="line 2"):
        dotenv(file)
    with pytest.raises(UserError, match="cannot be read"):
        dotenv(tmp_path / "nothing")


TOKENS = [
    ("HF_TOKEN", "anything-at-all"),
    ("WANDB_API_KEY", "0123456789abcdef0123"),
    ("DB_PASSWORD", "pw"),
    ("X", "hf_abcdefghijklmnop"),
    ("X", "ghs_abcdefghijklmnop"),
    ("X", "ghp_abcdefghijklmnop"),
    ("X", "npm_abcdefghijklmnop"),
    ("X", "pypi-AgEIcHlwaS5vcmc"),
    ("X", "AIzaSyA1234567890abcdef"),
    ("X", "ASIAABCDEFGHIJKLMNOP"),
    ("X", "AKIAABCDEFGHIJKLMNOP"),
    ("X", "sk-proj-abcdefghijkl"),
    ("X", "glpat-abcdefghijkl"),
    ("X", "xoxb-1234567890-abc"),
    ("X", "nvapi-abcdefghijklmnop"),
    ("X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefgh"),
    ("X", "Bearer abcdefghijklmnopqrs"),
]


@pytest.mark.parametrize(("name", "value"), TOKENS)
def test_a_secret_is_never_echoed(loaded, name, value):
    """Not when it is set, listed, changed, exported or wrongly typed; and not in what the doctor shows."""
    result = loaded.run_line_magic("cuda_env", f"{name}='{value}'")
    assert os.environ[name] == value
    again = loaded.run_line_magic("cuda_env", f"{name}='{value}2'")
    loaded.run_line_magic("cuda_env", f"{PLAIN}=1")
    for shown in (result, again, command.listing(), command.explain(name), command.export_all("shell")):
        assert (
            value not in repr(shown) and value not in shown._repr_html_() and value not in json.dumps(shown.to_dict())
        )
    assert "left out" in command.export_all("shell").meaning
    with pytest.raises(UserError) as caught:
        loaded.run_line_magic("cuda_env", f"{name}='{value}' {name}=other")
    assert value not in str(caught.value)
    assert value not in pasted(f"the value {name}={value} was set")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("mail me: ada.lovelace@example.org now", "ada.lovelace"),
        ("host 192.168.17.4 answers", "192.168.17.4"),
        ("http://10.1.2.3:8888/lab", "10.1.2.3"),
        ("address fe80:0:0:0:1:2:3:4 here", "fe80:0"),
        ("Authorization: Bearer abcdefghijklmnop", "abcdefghijklmnop"),
    ],
)
def test_what_names_a_person_or_a_machine_is_not_pasted(text, hidden):
    """E-mail, addresses, headers."""
    assert hidden not in pasted(text)


@pytest.mark.parametrize(
    "text", ["cuDNN 9.19.0.56", "driver 580.65.06", "127.0.0.1", "torch==2.11.0.1", "0000:17:00.0"]
)
def test_releases_are_no_addresses(text):
    """What only looks like one stays."""
    assert pasted(text) == text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CUDA_VISIBLE", "CUDA_VISIBLE_DEVICES"),
        ("PYTORCH_CUDA_ALLOCATOR_CONF", CONF),
        ("CUDA_LAUNCH_BLOCK", PLAIN),
        ("MASTER_ADDRESS", "MASTER_ADDR"),
        ("cuda_visible", "CUDA_VISIBLE_DEVICES"),
        ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
    ],
)
def test_a_near_miss_has_its_hint(name, meant):
    """Within two edits refused, else set with a warning; the name that was meant is told either way."""
    try:
        row = one(f"{name}=0")
    except UserError as error:
        assert meant in str(error)
    else:
        assert row.warn and meant in row.note


@pytest.mark.parametrize("name", ["HF_TOKEN", "PATH", "MY_OWN", "CUDA_PATH", "NCCL_IB_TIMEOUT", "SOMETHING_ELSE", "A"])
def test_other_names_have_none(name):
    """A name of its own is not taken for a mistake."""
    assert near(name) == ""


LEGAL = [
    "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT=-1",
    "NCCL_DEBUG=info",
    "NCCL_PXN_DISABLE=1",
    "XLA_PYTHON_CLIENT_PREALLOCATE=0",
    "XLA_PYTHON_CLIENT_PREALLOCATE=False",
    "XLA_PYTHON_CLIENT_MEM_FRACTION=4.0",
    "XLA_PYTHON_CLIENT_ALLOCATOR=Platform",
    "TRITON_DEBUG=true",
    "TF_FORCE_UNIFIED_MEMORY=1",
    "OMP_NUM_THREADS=4,2",
    "NCCL_CUMEM_ENABLE=-2",
    "TOKENIZERS_PARALLELISM=off",
    "TORCH_NCCL_BLOCKING_WAIT=true",
    "TORCH_NCCL_DUMP_ON_TIMEOUT=Yes",
]


@pytest.mark.parametrize("line", LEGAL)
def test_what_the_reader_takes_is_taken(line):
    """Legal, and no warning."""
    assert not one(line).warn


@pytest.mark.parametrize(
    "line", ["NVIDIA_TF32_OVERRIDE=maybe", "CUDA_MODULE_LOADING=FAST", "NCCL_DEBUG=loud", "CUDA_CACHE_DISABLE=yes"]
)
def test_what_is_not_verified_warns_and_does_not_refuse(line):
    """A row from documentation alone."""
    row = one(line)
    assert row.warn and row.state != "invalid" and os.environ[line.split("=")[0]] == line.split("=")[1]


@pytest.mark.parametrize(
    "line",
    [
        "XLA_CLIENT_MEM_FRACTION=.5 XLA_PYTHON_CLIENT_MEM_FRACTION=.5",
        "XLA_PYTHON_CLIENT_ALLOCATOR=jemalloc",
        "XLA_CLIENT_MEM_FRACTION=half",
        "MASTER_PORT=http",
        "CUPY_GPU_MEMORY_LIMIT=48GB",
    ],
)
def test_what_the_reader_raises_on_is_refused(line):
    """Read in the reader's source."""
    with pytest.raises(UserError):
        command.set_all(line.split())


def test_every_row_names_its_reader():
    """A place in the reader's source or its documentation; those that refuse say why."""
    for row in CATALOGUE:
        assert row.source and row.source != "measured" or not row.documented, row.name


MISSING = [
    "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL", "NCCL_IB_HCA", "NCCL_DEBUG_SUBSYS", "NCCL_NVLS_ENABLE",
    "NCCL_PXN_DISABLE", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK",
    "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_HOME", "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_CUDNN_V8_API_DISABLED", "CUDA_HOME", "LD_LIBRARY_PATH", "TORCH_LOGS", "TORCH_COMPILE_DISABLE",
    "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_COMPILE_THREADS", "TRITON_INTERPRET", "TORCH_EXTENSIONS_DIR",
    "MAX_JOBS", "JAX_PLATFORMS", "XLA_FLAGS", "TF_FORCE_UNIFIED_MEMORY", "TF_CPP_MIN_LOG_LEVEL",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_MANAGED_FORCE_DEVICE_ALLOC"
]  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_the_ones_that_were_missing_are_there(name):
    """Each with its meaning, moment and reader."""
    assert find(name) is not None


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED"])
def test_what_counts_at_a_processs_start_says_restart(name):
    """Set now it is for the next process."""
    row = one(f"{name}=/x" if "SEED" not in name else f"{name}=1")
    assert row.state == "after a kernel restart" and "%cuda_env --restart" in row.note


def test_every_late_variable_names_the_restart_that_keeps_it(monkeypatch):
    """The menu's restart drops what was set here."""
    from cuda_magic.environment.verdict import takes_effect

    late = Progress(imported=True, initialised=True, started=True, context=True)
    for row in CATALOGUE:
        state, note = takes_effect(row, late)
        if state in ("after a kernel restart", "at first use"):
            assert "%cuda_env --restart" in note or row.late, row.name


def test_what_was_set_is_listed_and_exported():
    """Whether the catalogue has it or not."""
    command.set_all(["NCCL_IB_TIMEOUT=22", "NCCL_DEBUG=INFO", "MY_OWN=1"])
    assert {v.name for v in command.listing().variables} >= {"NCCL_IB_TIMEOUT", "NCCL_DEBUG", "MY_OWN"}
    for form in ("shell", "dotenv", "kubernetes", "python", "slurm", "docker-run", "kernelspec", "dockerfile"):
        text = command.export_all(form).text
        assert "NCCL_IB_TIMEOUT" in text and "MY_OWN" in text, form
    command.unset_all(["MY_OWN"])
    assert "MY_OWN" not in {v.name for v in command.listing().variables}


def test_the_order_of_the_three_allocator_names():
    """CUDA, HIP, then the newer one (measured on torch 2.13): the others are said to be shadowed."""
    os.environ.update({"PYTORCH_HIP_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})
    rows = {v.name: v for v in command.listing().variables}
    assert "shadowed by PYTORCH_HIP_ALLOC_CONF" in rows["PYTORCH_ALLOC_CONF"].note
    assert rows["PYTORCH_HIP_ALLOC_CONF"].state != "no effect"
    os.environ[CONF] = "max_split_size_mb:64"
    rows = {v.name: v for v in command.listing().variables}
    assert all(f"shadowed by {CONF}" in rows[n].note for n in ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the small CPU build of torch is for Python 3.11")
def test_that_order_is_torchs():
    """Compared with the parser of the installed torch."""
    if find_spec("torch") is None:
        pytest.skip("no torch")
    names = (CONF, "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    for given in (names, names[1:], (names[0], names[2])):
        env = {k: v for k, v in os.environ.items() if k not in names}
        env |= {name: f"max_split_size_mb:{100 + names.index(name)}" for name in given}
        code = "import torch; print(torch._C._accelerator_getAllocatorSettings())"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == env[given[0]]


# -- what this process sees, and what a new one would


def test_the_mask_after_the_start_shows_both(monkeypatch):
    """CUDA has started with two cards; the mask is set to one: this process still sees two, a new one would see one."""
    torch(monkeypatch, initialised=True)
    monkeypatch.setattr(driver, "uuids", lambda: ["gpu-00000000-0000", "gpu-10000000-0000"])
    result = command.set_all(["CUDA_VISIBLE_DEVICES=0"])
    assert result.variables[0].state == "after a kernel restart"
    assert [d.index for d in result.now] == [0, 1] and [d.index for d in result.devices] == [0]
    text = repr(result)
    assert "What this process sees (CUDA has started)" in text and "What a new process would see" in text
    monkeypatch.setattr(driver, "uuids", lambda: None)
    assert "What this process sees" not in repr(command.listing()), "what is not known is not claimed"
    monkeypatch.setattr(driver, "uuids", lambda: ["gpu-00000000-0000"])
    assert "What this process sees\n" in repr(command.listing()) + "\n"


MASKS = ["0,GPU-1", "0,1gpu", "+1", "GPU-1,0", "1,0", "0,9", "", "a", "GPU-10000000", "0,0", " 1 , 0", "0;1", "1,-1,0"]


@pytest.fixture(scope="module")
def torchs():
    """What torch's own parser makes of each mask; empty without torch."""
    if find_spec("torch") is None:
        return {}
    code = (
        "import json, os, torch\nfound = {}\n"
        f"for mask in {MASKS!r}:\n"
        "    os.environ['CUDA_VISIBLE_DEVICES'] = mask; found[mask] = torch.cuda._parse_visible_devices()\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("mask", MASKS)
def test_there_is_one_reader_of_the_mask(monkeypatch, torchs, mask):
    """%gpu_mem numbers the cards as %cuda_env and torch's own parser do."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    use(Cards("H200", "H200"))
    cards = tuple(Device(i, "H200", f"GPU-{i}0000000-0000") for i in range(2))
    there = cuda_to_reading(Reading(0.0, cards, Status(True, 0)))
    assert there == [d.index for d in command.listing().devices]
    if torchs and not mask.startswith("GPU"):
        indices = torchs[mask]
        assert there == indices[: next((i for i, n in enumerate(indices) if n > 1), None)]


def test_the_practice_gpu_is_one_process_for_all(monkeypatch):
    """After a practice tensor %cuda_env and the doctor say the same of this process."""
    from cuda_magic.doctor.command import look
    from cuda_magic.testing import gpu

    card = gpu(force=True)
    try:
        assert "practice GPU is in use" not in command.listing().moment
        kept = card.empty("1 MiB")
        assert "practice GPU is in use" in command.listing().moment
        assert command.set_all(["CUDA_VISIBLE_DEVICES=0"]).variables[0].state == "after a kernel restart"
        assert not look().safe_to_fork
        del kept
    finally:
        use(None)


def test_the_imported_torch_is_the_one_that_reads(monkeypatch):
    """After %pip install -U torch in a live kernel the grammar is that of the release in this process."""
    from types import SimpleNamespace

    from cuda_magic.environment.release import installed

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.4.0+cu121"))
    use(None)
    assert installed().release == (2, 4)


# -- exports


@pytest.mark.parametrize(
    "value", ["\U0001f600", "a\u2028b", "tab\there", "\x7f\x85", "'\"\\$", "é", "x: y # z", "\ufeff"]
)
def test_kubernetes_takes_every_value(value):
    """One escape for each character, as a YAML parser reads it back."""
    yaml = pytest.importorskip("yaml")
    text = export("kubernetes", {"A": value})
    (entry,) = yaml.safe_load(text)["env"]
    assert entry["value"].replace("$$", "$") == value
    assert "\\ud" not in text
    with pytest.raises(Refused):
        export("kubernetes", {"A": "\udcff"})


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_line_is_read_as_bash_reads_it():
    """Quotes, comments and references of plain values, beside bash itself."""
    for line in ("A=1", "A='a b'", 'A="a b"', "A=a#b", "A=1 # c", "A='#'", "A=a'b'c", 'A="x;y"'):
        done = subprocess.run(["bash", "-c", f'{line}\nprintf %s "$A"'], capture_output=True, text=True, check=True)
        assert change.parse(words(line))["A"] == done.stdout, line


# -- verdicts that are dropped


@pytest.mark.parametrize(
    "cell",
    [
        "%cuda_env {0}\nx = 1",
        "for i in range(3):\n    %cuda_env {0}\n",
        "def f():\n    %cuda_env {0}\nf()\nx = 1",
        "if True:\n    %cuda_env {0}\n",
    ],
)
def test_a_warning_in_the_middle_of_a_cell_is_seen_once(loaded, capsys, cell):
    """Dropped unseen, it is said; in a loop once."""
    loaded.run_cell(cell.replace("{0}", f"{CONF}=max_split_size_mb:64MB"))
    assert capsys.readouterr().err.count("'64MB' is read as 64") == 1


def test_another_shell_and_a_line_outside_of_a_cell_change_nothing(loaded, capsys):
    """What was said of a line on its own does not silence the next cell."""
    line = f"{CONF}=max_split_size_mb:64MB"
    loaded.run_line_magic("cuda_env", line)
    kept = loaded.run_line_magic("cuda_env", line)
    capsys.readouterr()
    loaded.run_cell(f"%cuda_env {line}\nx = 1")
    assert capsys.readouterr().err.count("'64MB' is read as 64") == 1
    del kept
    assert capsys.readouterr().err == ""


def test_what_is_shown_or_kept_is_not_said_again(loaded, capsys):
    """The last expression shows itself; a name keeps it; a value without fault is silent."""
    loaded.run_cell(f"%cuda_env {CONF}=max_split_size_mb:64MB")
    assert "64MB" not in capsys.readouterr().err
    loaded.run_cell(f"r = %cuda_env {CONF}=max_split_size_mb:64MB\nx = 1")
    loaded.run_cell("del r")
    loaded.run_cell(f"%cuda_env {PLAIN}=1\nx = 1")
    assert capsys.readouterr().err == ""


def test_a_script_of_ipython_shows_it_too(loaded, capsys, tmp_path):
    """.ipy files run silently."""
    script = tmp_path / "s.ipy"
    script.write_text(f"%cuda_env {CONF}=max_split_size_mb:64MB\nx = 1\n")
    loaded.run_cell(f"%run {script}")
    assert "'64MB' is read as 64" in capsys.readouterr().err


@pytest.mark.parametrize("magic", ["%cuda_doctor", "%gpu_mem --once"])
def test_a_doctor_in_the_middle_of_a_cell_is_heard(loaded, capsys, magic):
    """Its verdict, where it is not healthy."""
    use(None)
    from cuda_magic.doctor import situation

    situation("no-driver")
    try:
        loaded.run_cell(f"{magic}\nx = 1")
    finally:
        situation(None)
    assert "No NVIDIA driver found" in capsys.readouterr().err


# -- TAB


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("jedi", [True, False])
@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("%cuda_env CUDA_DEVICE_ORDER=", {"FASTEST_FIRST", "PCI_BUS_ID"}),
        (f"%cuda_env {CONF}=expandable_segments:", {"True", "False"}),
        ("%cuda_env --fo", {"--force"}),
        ("%gpu_mem --inter", {"--interval"}),
        ("%%cuda_guard --lim", {"--limit"}),
        ("r = %cuda_doctor --f", {"--full"}),
        ("x = 1\n%cuda_env --export kub", {"kubernetes"}),
    ],
)
def test_tab_offers_ours_alone(loaded, jedi, line, first):
    """With jedi and without, on any line of a cell; Python's own names do not come between."""
    from IPython.core.completer import provisionalcompleter

    loaded.Completer.use_jedi = jedi
    with provisionalcompleter():
        found = [c.text for c in loaded.Completer.completions(line, len(line))]
    assert set(found) == first


def test_tab_elsewhere_is_as_without_us(loaded):
    """Other lines, and paths behind an option that takes a file."""
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        assert any(c.text.startswith("/usr") for c in loaded.Completer.completions("%gpu_mem --log /us", 18))
        assert any(c.text == "os" for c in loaded.Completer.completions("import o", 8))


def test_unset_as_a_shell_writes_it(loaded):
    """And a command in a value is not run, which is said."""
    loaded.run_line_magic("cuda_env", f"{PLAIN}=1")
    loaded.run_line_magic("cuda_env", f"unset {PLAIN}")
    assert PLAIN not in os.environ
    result = loaded.run_line_magic("cuda_env", "MY_THING=$(date)")
    assert os.environ["MY_THING"] == "$(date)" and any("No command" in hint for hint in result.hints)
