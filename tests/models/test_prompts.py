"""Prompts, files of texts and chat templates: what is read of them, and what is refused in one line."""

import io
import json
from collections import Counter

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from speclab.models import prompts
from speclab.system.errors import EnvironmentProblem, UsageProblem

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_the_labs_own_texts_are_enough_of_each_kind_and_differ():
    pairs = prompts.standard()
    assert Counter(kind for kind, _ in pairs) == dict.fromkeys(prompts.KINDS, len(pairs) // 3)
    assert len({"".join(text.split())[:60] for _, text in pairs}) == len(pairs) >= 24
    for name in prompts.LAB_TEXTS:
        found = prompts.read_texts(name)
        assert min(Counter(kind for kind, _ in found).values()) >= 6
        assert len({json.dumps(messages) for _, messages in found}) == len(found)
    kinds = {kind for kind, _ in prompts.read_texts("served")}
    assert kinds == {"chat", "reasoning", "code", "rewriting", "translation", "json", "turns"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a\n%%\nb\n\n%%\n", ["a", "b\n"]),
        ("one %% two\n", ["one %% two"]),
        ("a\r\n%%\r\nb", ["a", "b"]),
        ("\n%%\n \n", []),
        (" %%\t\n%%\na\x0c%%\x0cb\u2028%%\u2028c\x85\n%%", ["a\x0c%%\x0cb\u2028%%\u2028c\x85"]),
        ("    indented\n", ["    indented"]),
    ],
)
def test_separator_lines_and_line_ends(text, found):
    assert prompts.split(text) == found


def test_marks_and_line_ends_of_other_systems_are_no_part_of_a_prompt(tmp_path):
    (tmp_path / "w.txt").write_bytes("\ufeffeins\r\nzwei\r\n%%\r\nü\r\n".encode())
    assert prompts.from_file(str(tmp_path / "w.txt")) == [("w", "eins\nzwei"), ("w", "ü")]


WHY = {"/dev/zero": "device", "a" * 5000: "too long", "a\0b": "null", "FOLDER": "folder"}
WHY |= {"LATIN": "can't decode", "LARGE": "more than 16 MiB"}


@pytest.mark.parametrize(("name", "why"), WHY.items())
def test_files_that_are_no_prompts(tmp_path, name, why):
    (tmp_path / "LATIN").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "FOLDER").mkdir()
    with open(tmp_path / "LARGE", "wb") as file:
        file.truncate(prompts.LARGEST_FILE + 1)
    path = str(tmp_path / name) if name.isupper() else name
    for read in (prompts.from_file, prompts.read_texts):
        with pytest.raises(UsageProblem, match="cannot read ") as caught:
            read(path)
        assert why in str(caught.value)


@pytest.mark.parametrize("stdin", [None, b"a\xff", bytes(prompts.LARGEST_FILE + 1)], ids=["closed", "no text", "long"])
def test_standard_input_that_is_no_prompt(monkeypatch, stdin):
    monkeypatch.setattr("sys.stdin", stdin and io.TextIOWrapper(io.BytesIO(stdin)))
    with pytest.raises(UsageProblem, match="cannot read -"):
        prompts.from_file("-")


def test_a_text_that_the_tokenizer_does_not_know_is_one_line():
    """A vocabulary of words without one for the unknown: the library raises a plain Exception."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0})))
    assert prompts.encode([("x", "a")], tokenizer)[0].id_list == [0]
    with pytest.raises(UsageProblem, match=r"refuses a prompt: .*UNK.*; give a text"):
        prompts.encode([("x", "b")], tokenizer)


@pytest.fixture
def tokenizer(pair_folder):
    """The tiny tokenizer, which begins every text with its first special token, and a template that does so, too."""
    made = AutoTokenizer.from_pretrained(pair_folder / "target")
    made.bos_token = made.eos_token
    first = [(made.bos_token, made.bos_token_id)]
    made.backend_tokenizer.post_processor = TemplateProcessing(single=f"{made.bos_token} $A", special_tokens=first)
    made.chat_template = TEMPLATE
    return made


def test_a_chat_begins_with_one_special_token_and_ends_where_the_model_answers(tokenizer):
    (bare,) = prompts.encode([("x", "def f")], tokenizer)
    (chat,) = prompts.encode([("x", "def f")], tokenizer, chat=True)
    for prompt in (bare, chat):
        assert prompt.id_list.count(tokenizer.bos_token_id) == 1
        assert prompt.id_list[0] == tokenizer.bos_token_id
        assert prompt.text == "def f"
    assert (bare.chat, chat.chat) == (False, True)
    assert tokenizer.decode(chat.ids[0], skip_special_tokens=True) == "[user]def f[assistant]"
    right = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompts.chats_ids([CHAT], tokenizer)[0][0].tolist() == right, "the library's own ids"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('no user may speak') }}", "no user may speak"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ messages[0]['content'].no.such }}", "UndefinedError"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "SecurityError"),
        ({"tool_use": TEMPLATE}, "default"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_line(tokenizer, template, said):
    tokenizer.chat_template = template
    with pytest.raises(EnvironmentProblem, match=r"chat template .* cannot be used: .*--no-chat") as caught:
        prompts.encode([("x", "hello")], tokenizer, chat=True)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_that_writes_nothing_and_one_that_is_not_there(tokenizer):
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.chat_template = "{# nothing #}"
    with pytest.raises(UsageProblem, match="empty"):
        prompts.encode([("x", "hello")], tokenizer, chat=True)
    tokenizer.chat_template = None
    with pytest.raises(UsageProblem, match="has no chat template; use --no-chat"):
        prompts.encode(prompts.read_texts("served"), tokenizer, chat=True)


def test_prompts_and_chats_of_a_file_go_into_the_template(tokenizer, tmp_path):
    """A line ends at a line feed alone, and may be empty."""
    file, said = tmp_path / "mine.jsonl", "a".join("\u2028\u2029\x85\x7f")
    lines = [{"prompt": "x = 1"}, {"kind": "b", "messages": CHAT}, {"prompt": said}]
    file.write_bytes("\r\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines).encode())
    made = prompts.encode(prompts.read_texts(str(file)), tokenizer, chat=True)
    assert [prompt.kind for prompt in made] == ["mine", "b", "mine"]
    assert [prompt.text for prompt in made] == ["x = 1", "Be brief.\nHello?", said]
    assert tokenizer.decode(made[1].ids[0], skip_special_tokens=True) == "[system]Be brief.[user]Hello?[assistant]"
    assert all(prompt.chat for prompt in made)


@pytest.mark.parametrize(
    "entry",
    [
        *([1], "x", None, {}, {"kind": "a"}, {"prompt": " "}, {"prompt": 1}, {"prompt": "a", "kind": "all"}),
        *({"prompt": "a", "kind": ""}, {"prompt": "a", "kind": 1}),
        *({"prompt": "a", "messages": CHAT}, {"prompt": "a", "kinds": "b"}),
        *({"messages": []}, {"messages": [{"role": "user"}]}, {"messages": {}}),
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [{"role": "user", "content": ["a"]}]},
        {"messages": [*CHAT, {"role": "assistant", "content": "Hi"}]},
    ],
)
def test_a_line_that_is_no_text_is_refused_by_its_number(tmp_path, entry):
    file = tmp_path / "x.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{json.dumps(entry)}\n')
    with pytest.raises(UsageProblem, match="line 2 of ") as caught:
        prompts.read_texts(str(file))
    last_is_answer = "assistant" in json.dumps(entry)
    assert ("its last message is the model's own" in str(caught.value)) == last_is_answer


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[" * 10**5, b"\xff"])
def test_a_file_that_holds_no_texts_is_refused(tmp_path, content):
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(UsageProblem):
        prompts.read_texts(str(tmp_path / "x.jsonl"))
