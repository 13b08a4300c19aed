"""Wrong answers made by program: small changes in the syntax tree of a solution, one at a time.

What is changed follows what learners get wrong: comparisons, off-by-one in numbers, slices and indices, plus and minus,
names of the same kind, axes, dropped statements and calls, negated conditions, the order of arguments, loops that stop
early, arguments that are changed where the caller has them, numbers that hold less, one component in the place of all.
A change that compiles to the same code as the solution, or as another change, is left out.
"""

import ast
import functools
import random
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from speclab.extensions.learner.replacements import insertions, kinds_of, replacements


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
