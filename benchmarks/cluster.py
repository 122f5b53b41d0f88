"""What a tick of ``%gpu_mem --cluster`` costs the notebook's kernel and the page, from 8 to 512 devices and beyond.

    python benchmarks/cluster.py [FILE.json FILE.svg]

Simulated engines of 8 devices, all of which change at each reading. The real code runs at both ends: each engine's own
`Sampler` reads, forms the changed rows, signs and publishes; a real Jupyter kernel listens, merges and sends to the
page. Only the machines are made up, and the cluster's relay is one socket. The kernel's cost is the CPU time of the
panel's thread (``time.thread_time``), the page's is the size of all messages on the kernel's iopub channel. Needs
ipykernel, ipyparallel and anywidget; no GPU, no cluster.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parent.parent
EACH = 8
ENGINES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ASKED = (64, 5.0, 32.0)
"""Engines, milliseconds and kB that a tick may cost at most."""
SHARED = (64, 8)
"""Engines and hosts where each host runs one engine a card."""
TICKS = 12
INTERVAL = 1.0
KEY = b"benchmark of a cluster"
LISTENER = "0123456789abcdef"


# -- the engines: one process plays all of them
def farm(engines: int, interval: float, hosts: int) -> None:
    """Tick `engines` samplers on `hosts` hosts whenever a line comes, until the standard input closes."""
    import zmq
    from fakes.moving import Moving
    from jupyter_client.session import Session

    from cuda_magic.cluster.sampler import Sampler
    from cuda_magic.devices.model import Reading
    from cuda_magic.machine import use

    socket = zmq.Context.instance().socket(zmq.PUB)
    socket.sndhwm = 0
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    class Machine(Moving):
        host = ""
        mine = -1  # the card that this engine uses, where others use the rest

        def live(self, i: int) -> int:
            return super().live(i) if self.mine in (-1, i) else 0

        def read(self, **options: bool) -> Reading:
            from dataclasses import replace

            read = super().read(**options)
            named = tuple(replace(d, uuid=f"GPU-{self.host}-{d.index}") for d in read.devices)
            return replace(read, devices=named)

    class Kernel:
        iopub_socket = socket

        def __init__(self, number: int) -> None:
            self.engine_id = number
            self.session = Session(key=KEY)

    machines, samplers = [], []
    for i in range(engines):
        machine = Machine(EACH)
        machine.host = f"node{i % hosts:04}"
        machine._at = 13 * (i % hosts)
        machine.mine = -1 if hosts == engines else i // hosts
        machines.append(machine)
        samplers.append(Sampler(Kernel(i), LISTENER, interval, 95, 1e9))
    print(port, flush=True)
    while sys.stdin.readline():
        for machine, sampler in zip(machines, samplers, strict=True):
            use(machine)
            sampler.tick()
        print("ticked", flush=True)


# -- the notebook's kernel
PREPARE = """
import time, zmq, json
from jupyter_client.session import Session
from cuda_magic.cluster import feed, live
from cuda_magic.cluster.connect import Cluster
%load_ext cuda_magic

class Client:  # what the panel needs of ipyparallel's
    _closed, _ssh = False, False
    curve_serverkey = curve_secretkey = curve_publickey = None
    def __init__(self, count, port):
        self.session, self._context = Session(key={key!r}), zmq.Context.instance()
        self._config = {{"iopub": f"tcp://127.0.0.1:{{port}}"}}
        self.ids = list(range(count))
        self._engines = {{i: f"engine {{i}}" for i in self.ids}}
        self._control_stream = None
    def __getitem__(self, engine):
        return self
    def apply_async(self, *_):
        return self
    msg_ids = ()
    ready = lambda self: True
    get = lambda self, timeout=None: '{{"value": {{}}}}'
    def _send(self, *_, **__):
        return None
    def close(self, linger=None):
        pass

def follow(count, port, interval):
    global cost, panel
    cost = []
    class Timed(live.ClusterPanel):
        def _read(self):
            began = time.thread_time()
            super()._read()
            cost.append([time.thread_time() - began, 0.0, self.feed.heard])
        def _tell(self):
            began = time.thread_time()
            super()._tell()
            if cost: cost[-1][1] += time.thread_time() - began
    class Feed(feed.Feed):
        def __init__(self, *a):
            super().__init__(*a)
        def _listen(self):
            self.key = {listener!r}
            return super()._listen()
    live.Feed = Feed
    live.FIRST = 0.3
    panel = Timed.follow(get_ipython(), Cluster(Client(count, port), None, "simulated"), interval, 95)
"""


def measure(client: Any, engines: int, hosts: int) -> dict[str, float]:
    """Milliseconds and bytes a tick, at `engines` engines of which each sees its host's 8 devices."""
    from benchmarks.panel import Channel

    channel = Channel(client)
    command = [sys.executable, __file__, "--farm", str(engines), str(INTERVAL), str(hosts)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None

    def tick() -> None:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()

    try:
        port = int(child.stdout.readline())
        opened = channel.run(f"follow({engines}, {port}, {INTERVAL})")
        keys = [m["content"]["data"]["state"].get("key") for m, _ in opened if m["msg_type"] == "comm_open"]
        key = next(filter(None, keys))
        said = {"t": "ready", "key": key, "cid": "page", "see": True}
        body = {"target_name": "cuda_magic.panel", "cuda_magic": said}
        client.control_channel.send(client.session.msg("comm_info_request", body))
        time.sleep(0.5)
        for _ in range(3):  # everybody is known then, and the page has it all
            tick()
            time.sleep(INTERVAL)
        while channel.next(0.3) is not None:
            pass
        channel.run("cost.clear()")
        sizes, total = [], 0
        for _ in range(TICKS):
            tick()
            end = time.monotonic() + INTERVAL
            while (left := end - time.monotonic()) > 0:
                heard = channel.next(left)
                if heard is None or heard[0]["msg_type"] != "comm_msg":
                    continue
                total += heard[1]  # names that changed, if any, go before a tick's values
                if heard[0]["content"]["data"].get("method") == "custom":
                    sizes.append(total)
                    total = 0
        found = channel.run_for("print(json.dumps(cost))")
        costs = [row for row in json.loads(found) if row[2]]
        channel.run("panel.close()")
    finally:
        child.stdin.close()
        child.wait(10)
    return {
        "engines": engines,
        "devices": EACH * hosts,
        "kernel_ms": round(1000 * statistics.median(a + b for a, b, _ in costs), 2),
        "kernel_ms_max": round(1000 * max(a + b for a, b, _ in costs), 2),
        "take_in_ms": round(1000 * statistics.median(a for a, _, _ in costs), 2),
        "page_kB": round(max(sizes) / 1000, 2),
    }


def foreign() -> float:
    """Microseconds that a client of ipyparallel's spends on one engine's message before it passes it by."""
    from fakes.moving import Moving
    from jupyter_client.session import Session

    from cuda_magic.cluster.sampler import Sampler
    from cuda_magic.machine import use

    class Kernel:
        engine_id, iopub_socket = 0, None
        session = Session(key=KEY)

    kept: list[list[bytes]] = []

    class Kept(Sampler):
        def send(self, content: dict[str, Any]) -> None:
            session = self.kernel.session
            message = session.msg("cuda_magic", content, metadata={"engine": "0" * 41})
            kept.append(session.serialize(message, ident=b"cuda_magic." + LISTENER.encode()))

    use(Moving(EACH))
    sampler = Kept(Kernel(), LISTENER, INTERVAL, 95, 1e9)
    for _ in range(200):
        sampler.tick()
    theirs = Session(key=KEY)
    spent = []
    for frames in kept[1:]:
        began = time.thread_time()
        _, rest = theirs.feed_identities(frames)
        theirs.deserialize(rest, content=True)
        spent.append(time.thread_time() - began)
    return 1e6 * statistics.median(spent)


def main() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    os.environ["PYTHONPATH"] = env["PYTHONPATH"]
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    manager, client = start_new_kernel(kernel_name="python3", env=env)
    try:
        from benchmarks.panel import Channel

        Channel(client).run(PREPARE.format(key=KEY, listener=LISTENER))
        rows = [measure(client, engines, engines) for engines in ENGINES]
        shared = measure(client, *SHARED)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    print(f"{'engines':>8}{'devices':>9}{'kernel ms a tick':>18}{'highest':>9}{'page kB a tick':>16}")
    for row in [*rows, shared]:
        costs = f"{row['kernel_ms']:18.2f}{row['kernel_ms_max']:9.2f}{row['page_kB']:16.1f}"
        print(f"{row['engines']:8}{row['devices']:9}{costs}")
    if len(sys.argv) > 2:
        where = {"python": platform.python_version(), "processors": os.cpu_count(), "machine": platform.machine()}
        found = {
            "where": where,
            "a tick": rows,
            "a tick, an engine a card": shared,
            "another client, us a message": round(foreign()),
        }
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
        Path(sys.argv[2]).write_text(plot(rows))
    engines, ms, kb = ASKED
    asked = next(row for row in rows if row["engines"] == engines)
    if asked["kernel_ms"] > ms or asked["page_kB"] > kb:
        sys.exit(f"{engines} engines: more than {ms} ms or {kb} kB a tick")


# -- the picture
def plot(rows: list[dict[str, float]]) -> str:
    """Both costs over the number of devices, each beside its bound; both axes logarithmic."""
    panes = (("kernel_ms", "the notebook's kernel, ms a tick", ASKED[1]), ("page_kB", "the page, kB a tick", ASKED[2]))
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 300" font-family="sans-serif" font-size="12">',
        '<rect width="760" height="300" fill="#fff"/>',
    ]
    for pane, (name, title, bound) in enumerate(panes):
        parts += _pane(rows, name, title, bound, 60 + 370 * pane)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _pane(rows: list[dict[str, float]], name: str, title: str, bound: float, left: int) -> list[str]:
    from math import log10

    width, top, height = 290, 40, 205
    low, high = -1.0, 2.0

    def x(devices: float) -> float:
        first, last = log10(rows[0]["devices"]), log10(rows[-1]["devices"])
        return left + width * (log10(devices) - first) / (last - first)

    def y(value: float) -> float:
        return top + height * (1 - (log10(max(value, 0.1)) - low) / (high - low))

    parts = [f'<text x="{left}" y="24" font-weight="600">{title}</text>']
    for value in (0.1, 1, 10, 100):
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#444">{value:g}</text>')
    for row in rows:
        at = f"{x(row['devices']):.1f}"
        parts.append(f'<text x="{at}" y="{top + height + 18}" text-anchor="middle" fill="#444">{row["devices"]}</text>')
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle" fill="#444">devices</text>'
    )
    spot = f'x1="{left}" x2="{left + width}" y1="{y(bound):.1f}" y2="{y(bound):.1f}"'
    parts.append(f'<line {spot} stroke="#b3261e" stroke-dasharray="5 4"/>')
    parts.append(f'<text x="{left + 4}" y="{y(bound) - 5:.1f}" fill="#b3261e">asked: at most {bound:g} at 512</text>')
    line = " ".join(f"{x(row['devices']):.1f},{y(row[name]):.1f}" for row in rows)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1a6fc4" stroke-width="2"/>')
    for row in rows:
        spot = f'cx="{x(row["devices"]):.1f}" cy="{y(row[name]):.1f}"'
        parts.append(f'<circle {spot} r="3.5" fill="#1a6fc4"><title>{row[name]}</title></circle>')
        if row["devices"] in (8, 512, rows[-1]["devices"]):
            spot = f'x="{x(row["devices"]):.1f}" y="{y(row[name]) + 18:.1f}"'
            parts.append(f'<text {spot} text-anchor="middle">{row[name]:.1f}</text>')
    return parts


if __name__ == "__main__":
    if "--farm" in sys.argv:
        farm(int(sys.argv[-3]), float(sys.argv[-2]), int(sys.argv[-1]))
    else:
        main()
