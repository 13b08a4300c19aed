"""A plan and its check on a tiny pair: what is looked at, what comes out, and whether it is true."""

from operator import attrgetter

import pytest
from transformers import AutoModelForCausalLM

from speclab.extensions.plan import __main__ as plans
from speclab.extensions.plan.__main__ import DraftFacts, PlanEntry, PlanRun, main
from speclab.lab import comparison, known_texts
from speclab.models import prompts
from speclab.records.files import read
from speclab.records.rows import BASELINE, BASELINE_REPEAT
from tests.branching import add_branching
from tests.heads import block_heads
from tests.lab.test_harness import Machine

# The tiny target repeats itself after some of these, so that prompt lookup finds something in each half.
TEXTS = [("code", "((("), ("code", "return x"), ("prose", "x + 1, x + 1,"), ("prose", "hello world")]


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch):
    """The command on the tiny pair and four short prompts of two kinds; returns (exit code, stdout, stderr).

    The picture takes longer than the plan and is drawn only where it is asked for.
    """
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    draw = plans.picture

    def call(*words, picture=False):
        monkeypatch.setattr(plans, "picture", draw if picture else lambda *args: tmp_path)
        models = ["--target", str(pair_folder / "target"), "--draft", f"{pair_folder / 'draft'},ngram"]
        size = ["--max-new-tokens", "16", "--repeats", "1"]
        machine = ["--threads", "1", "--engine", "eager", "--out-dir", str(tmp_path)]
        code = main([*models, *size, *machine, *words])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def measurements(monkeypatch):
    """What the plan measured: (arms, prompts, instruments, result) of each measurement."""
    seen, honest = [], comparison.measure

    def watched(bench, arms, temperatures, texts, *rest, **named):
        found = honest(bench, arms, temperatures, texts, *rest, **named)
        seen.append((list(arms), [p.text for p in texts], rest[1], found))
        return found

    monkeypatch.setattr(comparison, "measure", watched)
    return seen


def loaded(tmp_path) -> PlanRun:
    return read(tmp_path / "results" / "local-plan.json", PlanRun)


def of_draft(entries: list[PlanEntry], fact: DraftFacts) -> list[PlanEntry]:
    key = attrgetter("method", "draft", "temperature")
    return [e for e in entries if key(e) == key(fact)]


def test_plan_has_every_length_and_names_the_best(run, tmp_path, measurements):
    """The samples it is made from are baselines; what drafts and verifies are the instruments, for their cost alone."""
    code, out, _ = run("--temperature", "0,0.2", picture=True)
    made = loaded(tmp_path)
    assert (code, made.interrupted) == (0, False)
    assert made.noise, "the baseline ran twice"
    ((asked, texts, tools, found),) = measurements
    assert (asked, texts) == ([BASELINE], [text for _, text in TEXTS])
    assert [max(lengths) for lengths in tools.values()] == [16, 16]
    assert {s.arm for s in found.lines} == {BASELINE, BASELINE_REPEAT}
    facts = made.drafts
    assert [(f.method, f.temperature) for f in facts] == [
        ("model", 0.0), ("ngram", 0.0), ("model", 0.2), ("ngram", 0.2),
    ]  # fmt: skip
    for fact in facts:
        mine = of_draft(made.plan, fact)
        assert [e.draft_length for e in mine] == list(range(17))
        best = max(mine, key=lambda e: e.speedup)
        assert (fact.best_draft_length, fact.speedup) == (best.draft_length, best.speedup)
        raw = known_texts.calibrated(found)[fact.draft, fact.temperature]
        assert dict(fact.costs["draft_at"]) == pytest.approx(dict(raw.draft_at), rel=1e-6)
        samples = found.of(BASELINE, fact.temperature)
        context = sum(s.n_prompt + len(s.texts[0]) // 2 for s in samples) // len(samples)
        for e in mine:  # the costs of a length are those that were calibrated
            verify = raw.verify_seconds(e.draft_length + 1, context) / raw.step_seconds(context)
            assert e.verify_cost == pytest.approx(verify, rel=1e-6), "smoothed"
        plain = mine[0]
        assert (plain.tokens_per_round, plain.acceptance_rate) == (1, None)
        for e in mine:  # records round to seven digits
            assert 1 <= e.tokens_per_round <= e.draft_length + 1 + 1e-6
        assert fact.n_tokens == len(TEXTS) * 15
        assert plans.verdict(fact) in " ".join(out.split())
    assert sorted(p.name for p in tmp_path.rglob("local*")) == ["local-plan.json", "local-plan.md", "local-plan.png"]


class PricedPair(Machine):
    """The price list of tests/lab/test_harness.py for models that compare.py loads itself."""

    def is_target(self, model) -> bool:
        return model.config._name_or_path.endswith("target")


def test_where_prices_hold_the_plan_comes_true(run, tmp_path, monkeypatch):
    """On a clock that is a price list: what is planned is what is measured on the same prompts."""
    configs, honest = [], plans.make
    monkeypatch.setattr(plans, "make", lambda config: configs.append(config) or honest(config))
    PricedPair(monkeypatch, None, by_width=lambda width: 1 + 0.05 * width, slope=0.002, draft=0.1, catch=0.01)
    assert run("-k", "1,2,3,4")[0] == 0
    planned = {(e.method, e.draft_length): e.speedup for e in loaded(tmp_path).plan}
    [config] = configs
    config.log = None  # it has been closed
    rows = comparison.build_rows(comparison.measure_and_judge(config, config.arms(), {}), {})
    measured = {(r.method, r.draft_length): r.speedup for r in rows if r.draft and r.prompt_kind == "all"}
    assert len(measured) == 8
    assert measured == pytest.approx(planned, rel=1e-6)  # records round to seven digits


@pytest.mark.parametrize(
    ("k", "speedup", "said"), [(5, 1.8449, "take k = 5, expected 1.84x;"), (3, 1.0, "leave"), (0, 1.01, "leave")]
)
def test_only_a_length_that_is_faster_is_recommended(k, speedup, said):
    best = {"best_draft_length": k, "speedup": speedup, "step_seconds": 0.00912, "n_tokens": 1000, "costs": {}}
    line = plans.verdict(DraftFacts(method="model", draft="models/lab-pair/draft", temperature=0.0, **best))
    assert line.startswith(f"model, T = 0 (greedy): {said}")
    assert "decode step 9.12 ms" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-k", "2,auto"], ("-k 2,auto", "give")),
        (["-k", "300"], ("-k 300", "256 or less")),
        (["--draft", "branching"], ("branching has branches", "leave it out")),
        (["--draft", "hybrid:ngram+{draft}"], ("hybrid:ngram+draft", "no plan knows what its rounds draft")),
        (["--max-new-tokens", "1"], ("--max-new-tokens 2",)),
        (["--max-new-tokens", "999", "--prompt", "x"], ("512", "at most 511 new tokens")),
    ],
)
def test_a_bad_input_is_one_line_before_anything_is_measured(run, pair_folder, monkeypatch, words, said):
    monkeypatch.setattr(comparison, "measure", lambda *a, **k: pytest.fail("measured first"))
    add_branching(monkeypatch)
    code, _, err = run(*(word.format(draft=pair_folder / "draft") for word in words))
    assert code == 2
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert all(word in err for word in said)


def test_no_plan_is_longer_than_a_block(run, pair_folder, tmp_path):
    target = AutoModelForCausalLM.from_pretrained(pair_folder / "target")
    made = block_heads()
    made.write_block(tmp_path / "head", made.tiny_block_head(target, markov_rank=3).float(), "tiny", ["Llama"])
    assert run("--draft", f"block:{tmp_path / 'head'}", "-k", "0,2,4,9", "--limit", "1")[0] == 0
    assert [entry.draft_length for entry in loaded(tmp_path).plan] == [0, 2, 4]
