"""Configurations for comparisons with torch's own parser: legal ones, and ones broken in the ways people break them."""
# ruff: noqa: SIM905 - lists of words

from __future__ import annotations

import random

from cuda_magic.environment.allocator_options import OPTIONS

NUMBERS = (
    "0 1 2 3 4 8 10 11 12 16 19 20 21 32 50 64 100 128 129 256 512 1000 1024 65536 131072 -1 -20 +20 20.7 64MB 0x30 "
    "1e3 4294967296 17592186044415 17592186044416 18446744073709551615 18446744073709551616 99999999999999999999999 "
    "-18446744073709551600 -18446744073709551615 -18446744073709551616 --1 +-1 x unlimited ２０"
).split()
REALS = (
    "0 0.0 0.1 0.5 .5 5.e-1 0.8 0.9 0.999999 1 1.0 1.5 -0.5 -0 +.5 nan inf -inf infinity 1e-3 1e-400 1e400 0x1p-1 "
    "0x.8p0 0x 0x1 . e 1e .5e .5x 0.5.5 True １"
).split()
FLAGS = "True False true false TRUE 1 0 yes Truex".split()
BACKENDS = "native cudaMallocAsync cudaMalloc cudart NATIVE cudamallocasync".split()
BAD_KEYS = "bogus expandeable_segments Backend backends max_split_size expandable_segments=True x > ] a-b".split()
PIECES = [",", ":", "[", "]", " ", "\t", ";", "=", ",,", "::", "'", '"', ">", "é"]


def _value(random_: random.Random, key: str, kind: str) -> str:
    if random_.random() < 0.08:
        return random_.choice([*NUMBERS, *REALS, *FLAGS, *BACKENDS, ""])
    if kind == "flag":
        return random_.choice([*FLAGS[:2] * 4, *FLAGS])
    if kind == "backend":
        return random_.choice([*BACKENDS[:2] * 3, *BACKENDS])
    if kind in ("open", "closed"):
        return random_.choice(REALS)
    if kind == "roundup" and random_.random() < 0.75:
        entries = []
        for _ in range(random_.randrange(0, 5)):
            border = random_.choice(
                [">", *NUMBERS] if random_.random() < 0.2 else [">", "1", "2", "64", "256", "512", "65536"]
            )
            entries.append(
                f"{border}:{random_.choice(NUMBERS if random_.random() < 0.2 else ['0', '1', '2', '4', '8'])}"
            )
        return "[" + ",".join(entries) + random_.choice(["]"] * 12 + ["", ",]", "]]"])
    return random_.choice(NUMBERS)


def configuration(random_: random.Random) -> str:
    """One string; about half of them are legal."""
    parts = []
    for _ in range(random_.choice([0, 1, 1, 1, 2, 2, 3, 4])):
        option = random_.choice(OPTIONS)
        key = option.key if random_.random() < 0.95 else random_.choice(BAD_KEYS)
        separator = ":" if random_.random() < 0.96 else random_.choice(PIECES)
        parts.append(f"{key}{separator}{_value(random_, key, option.kind)}")
    text = ("," if random_.random() < 0.95 else random_.choice([" ", ";", ", ", ",,"])).join(parts)
    while random_.random() < 0.2:
        place = random_.randrange(len(text) + 1)
        cut = random_.randrange(3)
        text = text[:place] + (random_.choice(PIECES) if random_.random() < 0.6 else "") + text[place + cut :]
    return text
