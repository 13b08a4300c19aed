"""Bugs in the extension for servers: what another engine counts, starts and answers."""

import contextlib
import functools
import http.client
from collections.abc import Iterator

from speclab.extensions.servers import (
    client,
    connection,
    counters,
    installed,
    load,
    own,
    server_comparison,
    server_rows,
    server_turns,
    servers,
)
from speclab.extensions.servers.own import OwnRounds
from speclab.extensions.servers.server_record import EngineCounts, ServedNoise
from speclab.extensions.servers.servers import Server
from speclab.records.arms import BASELINE, BASELINE_REPEAT
from speclab.theory import attribution
from tests.mutants.bugs import mutant

BUGS = {42: "an engine's counters, servers or answers taken for what they are not"}


@mutant(21, "the_drafted_fraction_is_not_the_acceptance_rate", file="test_counters")
def calls_the_engines_rate_alpha() -> None:
    """takes what the engine calls acceptance rate, accepted / drafted, for alpha"""
    counters.acceptance_rate = lambda counts, draft_length: counts.n_accepted / counts.n_drafted


@mutant(42, "turns_rotate_and_count_every_request_alone", file="test_client")
def counts_the_warm_up() -> None:
    """counts everything that a server has done, the requests of the warm-up, too"""
    counters.between = lambda before, after: after.speculation


@mutant(42, "a_request_waits_until_the_other_server_is_idle", file="test_client")
def asks_while_the_other_server_is_busy() -> None:
    """asks a server while the workers of the other one still use a core"""
    server_turns.wait_until_idle = lambda: None


@mutant(42, "a_request_waits_until_the_other_server_is_idle", file="test_client")
def loads_while_the_other_server_is_busy() -> None:
    """begins a pass under load while the workers of the other one still use a core"""
    load.wait_until_idle = lambda: None


@mutant(42, "only_the_last_round_may_differ", file="test_own")
def forgives_a_difference_in_any_round() -> None:
    """takes a difference that is as small as a round for one of the last round"""

    def within(engine: EngineCounts, own_rounds: OwnRounds, draft_length: int) -> bool:
        counts = own_rounds.counts
        drafted = engine.n_drafted - (counts.n_drafted - own_rounds.last_drafted)
        accepted = engine.n_accepted - (counts.n_accepted - own_rounds.last_accepted)
        return engine.n_drafts == counts.n_drafts and 0 <= accepted <= drafted <= draft_length

    own._within_last_round = within


@mutant(42, "rounds_are_counted_and_their_seconds_added", file="test_own")
def forgives_the_last_round_that_drafted() -> None:
    """takes the last round that drafted for the last one of the text"""
    right = own._counted

    def counted(timed: list, n_tokens: int, draft_length: int) -> OwnRounds:
        drafting = [one for one in timed if one[0].n_drafted]
        found, last = right(timed, n_tokens, draft_length), drafting[-1][0]
        fields = {**vars(found), "last_drafted": last.n_drafted, "last_accepted": last.n_accepted}
        return OwnRounds(**fields)

    own._counted = counted


@mutant(42, "servers_speculate_where_they_are_to_and_only_there", file="test_serving_run")
def believes_that_the_plain_server_is_plain() -> None:
    """does not look whether the plain server speculates"""
    server_comparison._started = _unchecked


@contextlib.contextmanager
def _unchecked(served, logs, arm, ranges) -> Iterator[Server]:
    settings, words = served.plan.settings, installed.speculative_config(arm.draft, arm.draft_length) if arm else None
    found, name = served.plan.installed, arm.label if arm else "baseline"
    started = servers.running(name, found, settings.target, settings.words(words), settings.environment(), logs)
    with started as server:
        served.facts.setdefault("start_seconds", {})[name] = 1.0
        yield server


@mutant(
    42,
    "a_server_answers_and_is_gone_afterwards_with_all_that_it_started",
    "nothing_is_left_running_after_an_error",
    file="test_servers",
)
def leaves_what_a_server_has_started() -> None:
    """ends the server alone, not the processes that it has started"""

    def signalled(process, number: int) -> bool:
        process.send_signal(number)
        return False

    servers._signal = signalled


@mutant(42, "who_answers_before_the_server_does_is_another_one", file="test_servers")
def believes_whoever_answers() -> None:
    """takes whoever answers on a port for the server that was started there"""
    Server._is_itself = lambda self: True


@mutant(42, "every_arm_has_the_noise_of_its_own_turns", file="test_serving_run")
def pools_the_noise_of_all_arms() -> None:
    """takes the plain server's answers in the turns of all arms for the noise of each"""

    def floors(served) -> dict:
        found = {}
        for temperature in served.config.temperatures:
            both = (
                list(server_rows.samples_of(served, arm, temperature).values()) for arm in (BASELINE, BASELINE_REPEAT)
            )
            pooled = attribution.noise_floor(*both)
            for arm in served.arms:
                if arm.speculative and pooled:
                    names = {"method": arm.method, "draft_length": arm.draft_length}
                    found[arm, temperature] = ServedNoise(**vars(pooled), **names)
        return found

    server_rows.noise_floors = floors


@mutant(26, "what_is_asked", file="test_client")
def leaves_settings_to_the_checkpoint() -> None:
    """says only the settings that are in use, so that the checkpoint's own ones count in the engine"""
    right = client.Client._body

    def body(self, order) -> dict:
        off = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        return {name: value for name, value in right(self, order).items() if name not in off}

    client.Client._body = body


@mutant(42, "a_page_that_is_cut_anywhere_is_not_taken_for_a_whole_one", file="test_client")
def takes_a_cut_for_an_end() -> None:
    """reads an answer by lines, whose reader takes the end of a connection for the end of the answer"""

    def part(self) -> bytes:
        with contextlib.suppress(http.client.HTTPException):
            return self._response.readline(connection.LINE_BYTES)
        return b""

    connection.Response._part = part


@mutant(20, "a_level_is_warmed_up_and_measured_in_both_orders", file="test_load")
def asks_the_plain_server_first_in_both_passes() -> None:
    """measures both passes of a level in one order"""

    def level(plain, other, orders, concurrency) -> load.Level:
        once = functools.partial(load.under_load, orders=orders, concurrency=concurrency)
        pairs = [(once(plain), once(other)) for _ in range(3)]
        return load.Level([one for one, _ in pairs[1:]], [one for _, one in pairs[1:]])

    load.level = level


@mutant(42, "a_servers_row_is_exact", file="test_server_rates")
def server_rate_counts_first_chunks() -> None:
    """counts the tokens of first chunks in a server's rate, whose seconds are left out"""
    right = server_rows._row

    def row(served, measured, arm, sent: list, *given):
        made = right(served, measured, arm, sent, *given)
        made.n_tokens = sum(len(one.answer.tokens) for one in sent)
        made.tokens_per_second = made.n_tokens / made.seconds
        return made

    server_rows._row = row


@mutant(42, "a_servers_row_is_exact", file="test_server_rates")
def server_speedup_takes_first_chunks_for_single_tokens() -> None:
    """compares the seconds after first chunks of any size as if each had one token"""
    client.Answer.seconds_per_token = property(lambda answer: answer.decode_seconds / max(1, len(answer.tokens) - 1))
