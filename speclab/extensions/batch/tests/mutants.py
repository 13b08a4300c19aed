"""Bugs in batches: rows that are not kept apart, and rates that hold what is not theirs."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from speclab.core.rounds import Decided, Draft, Round
from speclab.core.sampling import Sampling, draw_next, to_host
from speclab.extensions.batch import decode
from speclab.extensions.batch.decoding import batched_model, drafters, loops, row_buffers, texts
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.decodings import BatchDecoding, PassMade
from speclab.extensions.batch.decoding.drafters import BatchedModelDrafter
from speclab.extensions.batch.decoding.row_buffers import Outputs, Placed
from speclab.extensions.batch.decoding.row_pages import RowPages
from speclab.extensions.batch.decoding.texts import Row, Rows
from tests.mutants.bugs import mutant

BUGS = {19: "rows of a batch that read, move or wait for what is not theirs"}
MODEL, LOOPS, RATES = "test_batched_model", "test_batch_loops", "test_batch_rates"
LOGITS, ALONE = "logits_of_each_row_are_those_of_its_text", "rounds_of_each_text_are_those_that_it_has_alone"
CACHES = "caches_equal_a_recomputation_after_every_round"
right_visible = row_buffers.visible


def up_to_the_longest(places: Tensor, total: int, reads: Tensor | None) -> Tensor:
    return right_visible(places.amax(0, keepdim=True).expand_as(places), total, reads)


@mutant(19, LOGITS, file=MODEL)
def reads_what_lies_between_a_row_and_the_longest() -> None:
    """lets every row read as many places as the longest text has"""
    row_buffers.visible = up_to_the_longest


@mutant(19, LOGITS, f"{LOGITS}[llama-c]", file=MODEL)
def puts_all_rows_at_the_longest_ones_positions() -> None:
    """gives the tokens of every row the positions of the longest text"""

    def placed(starts: list[int], sizes: list[int], width: int, *rest) -> Placed:
        longest = torch.full((len(starts), 1), max(starts)) + torch.arange(width)
        return Placed(starts, sizes, width, *rest, positions=longest)

    batched_model.Placed = placed


@mutant(19, "rows_may_have_different_numbers_of_tokens", file=MODEL)
def counts_padding() -> None:
    """counts as many tokens of every row as the row with the most has"""
    right = BatchedModel.forward

    def forward(
        self: BatchedModel, tokens: Tensor, reads: Tensor | None = None, sizes: Sequence[int] | None = None
    ) -> Tensor:
        return right(self, tokens, reads)

    BatchedModel.forward = forward


@mutant(19, "padding_is_never_computed_on_c", file=MODEL)
def computes_padding() -> None:
    """lets the pass that verifies compute the padding of short drafts"""

    def verify(self: BatchedModel, last_tokens: Tensor, draft: Draft) -> Tensor:
        return draft.verified_by(self, last_tokens)

    BatchedModel.verify = verify


@mutant(19, "trees_in_rows[c-llama]", file=MODEL)
def reads_trees_as_chains_on_c() -> None:
    """on the engine c, lets every token of a tree read all tokens before it"""
    right = RowPages.forward

    def forward(self: RowPages, ids: Tensor, placed: Placed, layers: Iterable[int]) -> Outputs:
        return right(self, ids, replace(placed, reads=None), layers)

    RowPages.forward = forward


@mutant(19, "trees_in_rows[eager-llama]", "trees_in_rows[c-llama]", file=MODEL)
def keeps_the_first_rows_branch_in_all_rows() -> None:
    """moves keys and values of every row as those of the first one"""
    right = BatchedModel.keep

    def keep(self: BatchedModel, paths: list[list[int]]) -> None:
        right(self, [paths[0][: len(path)] for path in paths])

    BatchedModel.keep = keep


@mutant(19, ALONE, CACHES, file=LOOPS)
def rolls_all_rows_back_by_the_same_number() -> None:
    """rolls every row back by what the row with the most rejections rejected"""
    right = BatchedModel.crop

    def crop(self: BatchedModel, lengths: list[int]) -> None:
        most = max((max(0, have - want) for have, want in zip(self.lengths, lengths, strict=True) if want), default=0)
        right(self, [max(0, have - most) if want else 0 for have, want in zip(self.lengths, lengths, strict=True)])

    BatchedModel.crop = crop


@mutant(19, f"{ALONE}[model-sampled-eager]", "neighbours_play_no_part", file=LOOPS)
def draws_all_rows_from_one_generator() -> None:
    """draws the random numbers of all texts from the first one's generator"""
    right = Row.__init__
    shared: list[torch.Generator] = []

    def make(self: Row, *about: object) -> None:
        right(self, *about)  # type: ignore[arg-type]
        shared.append(self.generator)
        self.generator = shared[0]

    Row.__init__ = make


@mutant(19, f"{ALONE}[best tree-sampled-eager]", file=LOOPS)
def draws_the_next_token_with_the_number_of_the_widest_row() -> None:
    """draws a row's next token with another number where a neighbour drafted more"""
    loops.judging = lambda draft, uniforms: uniforms[:, : draft.tokens.shape[1] + 1]


@mutant(19, "drafts_side_by_side", file=LOOPS)
def takes_padding_for_drafted_tokens() -> None:
    """judges the padding of a row as if it had been drafted"""
    right = drafters.side_by_side

    def side_by_side(drafts: list, vocab_size: int):
        draft = right(drafts, vocab_size)
        return replace(draft, size=torch.full_like(draft.size, draft.tokens.shape[1]))

    drafters.side_by_side = side_by_side


@mutant(19, "rows_are_filled_again", file=LOOPS)
def waits_until_all_rows_have_ended() -> None:
    """starts the next texts when the last row of the batch has ended"""
    right = Rows.admitted

    def admitted(self: Rows):
        return iter(()) if self.busy else right(self)

    Rows.admitted = admitted


@mutant(19, ALONE, file=LOOPS)
def ends_every_row_at_the_least_budget() -> None:
    """ends every text at the least budget so far that is longer than a token"""
    right = Row.__init__
    budgets: list[int] = []

    def make(self: Row, place: int, number: int, request: texts.Request, device: torch.device) -> None:
        budgets.append(request.settings.max_new_tokens)
        most = min((n for n in budgets if n > 1), default=1)
        object.__setattr__(request.settings, "max_new_tokens", min(most, budgets[-1]))
        right(self, place, number, request, device)

    Row.__init__ = make


@mutant(19, ALONE, CACHES, file=LOOPS)
def feeds_every_row_of_the_draft_one_token() -> None:
    """never feeds a draft model the drafted token that was accepted last"""
    right = BatchedModelDrafter.observe

    def observe(self: BatchedModelDrafter, decided: dict[int, Decided]) -> None:
        right(self, decided)
        self._not_fed = [tokens[-1:] for tokens in self._not_fed]

    BatchedModelDrafter.observe = observe


@mutant(6, f"{ALONE}[model-sampled-eager]", file=LOOPS)
def first_token_of_a_batch_is_not_filtered() -> None:
    """draws the first token of every text of a batch before the filters"""

    def first(target, row) -> tuple[Round, Tensor]:
        logits = target.prefill(row.place, row.prompt)
        token = draw_next(logits[:, -1], Sampling(row.settings.sampling.temperature), row.uniforms(1))
        return row.commit(to_host(token)), token

    loops._first = first


@mutant(20, "a_batch_prints_and_records_its_exact_rates", file=RATES)
def batch_rate_counts_the_prompts_own_tokens() -> None:
    """counts the tokens of the prompts' own passes in the rate of a batch, and not their seconds"""
    right = decode.speed

    def speed(decoding: BatchDecoding, at_once: int) -> str:
        n, seconds = decoding.counts.n_emitted, sum(made.seconds for made in decoding.passes)
        wrong = f"{decoding.n_tokens / seconds:.1f} tok/s" if n else ""
        return right(decoding, at_once).replace(f"{n / seconds:.1f} tok/s", wrong) if n else right(decoding, at_once)

    decode.speed = speed


@mutant(20, "a_batch_prints_and_records_its_exact_rates", file=RATES)
def batch_rate_holds_the_prompts_own_passes() -> None:
    """divides the decoded tokens of a batch by seconds with the prompts' own passes in them"""
    right = decode.speed

    def speed(decoding: BatchDecoding, at_once: int) -> str:
        whole = copy.copy(decoding)
        whole.passes = [*decoding.passes, PassMade({}, decoding.seconds - sum(one.seconds for one in decoding.passes))]
        return right(whole, at_once)

    decode.speed = speed


@mutant(20, "a_batch_prints_and_records_its_exact_rates", file=RATES)
def batch_pace_holds_rounds_with_empty_rows() -> None:
    """counts rounds in which a row had no text"""
    BatchDecoding.full = lambda self, n_rows: self.passes
