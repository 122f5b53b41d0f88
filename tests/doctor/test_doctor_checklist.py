"""The steps of the checklist that are commands of ours: topology, comparison of nodes, log of the start."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from fakes.build import build, compiler

from cuda_magic import UserError
from cuda_magic.doctor import diagnose, situation
from cuda_magic.doctor.command import doctor
from cuda_magic.doctor.situations import failing, healthy
from cuda_magic.doctor.startlog import start_log
from cuda_magic.doctor.topology import topology
from cuda_magic.errors import Refused
from cuda_magic.magics.cuda_doctor import SPEC

PAGE = Path(__file__).parents[2] / "docs" / "checklist.md"


def test_the_cards_are_drawn(fake_nvml):
    """NVLink between two, a PCIe switch to the third, another processor to the fourth; one row a pair in the frame."""
    for i in range(4):
        fake_nvml.device(i)
    for a, b in ((0, 1), (1, 0)):
        fake_nvml.set(f"nvlinks.{a}", 12)
        fake_nvml.set(f"nvlinkto.{a}", f"00000000:{b + 1:02X}:00.0")
    fake_nvml.set("topo.0.2", 10)
    fake_nvml.set("topo.1.2", 20)
    fake_nvml.set("topo.2.3", 30)
    found = topology()
    assert found.ways[0] == ("-", "NV12", "PIX", "SYS") and found.ways[1][2] == "PXB" and found.ways[2][3] == "PHB"
    assert all(found.ways[a][b] == found.ways[b][a] for a in range(4) for b in range(4))
    assert len(found.rows()) == 6
    text = repr(found)
    assert "NVLink, with the number of links" in text and "NODE" not in text.replace("NUMA node", "")


def test_a_switch_joins_all(fake_nvml):
    """NVSwitch: every pair by NVLink."""
    for i in range(3):
        fake_nvml.device(i)
        fake_nvml.set(f"nvlinks.{i}", 18)
    assert {way for row in topology().ways for way in row} == {"-", "NV18"}


def test_no_driver_and_a_driver_that_hangs_or_crashes(fake_nvml, monkeypatch):
    """One sentence, and no wait without end."""
    from cuda_magic.doctor import topology as room

    fake_nvml.device(0)
    fake_nvml.error("nvmlDeviceGetPciInfo_v3", "crash")
    with pytest.raises(Refused, match="does not tell"):
        topology()
    monkeypatch.setattr(room, "LIMIT", 0.5)
    fake_nvml.error("nvmlDeviceGetPciInfo_v3", "hang")
    with pytest.raises(Refused, match="in time"):
        topology()


def test_what_differs_between_nodes(tmp_path):
    """Only what differs, with a column a file; exit code 1, and 0 for the same."""
    for name, facts in {"good": healthy(2), "bad": failing(802, healthy(2)), "twin": healthy(2)}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(diagnose(facts).to_dict()))
    files = [str(tmp_path / f"{name}.json") for name in ("good", "bad", "twin")]
    found, code = doctor(["--compare", *files])
    assert code == 1 and found.files == ("good", "bad", "twin")
    table = dict(found.different)
    assert table["verdict"] == ("healthy", "unusable", "healthy")
    assert table["first finding"] == ("(none)", "driver.fabric-manager", "(none)")
    assert "torch" in found.same
    _, code = doctor(["--compare", files[0], files[2]])
    assert code == 0
    for words in (["--compare", files[0]], ["--compare", files[0], "/nonexistent"], ["--compare", files[0], __file__]):
        with pytest.raises(UserError):
            doctor(words)


def test_the_log_shows_where_the_loader_looked(tmp_path, monkeypatch):
    """The folder of the library that was taken is in it, and what the driver wrote."""
    if compiler() is None:
        pytest.skip("no C compiler")
    build(tmp_path, "cuda.c", "libcuda.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_CUDA_LOG", "something about the start")
    found = start_log(show_private=True)
    assert any(f"{tmp_path}/libcuda.so.1" in line for line in found.loader)
    assert found.driver == ("something about the start",)
    assert "CUDA starts: 1 device" in repr(found)
    assert "CUDA_LOG_FILE" not in os.environ and "LD_DEBUG" not in os.environ


def test_the_magic_asks_one_question(loaded):
    """Two of them are a mistake; each alone answers or says why not."""
    with pytest.raises(UserError, match="two questions"):
        loaded.run_line_magic("cuda_doctor", "--topology --log")
    assert "CUDA's start" in repr(loaded.run_line_magic("cuda_doctor", "--log"))


def test_the_pages_lines_are_ours():
    """Each line of a notebook on the page is one that the magic takes."""
    text = PAGE.read_text()
    for line in re.findall(r"`%cuda_doctor ([^`]+)`", text):
        SPEC.parse(line)
    for step in ("NVML", "torch", "driver", "topology", "two nodes", "a log of the start", "a clean environment"):
        assert f"| {step} |" in text
    assert "srun" in text and "torchrun" in text and "venv" in text and "docker run" in text
    assert situation("healthy") is not None
    situation(None)
