"""Bugs in the text of pass.c and on its Python side, which tests also apply in a process of their own.

Most of them the check at load has to refuse (tests/engines/test_choice.py). engines.txt has the others.
"""

import ctypes
import hashlib
import os
from collections.abc import Callable
from typing import Any

from torch import Tensor

from speclab.engines import c_pass, library
from speclab.engines.c_pass import CModel, Text
from speclab.lab.bench import Bench
from speclab.system import cache
from tests.mutants.bugs import Mutant, mutant

FILE = "engines/test_pass"
TREE = "every_token_of_a_tree_gets_the_logits_of_its_branch"
CHECKED: dict[str, str] = {}  # a mutant that the check at load has to refuse -> the case of tests/engines/families.py
put = setattr  # a test that applies mutants in its own process takes them back


def refused(case: str, *killed_by: str, file: str = FILE) -> Callable[[Callable[[], None]], Mutant]:
    """A mutant that gives this family other logits, also in a plain chain of tokens."""

    def made(apply: Callable[[], None]) -> Mutant:
        CHECKED[apply.__name__] = case
        return mutant(10, *(killed_by or (f"logits_are_the_librarys[{case}-20]",)), file=file)(apply)

    return made


# ---------------------------------------------------------------- pass.c


def edit(*changes: tuple[str, str]) -> None:
    """Compile pass.c with other text: (old, new) parts. It has each once, and the library gets a name of its own."""
    text = library.SOURCE.read_text(encoding="utf-8")
    for old, new in changes:
        if text.count(old) != 1:
            raise LookupError(f"pass.c has {text.count(old)} times: {old}")
        text = text.replace(old, new)
    place = cache.make_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.c"
    if not place.exists():
        written = place.with_suffix(f".{os.getpid()}")
        written.write_text(text, encoding="utf-8")
        written.replace(place)
    put(library, "SOURCE", place)
    put(library, "FLAGS", tuple("-O1" if flag == "-O3" else flag for flag in library.FLAGS))
    put(c_pass, "library", library.library.__wrapped__)


def in_c(what: str, made: Callable[[Callable[[], None]], Mutant], *changes: tuple[str, str]) -> Mutant:
    """A mutant of the text of pass.c, with a name made of what it does."""

    def apply() -> None:
        edit(*changes)

    apply.__doc__, apply.__name__ = what, what.replace(" ", "_").replace(",", "")
    return made(apply)


def by(bug: int, *killed_by: str, file: str = FILE) -> Callable[[Callable[[], None]], Mutant]:
    return mutant(bug, *killed_by, file=file)


CHAIN = by(10, "a_chain_is_as_many_passes_over_the_most_probable_token")
CAP = "if (M->attention_cap > 0) s = M->attention_cap * hyperbolic_tangent(s / M->attention_cap)"
HIGHEST = "vec s = load(scores + r); highest"
SHORT = (
    "lets a token read one row less than its window has",
    refused("mistral"),
    ("whole > left ? whole - left : 0", "whole > left ? whole - left + 1 : 0"),
)
IN_C = (
    SHORT,
    ("leaves out the biases of all products", refused("llama with biases"), ("if (w->bias)", "if (0)")),
    (
        "caps scores after the mask, so that what is masked is read a little",
        refused("gemma2"),
        ("if (M->attention_cap > 0) s[b]", "if (0) s[b]"),
        (HIGHEST, HIGHEST.replace("highest", f"{CAP}; store(scores + r, s); highest")),
    ),
    ("leaves out the cap of logits", refused("gemma2"), ("M->logit_cap > 0", "0")),
    (
        "takes the second half of a head for the first one where it is turned to its position",
        refused("llama"),
        ("const float a = head[d], b = head[d + half];", "const float b = head[d], a = head[d + half];"),
    ),
    (
        "leaves products of a single token as they were",
        refused("llama"),
        ("TOKENS(1) TOKENS(2)", "case 1: break; TOKENS(2)"),
    ),
    ("does not scale the queries", refused("qwen3"), ("head[d] * M->attention_scale", "head[d]")),
    (
        "multiplies with the gate as it is",
        refused("llama"),
        ("activated(M, load(of)) * load(of + L)", "load(of) * load(of + L)"),
    ),
    (
        "lets a token of a tree read those of other branches",
        by(10, f"{TREE}[llama-61]", "a_tree_can_grow_by_several_passes"),
        ("!mask[r - whole]", "0"),
    ),
    (
        "counts rows that a token does not read into its window",
        by(10, f"{TREE}[mistral-61]"),
        ("left -= mask[begin - 1 - whole]", "left -= 1"),
    ),
    (
        "leaves out the norm that a head has before its residual stream begins",
        by(33, "proposals_are_the_definitions[c-False-flags1]", file="drafts/test_feature"),
        ("M->start_normed ? M->states : (Norm){0}", "(Norm){0}"),
    ),
    (
        "leaves out the blocks that are left where their number is no multiple of the threads",
        by(10, "the_number_of_threads_changes_no_bit"),
        ("(total) * me / n, to = (total) * (me + 1) / n", "(total) / n * me, to = (total) / n * (me + 1)"),
    ),
    ("starts each pass of a chain from the first token", CHAIN, ("P->ids = tokens + i", "P->ids = tokens")),
    (
        "lets a chain take ids that it may not",
        CHAIN,
        ("for (int j = 1; j < n; j++)", "for (int j = 1; j < P->model->ids; j++)"),
    ),
    (
        "takes a token whose scores are all no numbers for one that reads nothing",
        by(28, "a_weight_that_is_no_number_shows"),
        ("exponential(load(scores + r) - top)", "top == 0 ? (vec){0} : exponential(load(scores + r) - top)"),
    ),
)
globals().update({made.apply.__name__: made for made in (in_c(*words) for words in IN_C)})
WINDOW = globals()[SHORT[0].replace(" ", "_")]

# ---------------------------------------------------------------- the Python side of pass.c


def change(given_changes: Callable[[CModel, Any], None]) -> None:
    """Change what each pass is given."""
    right = CModel.run

    def run(model: CModel, given: Any, *more: Any) -> Tensor:
        given_changes(model, given)
        return right(model, given, *more)

    put(CModel, "run", run)


def first(address: int) -> int:
    """The first of the numbers there."""
    return ctypes.c_int32.from_address(address).value


@refused("llama")
def gives_tokens_the_positions_before() -> None:
    """gives tokens the positions before theirs, from the second pass on"""

    def earlier(model: CModel, given: Any) -> None:
        given.position -= 4 * bool(first(given.position))

    change(earlier)


@refused("llama", "logits_are_the_librarys[llama-20]", "lengths_at_every_edge_of_a_page[llama]")
def writes_one_row_too_early() -> None:
    """writes keys and values one row too early"""

    def earlier(model: CModel, given: Any) -> None:
        given.row -= 4 * bool(first(given.row))

    change(earlier)


@refused("llama")
def reads_the_row_after_it() -> None:
    """lets a token read the row after it"""
    right = Text.reserve
    put(Text, "reserve", lambda text, n: right(text, n + 1))

    def further(model: CModel, given: Any) -> None:
        given.whole += 0 if given.masked else 4

    change(further)


@refused("llama")
def does_not_read_itself() -> None:
    """lets a token read all but itself, once there are others"""

    def shorter(model: CModel, given: Any) -> None:
        given.whole -= 4 * (first(given.whole) > 1 and not given.masked)

    change(shorter)


@refused("llama", "logits_are_the_librarys[llama-20]", "lengths_at_every_edge_of_a_page")
def has_one_page_alone() -> None:
    """takes the first page for all of them"""
    right = Text.reserve

    def reserve(text: Text, n: int) -> None:
        right(text, n)
        for i in range(len(text.pages)):
            text.addresses[i] = text.pages[0].data_ptr()

    put(Text, "reserve", reserve)


@refused("mistral")
def forgets_windows() -> None:
    """lets every token read all of the text"""
    right = CModel.__init__

    def init(model: CModel, *args: Any) -> None:
        right(model, *args)
        for layer in model.layers:
            layer.window = 0

    put(CModel, "__init__", init)


@refused("gemma3_text")
def turns_all_layers_alike() -> None:
    """turns all layers by the angles of the first one"""
    right = CModel.reach

    def reach(model: CModel, *args: Any) -> None:
        right(model, *args)
        for layer in model.layers:
            layer.cosines, layer.sines = model.layers[0].cosines, model.layers[0].sines

    put(CModel, "reach", reach)


@refused("llama, three blocks", "one_weight_between_the_steps_makes_floats_of_all", file="engines/test_weights")
def rounds_weights() -> None:
    """takes weights near whole steps for these"""
    put(c_pass, "EXACT", 0.1)


@mutant(10, "no_graph_is_recorded_in_a_timed_turn", file="models/test_cuda_graphs")
def records_what_it_meets() -> None:
    """records nothing before the turns, so that turns do it"""
    Bench.prepare = lambda *args: None
