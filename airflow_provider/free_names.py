"""Which names of its Dag file a training function needs: constants travel with it, everything else is refused. Pure.

The function alone is shipped. A name that only the Dag file has would be found missing in the cluster, after the job
had waited for its quota, or at the end of the training.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import symtable
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_OF_A_MODULE = frozenset(("__name__", "__file__", "__doc__", "__spec__", "__loader__", "__package__", "__builtins__"))
_DEF = (ast.FunctionDef, ast.AsyncFunctionDef)
LONGEST = 100_000
"""Characters of a constant: the function's files have to fit into one ConfigMap."""


@dataclass(frozen=True)
class Missing:
    """A name that cannot travel."""

    name: str
    line: int
    """In the Dag file."""
    why: str
    certain: bool = True
    """False: nothing is called so yet, but something may be before the task is made."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.name} {self.why}"


def of(function: Callable[..., Any], source: str) -> tuple[dict[str, str], list[Missing]]:
    """Constants that `function` needs, as source text, and names that it needs and cannot have.

    :param source: of the function, as it is shipped
    """
    known, lines = _known(function), _lines(function)
    remade = {name: _constant(known.get(name, ...)) for name in sorted(needed(source, remade=True))}
    constants = {name: text for name, text in remade.items() if text is not None}
    missing: list[Missing] = []
    for name in sorted(needed(source), key=lambda name: (lines.get(name, 0), name)):
        line = lines.get(name, 0)
        if name not in known:
            why = "is defined neither in the function nor in the Dag file before it"
            missing.append(Missing(name, line, f"{why}: define it in the function", certain=False))
            continue
        text = _constant(known[name])
        if text is not None:
            constants[name] = text
        else:
            missing.append(Missing(name, line, _why(known[name])))
    return constants, missing


def _constant(value: object) -> str | None:
    text = literal(value)
    return None if text is None or len(text) > LONGEST else text


def needed(source: str, remade: bool = False) -> set[str]:
    """Names that the code looks up outside of itself. Raises SyntaxError.

    :param remade: those instead that it makes as well (`global`), and may look up before
    """
    tree = _Unannotated().visit(ast.parse(source))
    table = symtable.symtable(ast.unparse(tree), "<function>", "exec")
    wanted: set[str] = set()
    own: set[str] = set()
    for scope in _scopes(table):
        for symbol in scope.get_symbols():
            name = symbol.get_name()
            if scope is table or symbol.is_global():
                if symbol.is_referenced():
                    wanted.add(name)
                if symbol.is_assigned():
                    own.add(name)
    if remade:
        return wanted & own - _OF_A_MODULE
    return {name for name in wanted - own - _OF_A_MODULE if not hasattr(builtins, name)}


def literal(value: object) -> str | None:
    """`value` as source text; None if it is more than numbers, texts and containers of them."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return repr(value) if type(value) in (type(None), bool, str, bytes) else None
    if type(value) is int:
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) is dict:
        parts = [(literal(key), literal(item)) for key, item in value.items()]
        inner = [f"{key}: {item}" for key, item in parts if key is not None and item is not None]
        return None if len(inner) < len(parts) else "{" + ", ".join(inner) + "}"
    if type(value) in (list, tuple, set, frozenset):
        items = [text for item in value if (text := literal(item)) is not None]  # type: ignore[attr-defined]
        if len(items) < len(value):  # type: ignore[arg-type]
            return None
        listed = f"[{', '.join(items)}]"
        return listed if type(value) is list else f"{type(value).__name__}({listed})"
    return None


def _why(value: object) -> str:
    if isinstance(value, types.ModuleType):
        return f"is module {value.__name__}, which the Dag file imports: import it in the function"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        where = f"{value.__module__}.{value.__qualname__}"
        return f"is {where}, which is not shipped: import or define it in the function"
    kind = type(value).__name__
    return f"is no constant but of type {kind}: give it as an argument, or define it in the function"


def _known(function: Callable[..., Any]) -> Mapping[str, Any]:
    """What the names in the function mean in the Dag file; of the functions around it, too."""
    plain = inspect.unwrap(function)
    closed = {}
    code = getattr(plain, "__code__", None)
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(plain, "__closure__", None) or (), strict=False):
        try:
            closed[name] = cell.cell_contents
        except ValueError:  # not yet
            continue
    return {**getattr(plain, "__globals__", {}), **closed}


def _lines(function: Callable[..., Any]) -> dict[str, int]:
    """Where each name first stands in the function, without its decorators and annotations: lines of the Dag file."""
    try:
        text, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(text))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[str, int] = {}
    parts = [*tree.args.defaults, *filter(None, tree.args.kw_defaults), *tree.body] if isinstance(tree, _DEF) else []
    for part in parts:
        for node in ast.walk(part):
            if isinstance(node, ast.Name):
                line = first + node.lineno - 1
                found[node.id] = min(line, found.get(node.id, line))
    return found


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


class _Unannotated(ast.NodeTransformer):
    """Without the annotations that are never evaluated: those of a function's own variables."""

    def __init__(self) -> None:
        self._in_class = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._within(node, False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._within(node, False)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._within(node, True)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return node if self._in_class else ast.copy_location(_unannotated(node), node)

    def _within(self, node: ast.AST, in_class: bool) -> ast.AST:
        before, self._in_class = self._in_class, in_class
        self.generic_visit(node)
        self._in_class = before
        return node


def _unannotated(node: ast.AnnAssign) -> ast.AnnAssign:
    return ast.AnnAssign(node.target, ast.Constant(None), node.value, node.simple)
