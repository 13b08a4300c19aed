"""Bugs in speclab/engines: in the text of pass.c, on its Python side, in eager windows and in CUDA graphs."""

import ctypes
import hashlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from speclab.core.sampling import Sampling
from speclab.engines import c_pass, eager, library, windows
from speclab.engines.c_pass import CBackend, CModel, Text
from speclab.engines.cuda import graphs
from speclab.engines.cuda.attention import GroupedAttention
from speclab.engines.cuda.cuda_graphs import GraphBackend, GraphCache, GraphedModel
from speclab.engines.cuda.kernels import Joined
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


@refused("mistral")
def reads_one_row_less_than_the_window() -> None:
    """lets a token read one row less than its window has"""
    edit(("whole > left ? whole - left : 0", "whole > left ? whole - left + 1 : 0"))


@refused("llama with biases")
def leaves_out_biases() -> None:
    """leaves out the biases of all products"""
    edit(("if (w->bias)", "if (0)"))


@refused("gemma2")
def caps_scores_after_the_mask() -> None:
    """caps scores after the mask, so that what is masked is read a little"""
    cap = "if (M->attention_cap > 0) s = M->attention_cap * hyperbolic_tangent(s / M->attention_cap)"
    edit(
        ("if (M->attention_cap > 0) s[b]", "if (0) s[b]"),
        ("vec s = load(scores + r); highest", f"vec s = load(scores + r); {cap}; store(scores + r, s); highest"),
    )


@refused("gemma2")
def leaves_out_the_cap_of_logits() -> None:
    """leaves out the cap of logits"""
    edit(("M->logit_cap > 0", "0"))


@refused("llama")
def turns_the_halves_of_a_head_against_each_other() -> None:
    """takes the second half of a head for the first one where it is turned to its position"""
    edit(("const float a = head[d], b = head[d + half];", "const float b = head[d], a = head[d + half];"))


@refused("llama")
def makes_no_products_of_one_token() -> None:
    """leaves products of a single token as they were"""
    edit(("TOKENS(1) TOKENS(2)", "case 1: break; TOKENS(2)"))


@refused("qwen3")
def does_not_scale_queries() -> None:
    """does not scale the queries"""
    edit(("head[d] * M->attention_scale", "head[d]"))


@refused("llama")
def does_not_activate_the_gate() -> None:
    """multiplies with the gate as it is"""
    edit(("activated(M, load(of)) * load(of + L)", "load(of) * load(of + L)"))


@mutant(10, f"{TREE}[llama-61]", "a_tree_can_grow_by_several_passes", file=FILE)
def reads_other_branches() -> None:
    """lets a token of a tree read those of other branches"""
    edit(("!mask[r - whole]", "0"))


@mutant(10, f"{TREE}[mistral-61]", file=FILE)
def counts_other_branches_into_the_window() -> None:
    """counts rows that a token does not read into its window"""
    edit(("left -= mask[begin - 1 - whole]", "left -= 1"))


@mutant(33, "proposals_are_the_definitions[c-False-flags1]", file="drafts/test_feature")
def begins_a_head_without_its_norm() -> None:
    """leaves out the norm that a head has before its residual stream begins"""
    edit(("M->start_normed ? M->states : (Norm){0}", "(Norm){0}"))


@mutant(10, "the_number_of_threads_changes_no_bit", file=FILE)
def loses_what_threads_cannot_share() -> None:
    """leaves out the blocks that are left where their number is no multiple of the threads"""
    edit(("(total) * me / n, to = (total) * (me + 1) / n", "(total) / n * me, to = (total) / n * (me + 1)"))


@mutant(10, "a_chain_is_as_many_passes_over_the_most_probable_token", file=FILE)
def reads_the_same_token_again() -> None:
    """starts each pass of a chain from the first token"""
    edit(("P->ids = tokens + i", "P->ids = tokens"))


@mutant(10, "a_chain_is_as_many_passes_over_the_most_probable_token", file=FILE)
def takes_ids_that_may_not_be_drafted() -> None:
    """lets a chain take ids that it may not"""
    edit(("for (int j = 1; j < n; j++)", "for (int j = 1; j < P->model->ids; j++)"))


@mutant(28, "a_weight_that_is_no_number_shows", file=FILE)
def takes_what_is_no_number_for_nothing() -> None:
    """takes a token whose scores are all no numbers for one that reads nothing"""
    edit(("exponential(load(scores + r) - top)", "top == 0 ? (vec){0} : exponential(load(scores + r) - top)"))


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
        if n := first(given.position):
            given.position = model.numbers(0) + 4 * (n - 1)

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


@mutant(10, TREE, file=FILE)
def moves_nothing() -> None:
    """leaves the rows of a branch that is kept where they are"""
    put(Text, "move", lambda text, rows, start: None)


@mutant(10, TREE, file=FILE)
def moves_the_last_row_first() -> None:
    """moves the last row of a kept branch first, over others that are still to be moved"""
    right = Text.move

    def move(text: Text, rows: list[int], start: int) -> None:
        for i in reversed(range(len(rows))):
            right(text, rows[i : i + 1], start + i)

    put(Text, "move", move)


@mutant(33, TREE, file=FILE)
def keeps_the_states_of_the_first_rows() -> None:
    """keeps the states of the first rows of a tree, not those of the branch"""

    def keep(backend: CBackend, length: int, rows: Tensor) -> None:
        backend.text.move([length + row for row in rows.tolist()], length)
        backend.hidden = {layer: states[:, : len(rows)] for layer, states in backend.hidden.items()}

    put(CBackend, "keep", keep)


@mutant(33, "states_are_the_uncached_models", file="models/test_hidden")
def gives_the_states_of_another_layer() -> None:
    """gives the states of the layer before the one that is asked for"""
    right = CModel.run

    def run(model: CModel, given: Any, n_tokens: int, n_logits: int, states: dict[int, Tensor], *more: Any) -> Tensor:
        states = {max(layer - 1, 0): out for layer, out in states.items()}
        return right(model, given, n_tokens, n_logits, states, *more)

    put(CModel, "run", run)


@mutant(33, "states_of_a_long_prompt_are_whole", file=FILE)
def keeps_the_states_of_the_last_call() -> None:
    """keeps of a long prompt the states of its last call alone"""
    right = CBackend.read

    def read(backend: CBackend, tokens: Tensor, *more: Any, **others: Any) -> Tensor:
        logits = right(backend, tokens, *more, **others)
        n = -(-tokens.shape[1] % -c_pass.AT_ONCE) or c_pass.AT_ONCE
        backend.hidden = {layer: states[:, -n:] for layer, states in backend.hidden.items()}
        return logits

    put(CBackend, "read", read)


# ---------------------------------------------------------------- the library


@mutant(44, "a_file_that_may_be_another_one_is_compiled_again", file="engines/test_library")
def loads_whatever_is_there() -> None:
    """loads a compiled file whoever wrote it"""
    put(library, "_is_whole", lambda place: place.exists())


@mutant(44, "a_file_that_may_be_another_one_is_compiled_again", file="engines/test_library")
def believes_what_others_can_write() -> None:
    """looks at the digest of a compiled file, and not at who can write it"""
    put(library.cache, "is_own", lambda place: True)


# ---------------------------------------------------------------- windows of the eager engine


@mutant(10, "every_token_of_a_tree_reads_its_window", file="models/test_caches")
def lets_tokens_read_one_beyond_the_window() -> None:
    """lets a token of a tree read one token more than its window has"""
    right = eager.masks

    def masks(mask: Tensor, window: windows.Window | None, *more: Any) -> Any:
        return right(mask, window and window._replace(size=window.size + 1), *more)

    put(eager, "masks", masks)


# ---------------------------------------------------------------- CUDA graphs


@mutant(10, "logits_are_the_models_own", file="models/test_cuda_graphs")
def gives_a_graphs_tokens_the_positions_before() -> None:
    """gives a graph's tokens the positions before theirs"""
    right = GraphedModel.forward

    def forward(graphed: GraphedModel, ids: Tensor, positions: Tensor, *more) -> Tensor:
        return right(graphed, ids, positions - 1, *more)

    GraphedModel.forward = forward


@mutant(10, "grouped_queries_read_each_key_once", file="models/test_cuda_graphs")
def mixes_up_the_groups() -> None:
    """gives queries to the heads in turns, where heads of a group follow one another"""
    right = GroupedAttention.__call__

    def attend(attention: GroupedAttention, module, query: Tensor, key: Tensor, *more, **options):
        heads, kv_heads = query.shape[1], key.shape[1]
        order = torch.arange(heads).view(-1, kv_heads).t().flatten()
        mixed, weights = right(attention, module, query[:, order], key, *more, **options)
        return mixed[:, :, order.argsort()], weights

    GroupedAttention.__call__ = attend


@mutant(10, "logits_are_the_models_own[gemma3_window]", file="models/test_cuda_graphs")
def gives_all_layers_the_mask_of_the_first() -> None:
    """gives layers without a window the mask of those with one, which was made first"""
    right = GroupedAttention.__call__

    def attend(attention: GroupedAttention, module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options):
        first = next((first for first, _ in attention.masks.values()), mask)
        return right(attention, module, query, key, value, first, **options)

    GroupedAttention.__call__ = attend


@mutant(10, "grouped_attention_is_the_librarys", file="models/test_cuda_graphs")
def forgets_the_scale_of_scores() -> None:
    """leaves out the scale of the scores in attention on a GPU"""
    right = GroupedAttention.__call__

    def attend(attention: GroupedAttention, *tensors, scaling: float | None = None, **options):
        return right(attention, *tensors, scaling=1.0, **options)

    GroupedAttention.__call__ = attend


@mutant(10, "joined_products_are_the_models_own", "logits_are_the_models_own", file="models/test_cuda_graphs")
def gives_joined_products_in_another_order() -> None:
    """gives the keys' product where the values' is asked for"""
    right = Joined.product
    Joined.product = lambda joined, index, x: right(joined, index if len(joined.sizes) < 3 else (0, 2, 1)[index], x)


@mutant(10, "what_was_handed_out_is_not_overwritten", file="models/test_cuda_graphs")
def hands_out_what_the_next_replay_overwrites() -> None:
    """hands out logits that the next replay overwrites"""
    run, forward = GraphCache.run, GraphBackend.forward
    fixed: list[Tensor] = []

    def noted(cache: GraphCache, ids: Tensor, length: int, width: int) -> list[Tensor]:
        outputs = run(cache, ids, length, width)
        fixed[:] = outputs[:1]
        return outputs

    def handed_out(backend: GraphBackend, tokens: Tensor, length: int) -> Tensor:
        forward(backend, tokens, length)
        return fixed[0]

    GraphCache.run, GraphBackend.forward = noted, handed_out


@mutant(10, "graph_caches_outlive_decodings_and_are_never_shared", file="models/test_cuda_graphs")
def lets_two_decodings_share_a_cache() -> None:
    """lets two decodings write to one graph cache"""
    right = GraphBackend._new_buffers

    def take(backend: GraphBackend, capacity: int) -> GraphCache:
        free = list(backend._graphed.free)
        taken = right(backend, capacity)
        if taken in free:
            backend._graphed.free.append(taken)
        return taken

    GraphBackend._new_buffers = take


@mutant(10, "functions_are_recorded_once_for_each_kind_of_arguments", file="models/test_cuda_graphs")
def replays_for_any_setting() -> None:
    """replays a function that was recorded with other settings"""
    right = graphs._form
    graphs._form = lambda value: None if isinstance(value, Sampling) else right(value)


@mutant(10, "no_graph_is_recorded_in_a_timed_turn", file="models/test_cuda_graphs")
def records_what_it_meets() -> None:
    """records nothing before the turns, so that turns do it"""
    Bench.prepare = lambda *args: None
