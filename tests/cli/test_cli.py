"""The scripts as one types them: chat templates, where the prompt ends, and bad input in one line."""

import io
import json
import re
import shutil

import pytest

import baseline_autoregressive
import compare
import optimized_speculative
from speclab.cli import decoding
from speclab.cli.decoding import NEW_TEXT
from speclab.models.cached import CachedModel
from tests.branching import add_branching
from tests.cli.test_bad_inputs import is_one_line
from tests.rules import LOSSLESS, make_known


@pytest.fixture
def run(pair_folder, capsys):
    """Call a script's main() on the tiny pair; returns (exit code, stdout, stderr)."""

    def call(script, *words):
        flags = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager"]
        return (script.main([*flags, *words]), *capsys.readouterr())

    return call


def test_nothing_that_is_read_commands_the_terminal(run, pair_folder, tmp_path):
    """A prompt, a file's name and two models' names with an escape sequence in them."""
    evil = "\x1b]0;mine\x07"
    (tmp_path / f"p{evil}.txt").write_text(f"def f(x): {evil}")
    for role in ("target", "draft"):
        shutil.copytree(pair_folder / role, tmp_path / f"{role}{evil}")
    models = ["--target", str(tmp_path / f"target{evil}"), "--draft", str(tmp_path / f"draft{evil}")]
    words = [*models, "--prompts", str(tmp_path / f"p{evil}.txt"), "--max-new-tokens", "12"]
    for stream in ([], ["--stream"]):
        code, out, err = run(optimized_speculative, *words, *stream)
        assert (code, "]0;mine" in out, "]0;mine" in err) == (0, True, True)
        assert not {"\x1b", "\x07"} & set(out + err)
    _, out, err = run(compare, *words, "-k", "2", "--temperature", "0", "--out-dir", str(tmp_path / "out"))
    page = (tmp_path / "out" / "results" / "local.md").read_text("utf-8")
    assert not {"\x1b", "\x07"} & set(out + err + page)
    code, _, err = run(optimized_speculative, "--draft", f"./no{evil}")
    assert code == 3
    assert "./no␛]0;mine␇" in err


def test_both_scripts_print_the_same_greedy_text(run, pair_folder):
    """Run as a user runs them, streamed and not. A line of its own marks where the prompt ends."""
    words = ["--prompt", "def f(x):\n", "--max-new-tokens", "20"]
    draft = ["--draft", str(pair_folder / "draft")]
    printed = [run(baseline_autoregressive, *words, *stream)[1] for stream in ([], ["--stream"])]
    drafted = [run(optimized_speculative, *words, *draft, *more)[1] for more in ([], ["--stream", "-k", "3"])]
    text = printed[0].rsplit("\n\n", 1)[0]
    assert len(text) > 40
    assert all(out.startswith(text) for out in (*printed, *drafted))
    head, _, rest = text.partition(f"\n{NEW_TEXT}\n")
    assert head.endswith("\ndef f(x):")
    assert NEW_TEXT not in rest
    assert [word for word in ("rounds", "accepted", "α", "tokens per round", "tok/s") if word not in drafted[0]] == []


TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "


@pytest.fixture
def chatty(pair_folder, tmp_path):
    """The tiny target, whose tokenizer has a chat template; and the words that name it and the draft."""
    shutil.copytree(pair_folder / "target", tmp_path / "chatty")
    path = tmp_path / "chatty" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return ["--target", str(tmp_path / "chatty"), "--max-new-tokens", "6"]


@pytest.mark.parametrize("script", [baseline_autoregressive, optimized_speculative])
def test_what_is_typed_is_put_into_the_chat_template_and_files_are_not(run, chatty, monkeypatch, tmp_path, script):
    """The head says which; the ids that the target reads are counted."""
    lengths = []
    prefill = CachedModel.prefill
    monkeypatch.setattr(
        CachedModel, "prefill", lambda self, ids, *a, **k: lengths.append(ids.shape[1]) or prefill(self, ids, *a, **k)
    )
    (tmp_path / "p.txt").write_text("def f(x):")
    (tmp_path / "p.jsonl").write_text('{"prompt": "def f(x):"}')
    found, typed, file = {True: set(), False: set()}, ["--prompt", "def f(x):"], ["--prompts", str(tmp_path / "p.txt")]
    draft = ["--draft", "ngram"] if script is optimized_speculative else []
    texts = ["--texts", str(tmp_path / "p.jsonl")]
    in_template = [typed, [*file, "--chat"], ["--prompts", "-"], texts]
    bare = [file, [*typed, "--no-chat"], [*texts, "--no-chat"]]
    for words, on in [*((words, False) for words in bare), *((words, True) for words in in_template)]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"def f(x):")))
        code, out, err = run(script, *chatty, *draft, *words)
        assert code == 0
        assert ("chat    on" if on else "chat    off") in err
        assert "\ndef f(x):\n--- new text" in out, "what was typed is shown, without the template"
        found[on].add(lengths[-1])
    (bare,), (inside,) = found[False], found[True]
    assert inside > bare


def test_compare_says_it_and_the_record_knows(run, chatty, tmp_path):
    words = [*chatty, "--draft", "ngram", "-k", "2", "--temperature", "0", "--prompt", "def f"]
    assert "chat    on" in run(compare, *words, "--out-dir", str(tmp_path))[1]
    assert json.loads((tmp_path / "results" / "local.json").read_text())["settings"]["chat"] is True


@pytest.mark.parametrize("script", [compare, optimized_speculative])
def test_a_rule_for_chains_judges_no_branches(monkeypatch, capsys, script):
    make_known(monkeypatch)
    add_branching(monkeypatch)
    assert script.main(["--draft", "branching", "--rule", LOSSLESS.name, "--prompt", "x"]) == 2
    said = (f"--rule {LOSSLESS.name} knows chains only", "branching has branches", "leave it")
    is_one_line(capsys.readouterr().err, *said)


def test_the_last_line_counts_the_passes_of_both_loops(run, pair_folder, monkeypatch):
    """Both scripts run, and passes over one or several tokens after the prompt are counted where they are made."""
    made = []
    words = ["--max-new-tokens", "24", "--prompt", "def f(x):", "--prompt", "import", "--ignore-eos", "--stream"]
    for name in ("step", "verify"):
        make = getattr(CachedModel, name)
        monkeypatch.setattr(CachedModel, name, lambda *args, make=make, **more: made.append(1) or make(*args, **more))
    check = decoding.check_prompts  # before this the checks of loaded models make passes, too
    monkeypatch.setattr(decoding, "check_prompts", lambda *args: made.clear() or check(*args))
    code, out, _ = run(optimized_speculative, *words, "--draft", str(pair_folder / "target"))
    assert code == 0
    line = out.splitlines()[-1]
    n_tokens, found, one_by_one = map(int, re.findall(r"\d+", line))
    assert (n_tokens, found) == (46, len(made))
    assert run(baseline_autoregressive, *words)[0] == 0
    assert one_by_one == len(made) > found
