"""Chat templates: what the ids of a chat are, and templates that cannot be used."""

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from speclab.models import prompts
from speclab.system.errors import EnvironmentProblem, UsageProblem

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


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


def test_the_ids_are_the_librarys_own(tokenizer):
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "x + 1"}]
    right = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompts.chats_ids([messages], tokenizer)[0][0].tolist() == right


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
    with pytest.raises(EnvironmentProblem, match=r"chat template .* cannot be used: .*no_chat") as caught:
        prompts.encode([("x", "hello")], tokenizer, chat=True)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_that_writes_nothing_and_one_that_is_not_there(tokenizer):
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.chat_template = "{# nothing #}"
    with pytest.raises(UsageProblem, match="empty"):
        prompts.encode([("x", "hello")], tokenizer, chat=True)
    tokenizer.chat_template = None
    with pytest.raises(UsageProblem, match="has no chat template; give a bare text without chat"):
        prompts.encode([("x", "hello")], tokenizer, chat=True)
