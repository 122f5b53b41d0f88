"""``%gpu_mem``: who holds the memory of each GPU, now?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..errors import Refused, UserError
from .eye import watch
from .options import Option, Spec

SPEC = Spec(
    name="gpu_mem",
    summary=(
        "Show who holds the memory of each GPU: a live panel, one reading, processes, variables, segments."
        " %%gpu_mem runs a cell and says what it took."
    ),
    options=(
        Option("--once", "one reading, as a table that a saved notebook keeps"),
        Option("--df", "the reading as a pandas DataFrame; goes with --who, --map, --free, --history and --replay too"),
        Option("--json", "the same as a dict, sizes in bytes"),
        Option("--who", "processes on each GPU with their notebooks, and this kernel's variables by bytes"),
        Option("--map", "picture of the allocator's segments, and the largest tensor that fits"),
        Option("--snapshot", "write torch's memory snapshot for the viewer at pytorch.org/memory_viz", "FILE"),
        Option("--free", "give back what this kernel holds for nothing; variables stay"),
        Option("--outputs", "with --free: let go of Out and _ too"),
        Option("--log", "record readings until --stop; the ending is .csv, .jsonl or .parquet", "FILE"),
        Option("--replay", "show a recording in the panel (a table where there are no widgets)", "FILE"),
        Option("--history", "the panel's readings over time, as a picture; with --df as a DataFrame"),
        Option("--interval", "seconds between two readings (at least 0.25)", "S", {"type": float}),
        Option("--alert", "percent of a device's memory above which it is said", "PERCENT", {"type": int}),
        Option(
            "--cluster",
            "every engine's devices by host, of an ipyparallel cluster (a profile or a connection file)",
            "[PROFILE]",
            {"nargs": "?", "const": "", "metavar": "PROFILE"},
        ),
        Option("--stop", "stop the panel and the recording"),
        Option("--nvtx", "with a cell: mark it as an NVTX range, for Nsight Systems"),
    ),
    examples=(
        ("%gpu_mem", "live panel (a table where there is no widget front end)"),
        ("%gpu_mem --once", "one reading"),
        ("%gpu_mem --df", "one reading as a DataFrame"),
        ("%gpu_mem --json", "one reading as a dict"),
        ("%gpu_mem --interval 2 --alert 90", "a panel that reads every two seconds and warns above 90 %"),
        ("%gpu_mem --who", "which process, notebook and variable holds what"),
        ("%gpu_mem --map", "live, cached, and lost to fragmentation"),
        ("%gpu_mem --snapshot trace.pickle", "for torch's own viewer"),
        ("%gpu_mem --free --outputs", "give back, shown values too"),
        ("%gpu_mem --log run.csv --interval 2", "record in the background"),
        ("%gpu_mem --replay run.csv", "look at a recording"),
        ("%gpu_mem --history --df", "what the panel's chart shows, as numbers"),
        ("%gpu_mem --cluster", "live panel of every engine's devices, by host"),
        ("%gpu_mem --cluster PROFILE --once", "one reading of them"),
        ("%gpu_mem --stop", "stop the panel and the recording"),
        (
            "%%gpu_mem",
            "run the cell, then say what it took at most and what stays (restarts torch's peak counter)",
        ),
        ("%%gpu_mem --nvtx", "the same as an NVTX range"),
    ),
)
FLOOR = 0.25
"""Shortest interval in seconds."""
CEILING = 86400
"""Longest interval in seconds: a day."""
_ACTIONS = ("once", "who", "map", "snapshot", "free", "log", "replay", "history", "stop")


def run(magics: Any, line: str, cell: str | None) -> Any:
    """The result of one ``%gpu_mem`` line or ``%%gpu_mem`` cell."""
    __tracebackhide__ = True
    if cell is None and SPEC.asks_help(line):
        return None
    options = SPEC.parse(line)
    for name in ("snapshot", "log", "replay"):
        if getattr(options, name) == "":
            raise UserError(f"gpu_mem: --{name} takes the name of a file, not an empty one.")
    if cell is not None:
        return _cell(magics, options, cell)
    asked = [name for name in _ACTIONS if getattr(options, name)]
    if len(asked) > 1:
        raise UserError(f"gpu_mem: --{asked[0]} and --{asked[1]} are two questions; ask one at a time.")
    if options.df and options.json:
        raise UserError("gpu_mem: --df and --json are two forms of one answer; ask for one.")
    if options.nvtx:
        raise UserError("gpu_mem: --nvtx marks a cell; write %%gpu_mem --nvtx on the cell's first line.")
    if options.outputs and not options.free:
        raise UserError("gpu_mem: --outputs goes with --free.")
    if options.cluster is not None and asked and asked[0] not in ("once", "stop"):
        raise UserError(
            f"gpu_mem: --{asked[0]} is asked of this kernel alone; with --cluster go --once, --df and --json."
        )
    answer = _answer(magics, options, asked[0] if asked else "")
    if options.df and answer is not None:
        return answer.to_dataframe()
    if options.json and answer is not None:
        return answer.to_dict()
    return watch(magics.shell, answer) if asked == ["once"] else answer


def _answer(magics: Any, options: Any, asked: str) -> Any:
    settings = magics.settings
    alert = settings.alert if options.alert is None else options.alert
    if not 1 <= alert <= 100:
        raise UserError(f"gpu_mem: --alert takes a percentage from 1 to 100, not {alert}.")
    if asked == "stop":
        return _stop()
    if asked == "who":
        from ..memory.who import who

        return who(magics.shell.user_ns, magics.shell)
    if asked == "map":
        from ..memory.map import heap_map

        return heap_map()
    if asked == "free":
        from ..memory.free import free

        return free(magics.shell, options.outputs)
    if asked == "snapshot":
        return _snapshot(Path(options.snapshot).expanduser())
    if asked == "history":
        from .. import panel

        return panel.over_time()
    if asked == "replay":
        from ..devices.replay import replay

        recording = replay(Path(options.replay).expanduser())
        if options.df or options.json:
            return recording
        from .. import panel

        return panel.replay(magics, recording, alert)
    interval = _interval(settings.interval if options.interval is None else options.interval)
    if asked == "log":
        return _log(Path(options.log).expanduser(), interval, alert)
    if options.cluster is not None:
        return _cluster(magics, options, asked, interval, alert)
    if asked == "once" or options.df or options.json:
        from ..devices.command import once

        return once(alert)
    from .. import panel

    return panel.show(magics, interval=interval, alert=alert)


def _cluster(magics: Any, options: Any, asked: str, interval: float, alert: int) -> Any:
    from ..cluster import command

    if asked == "once" or options.df or options.json:
        return command.once(options.cluster, magics.shell, alert)
    return command.live(options.cluster, magics.shell, interval, alert)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _interval(seconds: float) -> float:
    if not 0 < seconds <= CEILING:
        raise UserError(f"gpu_mem: --interval takes seconds from {FLOOR} to {CEILING}, not {seconds:g}.")
    if seconds < FLOOR:
        _say(f"--interval {seconds:g}: readings come every {FLOOR} s, the shortest interval.")
    return max(seconds, FLOOR)


def _log(path: Path, interval: float, alert: int) -> None:
    from ..devices.command import once
    from ..devices.recording import start

    started = start(path, lambda: once(alert), interval)
    _say(f"Recording every {started.interval:g} s to {path}, until %gpu_mem --stop.")


def _stop() -> None:
    from .. import panel

    open_before = panel.is_open()
    said = panel.stop()
    recording = sys.modules.get("cuda_magic.devices.recording")
    recorded = recording.stop() if recording is not None else ""
    if open_before or not recorded:
        _say(said)
    if recorded:
        _say(recorded)


def _snapshot(path: Path) -> None:
    from ..machine import machine
    from ..render.units import bytes_text

    allocator = machine().allocator()
    if allocator is None or not allocator.started():
        name = "torch is not imported" if allocator is None else f"{allocator.name} has not started CUDA"
        raise Refused(f"gpu_mem: {name} in this kernel: there is nothing to write.")
    write = getattr(allocator, "dump", None)
    if write is None:
        raise Refused(f"gpu_mem: the {allocator.name} has no snapshot of torch's kind; see %gpu_mem --map.")
    try:
        size = write(path)
    except OSError as error:
        raise UserError(f"gpu_mem: {path} cannot be written: {error.strerror}.") from None
    _say(f"{bytes_text(size)} written to {path}; open it at https://pytorch.org/memory_viz")


def _cell(magics: Any, options: Any, cell: str) -> Any:
    __tracebackhide__ = True
    from ..cells.run import run_plain
    from ..memory.ledger import Recorder

    wrong = [name for name in (*_ACTIONS, "df", "json", "outputs") if getattr(options, name)]
    wrong += [name for name in ("interval", "alert", "cluster") if getattr(options, name) is not None]
    if wrong:
        raise UserError(
            f"%%gpu_mem takes a cell and no --{wrong[0]}; write %gpu_mem --{wrong[0]} on a line of its own."
        )
    recorder = Recorder(f"In[{magics.hooks.number}]" if options.nvtx else "")
    try:
        return run_plain(magics, cell, recorder.done)
    except BaseException:
        recorder.close()
        raise


def close_panel() -> None:
    """Stop the panel, if one was ever shown."""
    panel = sys.modules.get("cuda_magic.panel")
    if panel is not None:
        panel.close()


def close() -> None:
    """Stop the panel and the recording (on unloading)."""
    close_panel()
    recording = sys.modules.get("cuda_magic.devices.recording")
    if recording is not None:
        recording.stop()
