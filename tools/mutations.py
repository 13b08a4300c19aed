"""Wrong answers made by program: small changes in the syntax tree of a solution, one at a time.

What is changed follows what learners get wrong: comparisons, off-by-one in numbers, slices and indices, plus and minus,
names of the same kind, axes, dropped statements and calls, negated conditions, the order of arguments. A change that
compiles to the same code as the solution, or as another change, is left out.
"""

import ast
import copy
import random
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple


class Mutant(NamedTuple):
    """A solution with one change in it."""

    function: str  # where the change is; of a method, Class.method
    kind: str  # what sort of change
    change: str  # the changed line, before -> after
    source: str  # the whole file

    @property
    def name(self) -> str:
        """What it goes by in the list of equivalent ones."""
        return f"{self.function}: {self.change}"


COMPARED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Div),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Mult, ast.Div),
    ast.Pow: (ast.Mult,),
}
OTHER_NAME = {"min": "max", "max": "min", "sum": "max", "cumprod": "cumsum", "argmax": "argmin"}
AXIS_METHODS = ("gather", "sum", "cumprod", "softmax", "argmax")


def mutants(source: str) -> list[Mutant]:
    """Every change of one place, in the order of the file; none of them compiles to what another one does."""
    tree = ast.parse(source)
    plain = ast.unparse(tree)
    seen, found = {_code(plain)}, []
    for name, function in _functions(tree):
        kinds = _kinds(function)
        for parent, field, index in list(_places(function)):
            here = getattr(parent, field)
            child = here if index is None else here[index]
            for kind, new in _replacements(child, parent, field, kinds):
                if index is None:
                    setattr(parent, field, new)
                else:
                    here[index] = new
                mutated = ast.unparse(ast.fix_missing_locations(tree))
                if index is None:
                    setattr(parent, field, child)
                else:
                    here[index] = child
                code = _code(mutated)
                if code is not None and code not in seen:
                    seen.add(code)
                    found.append(Mutant(name, kind, _change(plain, mutated), mutated))
    return found


def sample(found: list[Mutant], n: int, seed: int) -> list[Mutant]:
    """At most `n` of them, spread over functions and kinds of change, in the order of the file."""
    dice = random.Random(seed)
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in found:
        groups.setdefault((mutant.function, mutant.kind), []).append(mutant)
    queues = [dice.sample(group, len(group)) for group in groups.values()]
    dice.shuffle(queues)
    chosen: list[Mutant] = []
    while queues and len(chosen) < n:
        for queue in queues:
            chosen.append(queue.pop())
        queues = [queue for queue in queues if queue]
    return sorted(chosen[:n], key=found.index)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods of a file with their names, in order."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{inner.name}", inner) for inner in node.body if isinstance(inner, ast.FunctionDef))


def _places(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Where a node can be replaced: (parent, its field, index in a list of nodes). No signature, no docstring."""

    def walk(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
        for field, value in ast.iter_fields(node):
            if field in ("args", "returns", "annotation", "decorator_list") and not isinstance(node, ast.Call):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or _is_docstring(child):
                    continue
                yield node, field, index
                yield from walk(child)

    yield from walk(function)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _kinds(function: ast.FunctionDef) -> dict[str, str]:
    """Variable -> its kind: an argument's annotation; of others how they are made, as far as that is plain."""
    kinds = {arg.arg: ast.unparse(arg.annotation) for arg in function.args.args if arg.annotation}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        kinds.setdefault(name.id, _kind(node.value))
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Call):
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name):
                    kinds.setdefault(name.id, "int")
    return kinds


def _kind(value: ast.expr) -> str:
    """What an expression gives, as far as that is plain."""
    if isinstance(value, ast.Constant):
        return type(value.value).__name__
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func)
        return {"len": "int", "int": "int", "sum": "float", "min": "int"}.get(name, name)
    return "int" if isinstance(value, ast.BinOp) else type(value).__name__


def _replacements(
    node: ast.AST, parent: ast.AST, field: str, kinds: dict[str, str]
) -> Iterator[tuple[str, ast.AST]]:
    """(kind of change, what stands there instead)."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARED:
                if isinstance(op, COMPARED) and not isinstance(op, other):
                    ops = [*node.ops[:i], other(), *node.ops[i + 1 :]]
                    yield "comparison", ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BinOp):
        for operator in ARITHMETIC.get(type(node.op), ()):
            yield "arithmetic", ast.BinOp(node.left, operator(), node.right)
        yield "part dropped", node.left
        yield "part dropped", node.right
    elif isinstance(node, ast.BoolOp):
        yield "condition", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for value in node.values:
            yield "part dropped", value
    elif isinstance(node, ast.UnaryOp):
        yield "sign or not", node.operand
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node, parent)
    elif isinstance(node, ast.Slice):
        for bound in ("lower", "upper"):
            value = getattr(node, bound)
            if value is not None:
                yield "slice", _with(node, **{bound: None})
                yield "slice", _with(node, **{bound: _plus(value, 1)})
                yield "slice", _with(node, **{bound: _plus(value, -1)})
    elif isinstance(node, ast.IfExp):
        yield "condition", ast.IfExp(node.test, node.orelse, node.body)
        yield "part dropped", node.body
        yield "part dropped", node.orelse
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _of_name(node, parent, field, kinds)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield "index dropped", node.value
        if not isinstance(node.slice, ast.Slice | ast.Tuple | ast.Constant | ast.Name):
            yield "index", _with(node, slice=_plus(node.slice, 1))
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and field == "value":
        for i in range(len(node.elts) - 1):
            elts = list(node.elts)
            elts[i], elts[i + 1] = elts[i + 1], elts[i]
            yield "order", ast.Tuple(elts, ast.Load())
    elif isinstance(node, ast.List) and len(node.elts) > 1 and isinstance(node.ctx, ast.Load):
        yield "order", ast.List(node.elts[::-1], ast.Load())
        for i in range(len(node.elts)):
            yield "part dropped", ast.List(node.elts[:i] + node.elts[i + 1 :], ast.Load())


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Dropped, or its condition turned round; what it holds is changed in its own place."""
    if not isinstance(node, ast.FunctionDef | ast.Pass):
        yield "statement dropped", ast.Pass()
    if isinstance(node, ast.If):
        yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        yield "condition", _with(node, test=ast.Constant(True))
    elif isinstance(node, ast.Break):
        yield "statement", ast.Continue()
    elif isinstance(node, ast.AugAssign):
        yield "statement", ast.Assign([node.target], node.value)
        yield "statement", _with(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())


def _of_constant(node: ast.Constant, parent: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(not value)
    elif isinstance(value, int):
        is_axis = isinstance(parent, ast.Call) and getattr(parent.func, "attr", "") in AXIS_METHODS
        for other in (value + 1, value - 1):
            yield "axis" if is_axis else "constant", ast.Constant(other)
    elif isinstance(value, float):
        yield "constant", ast.Constant(value + 1.0)
        yield "constant", ast.Constant(value / 2 if value else 0.5)


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    """Another function, two arguments in the other order, one left out, or no call at all."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if other := OTHER_NAME.get(name):
        func = _with(node.func, **({"attr": other} if isinstance(node.func, ast.Attribute) else {"id": other}))
        yield "other function", _with(node, func=func)
    for i in range(len(node.args) - 1 if name not in ("min", "max") else 0):  # of those the order does not matter
        args = list(node.args)
        args[i], args[i + 1] = args[i + 1], args[i]
        yield "order", _with(node, args=args)
    if name in ("min", "max") and len(node.args) == 2:
        yield "part dropped", node.args[0]
        yield "part dropped", node.args[1]
    elif name in ("float", "sum", "list", "range") and len(node.args) == 1:
        yield "call dropped", node.args[0]
    elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.expr) and name != "append":
        yield "call dropped", node.func.value
    for keyword in node.keywords:
        yield "part dropped", _with(node, keywords=[other for other in node.keywords if other is not keyword])


def _of_name(node: ast.Name, parent: ast.AST, field: str, kinds: dict[str, str]) -> Iterator[tuple[str, ast.AST]]:
    """Another variable of the same kind; a number one larger or smaller."""
    kind = kinds.get(node.id)
    if kind is None or field == "func":
        return
    for other, its_kind in kinds.items():
        if other != node.id and its_kind == kind:
            yield "name", ast.Name(other, ast.Load())
    if kind == "int" and not isinstance(parent, ast.FormattedValue):
        yield "off by one", _plus(node, 1)
        yield "off by one", _plus(node, -1)


def _plus(node: ast.expr, number: int) -> ast.expr:
    return ast.BinOp(node, ast.Add() if number > 0 else ast.Sub(), ast.Constant(abs(number)))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of one node with other fields; what hangs under it is shared."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _change(plain: str, mutated: str) -> str:
    """The lines that differ, as "before -> after"."""
    before, after = plain.splitlines(), mutated.splitlines()
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    return " -> ".join(" / ".join(line.strip() for line in lines) or "(nothing)" for lines in (before, after))


def _code(source: str) -> tuple | None:
    """What a file does, without line numbers and names of files; None where it does not compile."""

    def plain_form(code: CodeType) -> tuple:
        consts = tuple(plain_form(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
        return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars

    try:
        return plain_form(compile(source, "", "exec"))
    except (SyntaxError, ValueError):
        return None
