"""Results show themselves as text and HTML, and give their fields as data."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest

from cuda_magic.render import html, text
from cuda_magic.render.blocks import Bar, Code, Note, Part, Table, Text, Title
from cuda_magic.render.units import bytes_text, parse_bytes, seconds_text
from cuda_magic.result import Result

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"


@dataclass(frozen=True, repr=False)
class Sample(Result):
    name: str = HOSTILE
    used: int | None = None

    def blocks(self):
        return [
            Title(self.name, "PRACTICE"),
            Text(self.name),
            Note("warning", self.name),
            Code(self.name),
            Table(["name", "used"], [[self.name, bytes_text(self.used)]], frozenset({1})),
            Bar(self.name, [Part("live", 512), Part(HOSTILE, 256, "=")], 1024, "half"),
        ]


def test_names_from_outside_are_text_everywhere():
    """No tag and no control character of a hostile name gets through, in either view."""
    drawn = Sample()._repr_html_()
    assert "<img" not in drawn
    assert "\x1b" not in drawn
    assert "\x1b" not in repr(Sample())


def test_unknown_is_shown_as_such_and_stays_none():
    """None is n/a in a view and null in data; never 0."""
    assert "n/a" in repr(Sample())
    assert Sample().to_dict()["used"] is None
    json.dumps(Sample().to_dict())


def test_a_bar_is_drawn_to_scale():
    """Half live, a quarter cached, the rest free."""
    bar = Bar("GPU 0", [Part("live", 512), Part("cached", 256, "=")], 1024, "768 of 1024")
    assert text.bar_text(bar, 8) == "GPU 0 [####==..] 768 of 1024"
    assert 'role="img"' in html.draw([bar])


def test_columns_line_up_with_wide_characters():
    """A name in full-width characters keeps the columns straight."""
    lines = text.table_text(Table(["name", "n"], [["名前", "1"], ["ab", "22"]], frozenset({1}))).split("\n")
    assert [text.width(line) for line in lines] == [8, 8, 8, 8]


def test_frames_need_pandas_and_say_so(monkeypatch):
    """Without pandas one sentence gives the line that installs it."""
    from cuda_magic.errors import Missing

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Missing, match="pip install pandas"):
        Sample().to_dataframe()


def test_whole_numbers_stay_whole_beside_unknown_ones():
    """Bytes of one card beside those of a card that nothing is known of: no float, and unknown is missing."""
    pytest.importorskip("pandas")

    class Two(Sample):
        def rows(self):
            return [{"used": (1 << 53) + 1, "name": "a", "free": 1}, {"used": None, "name": "b", "free": 2}]

    frame = Two().to_dataframe()
    assert frame["used"][0] == (1 << 53) + 1 and frame["used"].isna().tolist() == [False, True]
    assert [str(kind) for kind in frame.dtypes[["used", "free"]]] == ["Int64", "int64"]


def test_sizes_are_read_and_written_in_binary_units():
    """Round trips of the spellings that people use."""
    assert parse_bytes("2 GiB") == parse_bytes("2g") == parse_bytes("2GB") == 2 << 30
    assert parse_bytes("1048576") == 1 << 20
    assert bytes_text(3 << 29) == "1.50 GiB"
    assert bytes_text(None) == "n/a"
    assert bytes_text(-2048) == "-2.00 KiB"
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes("two")


def test_seconds_have_a_unit_that_fits():
    """From microseconds to hours."""
    shown = [seconds_text(s) for s in (2e-5, 0.027, 1.26, 125, 7260, None)]
    assert shown == ["20 us", "27 ms", "1.3 s", "2 min 5 s", "2 h 1 min", "n/a"]
