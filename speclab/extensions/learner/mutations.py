"""Wrong answers made by program: small changes in the syntax tree of a solution, one at a time.

What is changed follows what learners get wrong: comparisons, off-by-one in numbers, slices and indices, plus and minus,
names of the same kind, axes, dropped statements and calls, negated conditions, the order of arguments, loops that stop
early, arguments that are changed where the caller has them, numbers that hold less, one component in the place of all.
A change that compiles to the same code as the solution, or as another change, is left out.
"""

import ast
import copy
import functools
import random
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

Changes = Iterator[tuple[str, ast.AST]]

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
CAPS = (1, 2, 3, 4, 5)  # a loop that stops after so many: fine on small examples alone
FIRST: ast.expr = ast.parse("x[..., :1]", mode="eval").body.slice  # type: ignore[attr-defined]


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


@functools.cache
def mutants(source: str) -> list[Mutant]:
    """Every change of one place, in the order of the file; none of them compiles to what another one does."""
    tree = ast.parse(source)
    parts = [ast.unparse(node) for node in tree.body]
    seen, found = {_code(part) for part in parts}, []

    def add(at: int, name: str, kind: str) -> None:
        """Book the tree as it is now, where it is another program."""
        mutated = ast.unparse(ast.fix_missing_locations(tree.body[at]))
        code = _code(mutated)
        if code is not None and code not in seen:
            seen.add(code)
            whole = "\n".join([*parts[:at], mutated, *parts[at + 1 :]])
            found.append(Mutant(name, kind, _change(parts[at], mutated), whole))

    for at, name, function in _functions(tree):
        kinds, first = kinds_of(function), int(_is_docstring(function.body[0]))
        for kind, statements in insertions(function, _aliases(tree)):
            function.body[first:first] = statements
            add(at, name, kind)
            del function.body[first : first + len(statements)]
        for parent, field, index in list(_places(function)):
            here = getattr(parent, field)
            child = here if index is None else here[index]
            for kind, new in replacements(child, parent, field, kinds):
                _put(parent, field, index, new)
                add(at, name, kind)
                _put(parent, field, index, child)
    return found


def _aliases(tree: ast.Module) -> dict[str, str]:
    """The types that a file gives a name of its own: name -> what it stands for."""
    return {
        target.id: ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    """Put a node into a field of another one, or into a list there."""
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


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


def _functions(tree: ast.Module) -> Iterator[tuple[int, str, ast.FunctionDef]]:
    """Functions and methods of a file in order: which statement of the file holds it, its name, and itself."""
    for at, node in enumerate(tree.body):
        if isinstance(node, ast.FunctionDef):
            yield at, node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (at, f"{node.name}.{inner.name}", inner) for inner in node.body if isinstance(inner, ast.FunctionDef)
            )


def _places(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Where a node can be replaced: (parent, its field, index in a list). No signature, no docstring, no message."""

    def walk(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
        for field, value in ast.iter_fields(node):
            if field in ("args", "returns", "annotation", "decorator_list") and not isinstance(node, ast.Call):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or _is_docstring(child):
                    continue
                yield node, field, index
                yield from walk(child)

    yield from walk(function)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


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


# --- what can stand in the place of a piece of code -------------------------------------------------------------------


def replacements(node: ast.AST, parent: ast.AST, field: str, kinds: dict[str, str]) -> Changes:
    """All changes of one node. `kinds`: of the variables of its function, as kinds_of gives them."""
    if field == "iter" and isinstance(node, ast.expr):
        for n in CAPS:
            yield "cap a loop", ast.Subscript(_call("list", node), ast.Slice(upper=ast.Constant(n)), ast.Load())
    if isinstance(node, ast.Return):
        yield from _of_return(node, kinds)
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node, parent)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and field != "func":
        yield from _of_name(node, kinds)
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and field == "value":
        for i in range(len(node.elts) - 1):
            yield "order", _with(node, elts=_swapped(node.elts, i))
    elif type(node) in BY_TYPE:
        yield from BY_TYPE[type(node)](node)


def insertions(function: ast.FunctionDef, aliases: dict[str, str]) -> Iterator[tuple[str, list[ast.stmt]]]:
    """What may be done to an argument before anything else: it is changed where the caller has it, or rounded.

    aliases: names of types that the file gives, as `Row` in `Row = list[Fraction]`, with what they stand for.
    """
    for arg in function.args.args:
        written = ast.unparse(arg.annotation) if arg.annotation else ""
        kind, name = aliases.get(written, written), arg.arg
        if kind.startswith(("list", "dict")):
            copied = f"given, {name} = ({name}, {kind[:4]}({name}))"
            yield "mutate in place", ast.parse(f"{copied}\ngiven.clear()").body
        if kind.startswith(("list[int", "list[float", "list[Fraction")):
            yield "mutate in place", ast.parse(f"given, {name} = ({name}, list({name}))\ngiven.append(0)").body
        if kind == "Tensor":
            yield "mutate in place", ast.parse(f"given, {name} = ({name}, {name}.clone())\ngiven.zero_()").body
            yield "cast", ast.parse(f"{name} = {name}.half().to({name}.dtype)").body
        if kind in ("list[float]", "list[Fraction]"):
            yield "cast", ast.parse(f"{name} = [round(float(x), 1) for x in {name}]").body
        if kind == "float":
            yield "cast", ast.parse(f"{name} = round({name}, 1)").body


def _of_return(node: ast.Return, kinds: dict[str, str]) -> Changes:
    """The answer as numbers that hold less."""
    kind, value = kinds.get("return"), node.value
    if value is None:
        return
    if kind == "Tensor":
        for method in ("half", "char", "float"):
            yield "cast", _with(node, value=ast.Call(ast.Attribute(value, method, ast.Load()), [], []))
    elif kind == "float":
        yield "cast", _with(node, value=_call("round", value, ast.Constant(2)))
    elif kind == "list[float]":
        rounded = ast.parse("[round(float(x), 2) for x in y]", mode="eval").body
        rounded.generators[0].iter = value  # type: ignore[attr-defined]
        yield "cast", _with(node, value=rounded)


def kinds_of(function: ast.FunctionDef) -> dict[str, str]:
    """Variable -> its kind: an argument's annotation; of others how they are made, as far as that is plain.

    "return" is the kind of what the function returns.
    """
    kinds = {arg.arg: ast.unparse(arg.annotation) for arg in function.args.args if arg.annotation}
    if function.returns:
        kinds["return"] = ast.unparse(function.returns)
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


def _of_comparison(node: ast.Compare) -> Changes:
    for i, op in enumerate(node.ops):
        for other in COMPARED:
            if isinstance(op, COMPARED) and not isinstance(op, other):
                yield "comparison", _with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])


def _of_arithmetic(node: ast.BinOp) -> Changes:
    for operator in ARITHMETIC.get(type(node.op), ()):
        yield "arithmetic", _with(node, op=operator())
    yield "part dropped", node.left
    yield "part dropped", node.right


def _of_and_or(node: ast.BoolOp) -> Changes:
    yield "condition", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for value in node.values:
        yield "part dropped", value


def _of_sign(node: ast.UnaryOp) -> Changes:
    yield "sign or not", node.operand


def _of_slice(node: ast.Slice) -> Changes:
    for bound in ("lower", "upper"):
        if (value := getattr(node, bound)) is not None:
            for other in (None, _plus(value, 1), _plus(value, -1)):
                yield "slice", _with(node, **{bound: other})


def _of_choice(node: ast.IfExp) -> Changes:
    yield "condition", _with(node, body=node.orelse, orelse=node.body)
    yield "part dropped", node.body
    yield "part dropped", node.orelse


def _of_index(node: ast.Subscript) -> Changes:
    if isinstance(node.ctx, ast.Load):
        yield "index dropped", node.value
        if not isinstance(node.slice, ast.Slice | ast.Tuple | ast.Constant | ast.Name):
            yield "index", _with(node, slice=_plus(node.slice, 1))


def _of_list(node: ast.List) -> Changes:
    if isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
        yield "order", _with(node, elts=node.elts[::-1])
        for i in range(len(node.elts)):
            yield "part dropped", _with(node, elts=node.elts[:i] + node.elts[i + 1 :])


def _of_statement(node: ast.stmt) -> Changes:
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


def _of_constant(node: ast.Constant, parent: ast.AST) -> Changes:
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


def _of_call(node: ast.Call) -> Changes:
    """Another function, two arguments in the other order, one left out, or no call at all."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if other := OTHER_NAME.get(name):
        func = _with(node.func, **({"attr": other} if isinstance(node.func, ast.Attribute) else {"id": other}))
        yield "other function", _with(node, func=func)
    for i in range(len(node.args) - 1 if name not in ("min", "max") else 0):  # of those the order does not matter
        yield "order", _with(node, args=_swapped(node.args, i))
    yield from _of_many(node, name)
    if name in ("min", "max") and len(node.args) == 2:
        yield "part dropped", node.args[0]
        yield "part dropped", node.args[1]
    elif name in ("float", "sum", "list", "range") and len(node.args) == 1:
        yield "call dropped", node.args[0]
    elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.expr) and name != "append":
        yield "call dropped", node.func.value
    for keyword in node.keywords:
        yield "part dropped", _with(node, keywords=[other for other in node.keywords if other is not keyword])


def _of_many(node: ast.Call, name: str) -> Changes:
    """One component in the place of all of them."""
    if name in ("allclose", "equal") and isinstance(node.func, ast.Attribute):
        args = [ast.Subscript(arg, FIRST, ast.Load()) for arg in node.args]
        func = _with(node.func, value=ast.Subscript(node.func.value, FIRST, ast.Load()))
        yield "read one component", _with(node, func=func if len(args) == 1 else node.func, args=args)
    elif name == "sum" and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.expr):
        yield "read one component", _with(node, func=_with(node.func, value=_first(node.func.value)))
    elif name in ("sum", "any", "all") and len(node.args) == 1:
        yield "read one component", _with(node, args=[_first(_call("list", node.args[0]), ast.Slice(None, _one()))])


def _one() -> ast.Constant:
    return ast.Constant(1)


def _first(value: ast.expr, of: ast.expr = FIRST) -> ast.Subscript:
    return ast.Subscript(value, of, ast.Load())


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def _of_name(node: ast.Name, kinds: dict[str, str]) -> Changes:
    """Another variable of the same kind; a number one larger or smaller."""
    kind = kinds.get(node.id)
    for other, its_kind in kinds.items():
        if other != node.id and its_kind == kind:
            yield "name", ast.Name(other, ast.Load())
    if kind == "int":
        yield "off by one", _plus(node, 1)
        yield "off by one", _plus(node, -1)


def _swapped(items: list[ast.expr], i: int) -> list[ast.expr]:
    return [*items[:i], items[i + 1], items[i], *items[i + 2 :]]


def _plus(node: ast.expr, number: int) -> ast.expr:
    return ast.BinOp(node, ast.Add() if number > 0 else ast.Sub(), ast.Constant(abs(number)))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of one node with other fields; what hangs under it is shared."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


BY_TYPE: dict[type[ast.AST], Callable[[Any], Changes]] = {
    ast.Compare: _of_comparison,
    ast.BinOp: _of_arithmetic,
    ast.BoolOp: _of_and_or,
    ast.UnaryOp: _of_sign,
    ast.Slice: _of_slice,
    ast.IfExp: _of_choice,
    ast.Subscript: _of_index,
    ast.List: _of_list,
    ast.Call: _of_call,
}
