"""README as an index shows it: what it links to in the repository is named by its whole address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)(?P<text>\[[^\]]*\])\((?P<target>[^)#\s:]+)(?P<part>#[^)\s]*)?\)")
"""A link or a picture whose target is a path: it has no scheme, so no colon."""


def whole(text: str, repository: str) -> str:
    """The links of `text` with whole addresses; pictures from where they can be shown."""

    def address(link: re.Match[str]) -> str:
        place = f"{repository}/{'raw' if link['picture'] else 'blob'}/main"
        return f"{link['picture']}{link['text']}({place}/{link['target']}{link['part'] or ''})"

    return LINK.sub(address, text)


class Readme(MetadataHookInterface):
    """Asked by hatchling when the archives are built."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": whole(text, metadata["urls"]["Source"])}
