"""Bugs in the rollback of recurrent layers: states, replays, and the attention layers beside them."""

from typing import Any

import torch
from transformers import Cache

from speclab.engines.eager import EagerBackend
from speclab.extensions.recurrent import backend, family
from speclab.extensions.recurrent.backend import RecurrentBackend
from speclab.models.checking import checks
from speclab.models.family import family_of
from tests.mutants.bugs import mutant

TEXTS = "texts_are_those_of_decoding_token_by_token"
STATES = "states_equal_a_recomputation_after_every_round"
FILE = "test_recurrent"
BUGS = {41: "recurrent state that has read a rejected token, or an accepted one twice or never"}


@mutant(41, "any_number_of_tokens_can_be_taken_back", file=FILE)
def restores_no_state() -> None:
    """replays the accepted tokens on top of the states that have read the rejected ones"""

    def put_back(cache: Cache, states: list[dict[str, Any]]) -> None:
        for layer, held in zip(cache.layers, states, strict=True):
            vars(layer).update({name: value for name, value in held.items() if not isinstance(value, dict)})

    backend.put_back = put_back


@mutant(41, "any_number_of_tokens_can_be_taken_back", file=FILE)
def keeps_no_copy() -> None:
    """keeps the states themselves instead of copies, which the next pass overwrites"""

    def states_of(cache: Cache) -> list[dict[str, Any]]:
        return [
            {name: dict(value) if isinstance(value, dict) else value for name, value in vars(layer).items()}
            for layer in cache.layers
        ]

    backend.states_of = states_of


def replay_more(n_more: int) -> None:
    """After a rejection read `n_more` tokens more than are accepted."""
    right = RecurrentBackend.crop

    @torch.inference_mode()
    def crop(of_target: RecurrentBackend, n_tokens: int, length: int) -> None:
        right(of_target, n_tokens - n_more if n_tokens else 0, length)

    RecurrentBackend.crop = crop


@mutant(41, "attention_layers_of_a_hybrid_hold_the_committed_tokens_alone", file=FILE)
def replays_one_too_many() -> None:
    """replays the rejected token, too"""
    replay_more(1)


@mutant(41, "attention_layers_of_a_hybrid_hold_the_committed_tokens_alone", file=FILE)
def replays_one_too_few() -> None:
    """replays all accepted tokens but the last"""
    replay_more(-1)


@mutant(41, "attention_layers_of_a_hybrid_hold_the_committed_tokens_alone", file=FILE)
def crops_no_attention_layer() -> None:
    """restores the recurrent layers of a hybrid and leaves its attention layers as they are"""
    right = backend.put_back

    def put_back(cache: Cache, states: list[dict[str, Any]]) -> None:
        kept = [{} if not any(isinstance(v, dict) for v in held.values()) else held for held in states]
        right(cache, kept)

    backend.put_back = put_back


@mutant(41, f"{TEXTS}[mamba-4-9]", file=FILE)
def reads_several_tokens_where_the_library_cannot() -> None:
    """verifies all drafted tokens in one pass where such a pass does not read the states"""
    family.reads_several = lambda model: True


@mutant(41, "a_family_is_read_one_by_one_only_where_the_library_needs_it", file=FILE)
def reads_all_one_by_one() -> None:
    """verifies token by token in every family"""
    family.reads_several = lambda model: False


@mutant(24, "what_cannot_be_restored_is_refused", file=FILE)
def takes_every_recurrent_family() -> None:
    """compares no logits where layers are recurrent"""
    right = checks._compare

    def compare(model: Any, *more: Any) -> None:
        if family_of(model).crops:
            right(model, *more)

    checks._compare = compare


@mutant(20, "replays_are_counted_and_timed_with_the_rollback", file=FILE)
def counts_no_replay() -> None:
    """does not count the passes that replay"""
    EagerBackend.n_replays = property(lambda self: 0, lambda self, n: None)
