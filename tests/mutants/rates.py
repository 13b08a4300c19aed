"""Bugs in rates: tokens or seconds that do not belong to what is said to be measured."""

import copy
from collections.abc import Iterator

from speclab.cli import batch as batch_cli
from speclab.cli import decoding as decoding_cli
from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.lab.batching import rows as batch_rows
from speclab.lab.batching.decodings import BatchDecoding, PassMade
from speclab.theory.costs import Costs
from tests.mutants.bugs import mutant

RATES = "lab/test_rates"


@mutant(20, "a_batch_prints_and_records_its_exact_rates", file=RATES)
def batch_rate_counts_the_prompts_own_tokens() -> None:
    """counts the tokens of the prompts' own passes in the rate of a batch, and not their seconds"""
    right = batch_cli.speed

    def speed(decoding: BatchDecoding, at_once: int) -> str:
        n, seconds = decoding.counts.n_emitted, sum(made.seconds for made in decoding.passes)
        wrong = f"{decoding.n_tokens / seconds:.1f} tok/s" if n else ""
        return right(decoding, at_once).replace(f"{n / seconds:.1f} tok/s", wrong) if n else right(decoding, at_once)

    batch_cli.speed = speed


@mutant(20, "a_batch_prints_and_records_its_exact_rates", file=RATES)
def batch_rate_holds_the_prompts_own_passes() -> None:
    """divides the decoded tokens of a batch by seconds with the prompts' own passes in them"""
    right = batch_cli.speed

    def speed(decoding: BatchDecoding, at_once: int) -> str:
        whole = copy.copy(decoding)
        whole.passes = [*decoding.passes, PassMade({}, decoding.seconds - sum(one.seconds for one in decoding.passes))]
        return right(whole, at_once)

    batch_cli.speed = speed


@mutant(20, "a_batch_prints_and_records_its_exact_rates", file=RATES)
def batch_row_weighs_prompts_by_their_tokens() -> None:
    """records tokens over seconds of all texts for the rate of a batch, and a mean over prompts for its speedup"""
    right = batch_rows.row

    def row(*given) -> batch_rows.BatchRow:
        made = right(*given)
        made.tokens_per_second = made.n_tokens / made.seconds
        return made

    batch_rows.row = row


@mutant(20, "a_script_prints_its_exact_rate", file=RATES)
def times_what_is_shown() -> None:
    """times what is done with a round, too, where a script decodes"""

    def timed(decoded: decoding_cli._Decoded, rounds: Iterator[Round]) -> Iterator[Round]:
        start = decoding_cli.time.perf_counter()
        for round_ in rounds:
            decoded.n_prompts, decoded.n_tokens = (
                decoded.n_prompts + round_.prefill,
                decoded.n_tokens + len(round_.tokens),
            )
            now = decoding_cli.time.perf_counter()
            decoded.seconds, start = decoded.seconds + (0 if round_.prefill else now - start), now
            decoded.counts.add(round_)
            yield round_

    decoding_cli._Decoded._timed = timed


@mutant(20, "a_script_prints_its_exact_rate", file=RATES)
def counts_what_follows_an_end_token() -> None:
    """counts the tokens that were generated after an end token as decoded"""
    right = Counts.add

    def add(counts: Counts, round_: Round) -> None:
        right(counts, round_)
        counts.n_emitted += 0 if round_.prefill else round_.n_after_eos

    Counts.add = add


@mutant(20, "a_replay_is_priced_where_drafts_are_rejected", file="theory/test_costs")
def prices_a_replay_in_every_round() -> None:
    """prices a replay in every round, whether drafts were rejected or not"""
    right = Costs.overhead_seconds
    Costs.overhead_seconds = lambda costs, n_drafted, rejected=False: right(costs, n_drafted, True)
