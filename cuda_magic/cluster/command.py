"""What the magics ask with ``--cluster``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..errors import Refused
from . import table
from .connect import ask, connect
from .doctor import ClusterDiagnosis, diagnosis
from .environment import ClusterEnvironment, set_all, shown, unset_all

__all__ = ["PATIENCE", "doctor", "environment", "live", "once"]

PATIENCE = 5.0
"""Seconds for an engine to answer a question that takes no time."""
TRIAL = 60.0
"""Seconds for the doctor's answer: CUDA is tried in a child process on each engine."""


def once(where: str, shell: Any, alert: int) -> table.ClusterTable:
    """One reading of every engine that answers."""
    with connect(where, shell) as cluster:
        return table.from_answers(ask(cluster.client, "snapshot", {"alert": alert}, PATIENCE), cluster.words, alert)


def live(where: str, shell: Any, interval: float, alert: int) -> table.ClusterTable | None:
    """Show the live panel; gives one reading where nothing can be live."""
    if getattr(shell, "kernel", None) is None or "google.colab" in sys.modules:
        return once(where, shell, alert)
    try:
        from .live import ClusterPanel
    except ImportError:
        return once(where, shell, alert)
    cluster = connect(where, shell)
    if not cluster.client.ids:
        cluster.close()
        raise Refused("the cluster has no engines: none has registered with the controller, or all of them ended.")
    ClusterPanel.follow(shell, cluster, interval, alert)
    return None


def doctor(where: str, shell: Any, full: bool, show_private: bool) -> ClusterDiagnosis:
    """Every engine's diagnosis. An engine that is busy is passed by after `PATIENCE`."""
    with connect(where, shell) as cluster:
        awake = ask(cluster.client, "changed", {}, PATIENCE)
        there = [one.engine for one in awake if one.ok]
        asked = {"full": full, "show_private": show_private}
        answers = ask(cluster.client, "diagnosis", asked, TRIAL, there) if there else []
        return diagnosis([*answers, *(one for one in awake if not one.ok)], cluster.words, show_private)


def environment(
    where: str, shell: Any, words: Sequence[str], *, unset: Sequence[str], force: bool, restart: bool
) -> ClusterEnvironment:
    """Set, unset or show on every engine; then restart them, if asked."""
    with connect(where, shell) as cluster:
        client, name = cluster.client, cluster.words
        if unset:
            made = unset_all(client, name, unset, PATIENCE)
        elif any("=" in word for word in words):
            made = set_all(client, name, words, force, PATIENCE)
        elif restart:
            made = None
        else:
            made = shown(client, name, PATIENCE, words[0] if words else "")
        if restart:
            from .restart import restart as start_anew

            return start_anew(cluster, shell, PATIENCE)
        assert made is not None
        return made
