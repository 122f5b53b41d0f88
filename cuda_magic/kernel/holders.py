"""What IPython and Python keep of earlier failures and of shown values: each keeps a failed cell's memory alive.

Seen with weak references on Python 3.11 to 3.13: all of them must go before the memory of an earlier failure is free.
``traceback.clear_frames`` is not used: it would empty frames that the user's own variables still hold, and on Python
3.12 and before it leaves the ``f_locals`` snapshots that formatting made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType, TracebackType
from typing import Any

__all__ = [
    "MACHINERY",
    "current_shell",
    "earlier_errors",
    "forget_errors",
    "forget_outputs",
    "frame_locals",
    "frames",
    "origin",
    "outputs",
]

_LAST = ("last_exc", "last_value", "last_traceback", "last_type")
"""last_exc since Python 3.12."""
_DEBUGGED = ("curframe", "curframe_locals", "botframe", "stopframe")
"""What %debug keeps after its end: the variables of the frame it looked at last (up to Python 3.12), and the cell's own
frame, whose caller holds the result of that run, with its error and all its frames. From Python 3.12 on it leaves each
frame that it looked at in a variable of that frame's module too."""
_NUMBERED = re.compile(r"_[0-9]+\Z")
_OPTIMIZED = 0x1 | 0x2
"""CO_OPTIMIZED | CO_NEWLOCALS: a function's frame. A module's f_locals is the user's namespace."""
MACHINERY = ("IPython", "ipykernel", "cuda_magic", "traitlets", "asyncio")
"""Packages whose frames lie in every traceback; these and their objects lead to everything."""


def current_shell() -> Any:
    """The running IPython shell, None outside of one; IPython is never imported for it."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def earlier_errors(shell: Any) -> list[BaseException]:
    """The exceptions of earlier cells that are kept, each once."""
    found = [getattr(sys, name, None) for name in _LAST[:2]]
    last = getattr(shell, "last_execution_result", None)
    found += [getattr(last, name, None) for name in ("error_in_exec", "error_before_exec")]
    unique: dict[int, BaseException] = {id(e): e for e in found if isinstance(e, BaseException)}
    return list(unique.values())


def forget_errors(shell: Any) -> int:
    """Let go of every reference to earlier failures; how many there were. User variables keep theirs."""
    dropped = 0
    for name in _LAST:
        if getattr(sys, name, None) is not None:
            delattr(sys, name)
            dropped += 1
    shown: Any = getattr(shell, "InteractiveTB", None)
    if getattr(shown, "tb", None) is not None:
        shown.tb = None
        dropped += 1
    debugger = getattr(shown, "pdb", None)
    if debugger is not None and any(getattr(debugger, name, None) is not None for name in _DEBUGGED):
        debugger.reset()
        vars(debugger).pop("curframe_locals", None)
        for module in list(sys.modules.values()):  # pdb itself clears those of one module
            if isinstance(module, ModuleType):
                vars(module).pop("__pdb_convenience_variables", None)
        dropped += 1
    last: Any = getattr(shell, "last_execution_result", None)
    for name in ("error_in_exec", "error_before_exec"):
        if getattr(last, name, None) is not None:
            setattr(last, name, None)
            dropped += 1
    return dropped


def origin(error: BaseException, shell: Any) -> int | None:
    """Number of the cell whose code raised `error`, from the file names of its frames."""
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    found = None
    tb = error.__traceback__
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        match = re.match(r"<ipython-input-([0-9]+)-", file)
        found = names.get(file, int(match[1]) if match else found)
        tb = tb.tb_next
    return found


def frame_locals(frame: FrameType) -> dict[str, Any]:
    """The locals of a function's frame, empty for a module's; leaves no snapshot behind that would hold them."""
    module = str(frame.f_globals.get("__name__", "")).split(".", 1)[0]
    if frame.f_code.co_flags & _OPTIMIZED != _OPTIMIZED or module in MACHINERY:
        return {}
    names = frame.f_locals
    copied = dict(names)
    if sys.version_info < (3, 13):
        names.clear()  # a snapshot: the frame's own variables stay
    return copied


def frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    """The frames of a traceback, outermost first."""
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def outputs(shell: Any, namespace: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Shown values that IPython keeps, by the name to reach them with. `namespace` is the shell's unless given."""
    if namespace is None:
        namespace = getattr(shell, "user_ns", {})
    found: dict[str, Any] = {}
    out = namespace.get("Out")
    if type(out) is dict:
        found |= {f"Out[{n}]": value for n, value in list(out.items())}
    found |= {name: namespace[name] for name in ("_", "__", "___") if name in namespace}
    kept = getattr(shell, "user_ns_hidden", {})  # what "%reset out" leaves
    hook = getattr(shell, "displayhook", None)
    for name in ("_", "__", "___"):
        for whose, value in (("IPython's", kept.get(name)), ("the display's", getattr(hook, name, None))):
            if value is not None and type(value) is not str and value is not found.get(name):
                found[f"{whose} {name}"] = value
    result = getattr(getattr(shell, "last_execution_result", None), "result", None)
    if result is not None:
        found["the last result"] = result
    return found


def forget_outputs(shell: Any, values: list[Any]) -> int:
    """Let go of these shown values wherever IPython keeps them; how many references there were.

    A variable of the user's that holds the same value keeps it.
    """
    wanted = {id(value) for value in values}
    dropped = 0
    hook = getattr(shell, "displayhook", None)
    for names in (getattr(shell, "user_ns", {}), getattr(shell, "user_ns_hidden", {})):
        for name in [n for n in names if n in ("_", "__", "___") or _NUMBERED.match(str(n))]:
            if id(names[name]) in wanted:
                if name in ("_", "__", "___"):
                    names[name] = ""
                else:
                    del names[name]
                dropped += 1
    for name in ("_", "__", "___"):
        if hook is not None and id(getattr(hook, name, None)) in wanted:
            setattr(hook, name, "")
            dropped += 1
    out = getattr(shell, "user_ns", {}).get("Out", {})
    for number in [n for n, value in out.items() if id(value) in wanted]:
        del out[number]
        dropped += 1
    last = getattr(shell, "last_execution_result", None)
    if last is not None and id(last.result) in wanted:
        last.result = None
        dropped += 1
    return dropped
