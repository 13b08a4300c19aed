"""compare.py end to end on a tiny pair: the record, the tables, the pictures, the exit code, Ctrl-C."""

import json
import re

import jsonschema
import pytest

import compare
from draft_models import ModelDrafter
from speclab import prompts, record, report
from speclab.record import Arm, Costs, Sample
from speclab.theory import Counts

REQUIRED = {
    "method", "target", "draft", "device", "dtype", "draft_length", "temperature", "prompt_kind", "n_prompts",
    "n_tokens", "seconds", "tokens_per_second", "speedup", "speedup_low", "speedup_high", "n_rounds", "n_drafted",
    "n_accepted", "n_rejected", "n_emitted", "acceptance_rate", "drafted_fraction", "tokens_per_round",
    "draft_cost", "verify_cost", "book_formula", "book_formula_drafted_fraction", "same_as_baseline",
}  # fmt: skip


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch):
    """compare.py on the tiny pair and three short prompts of three kinds; returns (exit code, stdout, stderr)."""
    texts = [("code", "def f(x):"), ("prose", "return x"), ("copy", "x + 1, x + 1,")]
    monkeypatch.setattr(prompts, "standard", lambda: texts)

    def call(*words):
        models = ["--target", str(pair_folder / "target"), "--draft", f"{pair_folder / 'draft'},ngram"]
        size = ["--limit", "1", "--max-new-tokens", "40", "--threads", "1"]
        code = compare.main([*models, *size, "--out-dir", str(tmp_path), *words])
        return (code, *capsys.readouterr())

    return call


def test_record_tables_and_pictures(run, tmp_path):
    code, out, _ = run("-k", "2,4", "--by-kind", "--json", str(tmp_path / "copy.json"))
    assert code == 0
    text = (tmp_path / "results" / "local.json").read_text()
    assert text == (tmp_path / "copy.json").read_text()
    run_record = record.load(tmp_path / "results" / "local.json")
    for row in run_record["rows"]:
        assert set(row) >= REQUIRED
        if row["draft"]:
            assert row["n_emitted"] == row["n_accepted"] + row["n_rounds"]  # nothing is cut: EOS is ignored
            assert row["n_rejected"] <= row["n_rounds"]
            assert row["same_as_baseline"] is (True if row["temperature"] == 0 else None)
    everything = [r for r in run_record["rows"] if r["prompt_kind"] == "all"]
    assert [(r["method"], r["draft_length"]) for r in everything if r["temperature"] == 0.8] == [
        ("baseline", 0), ("model", 2), ("model", 4), ("ngram", 2), ("ngram", 4),
    ]  # fmt: skip
    assert all(r["n_tokens"] == 3 * 39 for r in everything), "prefill's token was counted, or a budget was missed"
    assert "token for token: identical" in out
    assert "z_S" in out
    assert max(len(line) for line in out.splitlines() if "book(" in line or "x slower" in line) <= 80
    assert str(tmp_path) not in text, "an absolute path got into the record"
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == [
        "local-accepted-lengths.png", "local-draft-length.png", "local-speedup.png",
    ]  # fmt: skip
    assert not list(tmp_path.rglob("*.part"))


def test_json_to_stdout_is_json_alone(run):
    code, out, err = run("-k", "2", "--temperature", "0", "--json", "-")
    assert code == 0
    assert json.loads(out)["schema_version"] == record.SCHEMA_VERSION
    assert "speedup" in err


def test_k_zero_and_dial_rows(run, pair_folder):
    """k = 0 is plain decoding; the dial at 1 is always right and only makes greedy rows."""
    dial = f"dial:1:{pair_folder / 'draft'}"
    code, out, _ = run("--draft", dial, "-k", "0,3", "--json", "-")
    rows = [r for r in json.loads(out)["rows"] if r["prompt_kind"] == "all" and r["draft"]]
    assert code == 0
    assert {r["temperature"] for r in rows} == {0.0}
    plain, dialled = rows
    assert dialled["method"].startswith("dial:1:")
    assert "/" not in dialled["method"], "an absolute path got into the record"
    assert plain["tokens_per_round"] == 1
    assert plain["acceptance_rate"] is None
    assert dialled["acceptance_rate"] == 1


def test_a_wrong_token_fails_the_run(run, monkeypatch):
    """The comparison is a check, not only a stopwatch: one flipped token means exit code 1."""
    honest = compare.speculative_decode

    def forgetful(*args, **kwargs):
        for round_ in honest(*args, **kwargs):
            if not round_.prefill:
                round_.tokens[0] = (round_.tokens[0] + 1) % 64
            yield round_

    monkeypatch.setattr(compare, "speculative_decode", forgetful)
    code, out, _ = run("-k", "2", "--temperature", "0")
    assert code == 1
    assert "BUG" in out


def test_a_wrong_distribution_fails_the_run(run, monkeypatch):
    """Greedy tokens passed off as samples."""
    honest = compare.speculative_decode

    def hot(target, drafter, prompt, k, budget, sampling, generator, **kwargs):
        return honest(target, drafter, prompt, k, budget, compare.Sampling(), generator, **kwargs)

    monkeypatch.setattr(compare, "speculative_decode", hot)
    code, out, _ = run("-k", "2", "--temperature", "0.8", "--max-new-tokens", "100")
    assert code == 1
    assert "NOT the target's distribution" in " ".join(out.split())


def test_ctrl_c_keeps_what_is_measured(run, monkeypatch, tmp_path):
    """Interrupted in the third prompt: two prompts are reported, and the record says so."""
    honest, calls = compare.Bench.run, []

    def interrupted(self, arm, sampling, index, *args, **kwargs):
        calls.append(index)
        if index == 2:
            raise KeyboardInterrupt
        return honest(self, arm, sampling, index, *args, **kwargs)

    monkeypatch.setattr(compare.Bench, "run", interrupted)
    code, out, _ = run("-k", "2", "--temperature", "0")
    kept = record.load(tmp_path / "results" / "local.json")
    assert code == 0
    assert kept["interrupted"]
    assert {s["prompt_index"] for s in kept["raw"]} == {0, 1}
    assert "Stopped before the end" in out


def test_ctrl_c_after_the_measurement_keeps_every_row(run, monkeypatch, tmp_path):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare.Bench, "calibrate", stop)
    code, out, _ = run("-k", "2", "--temperature", "0")
    kept = record.load(tmp_path / "results" / "local.json")
    assert code == 0
    assert kept["interrupted"]
    assert {s["prompt_index"] for s in kept["raw"]} == {0, 1, 2}
    assert "token for token: identical" in out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--temperature", "0.8", "--draft", "dial:0.5:DRAFT"], "add 0 to --temperature"),
        (["--draft", "DRAFT,DRAFT"], "twice"),
        (["--temperature", "0,inf"], "finite"),
        (["--temperature", "nan"], "finite"),
        (["--max-new-tokens", "1"], "--max-new-tokens 2"),
        (["--max-new-tokens", "510"], "512"),
    ],
)
def test_hopeless_runs_are_refused_before_measuring(run, monkeypatch, pair_folder, words, named):
    monkeypatch.setattr(compare, "measure", lambda *a: pytest.fail("measured first"))
    code, _, err = run(*[w.replace("DRAFT", str(pair_folder / "draft")) for w in words])
    assert code == 2
    assert named in err


def sample(arm: Arm, index: int, seconds: float, tokens: list[int], **counts) -> Sample:
    return Sample(arm, 0.0, index, "code", 0.5, seconds, Counts(**counts), tokens)


COMMON = {"target": "t", "device": "cpu", "dtype": "float32"}


def test_row_computes_ratios_from_counts_and_seconds():
    """Hand-made numbers: the speedup is a ratio of sums, never a mean of ratios, and prefill stays outside."""
    arm, base = Arm("model", "model", 2), Arm("baseline")
    baseline = [sample(base, i, s, [1] * 11, n_rounds=10, n_emitted=10) for i, s in enumerate((1.0, 3.0))]
    fast = [
        sample(arm, 0, 1.0, [1] * 11, n_rounds=5, n_drafted=10, n_accepted=5, n_rejected=5, n_emitted=10),
        sample(arm, 1, 1.0, [1] * 11, n_rounds=5, n_drafted=10, n_accepted=5, n_rejected=3, n_emitted=10),
    ]
    costs = Costs(0.1, {"draft": 0.2, "verify": 1.5, "accept": 0.1, "rollback": 0.1}, n_rounds=10, n_drafted=20)
    row = record.row(arm, fast, baseline, costs, COMMON, "all")
    assert row["speedup"] == pytest.approx(2.0)
    assert row["speedup_with_prefill"] == pytest.approx(5 / 3)
    assert row["tokens_per_second"] == pytest.approx(10.0)
    assert row["acceptance_rate"] == pytest.approx(10 / 18)
    assert row["drafted_fraction"] == pytest.approx(0.5)
    assert row["tokens_per_round"] == pytest.approx(2.0)
    assert row["draft_cost"] == pytest.approx(0.1)
    assert row["verify_cost"] == pytest.approx(1.5)
    assert row["overhead"] == pytest.approx(0.2)
    assert row["book_formula"] == pytest.approx(1 / (1 - 10 / 18 + 10 / 36))
    assert row["speedup_low"] is None, "two prompts are too few for an interval"


def test_sentences_name_the_largest_cause():
    """Each cause in turn is made the largest; rows the formula gets right have no sentence."""
    row = {"method": "model", "draft_length": 4, "speedup": 1.0, "book_formula": 2.0, "tokens_per_round": 3.0}
    row |= {"n_rounds": 10, "n_drafted": 40, "draft_cost": 0.05, "verify_cost": 1.1, "overhead": 0.05}
    assert "draft steps" in report.formula_sentences([row])[0]
    assert "verification" in report.formula_sentences([row | {"verify_cost": 1.9}])[0]
    assert "rolling back" in report.formula_sentences([row | {"overhead": 0.9}])[0]
    assert "proposed 0.4 tokens" in report.formula_sentences([row | {"n_drafted": 4}])[0]
    assert "too high" in report.formula_sentences([row])[0]
    low = report.formula_sentences([row | {"speedup": 3.0}])[0]
    assert "too low" in low
    assert "bonus" in low
    assert report.formula_sentences([row | {"speedup": 1.9}]) == []


def test_losing_rows_are_called_slower():
    assert report.speedup_words({"speedup": 0.83}) == "0.83x slower"
    assert report.speedup_words({"speedup": 1.31}) == "1.31x"
    row = {"prompt_kind": "prose", "draft": "ngram", "method": "ngram", "draft_length": 6, "speedup": 0.886}
    assert report.losing_lines([row, row | {"speedup": 1.2}]) == ["slower on prose prompts: ngram k=6 0.89x"]


def test_loops_are_found():
    assert record.ends_in_loop([9] * 5 + [1, 2, 3] * 12)
    assert record.ends_in_loop([7] * 32)
    assert not record.ends_in_loop([7] * 31)
    assert not record.ends_in_loop(list(range(9)) * 8), "period 9 is too long to count"
    assert not record.ends_in_loop([1, 2, 3] * 12 + [4])


def test_schema_refuses_a_broken_record(run):
    good = json.loads(run("-k", "2", "--temperature", "0", "--json", "-")[1])
    record.validate(good)
    for path, value in (("speedup", "fast"), ("acceptance_rate", 1.2), ("n_rounds", -1), ("surprise", 1)):
        with pytest.raises(jsonschema.ValidationError):
            record.validate(good | {"rows": [good["rows"][0] | {path: value}]})
    with pytest.raises(jsonschema.ValidationError):
        record.validate({k: v for k, v in good.items() if k != "machine"})


def test_headline_is_reported_on_prompts_it_was_not_chosen_on():
    """k = 2 wins on the even prompts, k = 4 on the odd ones: the headline must be k = 2 with its odd numbers."""
    base, two, four = Arm("baseline"), Arm("model", "model", 2), Arm("model", "model", 4)
    samples = []
    for i in range(8):
        even = i % 2 == 0
        samples.append(sample(base, i, 2.0, [1], n_rounds=9, n_emitted=9))
        counts = {"n_rounds": 5, "n_drafted": 9, "n_accepted": 4, "n_rejected": 1, "n_emitted": 9}
        samples.append(sample(two, i, 1.0 if even else 1.6, [1], **counts))
        samples.append(sample(four, i, 1.5 if even else 1.0, [1], **counts))
    row = compare.headline(samples, [base, two, four], {"model": ModelDrafter(None)}, COMMON)
    assert row["draft_length"] == 2
    assert row["speedup"] == pytest.approx(2.0 / 1.6)
    assert row["n_prompts"] == 4


def test_arms_alternate(run, monkeypatch):
    """ABBA: whoever runs first on one prompt runs last on the next."""
    order, honest = [], compare.Bench.run

    def watched(self, arm, sampling, index, prompt, repeat=0, tokens=None):
        if tokens is None:  # not the warm-up
            order.append((index, arm.label))
        return honest(self, arm, sampling, index, prompt, repeat, tokens)

    monkeypatch.setattr(compare.Bench, "run", watched)
    monkeypatch.setattr(compare.Bench, "calibrate", lambda *a: {})
    run("-k", "2", "--temperature", "0.8")
    first, second = ([label for index, label in order if index == i] for i in (0, 1))
    assert first == ["baseline", "model k=2", "ngram k=2"]
    assert second == first[::-1]


def test_pictures_open_and_are_not_empty(run, tmp_path):
    run("-k", "2,4")
    from PIL import Image

    for path in (tmp_path / "plots").iterdir():
        with Image.open(path) as picture:
            assert picture.width > 600
            assert len(picture.convert("L").getcolors(256)) > 20


def test_every_plotted_number_has_a_table(run, tmp_path):
    run("-k", "2")
    markdown = (tmp_path / "results" / "local.md").read_text()
    for row in record.load(tmp_path / "results" / "local.json")["rows"]:
        if row["draft"]:
            assert re.search(rf"{row['method']}.*\b{row['speedup']:.2f}x", markdown)
