"""Chapter 17: its solutions say what the lab's own code says, its wrong answers are told apart, its command prints."""

import random
from dataclasses import replace

import pytest

from exercises import transcript
from solutions import ex17_serving as right
from speclab.extensions.servers import counters
from speclab.extensions.servers.counters import Rounds, of_rounds
from speclab.extensions.servers.referee import OwnRounds, judged
from tests.exercises import test_ex17_serving as checks
from tests.exercises.answers import mistaken, mistakes, named

RECORD = transcript.load()
WORDS = {
    "the same text in another number of rounds that draft": "drafts",
    "as many rounds, but another number of drafted tokens": "drafted",
    "as many rounds and drafted tokens, but others are accepted": "accepted",
}


def as_series(counts) -> dict[str, float]:
    places = {right.kept_at(place): float(n) for place, n in enumerate(counts.accepted_at)}
    return {right.DRAFTS: counts.n_drafts, right.DRAFTED: counts.n_drafted, right.ACCEPTED: counts.n_accepted} | places


def speculation(found: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if name.startswith(right.SPECULATION)}


def random_rounds(dice: random.Random, k: int) -> Rounds:
    drafted = [dice.choice([k, k, k, dice.randint(0, k)]) for _ in range(dice.randint(0, 5))]
    return [(n, dice.randint(0, n)) for n in drafted]


def test_recorded_pages_and_their_differences():
    """Page by page, and prompt by prompt: counts, ratios, and the rounds that the lab has made."""
    for page in [*RECORD.speculative.pages, *RECORD.plain.pages]:
        look, found = counters.read(page), transcript.read_counters(page)
        counts = look.total.speculation
        assert found["vllm:generation_tokens_total"] == look.total.n_generated
        assert speculation(found) == ({} if counts is None else as_series(counts))
    looks = [counters.read(page) for page in RECORD.speculative.pages]
    found = transcript.prompt_by_prompt(right, RECORD)
    for asked, before, after, own in zip(RECORD.prompts, looks, looks[1:], found, strict=False):
        counts = counters.between(before, after).speculation
        assert speculation(own) == as_series(counts)
        alpha, fraction, tau = right.acceptance(own, RECORD.k)
        assert (alpha, fraction) == (counts.acceptance_rate, counts.drafted_fraction)
        assert tau == pytest.approx(1 + sum(counts.marginal))
        assert of_rounds(asked.own_rounds, RECORD.k) == counts


def test_acceptance_and_verdicts_of_random_rounds():
    """A server's rounds are the lab's, with a round changed, or others; all five verdicts come up."""
    dice, seen, shorter = random.Random(0), {}, 0
    for _ in range(3000):
        k = dice.randint(1, 3)
        own = random_rounds(dice, k)
        served = list(own)
        if served and dice.random() < 0.8:
            at = dice.choice([-1, dice.randrange(len(served))])
            n = dice.randint(0, k)
            served[at] = n, dice.randint(0, n)
        counts = of_rounds(served, k)
        verdict, reason = judged(k, counts, OwnRounds([], own), [])
        expected = WORDS[reason] if verdict == "different" else verdict
        assert right.reconcile(as_series(counts), own, k) == expected, (k, served, own)
        seen[expected] = seen.get(expected, 0) + 1
        page = replace(counts, tested_at=[])  # what a page knows of them
        if page.n_drafts:
            ratios = page.acceptance_rate, page.drafted_fraction, 1 + page.n_accepted / page.n_drafts
            assert right.acceptance(as_series(page), k) == ratios
            shorter += page.acceptance_rate is None
    assert sorted(seen) == ["accepted", "drafted", "drafts", "equal", "last round"]
    assert min(*seen.values(), shorter) > 30


CHECKS = {
    "between": checks.test_what_happened_between_two_looks,
    "acceptance": checks.test_three_numbers_that_are_called_acceptance,
    "from_stream": checks.test_a_stream_is_timed,
    "reconcile": checks.test_counters_are_held_against_own_rounds,
}


@pytest.mark.parametrize("hole", CHECKS)
def test_every_known_mistake_has_answers_of_its_own(hole):
    """Neither the right ones nor those of another mistake: so a check calls it by its own name."""
    names = [name for name, (function, _) in mistakes(checks.STEM).items() if function == hole]
    assert len(names) >= 9

    def answers(module):
        return [CHECKS[hole].ask(module, *case) for case in CHECKS[hole].cases]

    found = [answers(right)]
    for name in names:
        found.append(answers(mistaken(checks.STEM, name)))
        assert found[-1] not in found[:-1], name
    assert named(right, lambda module: answers(module) == found[-1]).endswith(f"this mistake: {names[-1]}")


def test_one_observation_for_each_round(capsys):
    """The central point of the chapter: the histogram counts outputs of the engine, not tokens."""
    counts = transcript.counted(right, RECORD)
    n_outputs = counts[f"{transcript.LATENCY}_count"]
    assert n_outputs == counts[right.DRAFTS] == sum(len(one.own_rounds) for one in RECORD.prompts)
    plain = map(transcript.read_counters, RECORD.plain.pages)
    n_tokens = sum(len(one.text) - 1 for one in RECORD.prompts)
    assert right.between(*plain)[f"{transcript.LATENCY}_count"] == n_tokens > n_outputs
    assert transcript.main(["--impl", "solutions"]) == 0
    assert capsys.readouterr().out.strip() == transcript.table(right, RECORD).strip()
