"""``%cuda_env --cluster --restart``: new engines in place of the old ones, by ipyparallel's own launchers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..errors import Refused
from .connect import Cluster, ask
from .environment import ClusterEnvironment, set_all, shown

__all__ = ["restart"]

START = 90.0
"""Seconds for the new engines to register."""


def restart(cluster: Cluster, shell: Any, seconds: float) -> ClusterEnvironment:
    """Stop all engines and start as many; what %cuda_env had set is set again before anything is imported.

    Parameters
    ----------
    cluster
        A connection.
    shell
        IPython's shell: the notebook's own ``Cluster`` object is used if it started this cluster.
    seconds
        For one question to the engines.

    Raises
    ------
    Refused
        Where ipyparallel cannot restart the engines, or they would not come back as they are. Nothing is stopped then.
    """
    client = cluster.client
    launcher = _launcher(cluster, shell)
    before = sorted(client.ids)
    changes = _changes(client, seconds)
    count = sum(int(getattr(one, "n", 0) or 0) for one in launcher.engines.values())
    if count != len(before):
        raise Refused(
            f"the engines are not restarted: {len(before)} are registered and this cluster's launchers started"
            f" {count}. Those started elsewhere would not come back; end and start them where they were started."
        )
    try:
        launcher.restart_engines_sync()
    except Exception as error:  # noqa: BLE001 - a launcher may fail in any way; what it says is the reason
        raise Refused(f"ipyparallel could not restart the engines: {type(error).__name__}: {error}") from None
    end = time.monotonic() + START
    while len([one for one in client.ids if one not in before]) < count:
        if time.monotonic() > end:
            here = len([one for one in client.ids if one not in before])
            raise Refused(f"{here} of {count} new engines are there after {START:g} s; see the engines' logs.")
        time.sleep(0.1)
    while any(one in client.ids for one in before) and time.monotonic() < end:
        time.sleep(0.1)
    if changes:
        return set_all(client, cluster.words, [f"{k}={v}" for k, v in changes.items()], True, 4 * seconds)
    return shown(client, cluster.words, 4 * seconds)


def _launcher(cluster: Cluster, shell: Any) -> Any:
    """ipyparallel's ``Cluster`` object, which knows how the engines were started."""
    import ipyparallel

    if cluster.file is None:
        client = shell.magics_manager.registry["ParallelMagics"].view.client
        if getattr(client, "cluster", None) is not None:
            return client.cluster
        raise Refused(
            "the engines are not restarted: the notebook's client was connected by a connection file, which does not"
            " tell how they were started. Name the profile: %cuda_env --cluster PROFILE --restart"
        )
    name = cluster.file.name.removeprefix("ipcontroller-").removesuffix("client.json").strip("-")
    path = Path(cluster.file).parent / f"cluster-{name}.json"
    if not path.is_file():
        raise Refused(
            f"the engines are not restarted: {path.name} is not beside the connection file, so these engines were not"
            " started by ipcluster or ipyparallel.Cluster on this machine. End and start them where they were started."
        )
    try:
        return ipyparallel.Cluster.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - a file of another release, of processes that are gone
        raise Refused(f"the engines are not restarted: {path.name} cannot be used: {error}") from None


def _changes(client: Any, seconds: float) -> dict[str, str]:
    """What %cuda_env set on the engines, the same on each.

    Raises
    ------
    Refused
        If it is not the same everywhere: new engines have new numbers, and nobody could tell whose is whose.
    """
    answers = ask(client, "changed", {}, seconds)
    told = [one.value["set"] for one in answers if one.ok]
    silent = [one.engine for one in answers if not one.ok and one.kind == "silent"]
    if silent:
        raise Refused(
            f"the engines are not restarted: engine {', '.join(map(str, silent))} is busy, and its work would be lost."
            " Interrupt it first."
        )
    if any(one != told[0] for one in told):
        raise Refused(
            "the engines are not restarted: %cuda_env set different values on them, and new engines have new numbers."
            " Set one value for all first: %cuda_env --cluster NAME=VALUE"
        )
    return {name: value for name, value in told[0].items() if value is not None} if told else {}
