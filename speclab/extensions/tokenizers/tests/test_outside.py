"""What both models give to tokens that their vocabularies do not share: measured, kept in rows, and shown."""

import pytest
import torch

import compare
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.counts import Counts
from speclab.core.drafter import Drafter
from speclab.core.sampling import Sampling
from speclab.drafts.hybrid import HybridDrafter
from speclab.extensions.tokenizers.intersect import IntersectDrafter
from speclab.extensions.tokenizers.register import COLUMNS, DRAFT_OUT, TARGET_OUT
from speclab.extensions.tokenizers.tests.vocabularies import OVERLAP, Pairs, cousin
from speclab.lab.bench import Bench
from speclab.lab.harness import Measurement
from speclab.lab.known_texts import note_own_rates
from speclab.lab.rows import row_of
from speclab.models import prompts
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present import report
from speclab.records.files import ComparisonRun, read
from speclab.records.rows import BASELINE, Arm, Decoded, Row
from tests.llamas import tiny_llama
from tests.present.made import make_row, make_run
from tests.small_tokenizers import byte_level

COMMON = {"target": "tiny", "device": "cpu", "dtype": "float64"}
N_TARGET, N_DRAFT = 12, 10
PROMPT = [3, 4, 0]
TEXTS = [[6, 3, 1, 10, 2, 7, *range(12), 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11], [5, 5, 4]]
N_DECODED = 29 + 2


def sample_of(draft: str, temperature: float) -> Decoded:
    made = Decoded.begin(Arm(draft, draft, 2) if draft else BASELINE, temperature, 0, "code", len(PROMPT))
    for text in TEXTS:
        made.add(0.1, 1.0, text, Counts(n_rounds=len(text) - 1, n_emitted=len(text) - 1))
    return made


def measured_with(sampling: Sampling) -> Measurement:
    """Two texts with every draft: by shared tokens, a hybrid with it, and two others."""
    target = CachedModel(tiny_llama(0, vocab_size=N_TARGET))
    drafter = IntersectDrafter(
        CachedModel(cousin(target.model, OVERLAP, N_DRAFT, 0.3)), OVERLAP, Pairs(OVERLAP, N_DRAFT)
    )
    drafters: dict[str, Drafter] = {
        "shared": drafter,
        "hybrid": HybridDrafter(NgramDrafter(), drafter),
        "ngram": NgramDrafter(),
        "model": ModelDrafter(CachedModel(tiny_llama(1, vocab_size=N_TARGET))),
    }
    setup = Setup(target, None, "tiny", sampling, torch.device("cpu"), torch.float64)
    samples = [sample_of(name, sampling.temperature) for name in ("", *drafters)]
    return Measurement(Bench(setup, drafters, 8, seed=0), [Prompt("code", "", torch.tensor([PROMPT]))], samples)


def means(row: Row) -> dict[str, float]:
    return row.own_rates or {}


@torch.inference_mode()
def outside(model, ids: list[int], shared: list[int], sampling: Sampling) -> float:
    """The probability of all tokens but the shared ones after a text, from a pass of its own."""
    probs = sampling.probs(model(torch.tensor([ids]), use_cache=False).logits[0, -1:])[0]
    return sum(p for i, p in enumerate(probs.tolist()) if i not in shared)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8), Sampling(1.2, top_k=4)], ids=str)
def test_the_sums_are_the_definition(sampling):
    """Over the decoded tokens: the first one of a text came with the prompt's own pass."""
    measured = measured_with(sampling)
    note_own_rates(measured)
    target, drafter = measured.bench.setup.target, measured.bench.drafters["shared"]
    assert isinstance(drafter, IntersectDrafter)
    of_draft = of_target = 0.0
    for text in TEXTS:
        for n in range(1, len(text)):
            before = [*PROMPT, *text[:n]]
            own = Pairs(OVERLAP, N_DRAFT).prompt(before)
            of_draft += outside(drafter.draft.model, own, OVERLAP.draft_ids, sampling)
            of_target += outside(target.model, before, OVERLAP.target_ids, sampling)
    assert 0 < of_target < N_DECODED
    assert 0 < of_draft < N_DECODED
    found = {sample.arm.draft: sample.own_rates for sample in measured.lines}
    assert found.keys() == {"", "shared", "hybrid", "ngram", "model"}
    sums = {DRAFT_OUT: of_draft, TARGET_OUT: of_target}
    assert found["shared"] == found["hybrid"] == pytest.approx(sums, abs=1e-5)
    assert found[""] is found["ngram"] is found["model"] is None
    row = row_of(Arm("shared", "shared", 2), [measured.lines[1]], [measured.lines[0]], COMMON, "all")
    assert means(row) == pytest.approx({name: one / N_DECODED for name, one in sums.items()}, abs=1e-6)


def test_it_stands_in_columns_of_the_rows():
    run = make_run(("intersect:other", "ngram"), (2, 4), (0.0,))
    assert "target out" not in report.page(run, "local")
    for row in run.rows:
        if row.draft == "intersect:other":
            of_draft = 0.125 if row.draft_length == 2 else 0.375
            row.own_rates = {DRAFT_OUT: of_draft, TARGET_OUT: 0.25}
    text = report.page(run, "local")
    assert all(f"- {name}: {meaning}" in text for name, meaning in COLUMNS.items() if name in (DRAFT_OUT, TARGET_OUT))
    rows = [row for row in run.rows if row.prompt_kind == "all"]
    columns = report.rows_table([*rows, make_row("feature")]).cells
    cells = [(row.method, columns["draft out"](row), columns["target out"](row)) for row in rows if row.draft]
    assert cells == [
        ("intersect:other", "0.125", "0.250"),
        ("intersect:other", "0.375", "0.250"),
        ("ngram", "-", "-"),
        ("ngram", "-", "-"),
    ]


@pytest.fixture
def other_folder(tmp_path) -> str:
    """A random model with a tokenizer of its own."""
    tokenizer = byte_level()
    model = tiny_llama(2, vocab_size=len(tokenizer), dtype=torch.float32)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    return str(tmp_path / "other")


def test_a_run_records_and_says_it(pair_folder, other_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "standard", lambda: [("code", "def f(x):"), ("prose", "return x")])
    usual = ["--target", str(pair_folder / "target"), "--draft", f"intersect:{other_folder},ngram", "-k", "3"]
    usual += ["--limit", "1", "--max-new-tokens", "12", "--threads", "1", "--engine", "eager", "--repeats", "1"]
    assert compare.main([*usual, "--temperature", "0,0.8", "--out-dir", str(tmp_path)]) == 0
    record = read(tmp_path / "results" / "local.json", ComparisonRun)
    shared = [row for row in record.rows if row.method == "intersect:other"]
    assert {(row.temperature, row.prompt_kind) for row in shared} == {
        (temperature, kind) for temperature in (0, 0.8) for kind in ("all", "code", "prose")
    }
    assert all(means(row).keys() == {DRAFT_OUT, TARGET_OUT} for row in shared)
    assert all(0 < means(row)[DRAFT_OUT] < 1 for row in shared if row.temperature)
    assert all(row.own_rates is None for row in record.rows if row.method != "intersect:other")
    page = (tmp_path / "results" / "local.md").read_text("utf-8")
    assert all(f"- {name}: {COLUMNS[name]}" in page for name in (DRAFT_OUT, TARGET_OUT)), "the legend of the columns"
    text = (tmp_path / "results" / "local.json").read_text("utf-8")
    lines = [line for line in record.raw if line.own_rates]
    assert {line.method for line in lines} == {"intersect:other"}
    assert text.count('"draft out"') == text.count('"own_rates"') == len(shared) + len(lines)
