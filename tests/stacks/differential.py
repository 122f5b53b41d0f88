"""Runs cells in a real kernel and says all that a front end could see of them, so that two runs can be compared."""

from __future__ import annotations

import os
import queue
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0
_MODULE = "__import__('seen_by_tests')"


@dataclass(frozen=True)
class Case:
    """One cell, given once: run as it is below a comment, and below the guard's line.

    `guarded` and `plain` override the two texts where the guard is not the first line. `then` are cells run after
    each of the two, compared as well. `stdin` are the answers given to ``input()`` and the debugger, in order.
    """

    name: str
    body: str = ""
    plain: str = ""
    guarded: str = ""
    setup: str = ""
    then: tuple[str, ...] = ()
    after: str = ""
    stdin: tuple[str, ...] = ()
    interrupt: bool = False
    silent: bool = False
    store_history: bool = True
    needs: tuple[int, int] = (3, 10)
    modules: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, str]:
        plain = self.plain or f"# %%cuda_guard\n{self.body}"
        return plain, self.guarded or f"%%cuda_guard\n{self.body}"


@dataclass
class Seen:
    """What a front end sees of one run."""

    messages: list[Any] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    then: list[Any] = field(default_factory=list)


class Kernel:
    """A kernel of some Python, with the tests' guard loaded or another extension."""

    def __init__(self, python: str, folder: Path, extension: str = "guarded_by_tests") -> None:
        self.manager = KernelManager()
        argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager._kernel_spec = KernelSpec(argv=argv, display_name="tests", language="python")
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "cells")])
        env = {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(folder / "ipython"), "TERM": "dumb"}
        env.pop("MPLBACKEND", None)  # the kernel chooses inline
        env["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
        env["PYTHONWARNINGS"] = "ignore::DeprecationWarning,always::UserWarning"  # else shown for the first run only
        self.manager.start_kernel(env=env, cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)
        self.count = 1
        self._has: dict[str, bool] = {}
        self.run(f"%load_ext {extension}\nimport sys, os, time", store_history=False)
        self.python: tuple[int, int] = tuple(eval(self.ask("sys.version_info[:2]")))  # type: ignore[assignment]

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def ask(self, expression: str) -> str:
        """The repr of an expression, by a request that leaves no trace."""
        request = self.client.execute("", silent=True, user_expressions={"x": expression})
        reply = self._reply(request)["content"]
        self._until_idle(request)
        answer = reply["user_expressions"]["x"]
        return answer["data"]["text/plain"] if answer["status"] == "ok" else f"{answer['ename']}: {answer['evalue']}"

    def has(self, module: str) -> bool:
        if module not in self._has:
            found = self.ask(f"__import__('importlib.util').util.find_spec({module!r}) is not None")
            self._has[module] = found == "True"
        return self._has[module]

    def _reply(self, request: str) -> dict[str, Any]:
        while True:
            message = self.client.get_shell_msg(timeout=TIMEOUT)
            if message["parent_header"].get("msg_id") == request:
                return message

    def _until_idle(self, request: str, on: Any = None, answers: Any = ()) -> list[dict[str, Any]]:
        messages, end = [], time.monotonic() + TIMEOUT
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=0.05 if answers else TIMEOUT)
            except queue.Empty:
                if time.monotonic() > end:
                    raise
                if self.client.stdin_channel.msg_ready():
                    self.client.get_stdin_msg(timeout=1)
                    self.client.input(answers.pop(0))
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return messages
            messages.append(message)
            if on is not None:
                on(message)

    def run(
        self, text: str, *, silent: bool = False, store_history: bool = True, stdin=(), interrupt: bool = False
    ) -> Seen:
        """Run one cell to its end. `interrupt`: as the stop button does, once the cell has printed "ready"."""
        before = self.count
        answers = list(stdin)
        request = self.client.execute(
            text, silent=silent, store_history=store_history, allow_stdin=True, stop_on_error=False
        )

        def on(message: dict[str, Any]) -> None:
            if interrupt and "ready" in str(message["content"].get("text", "")):
                time.sleep(0.2)
                self.manager.interrupt_kernel()

        seen = Seen()
        messages = self._until_idle(request, on, answers)
        reply = self._reply(request)["content"]
        self.count = reply.get("execution_count", before - 1) + 1  # a run that is not stored has the number before
        seen.messages = _merged([_message(m, before) for m in messages])
        seen.reply = _clean(
            {k: v for k, v in reply.items() if k not in ("execution_count", "engine_info", "engine_uuid")}, before
        )
        seen.reply["count"] = reply.get("execution_count", before) - before
        return seen

    def see(self, text: str, case: Case) -> Seen:
        """Run one of a case's two texts, and what is to follow it."""
        self.run(f"{_MODULE}.reset()\n{case.setup}", store_history=False)
        before = self.count
        seen = self.run(
            text, silent=case.silent, store_history=case.store_history, stdin=case.stdin, interrupt=case.interrupt
        )
        state = eval(_clean(self.ask(f"{_MODULE}.state({before})"), before))
        if case.guarded:  # more lines above the body than one
            del state["raw"]
        seen.state = state
        for then in case.then:
            answers = ("p here", "up", "bt", "q") if then.startswith("%debug") else ()
            follow = self.run(then, store_history=False, stdin=answers)
            seen.then.append((follow.messages, follow.reply))
        if case.after:
            self.run(case.after, store_history=False)
        return seen


_SWAPS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"(/[\w./-]*/)?ipykernel_\d+/\d+\.py"), "<cell file>"),
    (re.compile(r"<ipython-input-\d+-[0-9a-f]+>"), "<cell file>"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"\b\d+\.py, line"), "<cell file>, line"),
    (re.compile(r"(\b|IPY_MODEL_)[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{20,}_\d+_\d+\b"), "<id>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"(CPU times|Wall time).*"), r"\1"),
    (re.compile(r".* ± .*"), "<timing>"),
    (re.compile(r"iVBORw0KGgo[\w+/=\\n]*"), "<png>"),
)


def _clean(value: Any, before: int) -> Any:
    """`value` without what differs between any two runs; In[n] counted from the cell's own number."""
    if isinstance(value, dict):
        return {k: _clean(v, before) for k, v in value.items() if k not in ("transient", "metadata")}
    if isinstance(value, (list, tuple)):
        return [_clean(v, before) for v in value]
    if isinstance(value, str):
        for pattern, new in _SWAPS:
            value = pattern.sub(new, value)
        return re.sub(r"In ?\[(\d+)\]", lambda m: f"In[own{int(m[1]) - before:+d}]", value)
    return value


def _message(message: dict[str, Any], before: int) -> tuple[str, Any]:
    kind, content = message["msg_type"], dict(message["content"])
    if kind == "execute_input":
        content["code"] = "<code>"
    if "execution_count" in content:
        content["execution_count"] = f"own{content['execution_count'] - before:+d}"
    return kind, _clean(content, before)


def _merged(messages: list[tuple[str, Any]]) -> list[Any]:
    """Neighbouring pieces of one stream as one: where a stream is cut depends on the clock."""
    out: list[Any] = []
    for kind, content in messages:
        if kind == "stream" and out and out[-1][0] == "stream" and out[-1][1]["name"] == content["name"]:
            out[-1][1]["text"] += content["text"]
        else:
            out.append((kind, content))
    return out
