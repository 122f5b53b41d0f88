"""What a magic returns: an object that shows itself, and gives its fields as a dict and as a DataFrame."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import Missing
from .render.blocks import Block

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result", "pandas", "plain_data"]


def plain_data(value: Any) -> Any:
    """`value` as what JSON can hold: dataclasses become dicts, tuples lists, enums their value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_data(getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): plain_data(v) for k, v in value.items()}
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (Sequence, set, frozenset)):
        return [plain_data(v) for v in value]
    return str(value)


def pandas(what: str) -> Any:
    """The pandas module, for `what`.

    Raises
    ------
    Missing
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise Missing(f"{what} needs pandas: %pip install pandas") from None
    return pd


class Result:
    """Base of every result: a frozen dataclass (``@dataclass(frozen=True, repr=False)``) adds fields and views.

    Subclasses implement `blocks` (what is shown) and `rows` (one dict a row of the frame).
    Fields marked ``field(repr=False)`` stay out of `to_dict`.
    """

    def blocks(self) -> Sequence[Block]:
        """What is shown, drawn as text and as HTML."""
        raise TypeError(f"{type(self).__name__} shows nothing")

    def verdict_line(self) -> str:
        """One line that must be seen even where the result is dropped unseen; empty where nothing matters so much."""
        return ""

    def _looked_at(self) -> None:
        vars(self).get("_unseen", []).clear()

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `to_dataframe`."""
        return [self.to_dict()]

    def to_dict(self) -> dict[str, Any]:
        """All fields, of types that JSON holds; sizes in bytes, times in seconds, unknown as None."""
        data = plain_data(self)
        assert isinstance(data, dict)
        return data

    def to_dataframe(self) -> pd.DataFrame:
        """`rows` as a pandas DataFrame; whole numbers stay whole where one is unknown (pandas' ``Int64``).

        Raises
        ------
        Missing
            If pandas is not installed.
        """
        rows, pandas_ = self.rows(), pandas("to_dataframe")
        frame: pd.DataFrame = pandas_.DataFrame(rows)
        for name in frame.columns:
            values = [row.get(name) for row in rows]
            if {type(value) for value in values} == {int, type(None)}:  # else pandas makes floats of them
                frame[name] = pandas_.array(values, dtype="Int64")
        return frame

    def __repr__(self) -> str:
        from .render import text

        self._looked_at()
        return text.draw(self.blocks())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        from .render import html

        self._looked_at()
        return html.draw(self.blocks())
