"""The one palette: what each part of a card's memory looks like, wherever it is drawn.

A look is a colour, a pattern and a text mark. The colours keep a contrast of 3 to white and to JupyterLab's dark
ground alike, since a saved page does not know on which it will be shown; the patterns tell the parts apart in grey, in
forced colours and to any eye; the marks stand in where styles are stripped (text, GitHub).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

__all__ = ["LOOKS", "Look", "css", "data", "look", "paint", "pattern_svg"]


@dataclass(frozen=True)
class Look:
    """One part. `pattern` is solid, stripes, grid, dots or none; stripes are `on` pixels of colour, `off` of nothing,
    along `angle` degrees."""

    id: str
    words: str
    mark: str
    colour: str
    pattern: str = "solid"
    angle: int = 0
    on: int = 1
    off: int = 0


BLUE, GREEN, GREY = "#2f72cf", "#3f9f74", "#808890"
LOOKS: tuple[Look, ...] = (
    Look("live", "tensors", "#", BLUE),
    Look("cached", "cache", "+", BLUE, "stripes", 135, 3, 4),
    Look("fragmented", "cache lost to fragmentation", "~", "#c4741d", "stripes", 90, 3, 3),
    Look("pending", "freed, still used by a stream", "p", "#a461b8", "stripes", 135, 1, 5),
    Look("pools", "other libraries' pools", "l", "#94762a", "stripes", 0, 3, 3),
    Look("context", "context and libraries", "o", "#8a63d2", "grid", 0, 2, 4),
    Look("kernels", "my other kernels", "%", GREEN, "stripes", 90, 6, 2),
    Look("others", "other processes", "=", GREY, "stripes", 45, 4, 3),
    Look("untold", "not told by the driver", "u", "#b8586f", "stripes", 90, 1, 3),
    Look("unattributed", "held by nobody visible", "?", "#b8586f", "dots", 0, 3, 3),
    Look("reserved", "driver", "d", GREY, "stripes", 0, 1, 5),
    Look("free", "free", ".", "transparent", "none"),
)
"""In the order in which they are drawn."""
_BY_ID = {one.id: one for one in LOOKS}


def look(name: str) -> Look:
    """The look of a part."""
    return _BY_ID[name]


def paint(one: Look) -> str:
    """The look as the value of CSS' ``background``."""
    step = one.on + one.off
    if one.pattern == "none":
        return "none"
    if one.pattern == "stripes":
        return f"repeating-linear-gradient({one.angle}deg,{one.colour} 0 {one.on}px,transparent {one.on}px {step}px)"
    if one.pattern == "grid":
        lines = f"{one.colour} 0 {one.on}px,transparent {one.on}px {step}px"
        return f"repeating-linear-gradient(0deg,{lines}),repeating-linear-gradient(90deg,{lines})"
    if one.pattern == "dots":
        return f"radial-gradient({one.colour} 45%,transparent 50%) 0 0/{step}px {step}px"
    return one.colour


def pattern_svg(one: Look, name: str) -> str:
    """The look as an SVG ``<pattern>`` whose id is `name`."""
    step = one.on + one.off
    if one.pattern == "solid":
        step, drawn = 8, f'<rect width="8" height="8" fill="{one.colour}"/>'
    elif one.pattern == "dots":
        drawn = f'<circle cx="{step / 2}" cy="{step / 2}" r="{step * 0.32:.1f}" fill="{one.colour}"/>'
    else:
        drawn = f'<rect width="{step}" height="{one.on}" fill="{one.colour}"/>'
        if one.pattern == "grid":
            drawn += f'<rect width="{one.on}" height="{step}" fill="{one.colour}"/>'
    turn = f' patternTransform="rotate({one.angle})"' if one.angle else ""
    return f'<pattern id="{name}" width="{step}" height="{step}" patternUnits="userSpaceOnUse"{turn}>{drawn}</pattern>'


def css(looks: Iterable[Look] = LOOKS) -> str:
    """The looks as classes ``cmg-ID`` of the panel's stylesheet."""
    return "".join(f".cmg-{one.id}{{background:{paint(one)}}}" for one in looks)


def data() -> list[dict[str, object]]:
    """The looks as the panel's script gets them."""
    return [asdict(one) for one in LOOKS]
