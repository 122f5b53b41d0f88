"""Connection files: engines that came by a copy of theirs, and a client whose file was carried to another folder."""

from __future__ import annotations

import os
import shutil

import pytest

from cuda_magic.errors import Refused

ENGINE = "__import__('ipyparallel.engine.app', fromlist=['*']).IPEngine.instance().url_file"
SET = "__import__('os').environ.get('CUDA_LAUNCH_BLOCKING')"


def test_the_second_hosts_engines_came_by_a_file_of_their_own(two_hosts):
    """Another connection file, another working folder, another IPYTHONDIR than those of the first host."""
    running, south = two_hosts
    first, second = ({running.on(i, ENGINE) for i in ids} for ids in ((0, 1), (2, 3)))
    assert second == {str(south.file)} and not first & second
    for code, folder in (("__import__('os').getcwd()", south.work), ("get_ipython().ipython_dir", south.ipython)):
        code = code.replace("get_ipython()", "__import__('IPython').get_ipython()")
        assert {os.path.realpath(running.on(i, code)) for i in (2, 3)} == {os.path.realpath(folder)}
        assert os.path.realpath(folder) not in {os.path.realpath(running.on(i, code)) for i in (0, 1)}


def test_the_clients_file_alone_leads_to_both_hosts(loaded, running, tmp_path, monkeypatch):
    """Carried to a folder without a profile, named by a relative path: reading, diagnosis, environment."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "carried").mkdir()
    shutil.copy(running.file, "carried/cluster-of-mine.json")
    where = "--cluster carried/cluster-of-mine.json"
    table = loaded.run_line_magic("gpu_mem", f"{where} --once")
    assert [(d.host, d.engines) for d in table.devices] == [("north", (0, 1)), ("south", (2, 3))]
    assert [e.engine for e in loaded.run_line_magic("cuda_doctor", where).engines] == [0, 1, 2, 3]
    made = loaded.run_line_magic("cuda_env", f"{where} CUDA_LAUNCH_BLOCKING=1")
    assert [(v.engine, v.host, v.value) for v in made.variables] == [
        (0, "north", "1"),
        (1, "north", "1"),
        (2, "south", "1"),
        (3, "south", "1"),
    ]
    assert [running.on(i, SET) for i in range(4)] == ["1"] * 4
    loaded.run_line_magic("cuda_env", f"{where} --unset CUDA_LAUNCH_BLOCKING")
    assert [running.on(i, SET) for i in range(4)] == [None] * 4


def test_engines_started_elsewhere_are_not_restarted(loaded, running):
    """The first host's launchers know two of four engines: refused, and all four go on."""
    before = [running.on(i, "__import__('os').getpid()") for i in range(4)]
    with pytest.raises(Refused, match=r"4 are registered and this cluster's launchers started 2"):
        loaded.run_line_magic("cuda_env", f"--cluster {running.file} --restart")
    assert [running.on(i, "__import__('os').getpid()") for i in range(4)] == before
