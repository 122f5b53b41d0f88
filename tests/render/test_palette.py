"""One palette and one legend: seen in grey, by any eye, on any ground, and where styles are stripped."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

import cuda_magic.testing
from cuda_magic.devices.command import once
from cuda_magic.machine import use
from cuda_magic.memory.map import heap_map
from cuda_magic.render import html, text
from cuda_magic.render.blocks import Bar, Legend, Part
from cuda_magic.render.palette import LOOKS, look, paint, pattern_svg

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
EYES = {
    "common": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
    "grey": ((0.2126, 0.7152, 0.0722),) * 3,
}
DRAWN = [one for one in LOOKS if one.pattern != "none"]


def linear(colour):
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def seen(colour, eye):
    return [min(1.0, max(0.0, sum(f * v for f, v in zip(row, linear(colour), strict=True)))) for row in EYES[eye]]


def light(rgb):
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def contrast(a, b):
    high, low = max(light(a), light(b)), min(light(a), light(b))
    return (high + 0.05) / (low + 0.05)


def shape(one):
    return (one.pattern, one.angle, one.on, one.off)


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("ground", ["#ffffff", "#111111", "#212121"])
def test_every_part_stands_out_from_the_page(eye, ground):
    """WCAG 1.4.11: 3 to 1 for graphics, in the light and the dark theme, as each eye sees it."""
    low = 3.0 if eye in ("common", "grey") else 2.5
    for one in DRAWN:
        assert contrast(seen(one.colour, eye), seen(ground, eye)) >= low, one.id


@pytest.mark.parametrize("eye", EYES)
def test_no_two_parts_look_the_same(eye):
    """Any two differ in their pattern, or in lightness by a quarter as each eye sees it; never in the hue alone."""
    for a, b in combinations(DRAWN, 2):
        if shape(a) == shape(b):
            assert contrast(seen(a.colour, eye), seen(b.colour, eye)) >= 1.25, (a.id, b.id)
        else:
            share = abs(a.on / (a.on + a.off) - b.on / (b.on + b.off))
            assert a.pattern != b.pattern or a.angle != b.angle or share > 0.2, (a.id, b.id)


def test_each_mark_and_each_words_once():
    assert len({one.mark for one in LOOKS}) == len({one.words for one in LOOKS}) == len(LOOKS)


def test_a_part_is_painted_the_same_on_every_card_and_named_by_a_swatch():
    """Its colour is its own, whatever stands before it in the bar: found where two cards held different things."""
    blocks = [
        Bar("GPU 0", [Part("tensors", 5, "#", "live"), Part("other processes", 5, "=", "others")], 20),
        Bar("GPU 2", [Part("other processes", 5, "=", "others")], 20),
        Legend(("live", "others")),
    ]
    drawn = html.draw(blocks)
    assert drawn.count(paint(look("others"))) == 3 and drawn.count(f"background:{paint(look('live'))};") == 2
    assert "# tensors  = other processes" in text.draw(blocks)


def stripped(page):
    """`page` as a site shows it that takes away styles."""
    return re.sub(r' style="[^"]*"', "", page)


def shown(page):
    """The words that are seen."""
    page = re.sub(r'<span style="display:none">.*?</span>', "", page)
    return re.sub(r"<[^>]+>", "", page)


@pytest.fixture
def gpu():
    yield cuda_magic.testing.gpu(["24 GiB", "8 GiB"], force=True)
    use(None)


def test_where_styles_are_stripped_the_marks_take_their_place(gpu):
    """--once and --map: bars and legend in marks, and with styles neither is said twice."""
    gpu.keep = [gpu.empty("256 MiB") for _ in range(6)]
    del gpu.keep[::2]
    for result in (once(), heap_map()):
        page = result._repr_html_()
        bare = shown(stripped(page))
        assert "[#" in bare and "# tensors" in bare
        assert "[#" not in shown(page) and "# tensors" not in shown(page) and "tensors" in shown(page)


def test_forty_segments_are_said_to_be_not_all_drawn(gpu):
    """What is left out is said, in text and in HTML; the legend is the palette's."""
    gpu.keep = [gpu.empty(f"{20 + i} MiB") for i in range(41)]
    drawn = heap_map()
    count = len(drawn.devices[0].segments)
    assert count == 41
    for page in (repr(drawn), shown(drawn._repr_html_())):
        assert f"{count - 24} smaller segments" in page and "are not drawn" in page and "tensors" in page


def test_a_segment_of_very_many_blocks_keeps_its_bytes(gpu):
    """Its bar has at most a few hundred pieces that add up to its size."""
    from cuda_magic.memory.allocator import Block as Piece
    from cuda_magic.memory.allocator import Segment
    from cuda_magic.memory.map import PIECES, _pieces

    blocks = tuple(Piece(512 * i, 512, "live" if i % 2 else "free") for i in range(3001))
    pieces = _pieces(Segment(0, 0, 512 * 3001, blocks))
    assert len(pieces) <= PIECES + 1 and sum(piece.amount for piece in pieces) == 512 * 3001


def test_svg_and_css_draw_each_pattern():
    """Each look has a pattern in both, in its own colour."""
    for one in DRAWN:
        assert one.colour in paint(one) and one.colour in pattern_svg(one, "x")
