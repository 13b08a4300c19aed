"""Chat templates: what the ids of a chat are, and templates that cannot be used."""

import subprocess
import sys

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from speclab.models import prompts
from speclab.models.outside import templates
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.paths import ROOT

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


ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}" + "{% endfor %}" * 2
)
TIGHT = {"SECONDS": 1, "MEMORY": 2**30, "LONGEST": 1000}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (ENDLESS, "it does not end within 1 s of processor time"),
        ("{{ 'x' * 10 ** 10 }}", "it needs more than 1 GiB of memory"),
        ("{{ 'x' * 1001 }}", "it writes more than"),
    ],
)
def test_a_template_that_takes_too_much_is_ended(tokenizer, template, said, monkeypatch):
    for name, value in TIGHT.items():
        monkeypatch.setattr(templates, name, value)
    tokenizer.chat_template = template
    with pytest.raises(EnvironmentProblem, match=rf"cannot be used: {said}.*no_chat"):
        prompts.encode([("x", "hello")], tokenizer, chat=True)


def test_a_template_that_waits_is_ended_by_the_clock(tokenizer, monkeypatch):
    monkeypatch.setattr(templates, "CLOCK_SECONDS", 0.01)  # less than any process needs to start
    with pytest.raises(EnvironmentProblem, match=r"does not end within 0\.01 s; use no_chat"):
        prompts.encode([("x", "not asked before")], tokenizer, chat=True)


def test_several_chats_are_one_process_and_what_was_rendered_costs_none(tokenizer, monkeypatch):
    started, run = [], templates.subprocess.run
    monkeypatch.setattr(templates.subprocess, "run", lambda *a, **k: started.append(a) or run(*a, **k))
    for _ in range(2):
        made = prompts.encode([("x", "one"), ("y", "two")], tokenizer, chat=True)
        assert [tokenizer.decode(prompt.ids[0], skip_special_tokens=True) for prompt in made] == [
            "[user]one[assistant]",
            "[user]two[assistant]",
        ]
    assert len(started) == 1


def test_a_renderer_without_the_whole_library_is_the_librarys_own():
    """The child stands in for packages that it does not import."""
    words = "from speclab.models.outside.chat_child import *; print(renderer().__module__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["transformers.utils.chat_template_utils", "False"]


def test_a_template_that_writes_nothing_and_one_that_is_not_there(tokenizer):
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.chat_template = "{# nothing #}"
    with pytest.raises(UsageProblem, match="empty"):
        prompts.encode([("x", "hello")], tokenizer, chat=True)
    tokenizer.chat_template = None
    with pytest.raises(UsageProblem, match="has no chat template; give a bare text without chat"):
        prompts.encode([("x", "hello")], tokenizer, chat=True)
