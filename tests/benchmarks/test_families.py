"""A dozen families of models that differ in what decoding depends on, and the sweep that runs them all."""

import os

import pytest
import torch

from benchmarks.families import __main__ as families
from benchmarks.families import one_family, tiny_families
from benchmarks.families.__main__ import FamiliesRun
from benchmarks.families.one_family import BOTH, BROKEN, CANNOT, EAGER, REFUSED, FamilyRow
from speclab.records import files

# family -> its outcome and words of its reason
COVERING = {
    "llama": (BOTH, ""),
    "gpt2": (BOTH, ""),  # learned positions
    "falcon": (EAGER, "does not know"),  # attention beside the MLP, one head of keys for all
    "mixtral": (EAGER, "does not know"),  # a mixture of experts
    "deepseek_v3": (EAGER, "does not know"),  # latent attention
    "gemma3_text": (BOTH, ""),  # sliding windows among full layers
    "llama4_text": (EAGER, "does not know"),
    "bloom": (EAGER, "does not know"),  # ALiBi
    "recurrent_gemma": (REFUSED, "cannot be rolled back"),  # the state is no part of its cache
    "rwkv": (REFUSED, "ignores its cache"),
    "openai-gpt": (REFUSED, "ignores its cache"),  # has none
    "bert": (REFUSED, "attends to later tokens"),  # an encoder
    "gemma4_assistant": (CANNOT, "another model"),  # the draft head of another model
}

# Of those that are decoded.
NO_TREES = {"llama4_text", "bloom"}
NO_BATCHES = NO_TREES


# Of each kind of cache, and of each reason for a refusal, the family that is examined fastest.
OFTEN = {"gpt2", "bloom", "llama4_text", "recurrent_gemma", "rwkv", "bert", "gemma4_assistant"}


@pytest.mark.parametrize(
    "family", [pytest.param(one, marks=[] if one in OFTEN else pytest.mark.full) for one in COVERING]
)
def test_outcome(family):
    outcome, words = COVERING[family]
    row = one_family.examine(family)
    assert row.outcome == outcome, row
    assert words in row.reason
    if outcome in (BOTH, EAGER):
        assert row.accepted > 0
        assert row.rejected > 0
        assert (row.no_trees == "") == (family not in NO_TREES)
        assert (row.no_batches == "") == (family not in NO_BATCHES)


@pytest.mark.full
def test_a_process_that_ends_without_an_answer_is_an_outcome(monkeypatch):
    monkeypatch.setattr(families, "examine", os._exit)
    reason = "its process ended without an answer"
    assert families.sweep([7, 8], 1) == ([FamilyRow(family=code, reason=reason) for code in (7, 8)], False)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """families.main() with canned rows instead of processes; returns (exit code, stdout, the record)."""

    def call(rows: dict[str, FamilyRow | type[BaseException]], *words: str) -> tuple[int, str, FamiliesRun]:
        def answer(model_type: str) -> FamilyRow:
            if not isinstance(rows[model_type], FamilyRow):
                raise rows[model_type]
            return rows[model_type]

        monkeypatch.setattr(families, "_examined", answer)
        code = families.main(["--out-dir", str(tmp_path), "--jobs", "1", "--only", ",".join(rows), *words])
        record = files.read(tmp_path / "results" / "local-families.json", FamiliesRun)
        assert (tmp_path / "results" / "local-families.md").read_text().startswith("# Families of models")
        return code, capsys.readouterr().out, record

    return call


def row(family: str, outcome: str, reason: str = "") -> FamilyRow:
    return FamilyRow(family=family, outcome=outcome, reason=reason)


def test_the_record_keeps_every_row_and_a_broken_family_fails_the_command(run):
    rows = {"llama": row("llama", BOTH), "bert": row("bert", REFUSED, "reads what comes (1.0)")}
    code, _, record = run(rows)
    assert code == 0
    assert record.families == list(rows.values())
    assert not record.interrupted
    code, out, _ = run({"llama": row("llama", BOTH), "gpt2": row("gpt2", BROKEN, "another text")})
    assert code == 1
    assert "another text (1): gpt2" in out


def test_ctrl_c_keeps_what_is_done(run):
    code, _, record = run({"llama": row("llama", BOTH), "gpt2": KeyboardInterrupt, "bert": row("bert", BOTH)})
    assert code == 0
    assert record.interrupted
    assert row("llama", BOTH) in record.families
    assert not any(r.family == "gpt2" for r in record.families)


def test_a_wrong_text_is_broken(monkeypatch):
    monkeypatch.setattr(one_family, "library_text", lambda model, prompt: [1] * one_family.N_TOKENS)
    row = one_family.examine("gpt2")
    assert row.outcome == BROKEN
    assert "eager engine, prompt of 6 tokens, no drafts" in row.reason


def test_building_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    one, other = tiny_families.tiny("llama"), tiny_families.tiny("llama")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
