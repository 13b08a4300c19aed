"""Bugs of early exit: the target's first layers and the others are run, rolled back or placed apart from each other."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from speclab.core.rounds import Draft
from speclab.engines.c_pass import CModel, Text
from speclab.engines.eager import EagerBackend
from speclab.extensions.exits import first_layers
from speclab.extensions.exits.drafter import ExitDrafter
from tests.mutants.bugs import mutant

FILE = "test_exit"
BUGS = {38: "one part of the target's layers out of step with the other"}
TEXT = "greedy_text_is_the_targets_in_every_family"
CACHES = "caches_equal_a_recomputation_after_every_round"
DEFINITION = "proposals_and_states_are_the_definitions"


@mutant(38, CACHES, file=FILE)
def rolls_the_first_layers_back_too_far() -> None:
    """drops one token more from the cache of the first layers than from that of the others"""
    right = EagerBackend.crop

    def crop(backend: EagerBackend, n_tokens: int, length: int) -> None:
        right(backend, n_tokens, length)
        if n_tokens > 0 and len(backend._cache.layers) > 3:
            backend._cache.layers[0].crop(-1)

    EagerBackend.crop, first_layers.check_length = crop, lambda *args: None


@mutant(38, "parts_that_are_out_of_step_are_refused", file=FILE)
def lets_the_parts_get_out_of_step() -> None:
    """does not look how many tokens each part of the cache holds"""
    first_layers.check_length = lambda *args: None


@mutant(38, TEXT, CACHES, file=FILE, raises="RuntimeError")
def verifies_one_layer_too_late() -> None:
    """goes on from the states one layer too high, so that a layer never runs"""
    right = first_layers.only_layers

    def late(model, chosen: range, states: Tensor | None = None):
        return right(model, chosen if states is None else range(chosen.start + 1, chosen.stop), states)

    first_layers.only_layers = late


@mutant(38, TEXT, "every_family_passes_the_check", file=FILE, raises="EnvironmentProblem")
def puts_the_second_part_one_position_further() -> None:
    """gives the layers behind the exit the positions after theirs, on the eager engine"""
    right = first_layers.forward_rest

    def forward_rest(backend: Any, states: Tensor, length: int, n_layers: int) -> Tensor:
        arange = torch.arange
        torch.arange = lambda start, *more, **options: (
            arange(start + 1, more[0] + 1, **options) if start == length and more else arange(start, *more, **options)
        )
        try:
            return right(backend, states, length, n_layers)
        finally:
            torch.arange = arange

    first_layers.forward_rest = forward_rest


@mutant(38, TEXT, CACHES, file=FILE)
def puts_the_second_part_one_position_back() -> None:
    """gives the layers behind the exit the positions before theirs, on the engine c"""
    right = CModel.run

    def run(model: CModel, given: Any, *more) -> Tensor:
        if given.ids is None:
            given.position -= 4  # bytes
        return right(model, given, *more)

    CModel.run = run


@mutant(38, "caches_grow_in_the_middle_of_a_round", file=FILE)
def empties_a_page_when_another_begins() -> None:
    """begins a new page and empties the one before it"""
    right = Text.reserve

    def reserve(text: Text, n: int) -> None:
        n_before = len(text.pages)
        right(text, n)
        if 0 < n_before < len(text.pages):
            text.pages[n_before - 1].zero_()

    Text.reserve = reserve


@mutant(38, TEXT, CACHES, file=FILE)
def hands_over_states_in_another_order() -> None:
    """gives each drafted token the state of another one to be verified from"""
    right = ExitDrafter.propose

    def propose(drafter: ExitDrafter, k: int, uniforms: Tensor) -> Draft:
        draft = right(drafter, k, uniforms)
        return replace(draft, states=draft.states.roll(1, dims=1)) if k else draft

    ExitDrafter.propose = propose


@mutant(38, DEFINITION, file=FILE)
def keeps_what_was_read_of_rejected_tokens() -> None:
    """leaves the adapter's keys and values of rejected tokens where they are"""
    right = ExitDrafter.observe

    def observe(drafter: ExitDrafter, n_accepted: int, committed: list[int]) -> None:
        length = drafter._length
        right(drafter, n_accepted, committed)
        drafter._length = length

    ExitDrafter.observe = observe


@mutant(38, DEFINITION, file=FILE)
def reads_the_state_of_a_rejected_token() -> None:
    """takes the last row of every verification for a token that was accepted"""
    right = ExitDrafter.observe

    def observe(drafter: ExitDrafter, n_accepted: int, committed: list[int]) -> None:
        right(drafter, drafter._n_read, committed)

    ExitDrafter.observe = observe


@mutant(38, "a_hybrid_keeps_the_adapter_in_step", file=FILE)
def never_reads_what_another_draft_proposed() -> None:
    """lets the adapter skip the tokens of rounds in which a lookup drafted"""
    right = ExitDrafter.observe

    def observe(drafter: ExitDrafter, n_accepted: int, committed: list[int]) -> None:
        right(drafter, n_accepted if drafter._n_read else 0, committed)

    ExitDrafter.observe = observe
