"""Bugs in speclab/models/backends: positions, masks, buffers and graphs of the fast engine."""

import torch
from torch import Tensor

from speclab.models.backends import exported as exported_module
from speclab.models.backends.cuda_graphs import GraphBackend, GraphCache, GraphKey
from speclab.models.backends.exported import Buffers, ExportedModel
from tests.mutants.bugs import mutant

# ---------------------------------------------------------------- the exported backend


@mutant(
    10,
    "logits_at_every_width_and_across_a_growing_buffer",
    "greedy_texts_and_rounds_are_those_of_the_eager_engine_in_float32",
    file="models/test_exported",
)
def gives_tokens_the_positions_before() -> None:
    """gives the fast backend's tokens the positions before theirs"""
    right = ExportedModel.forward

    def forward(model: ExportedModel, ids: Tensor, positions: Tensor, *more) -> Tensor:
        return right(model, ids, positions if model.graphed else positions - 1, *more)

    ExportedModel.forward = forward


@mutant(10, "logits_at_every_width_and_across_a_growing_buffer", file="models/test_exported")
def lets_tokens_read_the_one_after() -> None:
    """lets the fast backend's tokens read the one after them"""

    def causal_mask(width: int, total: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        mask = torch.full((width, total), torch.finfo(dtype).min, dtype=dtype, device=device)
        return mask.triu_(total - width + 2)[None, None]

    exported_module.causal_mask = causal_mask


@mutant(10, "a_buffer_grows_by_doubling_and_keeps_what_it_holds", file="models/test_exported")
def forgets_the_old_keys() -> None:
    """forgets the old keys when the fast backend's buffer grows"""
    right = Buffers.copy_from

    def copy_from(buffers: Buffers, other: Buffers, n_rows: int) -> None:
        right(buffers, other, n_rows)
        for keys in buffers.keys:
            keys.zero_()

    Buffers.copy_from = copy_from


# ---------------------------------------------------------------- CUDA graphs


@mutant(10, "logits_are_the_models_own", file="models/test_cuda_graphs")
def lets_a_graph_read_the_row_after() -> None:
    """lets a graph read the row after each token"""
    right = ExportedModel.forward

    def forward(model: ExportedModel, ids: Tensor, positions: Tensor, mask: Tensor, *buffers) -> Tensor:
        if model.graphed:
            after = torch.arange(mask.shape[-1], device=mask.device) == positions[0, :, None] + 1
            mask = mask.masked_fill(after, 0.0)
        return right(model, ids, positions, mask, *buffers)

    ExportedModel.forward = forward


@mutant(10, "a_chain_of_draft_steps_is_one_replay", file="models/test_cuda_graphs")
def gives_every_step_the_first_ones_position() -> None:
    """gives every step of a graphed draft chain the first one's position"""
    right = GraphCache.__init__

    class FirstPlaces:
        """(1, n) places, of which [:, a:b] are the first b - a."""

        def __init__(self, places: Tensor):
            self.places = places

        def __getitem__(self, key: tuple) -> Tensor:
            _, columns = key
            return self.places[:, : columns.stop - columns.start] if columns.start else self.places[key]

    def init(cache: GraphCache, exported: ExportedModel, capacity: int) -> None:
        right(cache, exported, capacity)
        cache.places = FirstPlaces(cache.places)

    GraphCache.__init__ = init


@mutant(10, "what_was_handed_out_is_not_overwritten", file="models/test_cuda_graphs")
def hands_out_what_the_next_replay_overwrites() -> None:
    """hands out logits that the next replay overwrites"""
    right = GraphCache.run

    def run(cache: GraphCache, key: GraphKey, inputs: tuple[Tensor, ...], length: int) -> tuple[Tensor, ...]:
        right(cache, key, inputs, length)
        return cache._graph(key, length + key.n_tokens).outputs

    GraphCache.run = run


@mutant(10, "graph_caches_outlive_decodings_and_are_never_shared", file="models/test_cuda_graphs")
def lets_two_decodings_share_a_cache() -> None:
    """lets two decodings write to one graph cache"""
    right = GraphBackend._new_buffers

    def take(backend: GraphBackend, capacity: int) -> GraphCache:
        free = list(backend._exported.graph_caches)
        taken = right(backend, capacity)
        if taken in free:
            backend._exported.graph_caches.append(taken)
        return taken

    GraphBackend._new_buffers = take
