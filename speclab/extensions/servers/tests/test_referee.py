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
                change(words, rounds)
            fake.text_of, fake.drawn = (lambda prompt, n: words[prompt][:n]), iter([*rounds, *[(K, 0)] * 50])
            size = ["--max-new-tokens", str(N_NEW), "--prompts", str(tmp_path / "prompts.txt"), "--threads", "1"]
            code = referee.main(["--url", fake.url, "--target", target, "--draft", target, "-k", str(K), *size, *more])
        return code, *capsys.readouterr()

    return call


def test_a_server_that_makes_the_labs_rounds(run):
    code, out, err = run()
    assert code == 0, err
    assert "same text and rounds in 2 of 2 prompts" in out


def test_another_text_is_told(run):
    def change(words, rounds):
        first = next(iter(words.values()))
        first[4] = f"{int(first[4]) ^ 1} "

    code, out, _ = run(change)
    assert code == 1
    assert "another text from token 4 on" in out


def test_other_rounds_are_told(run):
    def change(words, rounds):
        drafted, kept = rounds[0]
        rounds[0] = drafted, 0 if kept else 1

    code, out, _ = run(change)
    assert code == 1
    assert "different: " in out


def test_a_server_that_drafts_another_number_is_one_line(run):
    code, _, err = run(None, "-k", "3")
    assert code == 2
    assert "give -k 2" in err


# --- the counts of both -----------------------------------------------------------------------------------------------

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
        (counts(3, 12, 3, 3, 3, 0), "different"),  # another round kept more
        (counts(3, 13, 3, 2, 1, 0), "different"),  # it would have drafted 5
        (counts(4, 16, 3, 2, 1, 0), "different"),  # a round more
    ],
)
def test_only_the_last_round_may_differ(engine, expected):
    assert judged(engine)[0] == expected


def test_a_lookup_whose_last_round_drafted_nothing_has_no_slack():
    """The last round that drafted lies in the middle of the text: it is held to the token."""
    mine = OWN._replace(rounds=[*OWN.rounds, (0, 0)])
    assert judged(counts(3, 12, 3, 2, 1, 0), mine=mine) == ("equal", "")
    assert judged(counts(3, 12, 3, 1, 1, 0), mine=mine)[0] == "different"


def test_what_differs_is_said_and_nothing_about_why():
    assert judged(counts(4, 16, 3, 2, 1, 0)) == ("different", "the same text in another number of rounds that draft")
    assert judged(counts(3, 20, 3, 2, 1, 0)) == ("different", "as many rounds, but another number of drafted tokens")
    assert judged(counts(3, 12, 3, 3, 3, 0))[1] == "as many rounds and drafted tokens, but others are accepted"
    assert judged(counts(3, 12, 3, 2, 1, 0), tokens=(1, 2, 4)) == ("different", "another text from token 2 on")


def test_the_rounds_that_draft_are_counted():
    """The prompt's own pass and a round that drafts nothing are no drafts."""
    rounds = [
        Round([7], prefill=True),
        Round([1, 2, 3], n_drafted=4, n_accepted=2),
        Round([4]),
        Round([5, 6], n_drafted=3, n_accepted=1),
    ]
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
