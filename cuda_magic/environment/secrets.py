"""Tokens, keys and passwords, by their names and by the shapes that services give them."""

from __future__ import annotations

import re

__all__ = ["HIDDEN", "NAMED", "SHAPES", "secret", "shown"]

HIDDEN = "(hidden)"

_WORDS = (
    r"token|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key|credential"
)
NAMED = re.compile(rf"(?i)\b([\w-]*(?:{_WORDS})[\w-]*)(\s*[=:]\s*)(?!\(hidden\))[^\s,;&]+")
_NAME = re.compile(rf"(?i)(?:{_WORDS}|_auth$|_pat$|(?:^|_)key$|_dsn$)")
_NO_SECRET = re.compile(r"(?i)tokenizers|max_tokens|num_tokens|token_limit|_file$|_path$|_dir$")

# Each is the beginning that its service documents for its tokens; the rest is long enough to be no word.
SHAPES = re.compile(
    r"(?:\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|npm_|pypi-|dckr_pat_|sk-|rk_live_|sk_live_|r8_|gsk_|nvapi-|xapp-|xox[abeprs]-"
    r"|ya29\.|AIza|AKIA|ASIA|SG\.)[\w.-]{8,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # JSON web token
    r"|(?i:\b(?:bearer|basic) )[A-Za-z0-9+/=._~-]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----)"
)


def secret(name: str, value: str) -> bool:
    """Whether `value` is nothing to show: by the variable's name, or by its shape."""
    named = bool(_NAME.search(name)) and not _NO_SECRET.search(name)
    return bool(value) and (named or bool(SHAPES.search(value)))


def shown(name: str, value: str) -> str:
    """`value`, or ``(hidden)``."""
    return HIDDEN if secret(name, value) else value
