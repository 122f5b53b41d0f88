"""CUDA_VISIBLE_DEVICES: our reading against torch's parser and its device count over a fake NVML."""
# ruff: noqa: E501 - lists of values

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from cuda_magic.devices.model import Device
from cuda_magic.environment.visible import parse, resolve

UUIDS = [f"GPU-{n}1111111-0000-0000-0000-00000000000{n}" for n in (1, 1, 2, 3)]
UUIDS[1] = "GPU-12222222-0000-0000-0000-000000000001"
CARDS = [Device(i, name="Card", uuid=uuid) for i, uuid in enumerate(UUIDS)]
VALUES = [
    "", "-1", "a", "none", "all", "NoDevFiles", "gpu-1111", "0,1", "1,0", " 0 , 1 ", "+1", "00,1", "１", "1gpu2,2ampere",
    "0;1", "0 1", "0x1", "0,-1,1", "0,a,1", "0,9,1", "9,0", "4", "0,0", "0,1,0", "GPU-1111", "GPU-", "GPU-1", "GPU-2",
    "GPU-2,GPU-2", "GPU-2,GPU-21111111", "GPU-2,0", "0,GPU-2", "MIG-aaaa", "GPU-9", "GPU-2,GPU-9,GPU-3", ",", "0,,1", "0,1gpu",
]  # fmt: skip
CHILD = """
import json, os, sys, warnings
import torch
torch._C._cuda_getDeviceCount = lambda: 0
torch.cuda._is_compiled = lambda: True
out = []
for value in json.load(sys.stdin):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
    try:
        out.append([torch.cuda._parse_visible_devices(), torch.cuda._device_count_nvml()])
    except ValueError:
        out.append([None, None])
json.dump(out, sys.stdout)
"""


def _strings() -> list[str]:
    draw = random.Random(5)
    pieces = [
        "0",
        "1",
        "2",
        "3",
        "4",
        "9",
        "-1",
        "+1",
        "00",
        "１",
        "x",
        "1gpu",
        "",
        " 1",
        "GPU-1",
        "GPU-2",
        "GPU-3",
        UUIDS[3],
        "MIG-1",
    ]
    made = [
        draw.choice([",", ",", ",", ";", " "]).join(draw.choices(pieces, k=draw.randrange(1, 5))) for _ in range(2000)
    ]
    return [*VALUES, *made]


@pytest.mark.torch
def test_values_are_read_as_torch_reads_them(fake_nvml):
    """For two thousand values, the entries that we take and the devices that we count are torch's, card by card."""
    for i, uuid in enumerate(UUIDS):
        fake_nvml.device(i, uuid=uuid)
    values = _strings()
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        env=fake_nvml.environment,
    )
    assert not done.returncode, done.stderr[-800:]
    for value, (entries, count) in zip(values, json.loads(done.stdout), strict=True):
        try:
            ours = parse(value)
        except ValueError:
            ours = None
        assert ours == entries, value
        devices = resolve(value, CARDS).devices
        counted = -1 if devices is None else len(devices)
        assert count is None or counted == count, (value, counted, count)


@pytest.mark.parametrize(
    ("value", "indices", "said"),
    [
        ("2", [2], ""),
        ("0,1gpu", [0, 1], "'gpu' is dropped"),
        ("0,0", [], "stands twice"),
        ("0,GPU-2", [0], "'GPU-2' is lost without a word"),
        ("7", [], "you have GPUs 0..3; this hides all of them"),
        ("0,9,1", [0], "'9', '1' are lost without a word"),
        ("gpu-1111", [], "begins with GPU- in capitals"),
        ("GPU-1", [], "fits several GPUs"),
        ("", [], "legal way to say: no GPU"),
        ("-1", [], "legal way to say: no GPU"),
        ('"0,1"', [], "the quotes are part of the value"),
    ],
)
def test_silent_losses_are_named(value, indices, said):
    """The real cards are given in the process's order, and what is silently dropped is said."""
    seen = resolve(value, CARDS)
    assert [d.index for d in seen.devices] == indices
    assert said in "; ".join(seen.lost) if said else not seen.lost
