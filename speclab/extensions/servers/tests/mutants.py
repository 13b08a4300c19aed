"""Bugs in the extension for servers: what another engine counts, sends and writes."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from speclab.extensions.servers import causes, counters, diagnosis, measured, running, shapes
from speclab.extensions.servers.ask import client, engines, stream, texts
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.extensions.servers.load import levels, users
from speclab.extensions.servers.referee import own
from speclab.extensions.servers.referee.own import OwnRounds
from speclab.extensions.servers.start import starting
from tests.mutants.bugs import mutant

BUGS = {42: "an engine's counters, servers or answers taken for what they are not"}


@mutant(21, "alpha_and_f_are_those_of_the_rounds", file="test_counters")
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
    client.asyncio = SimpleNamespace(run=asyncio.run, timeout=lambda seconds: asyncio.timeout(None))


@mutant(42, "a_redirect_is_not_followed", file="test_client")
def follows_a_redirect() -> None:
    """sends a request, and with it the key, to whatever address a server names"""
    client.ONE_HOST = client.ONE_HOST | {"follow_redirects": True}


@mutant(42, "no_proxy_is_asked", file="test_client", raises="Refused")
def asks_a_proxy() -> None:
    """sends requests by a proxy that a variable of the environment names"""
    client.ONE_HOST = client.ONE_HOST | {"trust_env": True}


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


# --- under load -------------------------------------------------------------------------------------------------------

EACH_CHECK = "each_check_fails_for_what_it_is_about_and_for_nothing_else"


@mutant(42, EACH_CHECK, file="test_load")
def believes_that_every_user_has_a_request_in_flight() -> None:
    """takes the users that were offered for the requests that were in flight"""
    levels.LEAST_ACHIEVED = 0.0


@mutant(42, EACH_CHECK, file="test_load")
def believes_a_window_without_whole_answers() -> None:
    """takes a window of any length for one that shows a steady load"""
    levels.LEAST_ANSWERS = 0


@mutant(42, "a_window_lasts_until_it_holds_enough_whole_answers", file="test_load")
def ends_a_window_where_answers_are_slow() -> None:
    """ends every window when its seconds are over, whatever it holds then"""
    users.LONGEST = 1


@mutant(42, EACH_CHECK, file="test_load")
def counts_cached_prompts_as_read() -> None:
    """takes prompts that a prefix cache has answered for prompts that were read"""
    levels.MOST_CACHED = 1.0


@mutant(42, EACH_CHECK, file="test_load")
def forgets_the_queue() -> None:
    """takes requests that wait in the server for requests that it answers"""
    levels.MOST_WAITING = levels.LONGEST_WAIT = 1.0e9


@mutant(42, "a_check_that_fails_in_one_window_is_not_hidden_by_the_others", file="test_load")
def looks_at_the_first_window_alone() -> None:
    """shows the checks of one window as those of all windows of a load"""
    right = levels.Level.checks.fget
    levels.Level.checks = property(lambda level: right(replace(level, plain=level.plain[:1])))


@mutant(42, "where_it_stops_paying", file="test_load")
def takes_noise_for_a_gain_under_load() -> None:
    """calls a gain one that is smaller than the distance between two passes of one server"""
    levels.Level.apart = property(lambda level: 1.0)


# --- faults that users meet -------------------------------------------------------------------------------------------


@mutant(42, "a_fault_is_named", file="test_faults")
def sees_arrivals_in_text_alone() -> None:
    """takes the first text for the first token, whatever the server has counted before"""
    stream.Answer.hides_tokens = property(lambda answer: False)


@mutant(42, "a_fault_is_named", file="test_faults")
def takes_events_for_tokens() -> None:
    """compares seconds of tokens where equal texts have other numbers of them"""
    measured.Pair.miscounted = property(lambda pair: False)


@mutant(42, "a_fault_is_named", file="test_faults")
def leaves_defaults_in_place() -> None:
    """sends no sampling parameter but the temperature"""
    engines.WISHES = {engines.VLLM: {"return_token_ids": True}}


@mutant(42, "a_fault_is_named", file="test_faults")
def is_always_certain() -> None:
    """calls a speedup clear whose interval contains 1"""
    diagnosis.more_prompts = lambda found: 0


@mutant(42, "a_fault_is_named", file="test_faults")
def adds_engines_up_before_it_compares_them() -> None:
    """compares the sums over all engines, which hide that one was started anew"""
    counters._went_back = lambda before, after: False


@mutant(42, "a_fault_is_named", file="test_faults")
def names_causes_of_any_kind_of_draft() -> None:
    """names states of the target as what a draft model reads wrongly"""
    causes.IMPOSSIBLE = dict.fromkeys(causes.IMPOSSIBLE, frozenset())


@mutant(42, "a_fault_is_named", file="test_faults")
def leaves_slow_prompts_out_however_many_they_are() -> None:
    """calls every slow prompt an exception, so that a busy server looks fast"""
    measured.MOST_DISTURBED = 1.0


# --- two curves, texts and answers ------------------------------------------------------------------------------------


@mutant(42, "a_second_request_that_is_kept_less_is_named", file="test_running")
def takes_the_second_request_for_the_first() -> None:
    """holds the first requests against the second ones, and finds that they are kept more often"""
    right = running.shape_of_two
    running.shape_of_two = lambda earlier, later, what: right(later, earlier, what)


@mutant(42, "long_texts_that_are_kept_less_are_named", file="test_running")
def compares_no_lengths() -> None:
    """takes the curve of all texts for that of the long ones"""
    running.by_length = lambda pairs: ([], [])


@mutant(42, "single_tokens_and_second_requests_say_why_a_text_is_wrong", file="test_server_texts")
def blames_speculation_for_another_target() -> None:
    """blames drafts for a text that differs where no draft was made"""
    texts.agree_alone = lambda *given: True


@mutant(42, "nothing_is_never_wrong_beside_the_shape_of_a_fault", file="test_diagnosis")
def looks_at_the_speed_alone() -> None:
    """calls a server fine that is faster, whatever its curve says"""
    right = diagnosis._answer
    diagnosis._answer = lambda found, seen: right(found, ())


@mutant(42, "a_shape_of_which_nobody_knows_the_cause_is_neither_fine_nor_at_fault", file="test_diagnosis")
def believes_that_texts_alone_make_a_curve_rise() -> None:
    """calls a server fine that pays, where its curve may be that of a fault as well"""
    right = diagnosis._paying
    diagnosis._paying = lambda found, seen, *rest: right(found, (), *rest)


@mutant(42, "what_reading_costs_is_the_slope_of_the_first_token", file="test_diagnosis")
def charges_every_request_to_its_prompt() -> None:
    """takes what every request costs for what reading its prompt costs"""
    measured.reading_seconds = lambda answers: sum(one.first_seconds / one.n_prompt for one in answers) / len(answers)


@mutant(42, "no_server_is_started_on_a_port_where_another_one_listens", file="test_starting")
def starts_where_another_server_listens() -> None:
    """asks whatever listens at a port for the server that it has started there"""
    starting._check_free = lambda port: None
