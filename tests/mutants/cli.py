"""Bugs in speclab/cli: what the decoding scripts count and time."""

from collections.abc import Callable, Iterator

from speclab.cli import decoding
from speclab.core.rounds import Round
from speclab.models.prompts import Prompt
from tests.mutants.bugs import mutant


def is_baseline(decoded: decoding._Decoded) -> bool:
    """The baseline's script has no flag for a draft length."""
    return not hasattr(decoded.args, "draft_length")


def change_count(baseline: bool, wrong: Callable[[decoding._Decoded, Prompt, list[int]], int]) -> None:
    """In one of the scripts, count `wrong(what was decoded so far, prompt, new tokens)` tokens more."""
    right = decoding._Decoded.show

    def show(decoded: decoding._Decoded, prompt: Prompt, rounds: Iterator[Round]) -> list[int]:
        tokens = right(decoded, prompt, rounds)
        if is_baseline(decoded) == baseline:
            decoded.counts.n_emitted += wrong(decoded, prompt, tokens)
        return tokens

    decoding._Decoded.show = show


@mutant(20, "scripts_count_the_decoded_tokens_alone")
def baseline_counts_prompt_tokens() -> None:
    """baseline counts prompt tokens as generated"""
    change_count(True, lambda decoded, prompt, tokens: prompt.ids.shape[1])


@mutant(20, "scripts_count_the_decoded_tokens_alone")
def baseline_counts_characters() -> None:
    """baseline counts characters as tokens"""
    change_count(True, lambda decoded, prompt, tokens: len(decoded.setup.tokenizer.decode(tokens)) - len(tokens))


@mutant(20, "scripts_count_the_decoded_tokens_alone")
def speculative_arm_counts_prompt_tokens() -> None:
    """speculative arm counts prompt tokens as generated"""
    change_count(False, lambda decoded, prompt, tokens: prompt.ids.shape[1])


@mutant(20, "scripts_time_the_same_passes_in_both_arms")
def baseline_times_the_prompts_pass() -> None:
    """times the prompt's pass as decoding in the baseline only"""
    right = decoding._Decoded.show

    def show(decoded: decoding._Decoded, prompt: Prompt, rounds: Iterator[Round]) -> list[int]:
        def timed() -> Iterator[Round]:
            start = decoding.time.perf_counter()
            for round_ in rounds:
                if round_.prefill and is_baseline(decoded):
                    decoded.seconds += decoding.time.perf_counter() - start
                yield round_

        return right(decoded, prompt, timed())

    decoding._Decoded.show = show
