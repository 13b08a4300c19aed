"""Bugs in speclab/drafts, theory and lab: the judge, the arms that take turns, a draft's prompts."""

import argparse
import functools
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.gpu import one_size, results
from draft_models import ModelDrafter
from speclab.core.drafter import Drafter
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts import registry
from speclab.lab import bench, harness, output_checks, turns
from speclab.lab.harness import Decoding
from speclab.models import engine_choice as engines
from speclab.models.cached import CachedModel
from speclab.models.checking import rounding, uncached
from speclab.models.checking.rounding import Reference
from speclab.present import tables
from speclab.records.arms import BASELINE
from speclab.records.log import Line
from speclab.records.runs import ComparisonRun
from speclab.system import cores
from speclab.theory import filters, losslessness, noise
from speclab.theory.losslessness import Divergence
from tests.mutants.bugs import mutant

# ---------------------------------------------------------------- is the output the target's own?


@mutant(28, "a_broken_cache_cannot_excuse_its_own_text", "judge_calls_a_wrong_token_a_bug", file="test_lossless")
def tolerates_the_size_of_a_logit() -> None:
    """takes the judge's tolerance from the largest logit alone"""
    right = losslessness.judge_divergence

    def judge(
        reference: Reference, prompt: list[int], baseline: list[int], speculative: list[int], vocab_size: int
    ) -> Divergence | None:
        found = right(reference, prompt, baseline, speculative, vocab_size)
        if found is None or found.baseline_token < 0:
            return found
        common = torch.tensor([baseline[: found.position]], dtype=torch.long)
        _, logits = reference.logits(torch.tensor([prompt]), common, vocab_size)
        tolerance = 2 * logits[-1].abs().max().item()
        distances = logits[-1].max() - logits[-1, [found.baseline_token, found.speculative_token]]
        return found._replace(tolerance=tolerance, numerical=bool((distances <= tolerance).all()))

    losslessness.judge_divergence = judge


@mutant(28, "the_judge_leaves_out_ids_that_are_never_emitted", file="test_lossless")
def judges_ids_that_are_never_emitted() -> None:
    """counts ids that are never emitted when it judges"""
    right = losslessness.judge_divergence

    def judge(
        reference: Reference, prompt: list[int], baseline: list[int], speculative: list[int], vocab_size: int
    ) -> Divergence | None:
        return right(reference, prompt, baseline, speculative, None)

    losslessness.judge_divergence = judge


@mutant(29, "distributions_of_a_draft_end_with_its_ids_and_its_context", file="drafts/test_drafts")
def reads_the_whole_text_with_the_draft() -> None:
    """reads the whole text with the draft to check and forecast"""

    class Endless(CachedModel):
        def __init__(self, *args):
            super().__init__(*args)
            self.max_length = None

    uncached.CachedModel = Endless


@mutant(29, "a_prompt_longer_than_the_drafts_context_is_refused", file="models/test_loading", raises="RuntimeError")
def takes_a_prompt_that_the_draft_cannot_read() -> None:
    """takes a prompt that the draft cannot read"""
    right = registry.check_prompts

    def check(target: CachedModel, drafters: Iterable[Drafter], *more) -> None:
        right(target, [drafter for drafter in drafters if not isinstance(drafter, ModelDrafter)], *more)

    registry.check_prompts = check


RIGHT_TEXTS, IMPOSSIBLE = "right_texts_raise_no_alarm", "a_token_that_no_rounding_explains_is_an_alarm"


@mutant(28, RIGHT_TEXTS, file="theory/test_target_law")
def judges_with_a_filter_of_its_own() -> None:
    """cuts the judge's logits with top-k and top-p as if they were those of the decoder"""

    def kept(logits: torch.Tensor, deviation: torch.Tensor, sampling: Sampling) -> filters.Kept:
        support = sampling.probs(logits) > 0
        return filters.Kept(support, support, torch.full((len(logits), 2), torch.nan))

    filters.kept = kept


@mutant(28, IMPOSSIBLE, file="theory/test_target_law")
def explains_every_token_beyond_the_filter() -> None:
    """takes every token that the filters cut for one at their edge"""
    right = filters.kept
    filters.kept = lambda *given: right(*given)._replace(possible=torch.ones_like(given[0], dtype=torch.bool))


@mutant(28, "what_the_production_filters_keep_lies_between_the_two_bounds", file="theory/test_filters")
def lets_rounding_move_one_logit_alone() -> None:
    """grants the error of one logit where two are compared"""
    right = filters.kept
    filters.kept = lambda logits, deviation, sampling: right(logits, deviation / 2, sampling)


@mutant(14, "loud_when_top_k_is_off_by_one", file="theory/test_z_statistics")
def misses_a_token_that_is_never_drawn() -> None:
    """does not count how often the last token of a filter is drawn"""
    right = losslessness.ZSums.result
    losslessness.ZSums.result = lambda sums: right(sums)._replace(edge=0.0)


@mutant(28, "tokens_are_tested_however_large_the_logits_are", file="theory/test_target_law")
def calls_the_largest_logit_the_rounding() -> None:
    """takes the rounding of a row from its largest logit, and leaves tokens of large logits untested"""
    rounding.LEAST_DEVIATION = 2.0


@mutant(30, "quiet_where_nearly_all_tokens_are_certain", file="theory/test_z_statistics")
def takes_rare_tokens_for_normal_ones() -> None:
    """takes a sum of rare events for a normal variable"""
    losslessness.ZSum.z = property(lambda sum_: sum_.total / sum_.variance**0.5 if sum_.variance else 0.0)


@mutant(28, "noise_widens_what_is_expected", file="theory/test_z_statistics")
def forgets_what_rounding_adds() -> None:
    """tests tokens of a coarse number format as if its probabilities were exact"""
    losslessness._with_noise = lambda moments, p, above, noise: moments


# ---------------------------------------------------------------- lossy rules

LOSSY_ROWS = "every_row_of_a_lossy_rule_says_so_and_how_far_it_is_off"


@mutant(37, LOSSY_ROWS, file="lab/test_lossy")
def shows_a_lossy_speed_alone() -> None:
    """shows the speed of a lossy row without LOSSY and the distance"""
    tables.CELLS = tables.CELLS | dict.fromkeys(("speedup", "measured"), lambda row: tables.speedup(row.speedup))


@mutant(37, LOSSY_ROWS, file="lab/test_lossy")
def records_a_lossy_row_as_lossless() -> None:
    """records the rows of a lossy rule as those of a lossless one"""
    bench.Bench.lossy_rule = lambda self, arm: None


@mutant(37, "tested_places", file="lab/test_lossy")
def counts_bonus_tokens_as_tested() -> None:
    """measures the distance at bonus tokens, too, which no rule has judged"""
    output_checks.judged_places = lambda rounds, n_tokens: [(place, 0) for place in range(1, n_tokens)]


# ---------------------------------------------------------------- arms that take turns


@mutant(20, "the_decoding_that_is_furthest_behind_goes_next", file="lab/test_harness")
def lets_one_arm_finish_first() -> None:
    """lets one arm finish, cold, before the next begins, warm"""

    def one_by_one(queue: list[Decoding], **how) -> None:
        for decoding in queue:
            while not decoding.done:
                decoding.advance()

    turns.take_turns = one_by_one


@mutant(20, "order_turns_round_between_prompts_and_repeats", file="lab/test_harness")
def lets_the_same_arm_go_first() -> None:
    """always lets the same arm go first"""

    def in_one_order(queue: list[Decoding], turn: int) -> None:
        harness.take_turns(queue)

    harness.measure = functools.partial(harness.measure, schedule=in_one_order)


# ---------------------------------------------------------------- noise


@mutant(30, "a_busy_machine_is_named_with_the_flag_to_type", file="system/test_cores")
def believes_that_all_cores_are_free() -> None:
    """believes that all cores are free"""
    cores.are_free = lambda shares: True


@mutant(30, "a_floor_that_reaches_further_than_ten_per_cent_is_doubted", file="theory/test_noise")
def believes_a_run_whose_ratio_is_near_one() -> None:
    """judges a noise floor by its ratio and not by its interval"""
    noise.reach = lambda floor: max(floor.ratio, 1 / floor.ratio)


@mutant(30, "noise_is_answered_with_more_turns_and_changes_no_count", file="lab/test_harness")
def counts_a_turn_twice_that_was_taken_twice() -> None:
    """adds the counts of a turn that was taken once more to those of the first"""
    right = Line.extend
    Line.extend = lambda self, other: right(self, replace(other, again=None))


@mutant(30, "engines_race_again_until_the_fast_one_wins", file="models/test_exported")
def believes_the_first_race() -> None:
    """believes the first race of two engines"""
    engines.RACES = 1


# ---------------------------------------------------------------- what an interruption leaves


@mutant(32, "records_are_kept_while_a_stage_still_runs", file="benchmarks/test_gpu_run")
def keeps_records_between_stages_only() -> None:
    """packs the records of a GPU run when a stage has ended, not while it runs"""
    results.Results.write_new = lambda one: None


@mutant(32, "seconds_are_on_disk_before_texts_are_checked", file="benchmarks/test_gpu_records")
def writes_after_the_checks() -> None:
    """writes a comparison for the first time when its texts are checked"""
    right = one_size.write_comparison

    def write(args: argparse.Namespace, run: ComparisonRun) -> None:
        if not run.unchecked:
            right(args, run)

    one_size.write_comparison = write


@mutant(32, "what_was_finished_is_kept", file="benchmarks/test_gpu_rehearsal")
def forgets_what_a_stage_has_left() -> None:
    """packs only the records that are new since the last time"""
    right = results.Results._files

    def files(one: results.Results) -> dict:
        return {path: state for path, state in right(one).items() if path not in one._kept}

    results.Results._files = files


@mutant(25, "what_is_drawn_is_what_the_forecast_computes", file="models/test_same_tokenizer")
def forecasts_a_draft_with_all_rows_of_its_model() -> None:
    """forecasts a draft from all rows of its model, though it draws from the ids of its tokenizer"""
    right = uncached.distributions

    def distributions(
        model: PreTrainedModel, prompt: list[int], tokens: list[int], sampling: Sampling, n_ids: int
    ) -> Tensor:
        return right(model, prompt, tokens, sampling, model.config.vocab_size)[:, :n_ids]

    uncached.distributions = distributions


REPETITION = "every_arm_is_cut_where_the_baselines_greedy_text_begins_to_repeat"


@mutant(20, REPETITION, file="lab/test_repetition")
def cuts_sampled_texts() -> None:
    """cuts sampled texts where the greedy text begins to repeat"""
    right = bench.Bench.budget
    bench.Bench.budget = lambda self, prompt, sampling: right(self, prompt, GREEDY)


@mutant(20, REPETITION, file="lab/test_repetition")
def cuts_all_arms_but_the_baseline() -> None:
    """lets the baseline alone decode repeated tokens"""
    right = bench.Bench.decoding

    def decoding(self, arm, sampling, prompt, stream=0, budget=None, lengths=None):
        return right(self, arm, sampling, prompt, stream, None if arm == BASELINE else budget, lengths)

    bench.Bench.decoding = decoding


@mutant(20, "a_repetition_begins_with_the_first_token_that_is_repeated", file="lab/test_repetition")
def sees_short_periods_alone() -> None:
    """takes a text for one without repetition where its period is longer than eight tokens"""
    bench.PERIOD = 8


@mutant(20, "passes_of_which_a_part_is_left_are_told_apart", file="lab/test_harness")
def prices_the_rest_of_a_pass_as_a_whole_one() -> None:
    """puts what verification costs where the draft ran a part of the target into the other drafts' curve"""
    bench.Bench.has_own_verify = lambda self, draft: False
