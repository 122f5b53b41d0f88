"""The door to ipyparallel: which cluster is meant, a client of it, and a question put to its engines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Missing, Refused, UserError, nearest

__all__ = ["Answer", "Cluster", "ask", "connect", "reason", "say"]

CONNECT = 5.0
"""Seconds for the controller to answer."""
_FILES = "ipcontroller*-client.json"
_KEYS = ("interface", "registration", "control", "notification", "task_scheme", "key")
"""What a connection file for clients has."""
_MISSING = ("ModuleNotFoundError", "ImportError")


@dataclass(frozen=True)
class Answer:
    """What one engine said: a value, or one sentence on why there is none."""

    engine: int
    value: Any = None
    failure: str = ""
    kind: str = ""
    """``Refused`` or ``UserError`` where the engine understood and refused; ``silent``, ``gone`` or ``broken``."""

    @property
    def ok(self) -> bool:
        return not self.failure


@dataclass
class Cluster:
    """A client of ours, and where it leads."""

    client: Any
    file: Path | None
    """The connection file; None where the notebook's own client led here."""
    words: str
    """The cluster in words, for sentences."""

    def close(self) -> None:
        self.client.close(linger=1000)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _parallel() -> Any:
    try:
        import ipyparallel
    except ImportError:
        raise Missing("--cluster needs ipyparallel: %pip install ipyparallel") from None
    return ipyparallel


def connect(where: str = "", shell: Any = None) -> Cluster:
    """A client of the cluster that `where` names.

    Parameters
    ----------
    where
        A profile, or a connection file (``ipcontroller-client.json``). Empty: the cluster whose engines ``%px`` reaches
        in this notebook, else the newest one of the default profile.
    shell
        IPython's shell, for the notebook's own client.

    Raises
    ------
    Missing
        If ipyparallel is not installed.
    UserError
        If there is no such cluster, or its controller does not answer.
    """
    ipp = _parallel()
    own = None if where else _own(shell)
    if own is not None:
        return Cluster(_client(ipp, own, "of this notebook"), None, "the cluster of this notebook")
    path = _file(where)
    _check(path)
    # of a file the cluster's id is shown: ipcontroller-ID-client.json
    name = path.stem.removeprefix("ipcontroller").removesuffix("client").strip("-")
    words = f"cluster {(where if where != str(path) and '/' not in where else name) or 'default'}"
    return Cluster(_client(ipp, str(path), f"named in {path.name}"), path, words)


def _client(ipp: Any, info: Any, what: str) -> Any:
    class Quiet(ipp.Client):
        """A client that leaves the notebook's ``%px`` alone."""

        def activate(self, *_: Any, **__: Any) -> None:
            return None

    try:
        return Quiet(info, timeout=CONNECT)
    except (TimeoutError, OSError) as error:
        why = "does not answer" if isinstance(error, TimeoutError) else f"cannot be reached ({error})"
        raise UserError(f"the controller {what} {why}: is the cluster running? ipcluster start -n 4") from None


def _own(shell: Any) -> dict[str, Any] | None:
    """The connection of the client behind the notebook's ``%px``."""
    magics = getattr(getattr(shell, "magics_manager", None), "registry", {}).get("ParallelMagics")
    client = getattr(getattr(magics, "view", None), "client", None)
    if client is None or getattr(client, "_closed", True):
        return None
    info = dict(client._config)
    interface = info["interface"]
    # the client has made whole addresses of the file's port numbers
    return {k: v.rpartition(":")[2] if str(v).startswith(f"{interface}:") else v for k, v in info.items()}


def _file(where: str) -> Path:
    path = Path(where).expanduser()
    if where.endswith(".json") or (where and path.is_file()):
        if not path.is_file():
            raise UserError(f"there is no connection file {where}.")
        return path
    from IPython.paths import get_ipython_dir

    profile = where or "default"
    folder = Path(get_ipython_dir()) / f"profile_{profile}"
    found = sorted((folder / "security").glob(_FILES), key=lambda one: one.stat().st_mtime)
    if found:
        return found[-1]
    start = f"ipcluster start -n 4{f' --profile {where}' if where else ''}"
    if folder.is_dir() or not where:
        raise UserError(f"no cluster of profile {profile!r} is running; start one: {start}")
    known = [one.name.removeprefix("profile_") for one in folder.parent.glob("profile_*")]
    raise UserError(f"there is no profile {where!r}.{nearest(where, known) or f' Profiles: {known}'}")


def _check(path: Path) -> None:
    """Refuse a file that ipyparallel cannot connect by."""
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        info = None
    if not isinstance(info, dict) or any(key not in info for key in _KEYS):
        raise UserError(f"{path} is no connection file of a cluster, such as ipcontroller-client.json.")


def ask(
    client: Any, question: str, arguments: dict[str, Any], seconds: float, engines: Iterable[int] | None = None
) -> list[Answer]:
    """Put `question` (agent.py) to engines, each on its own: none waits for another.

    Parameters
    ----------
    client
        ipyparallel's.
    question, arguments
        As agent.py takes them.
    seconds
        How long to wait for all of them. An engine that is busy for longer does not answer the question later.
    engines
        Ids; all of them if None.

    Raises
    ------
    Refused
        If the cluster has no engines.
    """
    ids = sorted(client.ids if engines is None else engines)
    if not ids:
        raise Refused("the cluster has no engines: none has registered with the controller, or all of them ended.")
    sent = {one: say(client, question, arguments, one) for one in ids}
    try:
        client.wait([job for job in sent.values() if job is not None], timeout=seconds)
    finally:
        late = [(one, job) for one, job in sent.items() if job is not None and not job.ready()]
        _abort(client, late)
    return [_answer(client, one, job, seconds) for one, job in sent.items()]


def say(client: Any, question: str, arguments: dict[str, Any], engine: int) -> Any:
    """Send `question` to one engine; gives ipyparallel's AsyncResult, None where the engine has just ended."""
    code = "__import__('cuda_magic.cluster.agent', fromlist=['*']).answer({!r}, {!r})"
    try:
        # eval goes by its name: no bytecode crosses between releases of Python
        return client[engine].apply_async(eval, code.format(question, json.dumps(arguments)))
    except (IndexError, KeyError):
        return None


def _abort(client: Any, late: Sequence[tuple[int, Any]]) -> None:
    """Take questions back that are not being worked on yet. The control channel carries this, also to a busy engine."""
    for engine, job in late:
        if engine in client.ids:
            try:
                client.abort(job.msg_ids, targets=engine, block=False)
            except Exception:  # noqa: BLE001 - the engine ends this very moment
                continue
    end = time.monotonic() + 0.5
    while late and time.monotonic() < end and not all(job.ready() for _, job in late):
        client.wait([job for _, job in late if not job.ready()], timeout=0.1)


def _answer(client: Any, engine: int, job: Any, seconds: float) -> Answer:
    if job is None:
        return Answer(engine, failure="it has ended", kind="gone")
    if not job.ready():
        return Answer(engine, failure=f"busy: no answer in {seconds:g} s", kind="silent")
    try:
        said = json.loads(job.get(timeout=0))
    except Exception as error:  # noqa: BLE001 - whatever the engine raised, the other engines' answers stand
        return Answer(engine, **reason(error, seconds))
    return Answer(engine, said.get("value"), said.get("error", ""), said.get("kind", ""))


def reason(error: Exception, seconds: float) -> dict[str, str]:
    """Why an engine gave no answer: ``failure`` and ``kind`` of an `Answer`."""
    name = getattr(error, "ename", type(error).__name__)
    text = str(getattr(error, "evalue", error)).strip().splitlines()
    if name in _MISSING and "cuda_magic" in str(text):
        return {"failure": "cuda_magic is not installed there: %px %pip install cuda-magic", "kind": "broken"}
    if name == "TaskAborted":
        return {"failure": f"busy: no answer in {seconds:g} s", "kind": "silent"}
    if name == "EngineError":
        return {"failure": "it has ended", "kind": "gone"}
    return {"failure": f"{name}: {text[-1] if text else 'no reason given'}", "kind": "broken"}
