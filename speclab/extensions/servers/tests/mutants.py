"""Bugs in the extension for servers: what another engine counts, sends and writes."""

from typing import Any

from speclab.extensions.servers import counters, diagnosis, measured, shapes
from speclab.extensions.servers.ask import client, engines, texts
from speclab.extensions.servers.referee import own
from speclab.extensions.servers.referee.own import OwnRounds
from speclab.extensions.servers.vllm.server_record import EngineCounts
from tests.mutants.bugs import mutant

BUGS = {42: "an engine's counters, servers or answers taken for what they are not"}


@mutant(21, "the_drafted_fraction_is_not_the_acceptance_rate", file="test_counters")
def calls_the_engines_rate_alpha() -> None:
    """takes what the engine calls acceptance rate, accepted / drafted, for alpha"""
    counters.acceptance_rate = lambda counts, draft_length: counts.n_accepted / counts.n_drafted


@mutant(42, "what_is_measured_is_what_was_drawn", file="test_running")
def counts_the_warm_up() -> None:
    """counts everything that a server has done, the requests of the warm-up, too"""
    right = counters.between
    counters.between = lambda before, after: right(before, after)._replace(speculation=after.speculation)


@mutant(42, "only_the_last_round_may_differ", file="test_own")
def forgives_a_difference_in_any_round() -> None:
    """takes a difference that is as small as a round for one of the last round"""

    def within(engine: EngineCounts, own_rounds: OwnRounds, draft_length: int) -> bool:
        counts = own_rounds.counts
        drafted = engine.n_drafted - (counts.n_drafted - own_rounds.last_drafted)
        accepted = engine.n_accepted - (counts.n_accepted - own_rounds.last_accepted)
        return engine.n_drafts == counts.n_drafts and 0 <= accepted <= drafted <= draft_length

    own._within_last_round = within


@mutant(42, "the_rounds_that_draft_are_counted", file="test_own")
def forgives_the_last_round_that_drafted() -> None:
    """takes the last round that drafted for the last one of the text"""
    right = own.counted

    def counted(rounds: list, n_tokens: int, draft_length: int) -> OwnRounds:
        last = [one for one in rounds if one.n_drafted][-1]
        found = right(rounds, n_tokens, draft_length)
        return OwnRounds(found.tokens, found.counts, last.n_drafted, last.n_accepted)

    own.counted = counted


@mutant(42, "a_chunk_may_carry_several_tokens", file="test_client")
def takes_first_chunks_for_single_tokens() -> None:
    """takes the tokens of a first chunk, whose seconds are left out, for tokens that were timed"""
    client.Answer.seconds_per_token = property(lambda answer: answer.decode_seconds / max(1, answer.n_tokens - 1))


@mutant(42, "rounds_that_draft_nothing_are_rounds", file="test_running")
def forgets_the_rounds_without_a_draft() -> None:
    """takes the rounds that drafted something for all rounds"""
    measured._n_rounds = lambda one, n_tokens: one.counted.speculation.n_drafts


@mutant(42, "a_page_may_be_a_moment_late", file="test_running", raises="EnvironmentProblem")
def believes_the_first_page() -> None:
    """takes the first page after an answer for one that has counted it"""
    engines.SETTLE_LOOKS = 0


@mutant(42, "what_never_ends_is_ended", file="test_client")
def waits_for_every_byte() -> None:
    """bounds the time between two bytes, not the time of the whole answer"""
    client._Watch._end = lambda self: None


@mutant(42, "a_redirect_is_not_followed", file="test_client")
def follows_a_redirect() -> None:
    """sends a request, and with it the key, to whatever address a server names"""
    client.ONE_HOST = client.ONE_HOST | {"follow_redirects": True}


@mutant(42, "no_proxy_is_asked", file="test_client", raises="Refused")
def asks_a_proxy() -> None:
    """sends requests by a proxy that a variable of the environment names"""
    client.ONE_HOST = client.ONE_HOST | {"trust_env": True}


@mutant(42, "a_profile_has_the_rates_and_the_rounds_that_were_drawn", file="test_running")
def writes_marginal_rates_as_conditional_ones() -> None:
    """gives the share of all rounds that kept a position as the share of those that reached it"""
    measured.Measured.conditional = measured.Measured.marginal


@mutant(42, "a_difference", file="test_server_texts")
def takes_any_rival_for_a_tie() -> None:
    """takes two texts for a tie wherever the other token is among the most probable ones"""
    texts.TIE = float("inf")


@mutant(42, "the_answer", file="test_diagnosis")
def blames_the_load_for_everything() -> None:
    """blames a busy server also where a round costs no more than usual"""
    right = diagnosis.diagnose

    def diagnose(found: measured.Measured, *seen: Any) -> diagnosis.Diagnosis:
        said = right(found, *seen)
        busy = found.n_running >= diagnosis.LOADED and said.answer != diagnosis.NOTHING
        return said._replace(answer=diagnosis.LOAD) if busy else said

    diagnosis.diagnose = diagnose


@mutant(42, "few_counts_are_never_named", file="test_curve_shapes")
def names_a_shape_from_any_count() -> None:
    """names the shape of a curve however few its counts are"""
    shapes.FEWEST = 1
    shapes.ERRORS = 0.0


@mutant(42, "short_drafts_hide_what_stands_behind_the_first_position", file="test_curve_shapes")
def takes_shorter_drafts_for_whole_ones() -> None:
    """takes a position that was not drafted for one that was rejected"""
    shapes.WHOLE_DRAFTS = 0.0
