"""``%gpu_mem --log FILE``: readings written to a file by a thread that never prints; and such a file read again."""

from __future__ import annotations

import csv
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import Missing, UserError
from .model import Device, Memory, Reading
from .table import MemoryTable

__all__ = ["FIELDS", "Recorder", "load", "start", "stop"]

FIELDS = (
    "time", "label", "index", "parent", "cuda", "name", "uuid", "total", "used", "free", "reserved_by_driver",
    "utilization", "temperature", "power", "allocated", "cached", "fragmented", "context", "pools", "other_kernels",
    "other_processes", "untold", "unattributed", "error",
)  # fmt: skip
"""Columns of a recording: seconds since the epoch, bytes, percent, degrees Celsius, watts."""
_WORDS = frozenset({"label", "name", "uuid", "error"})
_REAL = frozenset({"time", "power"})
_NEWER = frozenset({"untold"})
"""Columns that earlier recordings do not have."""
ENDINGS = (".csv", ".jsonl", ".parquet")


def _ending(path: Path) -> str:
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"gpu_mem: a recording ends in .csv, .jsonl or .parquet, not {path.suffix or path.name!r}.")
    return path.suffix.lower()


def _rows(table: MemoryTable, after: float = 0.0) -> list[dict[str, Any]]:
    """One row a device. Rows of one time are one reading, so the time is later than `after`, the reading before."""
    stamp = {"time": round(max(table.reading.time, after + 0.001), 3), "label": table.reading.label}
    return [{name: {**row, **stamp}.get(name) for name in FIELDS} for row in table.rows()]


class Recorder:
    """Writes one row a device and tick until `stop`. CSV and JSONL grow line by line, Parquet is written at the end.

    Parameters
    ----------
    path
        Where to; its ending decides the format. An existing file is replaced.
    read
        Gives one reading.
    interval
        Seconds between two.

    Raises
    ------
    UserError
        If the file cannot be written or its ending is none of ours.
    Missing
        If Parquet is asked for and pandas or pyarrow is not installed.
    """

    def __init__(self, path: Path, read: Callable[[], MemoryTable], interval: float) -> None:
        self.path, self.interval = path, interval
        self.ticks = 0
        self.failure = ""
        """Why the recording ended by itself."""
        self._ending = _ending(path)
        self._read = read
        self._kept: list[dict[str, Any]] = []
        if self._ending == ".parquet":
            _parquet()
        try:
            binary = self._ending == ".parquet"
            self._file: IO[Any] = path.open("wb") if binary else path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise UserError(f"gpu_mem: {path} cannot be written: {error.strerror}.") from None
        if self._ending == ".csv":
            self._write(",".join(FIELDS) + "\n")
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cuda_magic recorder", daemon=True)
        self._thread.start()

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def _run(self) -> None:
        due, last = time.monotonic(), 0.0
        while True:
            try:
                rows = _rows(self._read(), last)
                self._tick(rows)
                last = rows[-1]["time"] if rows else last
            except Exception as error:  # noqa: BLE001 - a traceback here would land in somebody's cell
                self.failure = f"{type(error).__name__}: {error}"
                return
            due = max(due + self.interval, time.monotonic())
            if self._halt.wait(max(0.0, due - time.monotonic())):
                return

    def _tick(self, rows: list[dict[str, Any]]) -> None:
        if self._ending == ".jsonl":
            self._write("".join(json.dumps(row) + "\n" for row in rows))
        elif self._ending == ".csv":
            lines = io.StringIO()
            csv.DictWriter(lines, FIELDS, lineterminator="\n").writerows(rows)
            self._write(lines.getvalue())
        else:
            self._kept += rows
        self.ticks += 1

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> str:
        """End the recording; a sentence on what was written."""
        self._halt.set()
        self._thread.join(timeout=5)
        if self._ending == ".parquet":
            _parquet().DataFrame(self._kept, columns=list(FIELDS)).to_parquet(self._file)
        self._file.close()
        why = f" It ended by itself: {self.failure}." if self.failure else ""
        return f"{self.ticks} {'reading' if self.ticks == 1 else 'readings'} written to {self.path}.{why}"


def _parquet() -> Any:
    """pandas with an engine for Parquet."""
    from ..result import pandas

    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise Missing("a recording in Parquet needs pyarrow: %pip install pyarrow") from None
    return pandas("a recording in Parquet")


def load(path: Path) -> list[MemoryTable]:
    """The readings of a recording, oldest first.

    Raises
    ------
    UserError
        If it is not there or not a recording; a last line that was cut off is passed by.
    """
    ending = _ending(path)
    try:
        rows = list(_load(path, ending))
    except FileNotFoundError:
        raise UserError(f"gpu_mem: there is no file {path}.") from None
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise UserError(f"gpu_mem: {path} is not a recording of %gpu_mem --log ({type(error).__name__}).") from None
    if not rows:
        raise UserError(f"gpu_mem: {path} holds no reading.")
    grouped: dict[float, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["time"], []).append(row)
    return [_table(stamp, some) for stamp, some in sorted(grouped.items())]


def _load(path: Path, ending: str) -> Iterator[dict[str, Any]]:
    if ending == ".parquet":
        frame = _parquet().read_parquet(path)
        for row in frame.to_dict("records"):
            # a column with unknown values comes back as float with NaN
            yield _typed({k: None if v is None or v != v else v for k, v in row.items()})  # noqa: PLR0124
        return
    with path.open(encoding="utf-8", newline="") as file:
        if ending == ".csv":
            reader = csv.DictReader(file)
            there = tuple(reader.fieldnames or ())
            if there not in (FIELDS, tuple(name for name in FIELDS if name not in _NEWER)):
                raise ValueError("other columns")
            for row in reader:
                if None not in row.values():
                    yield _typed({k: None if v == "" and k != "label" else v for k, v in row.items()})
            return
        lines = file.read().split("\n")
        for i, line in enumerate(lines):
            if line.strip():
                try:
                    yield _typed(json.loads(line))
                except ValueError:
                    if i < len(lines) - 1:
                        raise


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    typed: dict[str, Any] = {}
    for name in FIELDS:
        value = row.get(name) if name in _NEWER else row[name]
        if value is not None:
            value = str(value) if name in _WORDS else float(value) if name in _REAL else int(value)
        typed[name] = value
    return typed


def _table(stamp: float, rows: list[dict[str, Any]]) -> MemoryTable:
    from ..memory.split import Split

    devices = []
    splits = []
    for row in rows:
        memory = Memory(row["total"], row["used"], row["free"], row["reserved_by_driver"])
        devices.append(
            Device(
                row["index"],
                row["name"],
                row["uuid"],
                memory=memory,
                utilization=row["utilization"],
                temperature=row["temperature"],
                power=row["power"],
                parent=row["parent"],
                error=row["error"],
            )
        )
        splits.append(
            Split(
                row["index"],
                row["total"],
                row["used"],
                row["cuda"],
                row["allocated"],
                row["cached"],
                row["fragmented"],
                row["context"],
                row.get("pools"),
                row["other_kernels"],
                row["other_processes"],
                row["unattributed"],
                row["reserved_by_driver"],
                untold=row["untold"],
            )
        )
    label = rows[0]["label"] or ""
    return MemoryTable(Reading(stamp, tuple(devices), label=label), tuple(splits))


_current: Recorder | None = None


def start(path: Path, read: Callable[[], MemoryTable], interval: float) -> Recorder:
    """Begin a recording; one that runs is ended first."""
    global _current
    stop()
    _current = Recorder(path, read, interval)
    return _current


def stop() -> str:
    """End the recording; a sentence, or nothing where there was none."""
    global _current
    ended, _current = _current, None
    return ended.stop() if ended is not None else ""
