"""The magic's line is taken off a cell that IPython is about to read, of that cell only, and put back as a comment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import guarded_by_tests
from guarded_by_tests import Repeats


@pytest.fixture
def cells(shell):
    """Runs cells; `lines` are the options of each guard that was made, in order."""
    lines = []

    def make(line):
        lines.append(line)
        return Repeats(say=False)

    shell.run_line_magic("load_ext", "guarded_by_tests")
    guarded_by_tests.make[0] = make
    shell.lines = lines
    yield shell
    guarded_by_tests.make[0] = lambda line: Repeats(int(line or 1))
    shell.run_line_magic("unload_ext", "guarded_by_tests")


def parsed(shell, cell):
    """What IPython parses of a cell."""
    seen = []
    real = shell.compile.ast_parse
    shell.compile.ast_parse = lambda source, *args, **options: (seen.append(source), real(source, *args, **options))[1]
    try:
        shell.run_cell(cell)
    finally:
        del shell.compile.ast_parse
    return seen


def test_ipython_reads_the_cell_itself(cells):
    """Once, with the line as a comment, so that all lines keep their numbers."""
    assert parsed(cells, "\n%%cuda_guard 2\n\nx = 1\nx") == ["\n# %%cuda_guard 2\n\nx = 1\nx\n"]
    assert cells.lines == ["2"]


@pytest.mark.parametrize(
    "cell",
    [
        "%%cuda_guard 2\nx = 5\nx",
        "\n\n%%cuda_guard 2\n\nx = 5\nx",
        "   %%cuda_guard 2\n   x = 5\n   x",
        "%%cuda_guard 2\n    x = 5\n    x",
        "In [3]: %%cuda_guard 2\n   ...: x = 5\n   ...: x",
        "%%cuda_guard 2\n>>> x = 5\n>>> x",
        "%%time\n%%cuda_guard 2\nx = 5\nx",
        "%%cuda_guard 2\n%%time\nx = 5\nx",
        "get_ipython().run_cell('%%cuda_guard 2\\nx = 5'); x",
        "get_ipython().run_cell('y = 5'); get_ipython().run_cell('%%cuda_guard 2\\nx = y'); x",
        "get_ipython().run_cell_magic('cuda_guard', '2', 'x = 5'); x",
    ],
)
def test_every_way_to_write_it_guards_once(cells, cell, capsys):
    """Indented, with prompts, inside and outside of another magic, from a cell that runs: one guard, one value."""
    result = cells.run_cell(cell)
    assert result.success and cells.user_ns["x"] == 5
    assert (
        result.result == 5 or "run_cell(" in cell
    )  # IPython lets a nested cell take the place of the outer one's value
    assert cells.lines == ["2"]


def test_what_follows_a_guarded_cell_is_plain(cells):
    """Nothing of the guard is in place for it, nor in the shell."""
    cells.run_cell("x = 0")
    before = set(vars(cells))
    cells.run_cell("%%cuda_guard\nx = 1")
    assert set(vars(cells)) == before
    assert "do_token_transforms" not in vars(cells.input_transformer_manager)
    cells.run_cell("x + 1")
    assert cells.lines == [""]


@pytest.mark.parametrize("text", ["x = 1", "1/0", "x = (", "%%time\nx = 1", "return 1", ""])
def test_a_cell_that_was_read_and_not_run_guards_no_other(cells, text, capsys):
    """A front end may translate a cell and run another one."""
    cells.transform_cell("%%cuda_guard\ny = 1")
    cells.run_cell(text)
    assert cells.lines == [] and "run_ast_nodes" not in vars(cells)


def test_another_cell_translated_elsewhere_is_not_guarded(cells):
    """A cell that comes with its translation, as a kernel gives it, while another one was read last."""
    from IPython.core.async_helpers import _pseudo_sync_runner

    cells.transform_cell("%%cuda_guard\ny = 1")
    _pseudo_sync_runner(cells.run_cell_async("x = 3", transformed_cell="x = 3\n"))
    assert cells.user_ns["x"] == 3 and cells.lines == []


@pytest.mark.parametrize("options", [{"silent": True}, {"store_history": False}, {"shell_futures": False}])
def test_every_way_to_run_it_is_guarded(cells, options):
    """Silent runs too, of which IPython tells less."""
    cells.run_cell("%%cuda_guard 3\nx = 7", **options)
    assert cells.user_ns["x"] == 7 and cells.lines == ["3"]


@pytest.mark.parametrize("text", ["x = (", "return 1", "x = 1\n  y = 2", "await = 3", "def f(:\n  pass", "'\0'", "$"])
def test_what_does_not_compile_is_ipythons_to_say(cells, text, capsys):
    """Same words, same line, and the same field of the result as in the plain cell."""
    plain = cells.run_cell(f"# %%cuda_guard\n{text}")
    expected = capsys.readouterr()
    guarded = cells.run_cell(f"%%cuda_guard\n{text}")
    assert capsys.readouterr() == expected
    assert type(guarded.error_before_exec) is type(plain.error_before_exec)
    assert type(guarded.error_in_exec) is type(plain.error_in_exec)


def test_an_empty_cell_is_ipythons_to_say(cells, capsys):
    """There is nothing to guard."""
    cells.run_cell("%%cuda_guard\n")
    assert cells.lines == []


def test_whether_a_cell_is_complete_is_not_our_question(cells):
    """IPython asks its transformers for that; ours stays out, so that it waits for the end of a magic's cell."""
    assert cells.check_complete("%%cuda_guard\nx = 1")[0] == "incomplete"
    assert cells.check_complete("x = 1")[0] == "complete"
    cells.run_cell("z = 1")
    assert cells.lines == []


def test_a_mistake_on_the_line_runs_nothing(shell, capsys):
    """One sentence, and the cell has not begun."""
    shell.run_line_magic("load_ext", "cuda_magic")
    result = shell.run_cell("%%cuda_guard --nonsense\nx = 13")
    assert "unknown option --nonsense" in str(result.error_in_exec) and "x" not in shell.user_ns
    assert capsys.readouterr().out.count("UserError") == 1
    shell.run_line_magic("unload_ext", "cuda_magic")


def test_unloading_and_loading_inside_a_guarded_cell(shell, capsys):
    """The cell goes on to its end, and nothing stays."""
    before = list(shell.input_transformers_cleanup)
    shell.run_line_magic("load_ext", "cuda_magic")
    assert shell.run_cell("%%cuda_guard\n%reload_ext cuda_magic\n2").result == 2
    assert shell.run_cell("%%cuda_guard\n%unload_ext cuda_magic\n3").result == 3
    assert shell.run_cell("4").result == 4
    assert shell.input_transformers_cleanup == before and "run_ast_nodes" not in vars(shell)


def test_a_shell_whose_tokens_somebody_transforms_uses_its_tokenizer(cells):
    """IPython's own finding is left out only where it finds nothing: a library's transformer of tokens is asked."""
    asked = []

    class Own:
        priority = 1

        @classmethod
        def find(cls, tokens):
            asked.append(tokens)

    cells.input_transformer_manager.token_transformers.append(Own)
    cells.run_cell("%%cuda_guard\nx = 1")
    assert asked
    cells.input_transformer_manager.token_transformers.remove(Own)
    cells.run_cell("%%cuda_guard\nx = !echo 5\ny = x[0]")
    assert cells.user_ns["y"] == "5"


def test_two_tools_that_run_the_statements(cells):
    """A tool that was there first still runs its cells, and comes back after a guarded one."""
    seen = []
    real = cells.run_ast_nodes

    async def theirs(*args, **options):
        seen.append(1)
        return await real(*args, **options)

    cells.run_ast_nodes = theirs
    cells.run_cell("x = 1")
    cells.run_cell("%%cuda_guard\nx = 2")
    cells.run_cell("x = 3")
    assert cells.run_ast_nodes is theirs and len(seen) == 2 and cells.user_ns["x"] == 3
    del cells.run_ast_nodes


def test_an_error_of_ours_leaves_the_magic(cells, monkeypatch):
    """The transformer breaks no cell: the line is then the cell magic that it is."""
    monkeypatch.setattr(type(front(cells)), "_without", lambda self, lines: 1 / 0)
    assert cells.run_cell("%%cuda_guard 4\nx = 8").success and cells.user_ns["x"] == 8
    assert cells.run_cell("x + 1").result == 9 and cells.lines == ["4"]


def front(shell):
    """The transformer of this shell."""
    return next(t for t in shell.input_transformers_cleanup if type(t).__name__ == "Front")


def test_under_autopx_the_engines_get_the_whole_cell(cells):
    """%autopx stands in run_ast_nodes: a guarded cell goes there with its line, as typed, and nothing runs here."""
    magics = pytest.importorskip("ipyparallel.client.magics")

    class Engines(magics.ParallelMagics):
        def parallel_execute(self, cell, *args, **kwargs):
            sent.append(cell)

    sent = []
    parallel = Engines(cells, view=None)
    for before in ("", "once more: "):
        sent.clear(), cells.lines.clear()
        parallel.autopx()
        cells.run_cell("%%cuda_guard 2\nhere = 1")
        cells.run_cell("elsewhere = 1")
        assert sent == ["%%cuda_guard 2\nhere = 1", "elsewhere = 1"], before
        assert not cells.lines
        assert not {"here", "elsewhere"} & set(cells.user_ns)
        cells.run_cell("%autopx")  # off, as the user says it
        assert not parallel._autopx
        cells.run_cell("%%cuda_guard 2\nback = 1\nback += 1")
        assert (cells.user_ns.pop("back"), cells.lines) == (2, ["2"])
