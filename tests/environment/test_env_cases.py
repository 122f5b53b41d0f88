"""The magic on real people's trouble: what is set, what is refused, and what is said."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from cuda_magic.devices.model import Device, Reading, Status
from cuda_magic.environment import change, command, release
from cuda_magic.environment.allocator_grammar import read
from cuda_magic.environment.catalogue import CATALOGUE, find
from cuda_magic.environment.matrix import matrix
from cuda_magic.environment.state import Progress
from cuda_magic.environment.verdict import takes_effect
from cuda_magic.errors import Refused, UserError
from cuda_magic.machine import use

CONF = "PYTORCH_CUDA_ALLOC_CONF"
NAMES = [v.name for v in CATALOGUE]


class Cards:
    """A machine with these cards and no torch of its own."""

    label = ""

    def __init__(self, *names: str) -> None:
        self.names = names

    def devices(self):
        return self

    def allocator(self):
        return None

    def read(self, *, processes=True, slow=True):
        devices = [Device(i, name=n, uuid=f"GPU-{i}0000000-0000") for i, n in enumerate(self.names)]
        return Reading(0.0, tuple(devices), Status(bool(devices), 0 if devices else 12))


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No variable of the catalogue set, no torch, two equal cards; everything put back."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(change, "_before", [])
    monkeypatch.setattr(change, "set_at", {})
    monkeypatch.setattr(command.change, "set_at", change.set_at)
    monkeypatch.setattr(command, "first_environment", dict)
    machine = use(Cards("H200", "H200"))
    installed(monkeypatch, "2.13.0")
    yield
    use(machine)
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def installed(monkeypatch, version: str | None) -> None:
    monkeypatch.setattr(command, "installed", lambda: release.Torch(version))


def torch(monkeypatch, initialised: bool = False, backend: str = "native", **live) -> None:
    """Put a stand-in for an imported torch into sys.modules."""
    module = ModuleType("torch")
    snapshot = {"allocator_settings": live}
    module.cuda = SimpleNamespace(
        _initialized=initialised,
        get_allocator_backend=lambda: backend,
        memory=SimpleNamespace(_snapshot=lambda: snapshot),
    )
    monkeypatch.setitem(sys.modules, "torch", module)


def one(*words: str, force: bool = False):
    return command.set_all(words, force).variables[0]


def test_case_01_mask_after_import(monkeypatch):
    """Set and mildly noted where torch is imported and CUDA is not started; no note where torch is absent."""
    assert one("CUDA_VISIBLE_DEVICES=1").note == ""
    torch(monkeypatch)
    result = command.set_all(["CUDA_VISIBLE_DEVICES=0"])
    assert result.moment == "torch is already imported; CUDA is not started."
    assert result.variables[0].state == "when CUDA starts" and "a restart makes sure" in result.variables[0].note
    torch(monkeypatch, initialised=True)
    assert one("CUDA_VISIBLE_DEVICES=1").state == "after a kernel restart"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


def test_case_03_misspelt_key():
    """The nearest option is named and the variable is as it was."""
    with pytest.raises(UserError, match="'expandable_segments'"):
        one(f"{CONF}=expandeable_segments:True")
    assert CONF not in os.environ


def test_case_05_too_new(monkeypatch):
    """Both releases are named, and what exists there."""
    installed(monkeypatch, "2.0.1")
    with pytest.raises(UserError, match=r"needs torch >= 2.1, you have 2.0 \(max_split_size_mb:N exists there\)"):
        one(f"{CONF}=expandable_segments:True")


def test_case_07_backend_cudamalloc():
    """Both legal backends are named; an option that the chosen backend ignores is accepted with a warning."""
    with pytest.raises(UserError, match="native and cudaMallocAsync; PYTORCH_NO_CUDA_MEMORY_CACHING=1"):
        one(f"{CONF}=backend:cudaMalloc")
    row = one(f"{CONF}=backend:cudaMallocAsync,max_split_size_mb:128")
    assert row.warn and "cudaMallocAsync ignores max_split_size_mb" in row.note


def test_case_08_backend_after_import(monkeypatch):
    """Refused once torch is imported, the old value kept; --force sets it; before the import it is accepted."""
    assert one(f"{CONF}=backend:cudaMallocAsync").state == "when CUDA starts"
    command.undo()
    torch(monkeypatch)
    with pytest.raises(Refused, match="already imported with the backend native"):
        one(f"{CONF}=backend:cudaMallocAsync")
    assert CONF not in os.environ
    assert "forced" in one(f"{CONF}=backend:cudaMallocAsync", force=True).note


def test_case_09_deprecation_notice(monkeypatch):
    """Only for torch 2.9 is the notice spoken of; the newer name is not read for CUDA there."""
    assert "deprecated" not in one(f"{CONF}=expandable_segments:True").note
    installed(monkeypatch, "2.9.1")
    assert "deprecated, which is harmless" in one(f"{CONF}=expandable_segments:True").note
    command.unset_all([CONF])
    assert one("PYTORCH_ALLOC_CONF=expandable_segments:True").state == "not read by this torch"


def test_case_11_quotes(loaded):
    """One pair of quotes is taken off and that is said; a stray quote is an error; literal quotes are flagged."""
    result = loaded.run_line_magic("cuda_env", 'CUDA_VISIBLE_DEVICES="0,1"')
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "quotes around the value were taken off" in result.variables[0].note
    with pytest.raises(UserError, match="not closed"):
        loaded.run_line_magic("cuda_env", "CUDA_VISIBLE_DEVICES='0,1")
    os.environ["CUDA_VISIBLE_DEVICES"] = '"0,1"'
    row = command.listing().variables[0]
    assert row.warn and "CUDA reads this as no device" in row.note


def test_case_13_index_that_no_gpu_has():
    """Said as a warning with the GPUs there are; empty and -1 are legal and mean none."""
    row = one("CUDA_VISIBLE_DEVICES=2")
    assert row.warn and "you have GPUs 0..1; this hides all of them" in row.note
    for value in ("", "-1"):
        row = one(f"CUDA_VISIBLE_DEVICES={value}")
        assert not row.warn and "all GPUs are hidden" in row.note


def test_case_15_order(monkeypatch):
    """An illegal order is answered with the legal ones; the hint comes only where the models differ."""
    with pytest.raises(UserError, match="FASTEST_FIRST, PCI_BUS_ID"):
        one("CUDA_DEVICE_ORDER=PCI_BUS")
    assert not command.listing().hints
    use(Cards("H200", "A10"))
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in command.listing().hints[0]
    command.set_devices("1,0")
    assert (os.environ["CUDA_DEVICE_ORDER"], os.environ["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", "1,0")
    assert not command.listing().hints


def test_case_16_inactive(monkeypatch):
    """What was requested and is not so in the running allocator is said."""
    one(f"{CONF}=expandable_segments:True,max_split_size_mb:64")
    torch(monkeypatch, initialised=True, expandable_segments=False, max_split_size=64 << 20)
    row = command.listing().variables[0]
    assert row.state == "in effect" and row.warn
    assert "requested but inactive: expandable_segments is False" in row.note and "max_split_size is" not in row.note


def test_all_or_none():
    """One illegal assignment leaves every variable as it was."""
    with pytest.raises(UserError):
        command.set_all(["CUDA_LAUNCH_BLOCKING=1", "XLA_PYTHON_CLIENT_ALLOCATOR=maybe"])
    assert "CUDA_LAUNCH_BLOCKING" not in os.environ


def test_one_name_with_two_values():
    """Neither is set, and both are named; the same value twice is one."""
    with pytest.raises(UserError, match="CUDA_LAUNCH_BLOCKING is given two values, 1 and 0; write one"):
        command.set_all(["CUDA_LAUNCH_BLOCKING=1", "CUDA_LAUNCH_BLOCKING=0"])
    assert "CUDA_LAUNCH_BLOCKING" not in os.environ
    command.set_all(["CUDA_LAUNCH_BLOCKING=1", "CUDA_LAUNCH_BLOCKING=1"])
    assert os.environ["CUDA_LAUNCH_BLOCKING"] == "1"


def test_undo_is_a_stack():
    """Each undo takes one change back; with nothing left it is refused."""
    command.set_all(["CUDA_LAUNCH_BLOCKING=1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"])
    command.set_all(["CUDA_LAUNCH_BLOCKING=0"])
    command.unset_all(["CUDA_DEVICE_ORDER"])
    command.undo()
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    command.undo()
    assert os.environ["CUDA_LAUNCH_BLOCKING"] == "1"
    command.undo()
    assert not {"CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER"} & set(os.environ)
    with pytest.raises(Refused):
        command.undo()


def test_unknown_names():
    """Within two edits of a known name: refused without --force. Any other name is set, with a note."""
    with pytest.raises(UserError, match="Did you mean 'CUDA_VISIBLE_DEVICES'"):
        one("CUDA_VISIBLE_DEVICE=0")
    with pytest.raises(UserError, match="Did you mean 'CUDA_LAUNCH_BLOCKING'"):
        one("cuda_launch_blocking=1")
    assert one("CUDA_VISIBLE_DEVICE=0", force=True).value == "0"
    assert one("MY_OWN_SETTING=1").note.endswith("not in the catalogue")


def test_both_names_set():
    """The newer name is said to be shadowed, even by an empty value."""
    os.environ.update({CONF: "", "PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    rows = {v.name: v for v in command.listing().variables}
    assert "shadowed" in rows["PYTORCH_ALLOC_CONF"].note


def test_bad_values_are_named_before_torch_is_imported():
    """A value that is already there and would make torch raise is listed as invalid."""
    os.environ[CONF] = "expandable_segments:true"
    row = command.listing().variables[0]
    assert row.state == "invalid" and "True or False, not 'true'" in row.note
    _, code = command.env([])
    assert code == 1


def test_a_build_without_cuda_reads_no_allocator_configuration(monkeypatch):
    """On a CPU build the allocator's configuration is not read, which is said."""
    installed(monkeypatch, "2.13.0+cpu")
    assert one(f"{CONF}=expandable_segments:True").state == "not read by this torch"


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_whole(name):
    """Each variable explains itself, its offered values are legal, and it has a state at every moment."""
    variable = find(name)
    assert variable.meaning.endswith(".") and variable.source
    assert variable.read != "use" or variable.first_use
    assert all(not variable.check(value) for value in variable.values)
    assert name in repr(command.explain(name)) and takes_effect(variable, Progress())[0]


def test_the_documented_matrix_is_the_data():
    """The table in the documentation is the one that the catalogue gives."""
    from pathlib import Path

    from cuda_magic.environment.matrix import markdown

    text = Path(__file__).resolve().parents[2].joinpath("docs", "environment.md").read_text()
    assert markdown() in text
    assert len(matrix()) == len(CATALOGUE)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%cuda_env CUDA_LAUNCH", "CUDA_LAUNCH_BLOCKING"),
        ("%cuda_env CUDA_DEVICE_ORDER=PC", "PCI_BUS_ID"),
        (f"%cuda_env {CONF}=expandable", "expandable_segments:"),
        (f"%cuda_env {CONF}=max_split_size_mb:128,expandable_segments:Tr", "True"),
        ("%cuda_env --preset low", "low-fragmentation"),
        ("%cuda_env --export kub", "kubernetes"),
        ("%cuda_env --und", "--undo"),
    ],
)
def test_tab_completes_names_and_values(loaded, line, expected):
    """TAB gives names, values, and the options of the allocator's configuration."""
    _, found = loaded.complete(None, line=line, cursor_pos=len(line))
    assert any(match.endswith(expected) for match in found), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expandable_segments:True,max_split_size_mb:128", "mostly not used"),
        ("garbage_collection_threshold:0.8", "does nothing until"),
        ("max_split_size_mb:64MB", "'64MB' is read as 64"),
        ("max_split_size_mb:-1", "is read as 18446744073709551615"),
        ("expandable_segments,True", "stands where ':' belongs"),
        ("expandable_segments:True,expandable_segments:False", "stands twice"),
    ],
)
def test_legal_and_not_what_it_looks_like(text, said):
    """What torch accepts in silence is accepted with a warning that says what it does."""
    reading = read(text, (2, 11))
    assert reading.verdict == "accepted with a warning" and said in "; ".join(reading.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expandable_segments=True", "with a colon"),
        ("expandable_segments_handle_type:posix_fd", "no release accepts it"),
        ("'expandable_segments:True'", "quotes are part of the value"),
        ("expandable_segments:", "missing or half-written"),
        ("roundup_power2_divisions:[256:1,512:2", "half-written"),
        ("pinned_num_register_threads:3", "power of two up to 128"),
        ("per_process_memory_fraction:1.5", "from 0 to 1"),
        ("large_segment_size_mb:64,max_split_size_mb:32", "at least 64"),
    ],
)
def test_refused_with_the_reason(text, said):
    """What torch 2.11 raises on is refused, in words that say how to write it."""
    assert said in read(text, (2, 11)).refused


def test_what_the_container_was_created_with_is_in_effect():
    """The value of the process's start holds; one that was set here does not."""
    from cuda_magic.environment.release import Torch
    from cuda_magic.environment.state import Progress
    from cuda_magic.environment.verdict import Situation, verdict

    environment = {"NVIDIA_VISIBLE_DEVICES": "0"}
    given = Situation(environment, Progress(), Torch(), started_with=environment)
    assert verdict("NVIDIA_VISIBLE_DEVICES", given).state == "in effect"
    late = Situation(environment, Progress(), Torch(), set_at={"NVIDIA_VISIBLE_DEVICES": ("0", Progress())})
    assert verdict("NVIDIA_VISIBLE_DEVICES", late).state == "no effect"
