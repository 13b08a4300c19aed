"""The lab from Python: what it loads, what it says, and what it refuses."""

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab import load, speculate
from speclab.drafts.lengths import RoundCosts
from speclab.models import loading
from speclab.system.errors import UsageProblem
from tests.decoding import plain_text

TEXT = "def f(x):\n    return x + 1"


@pytest.fixture
def names(pair_folder):
    return [str(pair_folder / part) for part in ("target", "draft")]


@pytest.fixture
def pair(names):
    return load(*names, engine="eager")


@pytest.mark.parametrize("draft", ["folder", "ngram"])
def test_the_text_is_the_baselines(names, draft):
    pair = load(names[0], names[1] if draft == "folder" else draft, engine="eager")
    assert isinstance(pair.drafter, NgramDrafter if draft == "ngram" else ModelDrafter)
    rounds, tokenizer = list(speculate(pair, TEXT, draft_length=3, max_new_tokens=24)), pair.setup.tokenizer
    ids = torch.tensor([tokenizer(TEXT).input_ids])
    right = plain_text(pair.setup.target, ids, 24, eos=pair.setup.eos)
    assert [token for round_ in rounds for token in round_.tokens] == right
    assert "".join(round_.text for round_ in rounds) == tokenizer.decode(right, skip_special_tokens=True)
    assert rounds[-1].finish in ("eos", "length")


def test_lengths_chosen_in_every_round_change_no_text(pair):
    """Costs are measured before the first text at a temperature, once; what was accepted is remembered."""
    ids = torch.tensor([pair.setup.tokenizer(TEXT).input_ids])
    right = plain_text(pair.setup.target, ids, 24, eos=pair.setup.eos)
    known = []
    for _ in range(2):
        rounds = list(speculate(pair, TEXT, "auto", max_new_tokens=24))
        assert [token for round_ in rounds for token in round_.tokens] == right
        known.append(pair.on_auto.costs[0.0])
    assert known[0] is known[1]
    list(speculate(pair, TEXT, "auto", max_new_tokens=24, temperature=1.0))
    assert set(pair.on_auto.costs) == {0.0, 1.0}


def test_a_sampled_text_on_auto_depends_on_its_seed_alone(pair):
    """Texts of one seed have the same random numbers, so what a text before has taught must not choose the lengths."""
    pair.on_auto.costs[1.0] = RoundCosts(tuple(0.1 * n for n in range(9)), tuple(1 + 0.05 * n for n in range(9)))

    def text(seed: int) -> list:
        return [round_.tokens for round_ in speculate(pair, TEXT, "auto", 40, temperature=1.0, seed=seed)]

    first, others = text(1), [text(seed) for seed in range(2, 6)]
    assert text(1) == first not in others
    assert not pair.on_auto.seen.get(1.0)


def test_what_cannot_be_is_refused_before_the_first_round(pair, monkeypatch):
    with pytest.raises(ValueError, match="'Auto'"):
        speculate(pair, TEXT, "Auto")
    whole = [{name: n} for name in ("draft_length", "max_new_tokens", "top_k", "seed") for n in (-1, 2.5, True)]
    for wrong in (*whole, {"temperature": -0.1}, {"top_p": 0}):
        with pytest.raises(ValueError, match=r"must be"):
            speculate(pair, TEXT, **wrong)
    with pytest.raises(UsageProblem, match="empty"):
        speculate(pair, "")
    with pytest.raises(UsageProblem):
        speculate(pair, TEXT, max_new_tokens=10**6)
    monkeypatch.setattr(loading, "load_model", lambda *a, **k: pytest.fail("weights were read"))
    wrongs = [{"device": "cuda:0"}, {"dtype": "fp16"}, {"engine": "x"}, {"threads": -1}, {"threads": 0}]
    for wrong in (*wrongs, {"draft": "ngrm"}, {"draft": "dial:0.5"}):
        with pytest.raises(UsageProblem, match=r"choose|give|type|compare"):
            load(**wrong)


def test_several_texts_at_once_do_not_disturb_each_other(pair):
    """Two decodings of one pair, a round of each in turn; and one that was left in the middle."""
    alone = [list(speculate(pair, text, 3, 20)) for text in (TEXT, "class A:")]
    next(speculate(pair, "return", 3, 20))
    both = zip(speculate(pair, TEXT, 3, 20), speculate(pair, "class A:", 3, 20), strict=False)
    for i, rounds in enumerate(both):
        assert list(rounds) == [alone[0][i], alone[1][i]]


def test_a_list_of_messages_is_put_into_the_template(names, pair):
    in_template = load(*names, engine="eager")
    in_template.setup.tokenizer.chat_template = "{% for m in messages %}# {{ m.content }}\n{% endfor %}"
    messages = [{"role": "user", "content": "x + 1"}, {"role": "user", "content": "return"}]
    chat = "".join(round_.text for round_ in speculate(in_template, messages, 2, 12))
    assert chat == "".join(round_.text for round_ in speculate(pair, "# x + 1\n# return\n", 2, 12))
    for wrong in ([], ["x"], [{"role": "user"}], 5, ({"role": "user", "content": "x"},)):
        with pytest.raises(UsageProblem, match="a chat is a list of messages"):
            speculate(pair, wrong)
    with pytest.raises(UsageProblem, match="no chat template"):
        speculate(pair, messages)
