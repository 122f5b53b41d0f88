"""Next steps for what grows from one iteration to the next: graphs kept through a sum, results kept on the card."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..render.units import bytes_text
from .step import Case, NextStep

__all__ = ["leaks", "results"]

MIB = 1 << 20
_ADDS = ("append", "add", "appendleft")


def leaks(c: Case) -> list[NextStep]:
    """``total += loss``: through the sum the graph of each earlier iteration stays."""
    steps = []
    for one in c.where.kept if c.s.fault.kind.repeat == "ladder" else ():
        if one.count < 2 or one.nbytes < max(c.request // 4, MIB):
            continue
        where = f" of {one.local}" if one.local else ""
        why = f"graphs of {one.count} earlier iterations are kept through {one.name}{where} ({bytes_text(one.nbytes)})"
        trees = _trees(c, one.local)
        added = next(_added(one.name, trees), None)
        if added is not None and _runs_backward(one.name, trees):
            why += ": let each iteration run backward itself, the gradients add up"
            steps.append(NextStep(why, f"{_operand(added[1])}.backward()"))
        elif added is not None:
            steps.append(NextStep(f"{why}: keep its number alone", added[0].format(f"{_operand(added[1])}.item()")))
        elif not any(_kept(one.name, trees)):
            new = f"[one.detach() for one in {one.name}]" if one.several else f"{one.name}.detach()"
            steps.append(NextStep(f"{why}: let go of the graphs", f"{one.name} = {new}"))
        elif not any(other.name == one.name and other.local == one.local for other in c.where.gathered):
            line, value = next(_kept(one.name, trees))
            steps.append(NextStep(f"{why}: keep what has none", line.format(f"{_operand(value)}.detach()")))
    return steps


def results(c: Case) -> list[NextStep]:
    """A list that a loop fills with tensors: they can wait on the host."""
    steps = []
    for one in c.where.gathered if c.s.fault.kind.repeat == "ladder" else ():
        graphs = next((k for k in c.where.kept if (k.name, k.local) == (one.name, one.local)), None)
        if one.nbytes + (graphs.nbytes if graphs else 0) < max(c.request // 4, MIB):
            continue
        found = next(_kept(one.name, _trees(c, one.local)), None)
        if found is None:
            continue
        line, value = found
        where = f" of {one.local}" if one.local else ""
        why = f"each result stays on the card: {one.name}{where} holds {one.count} tensors, {bytes_text(one.nbytes)}"
        if graphs is not None and graphs.count > 1:
            why += (
                f", and graphs of {graphs.count} earlier iterations are kept through it ({bytes_text(graphs.nbytes)})"
            )
        moved = f"{_operand(value)}.{'detach().' if graphs is not None else ''}cpu()"
        steps.append(NextStep(f"{why}: move each to the host in the loop", line.format(moved)))
    return steps


def _trees(c: Case, local: str) -> list[ast.AST]:
    """Where a name is used: in the cell's statement, or in the function whose variable it is."""
    if not local:
        return [c.s.node] if c.s.node is not None else []
    return [
        node
        for tree in c.where.trees
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == local
    ]


def _looped(trees: list[ast.AST]) -> Iterator[ast.AST]:
    """What stands in a loop."""
    for tree in trees:
        for loop in ast.walk(tree):
            if isinstance(loop, (ast.For, ast.AsyncFor, ast.While)):
                for statement in loop.body:
                    yield from ast.walk(statement)


def _added(name: str, trees: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """(the line with a place for what is added, what is added) of ``name += value`` and ``name = name + value``."""
    for node in _looped(trees):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
            if ast.unparse(node.target) == name and not isinstance(node.value, (ast.List, ast.Tuple)):
                yield f"{_safe(name)} {'+' if isinstance(node.op, ast.Add) else '-'}= {{}}", node.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and ast.unparse(node.targets[0]) == name:
            value = node.value
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                if ast.unparse(value.left) == name:
                    yield f"{_safe(name)} = {_safe(name)} + {{}}", value.right
                elif ast.unparse(value.right) == name:
                    yield f"{_safe(name)} = {{}} + {_safe(name)}", value.left


def _kept(name: str, trees: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """(the line with a place for the value, the value) of ``name.append(value)`` and ``name[key] = value``."""
    for node in _looped(trees):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            if node.func.attr in _ADDS and ast.unparse(node.func.value) == name and not node.keywords:
                yield f"{_safe(name)}.{node.func.attr}({{}})", node.args[0]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
            if ast.unparse(node.targets[0].value) == name:
                yield f"{_safe(ast.unparse(node.targets[0]))} = {{}}", node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List) and len(node.value.elts) == 1:
            yield from [(f"{_safe(name)} += [{{}}]", node.value.elts[0])] if ast.unparse(node.target) == name else ()


def _runs_backward(name: str, trees: list[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "backward" and name in ast.unparse(node.value)
        for tree in trees
        for node in ast.walk(tree)
    )


def _safe(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _operand(value: ast.expr) -> str:
    """The expression, ready for a dot behind it."""
    text = ast.unparse(value)
    plain = isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return text if plain else f"({text})"
