"""The referee on a tiny pair, against a simulated server that makes the lab's rounds, or others."""

import pytest
import torch

from draft_models import NgramDrafter
from optimized_speculative import speculative_decode
from speclab import load
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.extensions.servers import referee
from speclab.extensions.servers.counters import EngineCounts, of_rounds
from speclab.extensions.servers.tests.simulated import Simulated
from speclab.models import prompts

TEXTS, N_NEW, K = [("text", "def f(x):"), ("text", "return x + 1")], 12, 2


@pytest.fixture
def run(pair_folder, tmp_path, capsys):
    """Run the referee against a server whose texts and rounds are the lab's, but for `change`."""
    target = str(pair_folder / "target")
    pair = load(target, target, engine="eager")
    (tmp_path / "prompts.txt").write_text("\n%%\n".join(text for _, text in TEXTS))
    words, rounds = {}, []
    for prompt in prompts.encode(TEXTS, pair.setup.tokenizer):
        settings = DecodeSettings(N_NEW + 2 * K)
        made = list(speculative_decode(pair.setup.target.with_own_cache(), pair.drafter, prompt.ids, K, settings))
        words[str(prompt.id_list)] = [f"{token} " for token in tokens_of(made)[:N_NEW]]
        done = 1
        for one in made[1:]:
            if done < N_NEW:
                rounds.append((one.n_drafted, one.n_accepted))
                done += len(one.tokens)

    def call(change=None, *more):
        with Simulated(rates=(0.0,) * K) as fake:
            if change:
                change(words, rounds, fake)
            fake.text_of, fake.drawn = (lambda prompt, n: words[prompt][:n]), iter([*rounds, *[(K, 0)] * 50])
            size = ["--max-new-tokens", str(N_NEW), "--prompts", str(tmp_path / "prompts.txt"), "--threads", "1"]
            code = referee.main(["--url", fake.url, "--target", target, "--draft", target, "-k", str(K), *size, *more])
        return code, *capsys.readouterr()

    return call


def other_text(words, rounds, fake):
    first = next(iter(words.values()))
    first[4] = f"{int(first[4]) ^ 1} "


def other_rounds(words, rounds, fake):
    rounds[0] = rounds[0][0], int(not rounds[0][1])


@pytest.mark.parametrize(
    ("change", "more", "code", "said"),
    [
        (None, (), 0, "same text and rounds in 2 of 2 prompts"),
        (other_text, (), 1, "another text from token 4 on"),
        (other_rounds, (), 1, "different: "),
        (None, ("-k", "3"), 2, "give -k 2"),
        (lambda words, rounds, fake: setattr(fake, "busy", 30), (), 3, "others who asked"),
    ],
)
def test_what_the_referee_says(run, change, more, code, said):
    found, out, err = run(change, *more)
    assert found == code, err
    assert said in out + err


# Three rounds of four, which kept 3, 1 and 2: the last one kept 2.
OWN = referee.OwnRounds([1, 2, 3], [(4, 3), (4, 1), (4, 2)])


def judged(engine, tokens=(1, 2, 3), mine=OWN):
    return referee.judged(4, engine, mine, list(tokens))


def counts(n_drafts, n_drafted, *kept):
    return EngineCounts(n_drafts=n_drafts, n_drafted=n_drafted, n_accepted=sum(kept), accepted_at=list(kept))


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (counts(3, 12, 3, 2, 1, 0), "equal"),
        (counts(3, 12, 2, 1, 1, 0), "last round"),  # it kept none
        (counts(3, 12, 3, 1, 1, 0), "last round"),  # it kept 1
        (counts(3, 12, 3, 2, 2, 1), "last round"),  # it kept all 4
        (counts(3, 10, 3, 2, 1, 0), "last round"),  # it drafted 2 and kept both
        (counts(3, 9, 3, 2, 1, 0), "different"),  # it would have drafted 1 and kept 2
        (counts(3, 8, 2, 1, 1, 0), "different"),  # it would have drafted none
        (counts(3, 12, 3, 3, 1, 0), "different"),  # 3 kept, but not those of the first places
        (counts(3, 12, 3, 3, 0, 0), "different"),  # as many as the lab: another round differs
        (counts(3, 12, 3, 3, 3, 0), "different: as many rounds and drafted tokens, but others are accepted"),
        (counts(3, 13, 3, 2, 1, 0), "different: as many rounds, but another number of drafted tokens"),  # not 5
        (counts(4, 16, 3, 2, 1, 0), "different: the same text in another number of rounds that draft"),
    ],
)
def test_only_the_last_round_may_differ(engine, expected):
    """What differs is said, and nothing about why."""
    assert ": ".join(judged(engine)).startswith(expected)
    assert judged(counts(3, 12, 3, 2, 1, 0), tokens=(1, 2, 4)) == ("different", "another text from token 2 on")
    mine = OWN._replace(rounds=[*OWN.rounds, (0, 0)])  # the last one that drafted lies in the middle of the text
    assert judged(counts(3, 12, 3, 2, 1, 0), mine=mine) == ("equal", "")
    assert judged(counts(3, 12, 3, 1, 1, 0), mine=mine)[0] == "different", "it is held to the token"


def test_the_rounds_that_draft_are_counted():
    """The prompt's own pass and a round that drafts nothing are no drafts."""
    rounds = [Round([7], prefill=True), Round([1, 2, 3], 4, 2), Round([4]), Round([5, 6], 3, 1)]
    found = referee.own_rounds(rounds, 6)
    assert found == ([7, 1, 2, 3, 4, 5], [(4, 2), (0, 0), (3, 1)])
    assert of_rounds(found.rounds, 4) == counts(2, 7, 2, 1, 0, 0)


def test_the_first_match_wins_as_in_vllm():
    text = torch.tensor([[1, 2, 7, 1, 2, 8, 1, 2]])
    for drafter, expected in ((referee.FirstMatch(), [7, 1]), (NgramDrafter(), [8, 1])):
        drafter.prefill(None, text, None)
        assert drafter.lookup(2) == expected
    drafter = referee.FirstMatch()
    drafter.prefill(None, text[:, :4], None)
    drafter.observe(0, [2])
    assert drafter.lookup(1) == [7]
