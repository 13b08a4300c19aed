"""Files of texts: what is read of them, and what is refused."""

import json
import re
from collections import Counter

import pytest

from speclab.models import texts
from speclab.system.errors import UsageProblem

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<>{% endif %}"


@pytest.fixture
def tokenizer(pair_folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(pair_folder / "target")


def test_prompts_and_chats_go_into_the_template(tokenizer, tmp_path):
    file = tmp_path / "mine.jsonl"
    lines = [{"prompt": "x = 1"}, {"kind": "b", "messages": CHAT}]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    tokenizer.chat_template = TEMPLATE
    made = texts.encode(texts.read(str(file)), tokenizer)
    assert [prompt.kind for prompt in made] == ["mine", "b"]
    assert [tokenizer.decode(prompt.ids[0]) for prompt in made] == ["<user>x = 1<>", "<system>Be brief.<user>Hello?<>"]
    assert [prompt.text for prompt in made] == ["x = 1", "system: Be brief.\nuser: Hello?"]
    assert all(prompt.chat for prompt in made)
    tokenizer.chat_template = None
    with pytest.raises(UsageProblem, match=r"no chat template.* choose a model with one"):
        texts.encode(texts.read(str(file)), tokenizer)


@pytest.mark.parametrize(
    "entry",
    [
        *([1], "x", None, {}, {"kind": "a"}, {"prompt": "a", "messages": CHAT}, {"prompt": "a", "more": 1}),
        *({"prompt": " "}, {"prompt": 1}, {"prompt": "a", "kind": "all"}, {"prompt": "a", "kind": "not looping"}),
        *({"prompt": "a", "kind": "x" * 25}, {"prompt": "a", "kind": "a\nb"}, {"prompt": "a", "kind": ""}),
        *({"messages": []}, {"messages": CHAT * 129}, {"messages": [{"role": "user"}]}, {"messages": {}}),
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [{"role": "user", "content": "a", "name": "b"}]},
        {"messages": [{"role": "user", "content": ["a"]}]},
        {"messages": [*CHAT, {"role": "assistant", "content": "Hi"}]},
    ],
)
def test_a_line_that_is_no_text_is_refused_by_its_number(tmp_path, entry):
    file = tmp_path / "x.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{json.dumps(entry)}\n')
    with pytest.raises(UsageProblem, match="line 2 of "):
        texts.read(str(file))


def test_a_line_ends_at_a_line_feed_alone(tmp_path):
    file, said = tmp_path / "x.jsonl", "a".join("\u2028\u2029\x85\x7f")
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in (said, "b")]
    file.write_bytes("\r\n".join(lines).encode())
    assert [messages[0]["content"] for _, messages in texts.read(str(file))] == [said, "b"]


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[" * 10**5, b"\xff"])
def test_a_file_that_holds_no_texts_is_refused(tmp_path, content):
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(UsageProblem):
        texts.read(str(tmp_path / "x.jsonl"))


def test_the_labs_own_texts_are_enough_of_each_kind_and_differ():
    for name in texts.LAB_TEXTS:
        found = texts.read(name)
        assert min(Counter(kind for kind, _ in found).values()) >= 6
        assert len({json.dumps(messages) for _, messages in found}) == len(found)
    kinds = {kind for kind, _ in texts.read("served")}
    assert kinds == {"chat", "reasoning", "code", "rewriting", "translation", "json", "turns"}


@pytest.mark.parametrize(("kind", "least", "most"), [("2k tokens", 1_100, 1_700), ("6k tokens", 3_800, 5_100)])
def test_long_texts_are_long_and_hardly_repeat_themselves(kind, least, most):
    """A text that repeats itself flatters copying: less than a twentieth of the runs of 20 words came before."""
    ours = [
        re.findall(r"\w+", messages[0]["content"].lower()) for found, messages in texts.read("long") if found == kind
    ]
    assert len(ours) == 6
    runs = [tuple(words[i : i + 20]) for words in ours for i in range(len(words) - 19)]
    assert 1 - len(set(runs)) / len(runs) < 0.05
    assert all(least < len(words) < most for words in ours)
