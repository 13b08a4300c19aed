"""No draft learns from a text that is measured, wherever that stands."""

import json

from hypothesis import given
from hypothesis import strategies as st

from speclab.models import names, prompts
from training import measured


@given(st.data())
def test_what_is_measured_is_known_wherever_it_stands(data):
    whole = data.draw(st.sampled_from(measured.measured_texts()))
    assert measured.is_measured(whole.upper())
    assert measured.is_measured(f"Before it {whole} and behind it") or len(whole.split()) < measured.RUN_OF_WORDS
    assert not measured.is_measured("a text of its own that says what nobody has ever written in these files before")


def test_every_kind_of_prompt_is_among_what_is_measured():
    found = set(measured.measured_texts())
    assert {text for _, text in prompts.standard()} < found
    for path in names.PROMPTS.glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            said = entry.get("messages", [{"content": entry.get("prompt")}])
            assert {message["content"] for message in said} < found
