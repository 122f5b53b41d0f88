"""A body becomes what IPython itself makes of it, whichever way it took."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import HelpEnd, TransformerManager

from cuda_magic.cells import translate

PIECES = (
    *(
        "%",
        "%%",
        "!",
        "!=",
        "?",
        "??",
        "=",
        "==",
        " = %",
        " = !",
        "%=",
        ",",
        ";",
        "/",
        "\\",
        "\\\n",
        "\n",
        "\n\n",
        "\r",
    ),
    *(" ", "    ", "\t", "\f", "\x0b", "\x1c", "\x85", "\u2028", "'", '"', '"""', "'''", "#", "(", ")", "[", "{", "}"),
    *(
        "a",
        "x = 1",
        "f(x)",
        "if a:\n    b",
        ">>> ",
        "... ",
        "In [1]: ",
        "ls",
        "cd ..",
        "é",
        "f'{a}'",
        "f'\\{a}'",
        "'\\d'",
    ),
    *("time x", "%time x", "a.b", "a?", "?a", "!ls", "a = !ls", "a = %pwd", "/f 1", ",f a b", ";f a b", "%%bash\nls"),
)


def outcome(call):
    """What a call gives, or the type of its error."""
    try:
        return call()
    except Exception as error:  # tokenizers raise many kinds
        return type(error)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_a_body_is_translated_as_by_the_shell(shell, body):
    """Whatever magics, prompts, odd line ends and unfinished strings it has."""
    assert outcome(lambda: translate._transformed(shell, body)) == outcome(lambda: shell.transform_cell(body))


@pytest.mark.parametrize(
    "body", ["x = 1\ny = 2", "a != b", "'%d' % 3", "x %= 3\ny = x % 2", "# 100\nf(1)\n", "if a:\n  b\n"]
)
def test_no_tokens_where_nothing_is_to_transform(shell, monkeypatch, body):
    """Plain Python is not tokenized, though it has a per cent sign or a not-equal in it."""
    monkeypatch.setattr(TransformerManager, "do_token_transforms", None)
    assert translate._transformed(shell, body).rstrip("\n") == body.rstrip("\n")


def test_a_transformer_of_the_users_is_asked(shell, monkeypatch):
    """One of tokens, one of lines, and another shell's own way."""

    class Mine(HelpEnd):
        pass

    def upper(lines):
        return [line.replace("lower", "UPPER") for line in lines]

    manager = shell.input_transformer_manager
    monkeypatch.setattr(manager, "line_transforms", [*manager.line_transforms, upper])
    assert translate._transformed(shell, "x = lower\ny = 1") == "x = UPPER\ny = 1\n"
    asked = []
    monkeypatch.setattr(manager, "token_transformers", [*manager.token_transformers, Mine])
    monkeypatch.setattr(Mine, "find", lambda tokens: asked.append(tokens))
    translate._transformed(shell, "x = 1\ny = 1")
    assert asked
    monkeypatch.setattr(type(shell), "transform_cell", lambda self, cell: "pass\n", raising=False)
    assert translate._transformed(shell, "x = 1\ny = 1") == "pass\n"


@pytest.mark.parametrize("body", ["if x:\n    a\n  b\n", "x = (1,\ny", "x = = 1", "'''abc"])
def test_a_body_that_cannot_be_parsed_fails_as_in_the_shell(shell, body):
    """The tokenizer speaks first, in its own words."""
    ours = outcome(lambda: translate.translate(shell, body))
    assert ours is outcome(lambda: shell.compile.ast_parse(shell.transform_cell(body)))
