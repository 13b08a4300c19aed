"""The gallery of public bugs: each is put into the lab's own code, and a named test must notice.

    python -m tests.gallery              # all of them, a few minutes
    python -m tests.gallery --only 4,8   # bugs 4 and 8

Bugs 1 to 23 have been seen in public code. The numbers have gaps: 15, 16 and 19 need trees, block verification and
batches, which the lab does not have yet. From 24 on a guard of this lab against models and files is taken away.

A mutant is one textual replacement in one file. It is applied to a copy of the project, and the tests named beside it
run there. A kill is a failed assertion in every named test; a copy that cannot be imported, or a test that breaks for
another reason, is none.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from speclab.cli import parsing
from speclab.system.errors import reports_problems

ROOT = Path(__file__).parent.parent
LEFT_OUT = (".*", "__pycache__", "*.egg-info", "build", "models", "scratch", "plots", "results")
TIMEOUT = 120  # seconds for one run of pytest; it needs about 6 on an idle core

BUGS = {
    1: "correction put before the accepted drafts",
    2: "no bonus token after full acceptance",
    3: "drafts paired with the wrong logits",
    4: "correction drawn from p, not from the residual",
    5: "draft picked by argmax, scored with softmax",
    6: "untempered ratio test at temperature 0",
    7: "redraw from p after an n-gram mismatch",
    8: "bonus token from the wrong place",
    9: "prefix fed again together with the cache",
    10: "cache not rolled back, or off by one",
    11: "draft never fed its last token",
    12: "uniforms repeated",
    13: "token id 0 treated as nothing",
    14: "nucleus drops the crossing token",
    17: "two target passes per round",
    18: "EOS inside a block, or the budget, ignored",
    20: "other things counted or timed than decoded tokens",
    21: "accepted / drafted where alpha is meant",
    22: "zero-probability token emitted, 0/0",
    23: "correction thrown away",
    24: "unfit model called fit",
    25: "target's vocabulary, or the draft's, taken for the other's",
    26: "checkpoint's generation settings applied in one arm, or dropped without a word",
    27: "code of a model folder run",
    28: "rounding bound widened by what it judges",
    29: "draft fed beyond its context",
}


class Mutant(NamedTuple):
    bug: int
    what: str  # what it does
    file: str
    old: str  # stands in the file exactly once
    new: str
    killed_by: tuple[str, ...]  # tests that must fail, "file::name"
    raises: str = ""  # an error of the production code that is as good as a failed assertion
    hangs: bool = False  # running out of time is a kill


def _tests(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/{ELSEWHERE.get(name, 'test_gallery')}.py::test_{name}" for name in names)


ELSEWHERE = {  # tests that stand in other files than test_gallery.py
    "the_decoding_that_is_furthest_behind_goes_next": "lab/test_bench",
    "order_turns_round_between_prompts_and_repeats": "lab/test_bench",
    "logits_at_every_width_and_across_a_growing_buffer": "models/test_flat",
    "a_buffer_grows_by_doubling_and_keeps_what_it_holds": "models/test_flat",
    "lanes_outlive_decodings_and_are_never_shared": "models/test_graphs",
    "logits_are_the_models_own": "models/test_graphs",
    "what_was_handed_out_is_not_overwritten": "models/test_graphs",
    "a_chain_of_draft_steps_is_one_replay": "models/test_graphs",
    "greedy_texts_and_rounds_are_those_of_the_eager_engine_in_float32": "models/test_flat",
    "an_encoder_attends_to_later_tokens": "models/test_model_checks",
    "a_model_without_a_cache_is_refused": "models/test_model_checks",
    "a_cache_that_keeps_rejected_tokens_is_refused": "models/test_model_checks",
    "logits_that_change_from_pass_to_pass_are_refused": "models/test_model_checks",
    "a_mixture_of_experts_is_compared_at_its_median_position": "models/test_model_checks",
    "the_bound_counts_real_logits_only": "models/test_model_checks",
    "wrong_logits_are_no_fast_engine_however_noisy_the_eager_one": "models/test_flat",
    "missing_weights_are_named": "models/test_loading",
    "an_encoder_is_refused_at_load": "models/test_loading",
    "a_hub_kernel_in_a_config_is_refused_by_name": "models/test_loading",
    "a_prompt_longer_than_the_drafts_context_is_refused": "models/test_loading",
    "experts_do_not_excuse_a_fast_engine_that_loses_its_cache": "models/test_flat",
    "a_tokenizer_with_more_ids_than_the_model_is_refused": "models/test_loading",
    "a_narrow_draft_leaves_the_target_its_text": "models/test_loading",
    "the_library_runs_with_the_labs_settings_and_gets_its_own_back": "models/test_loading",
    "settings_that_the_lab_leaves_out_are_named_once": "models/test_loading",
    "code_of_a_model_folder_never_runs": "models/test_loading",
    "ids_that_the_draft_lacks_have_probability_0_and_can_be_committed": "test_drafts",
    "at_the_end_of_its_context_a_model_drafts_fewer_tokens_then_none": "test_drafts",
    "distributions_of_a_draft_end_with_its_ids_and_its_context": "test_drafts",
    "the_judge_leaves_out_ids_that_are_never_emitted": "test_lossless",
    "a_broken_cache_cannot_excuse_its_own_text": "test_lossless",
    "judge_calls_a_wrong_token_a_bug": "test_lossless",
}

BASELINE, LOOP, DRAFTS = "baseline_autoregressive.py", "optimized_speculative.py", "draft_models.py"
RULE, THEORY = "speclab/core/sampling.py", "speclab/theory/formulas.py"
CACHE, GRAPHS, BENCH = "speclab/models/cached.py", "speclab/models/backends/cuda_graphs.py", "speclab/lab/harness.py"
CHECKS, LOADING, ENGINE = "speclab/models/checks.py", "speclab/models/loading.py", "speclab/models/select.py"
ROUNDING, JUDGE, FLAGS = "speclab/models/rounding.py", "speclab/theory/losslessness.py", "speclab/models/setup.py"
COMMIT = "committed = [*drafted[:n_accepted], next_token]"
VERIFY = "logits = target.forward(torch.cat([last, draft.tokens], dim=1))"
ROLLBACK = "target.crop(rules.tokens_to_keep(target.length, n_prompt + n_committed))"
NEXT_TOKEN = "torch.where(whole[:, None], target_here, residual)"

MUTANTS = (
    Mutant(
        1,
        "commits the target's token before the accepted drafts",
        LOOP,
        COMMIT,
        "committed = [next_token, *drafted[:n_accepted]]",
        _tests("correction_follows_accepted_drafts", "greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        2,
        "commits only the drafts where all were accepted",
        LOOP,
        COMMIT,
        "committed = drafted if 0 < n_accepted == n_drafted else [*drafted[:n_accepted], next_token]",
        _tests("bonus_token_after_full_acceptance", "a_round_commits_one_token_more_than_it_accepts"),
    ),
    Mutant(
        3,
        "checks the drafts against the first rows of a pass over prompt and drafts",
        LOOP,
        "verify(draft, logits, sampling",
        "verify(draft, target.model(torch.cat([prompt, draft.tokens], 1)).logits[:, : n_drafted + 1], sampling",
        _tests("greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        3,
        "checks each draft against the row behind it",
        RULE,
        "target_probs[:, :n].gather",
        "target_probs[:, target_probs.shape[1] - n :].gather",
        _tests("each_draft_is_tested_with_its_own_row", "joint_law_of_a_round_is_the_targets"),
    ),
    Mutant(
        3,
        "checks greedy drafts against the row behind each",
        RULE,
        "draft.tokens == own[:, :n]",
        "draft.tokens == own[:, own.shape[1] - n :]",
        _tests("greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        8,
        "takes the greedy bonus token from the row of the last draft",
        RULE,
        "own.gather(-1, n_accepted[:, None])",
        "own.gather(-1, n_accepted.clamp(max=max(n - 1, 0))[:, None])",
        _tests("greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        4,
        "draws the correction from p",
        RULE,
        NEXT_TOKEN,
        "target_here",
        _tests(
            "correction_comes_from_the_residual",
            "joint_law_of_a_round_is_the_targets",
            "sampled_text_follows_the_targets_law",
        ),
    ),
    Mutant(
        5,
        "proposes the argmax, reports the softmax",
        DRAFTS,
        "return draw(probs, uniform).clamp(min=0), probs",
        "return logits.argmax(-1), probs",
        _tests("proposals_follow_the_probabilities_they_are_scored_with", "sampled_text_follows_the_targets_law"),
    ),
    Mutant(
        6,
        "tests drafts with softmax at temperature 0, corrects by argmax",
        LOOP,
        "verdict = rules.verify(draft, logits, sampling, chances[:, k : k + n_drafted + 1])",
        "verdict = verify(draft, logits, Sampling(1), chances[:, k : k + n_drafted + 1])\n"
        "        verdict = verdict._replace(next_token=logits[0, verdict.n_accepted].argmax(-1))",
        _tests("greedy_keeps_no_draft_but_the_argmax", "greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        7,
        "draws from p after a refused one-hot draft",
        RULE,
        "draft_here = torch.zeros_like(target_here).scatter_(-1, tokens[row, refused][:, None], 1.0)",
        "draft_here = torch.zeros_like(target_here)",
        _tests("rejected_token_is_not_redrawn_from_target", "joint_law_of_a_one_hot_round_is_the_targets"),
    ),
    Mutant(
        8,
        "takes the bonus token by argmax",
        RULE,
        NEXT_TOKEN,
        "torch.where(whole[:, None], 1.0 * (target_here == target_here.amax(-1, keepdim=True)), residual)",
        _tests("bonus_token_follows_the_targets_last_row", "sampled_text_follows_the_targets_law"),
    ),
    Mutant(
        8,
        "draws the bonus token from q",
        RULE,
        NEXT_TOKEN,
        "torch.where(whole[:, None], draft_here, residual)",
        _tests("bonus_token_follows_the_targets_last_row", "joint_law_of_a_round_is_the_targets"),
    ),
    Mutant(
        8,
        "draws the bonus token from the row of the last draft",
        RULE,
        "target_here = target_probs[row, n_accepted]",
        "target_here = target_probs[row, n_accepted.clamp(max=max(n - 1, 0))]",
        _tests("bonus_token_follows_the_targets_last_row", "joint_law_of_a_round_is_the_targets"),
    ),
    Mutant(
        9,
        "feeds the prompt again in every round",
        LOOP,
        VERIFY,
        "logits = target.forward(torch.cat([prompt, last, draft.tokens], dim=1))[:, prompt.shape[1] :]",
        _tests("greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        10,
        "never rolls the target's cache back",
        LOOP,
        ROLLBACK,
        "pass",
        _tests("target_cache_holds_all_but_the_last_committed_token", "greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        10,
        "leaves the first refused token in the target's cache",
        LOOP,
        ROLLBACK,
        "target.crop(min(target.length, n_prompt + n_committed))",
        _tests("target_cache_holds_all_but_the_last_committed_token", "greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        10,
        "rolls the target's cache back one token too far",
        LOOP,
        ROLLBACK,
        "target.crop(n_prompt + n_committed - 2)",
        _tests("target_cache_holds_all_but_the_last_committed_token", "greedy_output_is_the_targets_own_choice"),
    ),
    Mutant(
        10,
        "never rolls the draft's cache back",
        DRAFTS,
        "self.draft.crop(kept)",
        "pass",
        _tests("proposals_are_the_draft_models_own_continuation"),
    ),
    Mutant(
        10,
        "gives the fast backend's tokens the positions before theirs",
        CACHE,
        "self._positions[:, length:total]",
        "self._positions[:, length - 1 : total - 1]",
        _tests(
            "logits_at_every_width_and_across_a_growing_buffer",
            "greedy_texts_and_rounds_are_those_of_the_eager_engine_in_float32",
        ),
    ),
    Mutant(
        10,
        "lets the fast backend's tokens read the one behind them",
        CACHE,
        "self._masks[:, :, :width, self._capacity - length : self._capacity + width]",
        "self._masks[:, :, :width, self._capacity - length - 1 : self._capacity + width - 1]",
        _tests("logits_at_every_width_and_across_a_growing_buffer"),
    ),
    Mutant(
        10,
        "forgets the old keys when the fast backend's buffer grows",
        CACHE,
        "new_keys[:, :, :length] = keys[:, :, :length]",
        "pass",
        _tests("a_buffer_grows_by_doubling_and_keeps_what_it_holds"),
    ),
    Mutant(
        10,
        "lets a graph read the row behind each token",
        GRAPHS,
        "columns > positions[0, :, None]",
        "columns > positions[0, :, None] + 1",
        _tests("logits_are_the_models_own"),
    ),
    Mutant(
        10,
        "gives every step of a graphed draft chain the first one's position",
        GRAPHS,
        "self._places[:, n_fed : n_fed + width]",
        "self._places[:, :width]",
        _tests("a_chain_of_draft_steps_is_one_replay"),
    ),
    Mutant(
        10,
        "hands out logits that the next replay overwrites",
        GRAPHS,
        "output.clone() for output",
        "output for output",
        _tests("what_was_handed_out_is_not_overwritten"),
    ),
    Mutant(
        10,
        "lets two decodings write to one lane",
        GRAPHS,
        "self._flat.lanes.remove(self._lane)",
        "pass",
        _tests("lanes_outlive_decodings_and_are_never_shared"),
    ),
    Mutant(
        11,
        "feeds the draft the newest token only, also after full acceptance",
        DRAFTS,
        "self._not_fed = (self._not_fed + committed)[-(self._n_committed - kept) :]",
        "self._not_fed = committed[-1:]",
        _tests("proposals_are_the_draft_models_own_continuation"),
    ),
    Mutant(
        12,
        "tests all drafts of a round with one uniform",
        RULE,
        "uniforms[:, :n] * draft_of_token",
        "uniforms[:, :1] * draft_of_token",
        _tests("acceptance_tests_of_one_round_are_independent", "joint_law_of_a_round_is_the_targets"),
    ),
    Mutant(
        12,
        "resets the seed in every round",
        LOOP,
        "uniforms((1, 2 * k + 1), generator, target.device)",
        "uniforms((1, 2 * k + 1), generator.manual_seed(0), target.device)",
        _tests("every_uniform_is_used_once", "sampled_text_follows_the_targets_law"),
    ),
    Mutant(
        12,
        "tests drafts with the uniforms that drew them",
        LOOP,
        "chances[:, k : k + n_drafted + 1]",
        "chances[:, : n_drafted + 1]",
        _tests("every_uniform_is_used_once", "sampled_text_follows_the_targets_law"),
    ),
    Mutant(
        13,
        "takes a drawn id 0 for a failed draw",
        RULE,
        "(total[:, 0] > 0)",
        "(token > 0) & (total[:, 0] > 0)",
        _tests("token_id_zero_can_be_drawn", "token_id_zero_is_a_token_like_any_other"),
        raises="EnvironmentProblem",
    ),
    Mutant(
        13,
        "ends the text at id 0",
        LOOP,
        "if token_id in eos:",
        "if not token_id or token_id in eos:",
        _tests("token_id_zero_is_a_token_like_any_other"),
    ),
    Mutant(
        14,
        "keeps tokens while the mass with them is at most top_p",
        RULE,
        "before >= self.top_p",
        "before + ordered > self.top_p",
        _tests("nucleus_keeps_the_crossing_token", "kept_mass_reaches_top_p"),
    ),
    Mutant(
        17,
        "verifies in one pass, then passes again for the next token",
        LOOP,
        VERIFY,
        f"{VERIFY}\n        target.crop(n_prompt + n_committed - 1)\n        {VERIFY}",
        _tests("one_target_pass_per_round"),
    ),
    Mutant(
        18,
        "looks for EOS at the end of a block only",
        LOOP,
        "if token_id in eos:",
        "if i == len(committed) - 1 and token_id in eos:",
        _tests("nothing_follows_an_eos_inside_a_block", "drafts_behind_an_eos_are_not_counted_as_accepted"),
    ),
    Mutant(
        18,
        "drafts k tokens however few are left",
        LOOP,
        "k = min(draft_length, max_new_tokens - n_committed - 1)",
        "k = draft_length",
        _tests("budget_is_met_exactly", "never_drafts_more_than_the_budget_can_take"),
    ),
    Mutant(
        18,
        "counts drafts behind an EOS as accepted",
        LOOP,
        "n_accepted, n_rejected = i + 1, 0",
        "pass",
        _tests("drafts_behind_an_eos_are_not_counted_as_accepted"),
    ),
    Mutant(
        20,
        "baseline counts prompt tokens as generated",
        BASELINE,
        "n_decoded += max(0, len(tokens) - 1)",
        "n_decoded += prompt.ids.shape[1] + len(tokens)",
        _tests("scripts_count_the_decoded_tokens_alone"),
    ),
    Mutant(
        20,
        "baseline counts characters as tokens",
        BASELINE,
        "n_decoded += max(0, len(tokens) - 1)",
        "n_decoded += len(setup.tokenizer.decode(tokens))",
        _tests("scripts_count_the_decoded_tokens_alone"),
    ),
    Mutant(
        20,
        "speculative arm counts prompt tokens as generated",
        LOOP,
        "counts.add(round_)",
        "counts.add(round_)\n            counts.n_emitted += prompt.ids.shape[1] * round_.prefill",
        _tests("scripts_count_the_decoded_tokens_alone"),
    ),
    Mutant(
        20,
        "counts the prompt's pass as a round and its token as decoded",
        THEORY,
        "if round_.prefill:",
        "if False:",
        _tests("prompt_pass_is_no_round_of_decoding", "scripts_count_the_decoded_tokens_alone"),
    ),
    Mutant(
        20,
        "counts drafted tokens as generated",
        THEORY,
        "self.n_emitted += len(round_.tokens)",
        "self.n_emitted += round_.n_drafted + 1",
        _tests("emitted_counts_tokens_of_the_text_not_of_the_draft"),
    ),
    Mutant(
        20,
        "times the prompt's pass as decoding in the baseline only",
        BASELINE,
        'watch.lap("decode" if tokens else "prefill")',
        'watch.lap("decode")',
        _tests("scripts_time_the_same_passes_in_both_arms"),
    ),
    Mutant(
        20,
        "lets one arm finish, cold, before the next begins, warm",
        BENCH,
        "min(waiting, key=lambda d: len(d.tokens)).advance()",
        "waiting[0].advance()",
        _tests("the_decoding_that_is_furthest_behind_goes_next"),
    ),
    Mutant(
        20,
        "always lets the same arm go first",
        BENCH,
        "queue if (index + repeat) % 2 == 0 else queue[::-1]",
        "queue",
        _tests("order_turns_round_between_prompts_and_repeats"),
    ),
    Mutant(
        21,
        "calls accepted / drafted alpha",
        THEORY,
        "_ratio(self.n_accepted, self.n_accepted + self.n_rejected)",
        "_ratio(self.n_accepted, self.n_drafted)",
        _tests("alpha_divides_by_tested_positions", "formula_of_tau_fed_with_alpha_gives_tau"),
    ),
    Mutant(
        22,
        "accepts with u <= p/q",
        RULE,
        "uniforms[:, :n] * draft_of_token < target_of_token",
        "uniforms[:, :n] <= target_of_token / draft_of_token",
        _tests("token_of_target_probability_zero_is_never_kept"),
    ),
    Mutant(
        22,
        "draws the first id, whatever its weight, where u is 0",
        RULE,
        "* total, right=True)",
        "* total)",
        _tests("token_of_weight_zero_is_never_drawn", "token_of_target_probability_zero_is_never_kept"),
    ),
    Mutant(
        22,
        "divides a residual without mass by its sum",
        RULE,
        "whole = (n_accepted == size) | (residual.sum(-1) <= 0)",
        "whole = n_accepted == size",
        _tests("residual_without_mass_falls_back_to_the_target"),
    ),
    Mutant(
        23,
        "throws the correction away after a partial acceptance",
        LOOP,
        COMMIT,
        "committed = drafted[:n_accepted] if 0 < n_accepted < n_drafted else [*drafted[:n_accepted], next_token]",
        _tests("correction_is_kept_after_partial_acceptance", "a_round_commits_one_token_more_than_it_accepts"),
    ),
    Mutant(
        24,
        "does not look whether a later token changes earlier logits",
        CHECKS,
        '_compare(model, text, "attends to later tokens"',
        '(lambda *_: None)(model, text, "attends to later tokens"',
        _tests("an_encoder_attends_to_later_tokens"),
    ),
    Mutant(
        24,
        "feeds the check of the cache no cache",
        CHECKS,
        "lambda: cached_logits(cached, text)), last)",
        "lambda: last), last)",
        _tests("a_model_without_a_cache_is_refused"),
    ),
    Mutant(
        24,
        "rolls nothing back when it checks the rollback",
        CHECKS,
        "lambda: cached_logits(cached, text, wrong=WRONG)), last)",
        "lambda: cached_logits(cached, text)), last)",
        _tests("a_cache_that_keeps_rejected_tokens_is_refused"),
    ),
    Mutant(
        24,
        "believes the first pass",
        CHECKS,
        "gap(model, uncached_logits(model, text), right) <=",
        "gap(model, right, right) <=",
        _tests("logits_that_change_from_pass_to_pass_are_refused"),
    ),
    Mutant(
        24,
        "compares every model at its median position",
        CHECKS,
        "n // 2 + 1 if is_mixture_of_experts(model) else n",
        "n // 2 + 1",
        _tests("a_mixture_of_experts_is_compared_at_its_median_position"),
    ),
    Mutant(
        24,
        "lets the library fill missing weights with random numbers",
        LOADING,
        'missing := sorted(report["missing_keys"])',
        "missing := []",
        _tests("missing_weights_are_named"),
    ),
    Mutant(
        24,
        "loads a model without proving it",
        LOADING,
        "    check_model(model)\n    return model",
        "    return model",
        _tests("an_encoder_is_refused_at_load"),
    ),
    Mutant(
        24,
        "rolls nothing back when it checks the fast engine",
        ENGINE,
        "text, wrong=checks.WRONG)",
        "text)",
        _tests("experts_do_not_excuse_a_fast_engine_that_loses_its_cache"),
    ),
    Mutant(
        25,
        "cuts the target to the ids of its draft",
        FLAGS,
        "    return setup.cached(model, setup.target.vocab_size)",
        "    setup.target.vocab_size = min(setup.target.vocab_size, model.config.vocab_size)\n"
        "    return setup.cached(model, setup.target.vocab_size)",
        _tests("a_narrow_draft_leaves_the_target_its_text"),
    ),
    Mutant(
        25,
        "gives ids that the draft lacks the probability of its last one",
        DRAFTS,
        "nn.functional.pad(q, (0, n_lacking)) if n_lacking else q",
        "torch.cat([q, q[..., -1:].expand(-1, -1, n_lacking)], -1)",
        _tests("ids_that_the_draft_lacks_have_probability_0_and_can_be_committed"),
    ),
    Mutant(
        25,
        "feeds the draft ids that it lacks",
        CACHE,
        "ids.clamp(max=self.n_ids - 1)",
        "ids",
        _tests("ids_that_the_draft_lacks_have_probability_0_and_can_be_committed"),
        raises="IndexError",
    ),
    Mutant(
        25,
        "takes a prompt with ids that the model lacks",
        CACHE,
        "(largest := int(prompt.max())) >= model.n_ids",
        "(largest := int(prompt.max())) < 0",
        _tests("a_tokenizer_with_more_ids_than_the_model_is_refused"),
        raises="IndexError",
    ),
    Mutant(
        26,
        "lets generate apply the checkpoint's settings",
        LOADING,
        "model.generation_config = GenerationConfig(pad_token_id=0)",
        "pass",
        _tests("the_library_runs_with_the_labs_settings_and_gets_its_own_back"),
    ),
    Mutant(
        26,
        "keeps the lab's settings in the model after generate",
        LOADING,
        "model.generation_config = own",
        "pass",
        _tests("the_library_runs_with_the_labs_settings_and_gets_its_own_back"),
    ),
    Mutant(
        26,
        "does not name the settings that are left out",
        FLAGS,
        "for key, value in settings.items()",
        "for key, value in []",
        _tests("settings_that_the_lab_leaves_out_are_named_once"),
    ),
    Mutant(
        27,
        "trusts the code of a model folder",
        LOADING,
        '{"trust_remote_code": False}',
        '{"trust_remote_code": True}',
        _tests("code_of_a_model_folder_never_runs"),
        raises="AttributeError",
    ),
    Mutant(
        27,
        "lets a config name kernels of the hub",
        LOADING,
        'if "/" in str(value)]',
        "if value == 0]",
        _tests("a_hub_kernel_in_a_config_is_refused_by_name"),
    ),
    Mutant(
        28,
        "takes the judge's tolerance from the largest logit alone",
        JUDGE,
        "tolerance = 2 * error",
        "tolerance = 2 * right.abs().max().item()",
        _tests("a_broken_cache_cannot_excuse_its_own_text", "judge_calls_a_wrong_token_a_bug"),
    ),
    Mutant(
        28,
        "counts ids that are never emitted when it judges",
        JUDGE,
        "torch.tensor([prompt + baseline[:position]]), vocab_size)",
        "torch.tensor([prompt + baseline[:position]]), None)",
        _tests("the_judge_leaves_out_ids_that_are_never_emitted"),
    ),
    Mutant(
        28,
        "lets a masked token's lowest number widen the bound",
        ROUNDING,
        "size[size < torch.finfo(logits.dtype).max / 2]",
        "size[size < torch.inf]",
        _tests("the_bound_counts_real_logits_only"),
    ),
    Mutant(
        28,
        "holds the fast engine against itself",
        ENGINE,
        "right = checks.uncached_logits(model, text)[:, -sum(checks.WIDTHS) :]",
        "right = checks.cached_logits(CachedModel(model, exported=exported), text, wrong=checks.WRONG)",
        _tests("wrong_logits_are_no_fast_engine_however_noisy_the_eager_one"),
    ),
    Mutant(
        29,
        "takes a prompt that the draft cannot read",
        DRAFTS,
        "if longest > room:",
        "if longest < 0:",
        _tests("a_prompt_longer_than_the_drafts_context_is_refused"),
        raises="RuntimeError",
    ),
    Mutant(
        29,
        "drafts on where the draft's context ends",
        DRAFTS,
        "k = min(k, draft_room(self.draft, self._n_committed))",
        "pass",
        _tests("at_the_end_of_its_context_a_model_drafts_fewer_tokens_then_none"),
        raises="IndexError",
    ),
    Mutant(
        29,
        "drafts one token more than the draft's context holds",
        DRAFTS,
        "draft.max_length - n_committed + 1",
        "draft.max_length - n_committed + 2",
        _tests("at_the_end_of_its_context_a_model_drafts_fewer_tokens_then_none"),
        raises="IndexError",
    ),
    Mutant(
        29,
        "reads the whole text with the draft to check and forecast",
        JUDGE,
        "min(len(tokens), cached.max_length - len(prompt) + 1)",
        "len(tokens)",
        _tests("distributions_of_a_draft_end_with_its_ids_and_its_context"),
    ),
)


def mutated(source: str, mutant: Mutant) -> str:
    """The source with the bug in it."""
    if source.count(mutant.old) != 1:
        raise ValueError(f"bug {mutant.bug}: {mutant.old!r} stands {source.count(mutant.old)} times in {mutant.file}")
    return source.replace(mutant.old, mutant.new)


def run_tests(tests: tuple[str, ...], mutant: Mutant | None = None, timeout: float = TIMEOUT) -> tuple[int | None, str]:
    """Run `tests` in a copy of the project, with the mutant in it.  -> (exit code, None if too slow; output)"""
    with tempfile.TemporaryDirectory(prefix="gallery-") as folder:
        project = Path(folder) / "project"
        shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(*LEFT_OUT))
        if mutant:
            file = project / mutant.file
            file.write_text(mutated(file.read_text("utf-8"), mutant), "utf-8")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", "--tb=no", *tests]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHONPATH"))}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300", "NO_COLOR": "1"}
        try:
            done = subprocess.run(
                command, cwd=project, env=environment, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout + done.stderr


def judge(mutant: Mutant, exit_code: int | None, output: str) -> str:
    """AcceptResult: "killed", "killed (hangs)", "SURVIVED", or "NOT KILLED" and why."""
    if exit_code is None:
        return "killed (hangs)" if mutant.hangs else "NOT KILLED: ran out of time"
    if exit_code != 1:
        return "SURVIVED" if exit_code == 0 else f"NOT KILLED: pytest exit code {exit_code}"
    failed = defaultdict(list)
    for test, why in re.findall(r"^FAILED ([^\s\[]+)(?:\[.*?\])? - (.*)$", output, re.MULTILINE):
        failed[test].append(why)
    for test in mutant.killed_by:
        if test not in failed:
            return f"NOT KILLED: {_name(test)} did not fail"
        for why in failed[test]:  # of each of its cases
            error = why.partition(":")[0].split(".")[-1]
            asserted = why.startswith(("assert ", "AssertionError", "Failed: DID NOT RAISE"))
            if not (asserted or error == mutant.raises):
                return f"NOT KILLED: {error}"
    return "killed"


def _name(test: str) -> str:
    return test.rpartition("::")[2]


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--only", metavar="N,N", help="bug numbers, separated by commas (default: all)")
    parser.add_argument(
        "--timeout",
        type=parsing.positive,
        default=TIMEOUT,
        metavar="S",
        help="seconds for one run of pytest (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=parsing.at_least(1),
        default=os.cpu_count() or 1,
        metavar="N",
        help="copies at once (default: one a core)",
    )
    args = parser.parse_args(argv)
    try:
        wanted = {int(number) for number in args.only.split(",")} if args.only else set(BUGS)
    except ValueError:
        parser.error(f"--only {args.only}: give bug numbers, for example --only 4,8")
    if not wanted <= set(BUGS):
        parser.error(f"--only {args.only}: the gallery has {', '.join(map(str, BUGS))}")
    mutants = [mutant for mutant in MUTANTS if mutant.bug in wanted]

    print("the code as it is", file=sys.stderr, flush=True)
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.killed_by))
    exit_code, output = run_tests(tests, timeout=args.timeout)
    rows = [["-", "the code as it is", "-", f"{len(tests)} tests", "passes" if exit_code == 0 else "FAILS"]]
    if exit_code != 0:
        print(output or f"ran out of time: more than {args.timeout:g} s", file=sys.stderr)
        mutants = []  # a kill by a test that always fails says nothing

    def tried(mutant: Mutant) -> str:
        return judge(mutant, *run_tests(mutant.killed_by, mutant, args.timeout))

    with ThreadPoolExecutor(args.jobs) as pool:
        for i, (mutant, verdict) in enumerate(zip(mutants, pool.map(tried, mutants), strict=True)):
            print(f"{i + 1}/{len(mutants)}  bug {mutant.bug}: {mutant.what}: {verdict}", file=sys.stderr, flush=True)
            killers = "\n".join(_name(test) for test in mutant.killed_by)
            rows.append([mutant.bug, mutant.what, mutant.file, killers, verdict])
    n_killed = sum(row[-1].startswith("killed") for row in rows)
    print(tabulate(rows, ["bug", "what it does", "file", "killed by", "verdict"]))
    print(f"\n{n_killed} of {len(mutants)} mutants killed")
    return int(exit_code != 0 or n_killed < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
