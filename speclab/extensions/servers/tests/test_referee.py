"""The referee on a tiny pair, against a simulated server that makes the lab's rounds, or others."""

import pytest

from optimized_speculative import speculative_decode
from speclab import load
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.extensions.servers.referee.__main__ import main
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
            code = main(["--url", fake.url, "--target", target, "--draft", target, "-k", str(K), *size, *more])
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
