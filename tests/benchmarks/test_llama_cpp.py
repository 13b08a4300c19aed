"""llama.cpp among the peers: what its programs print, which ids a text has, and the whole path on stand-ins for them.

The outputs were recorded from its own programs, version 0.5.0 of the package llama-cpp-python 0.3.36.
"""

import json
import os
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers import __main__ as peers
from benchmarks.peers import llama_cpp
from benchmarks.peers import page as peers_page
from speclab.models import prompts
from speclab.models.cached import CachedModel
from speclab.records import files
from speclab.system.errors import EnvironmentProblem
from tests.benchmarks.test_benchmarks import TEXTS, call  # noqa: F401 - a fixture
from tests.decoding import plain_text

PLAIN = """\
0.00.622.474 I common_perf_print:    sampling time =       1.26 ms
0.00.622.493 I common_perf_print:    samplers time =       0.64 ms /    70 tokens
0.00.622.526 I common_perf_print: prompt eval time =      19.79 ms /    22 tokens (    0.90 ms per token,  1111.95 tokens per second)
0.00.622.540 I common_perf_print:        eval time =     282.55 ms /    47 runs   (    6.01 ms per token,   166.34 tokens per second)
0.00.622.553 I common_perf_print:       total time =     308.63 ms /    69 tokens
0.00.622.566 I common_perf_print: unaccounted time =       5.04 ms /   1.6 %      (total - sampling - prompt eval - eval) / (total)
"""  # noqa: E501
SPECULATIVE = """\
0.00.457.887 I encoded   22 tokens in    0.018 seconds, speed: 1229.531 t/s
0.00.457.888 I decoded   50 tokens in    0.270 seconds, speed:  185.310 t/s
0.00.457.888 I n_drafted = 70
0.00.457.888 I n_accept  = 32
0.00.457.940 I common_perf_print: prompt eval time =     255.17 ms /   111 tokens (    2.30 ms per token,   435.00 tokens per second)
0.00.457.941 I common_perf_print:        eval time =       0.00 ms /     1 runs   (    0.00 ms per token,      inf tokens per second)
"""  # noqa: E501


def test_the_times_of_the_plain_program():
    """Its evals and its sampling are decoding; the prompt's pass gives the first token."""
    made = llama_cpp.read_plain(b"\n    return x\n\n", PLAIN, 48)
    assert made.text == b"\n    return x"
    assert made.prefill == pytest.approx(0.01979)
    assert made.decode == pytest.approx(0.28255 + 0.00126)
    assert (made.counts.n_rounds, made.counts.n_emitted) == (47, 47)


def test_the_times_of_the_speculative_program():
    """It decoded 50 tokens where 48 were wanted, the first one too: 47 of 50 shares are decoding, 1 the prompt's."""
    made = llama_cpp.read_speculative(b"\n\ndef f(x):\n  return x\n\n\n\n", SPECULATIVE, b"def f(x):", 48)
    assert made.text == b"\n  return x"
    assert made.decode == pytest.approx(47 / 185.310)
    assert made.prefill == pytest.approx(22 / 1229.531 + 1 / 185.310)
    assert (made.counts.n_rounds, made.counts.n_drafted, made.counts.n_accepted) == (18, 70, 32)
    with pytest.raises(EnvironmentProblem, match="another prompt"):
        llama_cpp.read_speculative(b"\n\ndef g(x):\n\n\n\n", SPECULATIVE, b"def f(x):", 48)


def test_another_version_is_one_line():
    with pytest.raises(EnvironmentProblem, match=r"other lines .*; leave out --llama-cpp"):
        llama_cpp.read_plain(b"", PLAIN.replace("eval time", "evaluation"), 48)
    with pytest.raises(EnvironmentProblem, match=r"other lines .*; leave out --llama-cpp"):
        llama_cpp.read_speculative(b"\n\nx", SPECULATIVE.replace("decoded", "made"), b"x", 48)


@pytest.fixture(scope="module")
def tokenizer(pair_folder):
    return AutoTokenizer.from_pretrained(pair_folder / "target")


def test_a_chat_prompt_goes_over_with_its_template(tokenizer):
    """Its whole text makes the ids that the target reads. What was typed alone does not."""
    typed = "x  =  1\n☃"
    bare = torch.tensor([tokenizer(typed).input_ids])
    inside = torch.tensor([tokenizer(f"{tokenizer.eos_token}user\n{typed}{tokenizer.eos_token}").input_ids])
    chat = prompts.Prompt("chat", typed, inside, chat=True)
    assert tokenizer(llama_cpp.whole_text(chat, tokenizer)).input_ids == inside[0].tolist() != bare[0].tolist()
    assert llama_cpp.whole_text(prompts.Prompt("code", typed, bare), tokenizer) == typed


def test_ids_are_the_expected_ones_as_far_as_the_texts_agree(tokenizer):
    """Also where one ends inside a character, or the program went on, or stopped."""
    expected = tokenizer("return ☃ x + 1\n").input_ids
    whole = "return ☃ x + 1\n".encode()
    assert llama_cpp.ids_of(whole, expected, tokenizer) == expected
    assert llama_cpp.ids_of(whole + b"    more", expected, tokenizer) == expected
    snow = len(tokenizer("return ☃").input_ids)
    cut = expected[: snow - 1]  # half of the snowman
    assert llama_cpp.ids_of("return ☃".encode()[:-1], cut, tokenizer) == cut
    other = llama_cpp.ids_of("return ☃ y + 1\n".encode(), expected, tokenizer)
    first = next(i for i, (a, b) in enumerate(zip(expected, other, strict=True)) if a != b)
    assert other[:first] == expected[:first]
    assert "y" in tokenizer.decode(other[first:])
    short = llama_cpp.ids_of(b"return", expected, tokenizer)
    assert short[-1] == llama_cpp.NO_TOKEN
    assert tokenizer.decode([i for i in short if i >= 0]) == "return"


STAND_IN = f"""#!{sys.executable} -S
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
out, err = sys.stdout.buffer, sys.stderr
known = json.load(open(os.path.join(os.path.dirname(sys.argv[0]), "answers.json")))
with open(os.path.join(os.path.dirname(sys.argv[0]), "calls.txt"), "a") as calls:
    calls.write(json.dumps([name, *words]) + "\\n")
if "--version" in words:
    sys.exit(err.write("version: 9 (stand-in)\\n") and 0)
flag = "-f" if name == "llama-tokenize" else "-bf"
prompt = open(words[words.index(flag) + 1], "rb").read().decode()
ids, text = known[prompt]
assert open(words[words.index("-m") + 1], "rb").read(4) == b"GGUF"
if name == "llama-tokenize":
    out.write((json.dumps(ids) + "\\n").encode())
elif name == "llama-completion":
    out.write((text + "\\n\\n").encode())
    err.write({PLAIN!r})
else:
    assert open(words[words.index("-md") + 1], "rb").read(4) == b"GGUF"
    out.write(("\\n\\n" + prompt + text + "\\n\\n\\n\\n").encode())
    err.write({SPECULATIVE!r})
"""
BUDGET = 12


@pytest.fixture
def programs(tmp_path, pair_folder, tokenizer, monkeypatch):
    """Stand-ins on the PATH; returns their answers, by prompt: ids and text. They say the baseline's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in llama_cpp.NEEDED:
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    target = CachedModel(
        AutoModelForCausalLM.from_pretrained(pair_folder / "target", dtype=torch.float32), len(tokenizer)
    )
    answers = {}
    for _, text in TEXTS:
        ids = tokenizer(text).input_ids
        answers[text] = [ids, tokenizer.decode(plain_text(target, torch.tensor([ids]), BUDGET))]

    def write() -> None:
        (folder / "answers.json").write_text(json.dumps(answers))

    write()
    return answers, write, folder


@pytest.fixture
def run(call, pair_folder):  # noqa: F811
    words = ["--draft", str(pair_folder / "draft"), "--repeats", "1", "-k", "2", "--max-new-tokens", str(BUDGET)]
    return lambda: call(peers, *words, "--llama-cpp")


def test_its_programs_run_with_the_same_pair_prompts_k_and_threads(run, programs, tmp_path):
    code, out, _ = run()
    assert code == 0
    made = files.read(tmp_path / "results" / "local-peers.json", peers_page.PeersRun)
    methods = {(t.method, t.draft_length) for t in made.raw}
    assert methods >= {("llama.cpp", 0), ("llama.cpp", 2), ("model", 2), ("assisted", 2), ("ngram", 2), ("lookup", 2)}
    assert all(check["passed"] and check["n_prompts"] == 3 for check in made.correctness)
    assert made.models["llama.cpp"].startswith("9 (stand-in)")
    checks = {check["arm"]: check for check in made.correctness}
    assert checks["llama.cpp"]["differences"] == checks["llama.cpp k=2"]["differences"] == []
    assert "Against llama.cpp" in out
    calls = [json.loads(line) for line in (programs[2] / "calls.txt").read_text().splitlines()]
    spoken = [words for words in calls if words[0] == llama_cpp.SPECULATIVE]
    assert len(spoken) == len(TEXTS) + 1, "and one to warm up"
    for words in spoken:
        assert words[words.index("--spec-draft-n-max") + 1] == "2"
        assert words[words.index("-t") + 1] == "1"
        assert words[words.index("--temp") + 1] == "0"


def test_other_ids_of_a_prompt_are_one_line(run, programs):
    answers, write, _ = programs
    answers[TEXTS[0][1]][0][0] += 1
    write()
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: llama.cpp makes other ids of a code prompt")


def test_a_program_that_is_missing_is_named(run, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, err = run()
    assert (code, out) == (3, "")
    assert "llama-speculative-simple" in err
