"""Bugs in rates: tokens or seconds that do not belong to what is said to be measured."""

from collections.abc import Iterable, Iterator

from speclab.cli import decoding as decoding_cli
from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.lab import harness
from speclab.records.log import Line
from speclab.records.log_files import LogFile
from speclab.theory.costs import Costs
from tests.mutants.bugs import mutant

RATES = "lab/test_rates"


@mutant(20, "rows_of_a_new_record_follow_from_its_log_to_the_last_digit", file="lab/test_logs")
def rates_seconds_that_no_record_holds() -> None:
    """computes rows from more digits of the seconds than the log keeps"""
    harness.as_written = lambda number: number


@mutant(20, "a_killed_run_loses_only_its_turn", file="lab/test_log_files")
def logs_a_turn_late() -> None:
    """writes a turn to the log when the next one is over"""
    right, waiting = LogFile.write, []

    def write(log: LogFile, lines: Iterable[Line]) -> None:
        late, waiting[:] = [*waiting], lines
        right(log, late)

    LogFile.write = write


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
