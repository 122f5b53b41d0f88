"""--cluster of the magics, one answer from a real cluster: readings, diagnoses, the environment."""

from __future__ import annotations

import time

import pytest

from cuda_magic.cluster import command
from cuda_magic.cluster.connect import ask, connect
from cuda_magic.errors import Missing, Refused, UserError

GIB = 1 << 30
HOLD = "from cuda_magic.testing import gpu; import builtins; builtins.held = gpu().empty('2 GiB')"
LET_GO = "import builtins; del builtins.held; from cuda_magic.machine import use; use(None)"


def magic(loaded, running, name, line):
    return loaded.run_line_magic(name, f"--cluster {running.file} {line}")


def test_one_reading_by_host(loaded, running):
    """Two hosts, four engines; a card that two engines see is one row, with the tensors of both."""
    running.do(0, HOLD)
    try:
        table = magic(loaded, running, "gpu_mem", "--once")
    finally:
        running.do(0, LET_GO)
    assert table.hosts == ["north", "south"] and table.label == "PRACTICE"
    assert [(d.host, d.index, d.engines, d.total) for d in table.devices] == [
        ("north", "0", (0, 1), 24 * GIB),
        ("south", "0", (2, 3), 24 * GIB),
    ]
    assert table.devices[0].live == 2 * GIB and table.devices[1].live is None
    assert {e.state for e in table.engines} == {"live"}
    shown = repr(table)
    assert "2 hosts, 4 engines, 2 devices" in shown and "0-1" in shown and "PRACTICE" in shown
    assert magic(loaded, running, "gpu_mem", "--json")["devices"][1]["host"] == "south"
    frame = magic(loaded, running, "gpu_mem", "--df")
    assert list(frame["host"]) == ["north", "south"]
    # no front end here: the panel is one reading
    assert len(magic(loaded, running, "gpu_mem", "").devices) == 2


def test_a_busy_engine_is_said_and_holds_nobody_up(running, monkeypatch):
    """The others answer; what was asked of the busy one is taken back and does not run later."""
    monkeypatch.setattr(command, "PATIENCE", 1.0)
    with running.busy(1) as (_, end):
        began = time.monotonic()
        table = command.once(str(running.file), None, 95)
        assert time.monotonic() - began < 2.5
        assert [(e.engine, e.state) for e in table.engines] == [(0, "live"), (1, "waits"), (2, "live"), (3, "live")]
        assert [d.engines for d in table.devices] == [(0,), (2, 3)]
        assert "WARNING: engine 1: busy: no answer in 1 s" in repr(table)
        with connect(str(running.file)) as cluster:
            answers = ask(cluster.client, "set", {"assignments": ["CUDA_LAUNCH_BLOCKING=1"]}, 0.5, [1])
        assert answers[0].kind == "silent"
        end()
        time.sleep(0.3)
        assert running.on(1, "__import__('os').environ.get('CUDA_LAUNCH_BLOCKING')") is None


def test_the_doctor_names_the_odd_ones_first(loaded, running):
    """An engine with another driver and one with a missing card lead the table; the rest is one line a host."""
    lie = "import cuda_magic.testing.machine as m; m.DRIVER = {!r}"
    running.do(3, lie.format("550.54.15"))
    try:
        found = magic(loaded, running, "cuda_doctor", "")
    finally:
        running.do(3, lie.format("580.65.06"))
    assert found.engines[0].engine == 3 and found.engines[0].odd
    assert [e.odd for e in found.engines[1:]] == [False] * 3
    assert [o.sentence for o in found.oddities] == ["driver is 550.54.15; on 3 other engines 580.65.06"]
    lines = repr(found).splitlines()
    assert lines[1] == "WARNING: engine 3: driver is 550.54.15; on 3 other engines 580.65.06"
    assert "not alike" in lines[0] and found.exit_code == 1
    # host names are private in what a person may paste
    assert "north" not in repr(found)
    assert "north" in repr(magic(loaded, running, "cuda_doctor", "--show-private"))


def test_setting_is_all_or_none(loaded, running):
    """One engine refuses: none is set, and its reason is said with its number."""
    value = "__import__('os').environ.get('PYTORCH_CUDA_ALLOC_CONF')"
    live = "import sys, types, cuda_magic.environment.command as c"
    running.do(2, f"{live}; c.kept, c.live.backend = c.live.backend, lambda: 'native'")
    running.do(2, f"{live}; sys.modules['torch'] = types.ModuleType('torch')")
    try:
        with pytest.raises(Refused) as caught:
            magic(loaded, running, "cuda_env", "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync CUDA_LAUNCH_BLOCKING=1")
    finally:
        running.do(2, f"{live}; del sys.modules['torch']; c.live.backend = c.kept")
    assert "nothing is set on any of 4 engines. Engine 2: " in str(caught.value)
    assert "already imported" in str(caught.value)
    assert [running.on(i, value) for i in range(4)] == [None] * 4
    # all agree
    set_ = magic(loaded, running, "cuda_env", "CUDA_LAUNCH_BLOCKING=1")
    assert [(v.engine, v.value, v.state) for v in set_.variables] == [(i, "1", "when CUDA starts") for i in range(4)]
    assert "0-3" in repr(set_)
    shown = magic(loaded, running, "cuda_env", "CUDA_LAUNCH_BLOCKING")
    assert {v.value for v in shown.variables} == {"1"} and {v.host for v in shown.variables} == {"north", "south"}
    gone = magic(loaded, running, "cuda_env", "--unset CUDA_LAUNCH_BLOCKING")
    assert {v.value for v in gone.variables} == {None}
    with pytest.raises(UserError, match=r"Engine 0-3: CUDA_LAUNCH_BLOCKING=maybe is not legal"):
        magic(loaded, running, "cuda_env", "CUDA_LAUNCH_BLOCKING=maybe")


def test_a_change_that_fails_halfway_is_taken_back(running):
    """An engine that agreed and then cannot: the others go back to what they had."""
    from cuda_magic.cluster.environment import set_all

    running.do(3, "import cuda_magic.environment.change as c; c.apply_, c.apply = c.apply, None")
    try:
        with connect(str(running.file)) as cluster, pytest.raises(Refused) as caught:
            set_all(cluster.client, cluster.words, ["CUDA_LAUNCH_BLOCKING=1"], False, 5.0)
    finally:
        running.do(3, "import cuda_magic.environment.change as c; c.apply = c.apply_")
    assert "taken back" in str(caught.value) and "Engine 3: TypeError" in str(caught.value)
    assert [running.on(i, "__import__('os').environ.get('CUDA_LAUNCH_BLOCKING')") for i in range(4)] == [None] * 4


def test_mistakes_are_one_sentence(loaded, running, tmp_path, monkeypatch):
    """No such profile, no cluster, no ipyparallel, questions that make no sense with --cluster."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    (tmp_path / "profile_gpus").mkdir()
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "list.json").write_text("[1]")
    for line, said in (
        ("gpu_mem --cluster gpu", "Did you mean 'gpus'"),
        ("gpu_mem --cluster gpus", "ipcluster start -n 4 --profile gpus"),
        ("cuda_doctor --cluster", "ipcluster start -n 4"),
        ("gpu_mem --cluster nothing.json", "there is no connection file nothing.json"),
        (f"gpu_mem --cluster {tmp_path}/text.json --once", "text.json is no connection file of a cluster"),
        (f"cuda_doctor --cluster {tmp_path}/list.json", "list.json is no connection file of a cluster"),
        ("gpu_mem --cluster gpus --who", "--who is asked of this kernel alone"),
        ("cuda_env --cluster gpus --export shell", "--export is asked of this kernel alone"),
        (f"cuda_env --cluster {running.file} CUDA_LAUNCH_BLOKING", "Did you mean 'CUDA_LAUNCH_BLOCKING'"),
    ):
        name, _, rest = line.partition(" ")
        with pytest.raises(UserError) as caught:
            loaded.run_line_magic(name, rest)
        assert said in str(caught.value), line
    import sys

    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(Missing, match="%pip install ipyparallel"):
        loaded.run_line_magic("gpu_mem", "--cluster --once")


def test_the_notebooks_own_client_names_the_cluster(loaded, running):
    """Without a profile --cluster goes where %px goes; our own client leaves %px alone."""
    magics = loaded.magics_manager.magics["line"]
    assert "px" not in magics
    command.once(str(running.file), loaded, 95)
    assert "px" not in magics
    running.client.activate()
    try:
        assert loaded.run_line_magic("gpu_mem", "--cluster --once").hosts == ["north", "south"]
        assert not running.client.outstanding
    finally:
        loaded.magics_manager.registry.pop("ParallelMagics")


def test_restart_gives_new_engines_with_the_same_variables(loaded, other, monkeypatch):
    """ipyparallel's own restart; what %cuda_env set is set again. Busy, or started elsewhere: refused, none stopped."""
    loaded.run_line_magic("cuda_env", f"--cluster {other.file} CUDA_LAUNCH_BLOCKING=1")
    before = other.client.ids
    again = loaded.run_line_magic("cuda_env", f"--cluster {other.file} --restart")
    assert not set(other.client.ids) & set(before) and len(other.client.ids) == 2
    assert {(v.name, v.value, v.state) for v in again.variables} == {("CUDA_LAUNCH_BLOCKING", "1", "when CUDA starts")}
    monkeypatch.setattr(command, "PATIENCE", 0.5)
    with other.busy(other.client.ids[0]) as (job, _):
        with pytest.raises(Refused, match="is busy, and its work would be lost"):
            loaded.run_line_magic("cuda_env", f"--cluster {other.file} --restart")
        assert not job.ready()
    monkeypatch.undo()
    path = other.file.parent / "cluster-other.json"
    path.rename(path.with_suffix(".away"))
    with pytest.raises(Refused, match=r"cluster-other.json is not beside the connection file"):
        loaded.run_line_magic("cuda_env", f"--cluster {other.file} --restart")
    path.with_suffix(".away").rename(path)
