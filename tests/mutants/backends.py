"""Bugs in speclab/models/backends: positions, masks, buffers and graphs of the fast engine."""

import torch
from speclab.models.backends.compiled import Program
from speclab.models.backends.exported import ExportedModel
from torch import Tensor
from transformers import PreTrainedModel

from speclab.core import graphs
from speclab.core.sampling import Sampling
from speclab.engines import buffers as buffers_module
from speclab.engines import windows
from speclab.engines.cuda.attention import GroupedAttention, TwoProducts
from speclab.engines.cuda.buffers import Buffers
from speclab.engines.cuda.cuda_graphs import GraphBackend, GraphCache, GraphedModel
from speclab.engines.cuda.kernels import Joined
from speclab.lab.bench import Bench
from speclab.models import engine_choice
from tests.mutants.bugs import mutant

WIDTHS = "logits_at_every_width_and_across_a_growing_buffer"
IN_PARTS = f"{WIDTHS}[in_parts-llama]"  # what goes wrong in parts alone

# ---------------------------------------------------------------- the exported backend


@mutant(
    10,
    WIDTHS,
    "greedy_texts_and_rounds_are_those_of_the_eager_engine_in_float32",
    file="models/test_exported",
)
def gives_tokens_the_positions_before() -> None:
    """gives the fast backend's tokens the positions before theirs"""
    right = ExportedModel.forward

    def forward(model: ExportedModel, ids: Tensor, positions: Tensor, *more, **kernels) -> Tensor:
        return right(model, ids, positions - 1, *more, **kernels)

    ExportedModel.forward = forward


@mutant(10, WIDTHS, file="models/test_exported")
def lets_tokens_read_the_one_after() -> None:
    """lets the fast backend's tokens read the one after them"""

    def causal_mask(width: int, length: int, n_rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        mask = torch.full((width, n_rows), torch.finfo(dtype).min, dtype=dtype, device=device)
        return mask.triu_(length + 2)[None, None]

    buffers_module.causal_mask = causal_mask


@mutant(10, IN_PARTS, file="models/test_exported")
def writes_padding_over_the_text() -> None:
    """writes the rows of a compiled pass one place too early"""
    right = Program._values

    def values(ids: Tensor, positions: Tensor, mask: Tensor, places: Tensor, *rows) -> list[Tensor]:
        return right(ids, positions, mask, (places - 1).clamp(min=0), *rows)

    Program._values = staticmethod(values)


@mutant(10, IN_PARTS, file="models/test_exported")
def reads_the_rest_of_a_block() -> None:
    """lets a compiled pass read the rows behind the text, up to the end of the block"""
    right = Program._values

    def values(ids: Tensor, positions: Tensor, mask: Tensor, *rest) -> list[Tensor]:
        last = mask[..., -1:, :] == 0
        return right(ids, positions, mask.masked_fill(~last, 0.0), *rest)

    Program._values = staticmethod(values)


@mutant(10, "a_pass_that_is_wrong_or_slow_is_not_used", file="models/test_compiled")
def checks_passes_padded_alone() -> None:
    """checks compiled passes together, so that the widest one stands for all"""
    right = engine_choice.check

    def check(model: PreTrainedModel, fast: ExportedModel, *how) -> None:
        if not how or how[0][0] > 1:
            right(model, fast, *how)

    engine_choice.check = check


@mutant(10, "a_buffer_grows_by_doubling_and_keeps_what_it_holds", file="models/test_exported")
def forgets_the_old_keys() -> None:
    """forgets the old keys when the fast backend's buffer grows"""
    right = Buffers.copy_from

    def copy_from(buffers: Buffers, other: Buffers, n_rows: int) -> None:
        right(buffers, other, n_rows)
        for keys in buffers.keys:
            keys.zero_()

    Buffers.copy_from = copy_from


@mutant(
    10,
    "texts_longer_than_the_window_are_those_of_the_eager_engine",
    f"{WIDTHS}[flattened-mistral_window]",
    file="models/test_exported",
)
def lets_tokens_read_one_beyond_the_window() -> None:
    """lets the fast backend's tokens read one token more than their window has"""
    right = windows.with_window
    windows.with_window = lambda mask, window: right(mask, window + 1)


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


@mutant(10, "two_products_are_the_same_attention", file="models/test_cuda_graphs")
def forgets_the_scale_of_scores() -> None:
    """takes two products for attention and leaves out the scale of the scores"""
    right = TwoProducts.__call__

    def attend(way: TwoProducts, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None):
        return right(way, queries, keys, values, mask, 1.0)

    TwoProducts.__call__ = attend


@mutant(10, "wrong_attention_is_not_taken", file="models/test_cuda_graphs")
def takes_fast_attention_without_a_check() -> None:
    """takes the faster attention without a look at its logits"""
    right = engine_choice.choose_attention

    def choose(graphed: GraphedModel) -> None:
        check, engine_choice.check = engine_choice.check, lambda *args: None
        try:
            right(graphed)
        finally:
            engine_choice.check = check

    engine_choice.choose_attention = choose


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
