"""Bytes and messages a tick of the panel, beside one ipywidgets.HTML and rows of HBox, for the same readings.

    python benchmarks/panel.py [FILE.json]

A real kernel, its iopub channel counted here as a server would see it. 8 devices that change at each reading, written
by tests/fakes/moving.py; needs no GPU, and anywidget in this environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parent.parent
DEVICES, TICKS, INTERVAL = 8, 20, 0.25

PREPARE = f"""
import time, ipywidgets
from fakes.moving import Moving
%load_ext cuda_magic
Moving({DEVICES}).install()
from cuda_magic.devices.command import once
"""
ONE_HTML = f"""
for _ in range({TICKS}):
    view.value = once()._repr_html_()
"""
ROWS = f"""
for _ in range({TICKS}):
    for (bar, used, util, temp, power), device in zip(lines, once().reading.devices):
        bar.value = device.memory.used / device.memory.total
        used.value = f"{{device.memory.used / 2**30:.1f}} / {{device.memory.total / 2**30:.1f}} GiB"
        util.value, temp.value = f"{{device.utilization}} %", f"{{device.temperature}} C"
        power.value = f"{{device.power:.0f}} W"
"""
MAKE_ROWS = f"""
lines = [(ipywidgets.FloatProgress(max=1), *(ipywidgets.Label() for _ in range(4))) for _ in range({DEVICES})]
box = ipywidgets.VBox([ipywidgets.HBox(line) for line in lines])
"""


class Channel:
    """The kernel's iopub channel, every message with its size on the wire."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.session = client.session

    def next(self, seconds: float) -> tuple[dict[str, Any], int] | None:
        """(message, bytes), or None when none comes in time."""
        socket = self.client.iopub_channel.socket
        if not socket.poll(int(1000 * seconds)):
            return None
        _, parts = self.session.feed_identities(socket.recv_multipart())
        return self.session.deserialize(parts), sum(map(len, parts[1:]))  # the signature stays on this side

    def run_for(self, code: str) -> str:
        """What a cell prints."""
        request = self.client.execute(code)
        text = ""
        while (heard := self.next(30)) is not None:
            message, _ = heard
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                text += message["content"]["text"]
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return text
        raise RuntimeError("the kernel does not answer")

    def run(self, code: str) -> list[tuple[dict[str, Any], int]]:
        """What a cell sends of widgets until the kernel is idle again."""
        request = self.client.execute(code)
        found = []
        while (heard := self.next(30)) is not None:
            message, _ = heard
            kind, parent = message["msg_type"], message["parent_header"].get("msg_id")
            if kind == "error":
                raise RuntimeError("\n".join(message["content"]["traceback"]))
            if kind.startswith("comm_"):
                found.append(heard)
            if kind == "status" and message["content"]["execution_state"] == "idle" and parent == request:
                return found
        raise RuntimeError("the kernel does not answer")


def panel(channel: Channel) -> list[int]:
    """Sizes of the messages of `TICKS` ticks, a page in view."""
    opened = channel.run(f"%gpu_mem --interval {INTERVAL}")
    keys = [m["content"]["data"]["state"].get("key") for m, _ in opened if m["msg_type"] == "comm_open"]
    key = next(filter(None, keys))
    said = {"t": "ready", "key": key, "cid": "page", "see": True}
    client = channel.client
    message = client.session.msg("comm_info_request", {"target_name": "cuda_magic.panel", "cuda_magic": said})
    client.control_channel.send(message)
    sizes: list[int] = []
    end = time.monotonic() + (TICKS + 4) * INTERVAL
    while len(sizes) <= TICKS and time.monotonic() < end:
        heard = channel.next(INTERVAL)
        if heard is None:
            continue
        found, size = heard
        if found["msg_type"] == "comm_msg" and found["content"]["data"].get("method") == "custom":
            sizes.append(size)
    channel.run("%gpu_mem --stop")
    return sizes[1:]  # the first carries the history


def measure() -> dict[str, dict[str, float]]:
    """Messages and bytes a tick of each way."""
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    manager, client = start_new_kernel(kernel_name="python3", env=env)
    try:
        channel = Channel(client)
        channel.run(PREPARE)
        sizes = panel(channel)
        found = {"%gpu_mem panel": (len(sizes), sum(sizes), len(sizes))}
        for name, make, tick in (
            ("one ipywidgets.HTML, the table of --once", "view = ipywidgets.HTML()", ONE_HTML),
            ("HBox rows: FloatProgress and 4 Labels each", MAKE_ROWS, ROWS),
        ):
            channel.run(make)
            heard = channel.run(tick)
            found[name] = (len(heard), sum(size for _, size in heard), TICKS)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return {name: {"messages": m / ticks, "bytes": b / ticks} for name, (m, b, ticks) in found.items()}


def main() -> None:
    rows = measure()
    base = next(iter(rows.values()))["bytes"]
    print(f"{DEVICES} devices, all of them changed, a tick")
    print(f"{'':46} {'messages':>9} {'bytes':>9} {'ratio':>7}")
    for name, row in rows.items():
        print(f"{name:46} {row['messages']:9.1f} {row['bytes']:9.0f} {row['bytes'] / base:7.1f}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps({"devices": DEVICES, "a tick": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
