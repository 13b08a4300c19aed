"""Every sweep end to end on a tiny pair: record, page, picture, exit code; and what Ctrl-C and bad flags do."""

import re

import pytest

from speclab.extensions.sweeps import __main__ as sweeps
from speclab.extensions.sweeps.__main__ import SWEEPS, SweepRun, main, make_parser
from speclab.lab import comparison
from speclab.models import prompts
from speclab.records.files import read
from speclab.system.files import ROOT
from tests.branching import add_branching

TEXTS = [("code", "def f(x):"), ("prose", "return x + 1"), ("copy", "x + 1, x + 1,")]


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)

    def call(name, *words):
        draft = f"{pair_folder / 'draft'}" + ",ngram" * (name != "mismatch")
        models = ["--target", str(pair_folder / "target"), "--draft", draft]
        size = ["--limit", "1", "--max-new-tokens", "9"]
        machine = ["--threads", "1", "--engine", "eager", "--out-dir", str(tmp_path)]
        code = main([name, *models, *size, *machine, *words])
        return (code, *capsys.readouterr())

    return call


def found(tmp_path, name: str) -> SweepRun:
    return read(tmp_path / "results" / f"local-sweep-{name}.json", SweepRun)


TURNED = {
    "acceptance": {i / 10 for i in range(11)},
    "output-length": {8},
    "context": {128, 256},  # 512 do not fit the tiny target
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full) if n == "context" else n for n in SWEEPS])
def test_a_sweep_leaves_its_record_page_and_picture(run, tmp_path, name):
    code, out, _ = run(name)
    made = found(tmp_path, name)
    assert code == 0
    assert made.sweep == name
    assert made.points
    turned = {point.x for point in made.points}
    assert turned == TURNED.get(name, turned)
    assert name != "mismatch" or {"trained", "noise 0.1", "random"} < turned
    if name == "acceptance":
        assert len(made.points) == 22
        assert len({point.series for point in made.points}) == 2
        assert {point.x for point in made.points if point.series == "free drafts"} == turned
        assert all(point.acceptance_rate == point.x for point in made.points if point.x in (0, 1))
        price = {point.series: point.draft_cost for point in made.points}
        assert price.pop("free drafts") < min(price.values())
    assert name != "output-length" or {p.n_emitted / p.n_prompts for p in made.points} == {7}, "one is the prefill's"
    assert made.correctness
    assert all(entry["passed"] for entry in made.correctness)
    assert all(p.forecast is not None for p in made.points)
    assert (tmp_path / "plots" / f"local-sweep-{name}.png").stat().st_size > 5000
    page = (tmp_path / "results" / f"local-sweep-{name}.md").read_text()
    assert f"../plots/local-sweep-{name}.png" in page
    assert max(map(len, out.splitlines())) <= 120  # a noisy machine has wide numbers
    assert str(tmp_path) not in (tmp_path / "results" / f"local-sweep-{name}.json").read_text()


def test_stretched_prompts_end_with_themselves(pair_folder):
    from speclab.models.loading import load_tokenizer

    tokenizer = load_tokenizer(str(pair_folder / "target"))
    some = prompts.encode([*TEXTS, TEXTS[0]], tokenizer)
    for n in (3, 50):
        for long, short in zip(sweeps.stretched(some, n), some, strict=True):
            assert len(long.id_list) == n
            tail = min(n, len(short.id_list))
            assert long.id_list[-tail:] == short.id_list[-tail:]


def test_ctrl_c_keeps_what_is_done(run, tmp_path, monkeypatch):
    """In the second length of a sweep."""
    honest, calls = comparison.measure, []

    def measure(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return honest(*args, **kwargs)

    monkeypatch.setattr(comparison, "measure", measure)
    assert run("context")[0] == 0
    made = found(tmp_path, "context")
    assert made.interrupted
    assert {p.x for p in made.points} == {128}


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("context", ["--max-new-tokens", "500"], "fewer --max-new-tokens"),
        ("output-length", ["--max-new-tokens", "4"], "8 or more"),
        ("mismatch", ["--draft", "ngram"], "draft model"),
        ("acceptance", ["--draft", "ngram"], "dial:0.5,dial:0.9"),
        ("context", ["--draft", "dial:0.5", "--temperature", "1"], "add 0 to the temperatures"),
        ("context", ["--draft", "branching"], "knows chains only"),
        ("context", ["-k", "2,auto"], "'2,auto' is not a whole number"),
    ],
)
def test_bad_words_are_one_line(run, tmp_path, monkeypatch, name, words, said):
    add_branching(monkeypatch)
    found, out, err = run(name, *words)
    assert (found, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err
    assert not list((tmp_path / "results").glob("*"))


def test_every_command_of_a_page_can_be_typed():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [name for page in pages for name in re.findall(r"extensions\.sweeps ([\w-]+)", page.read_text("utf-8"))]
    assert {make_parser().parse_args([name]).sweep for name in shown} >= set(SWEEPS)
