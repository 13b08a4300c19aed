"""The training of the lab pair: what it reads, that it goes on, that distillation pulls towards the target."""

import functools
import re
import subprocess

import pytest
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.paths import ROOT
from tests.conftest import tiny_llama
from tests.tiny_models import FAMILIES, VOCAB, tiny
from training import corpus, documents, heads, pair
from training import steps as training_steps
from training import texts as training_texts
from training.corpus import Document


def test_corpus_is_the_standard_library_without_tests():
    found = list(corpus.standard_library())
    names = {d.name for d in found}
    assert {"json/decoder.py", "textwrap.py", "asyncio/base_events.py"} <= names
    assert not any("site-packages" in n or n.startswith(("test/", "encodings/")) or "/tests/" in n for n in names)
    held_out = [d for d in found if d.held_out]
    assert 0.01 < len(held_out) / len(found) < 0.10


def test_held_out_depends_on_the_name_alone():
    assert Document("functools.py", "a").held_out == Document("functools.py", "b").held_out
    facts = documents.manifest([Document("functools.py", "x"), Document("pkg:heapq.py", "y")])
    assert facts["held_out"] == ["functools.py"]
    assert facts["packages"] == ["pkg"]
    assert (
        facts["sha256"] != documents.manifest([Document("functools.py", "z"), Document("pkg:heapq.py", "y")])["sha256"]
    )


@pytest.mark.parametrize(
    ("licence", "permissive"),
    [
        ("MIT License", True),
        ("Apache-2.0", True),
        ("BSD-3-Clause AND MIT", True),
        ("GPL-3.0-or-later", False),
        ("MIT OR GPL-2.0", False),  # not worth a lawyer
        ("LicenseRef-NVIDIA-Proprietary", False),
        ("LGPL-2.1 AND BSD-2-Clause", False),
        ("Mitigated Licence", False),  # MIT inside a word
        ("", False),
    ],
)
def test_only_plainly_permissive_packages_are_read(licence, permissive):
    assert documents.is_permissive(licence) is permissive


def test_tokenizer_round_trip_and_end_token():
    tokenizer = pair.train_tokenizer(iter(["def f():\n    return 'é東'\n"]))
    text = "class Ω:\n\tpass  # \x00 anything at all 🙂\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.eos_token_id == 0
    stream = training_texts.encode(tokenizer, ["a", "b"])
    assert (stream == 0).sum() == 2


def test_crops_are_a_function_of_seed_and_step():
    stream = torch.arange(10_000)
    first = training_steps.crops(stream, 3, 0, 4096)
    assert all(torch.equal(a, b) for a, b in zip(first, training_steps.crops(stream, 3, 0, 4096), strict=True))
    lengths = {training_steps.crops(stream, step, 0, 4096)[0].shape[1] for step in range(60)}
    assert lengths == set(training_steps.LENGTHS)
    for rows in first:
        assert torch.equal(rows[:, 1:], rows[:, :-1] + 1), "a crop must be contiguous text"


def test_a_loss_that_is_not_finite_ends_a_training():
    model = tiny_llama(0, dtype=torch.float32)
    batches = [(torch.zeros(2, 8, dtype=torch.long),)]

    def loss(tokens):
        return training_steps.next_token_loss(model, tokens) * float("nan")

    with pytest.raises(EnvironmentProblem, match="the loss is not finite at step 0"):
        training_steps.train(model, lambda step: batches, loss, 60, 1e-3, "test")


def test_a_training_learns_and_says_how_far_it_is(monkeypatch):
    """By a clock that ticks when it is read."""
    monkeypatch.setattr(training_steps.time, "monotonic", iter(range(10_000)).__next__)
    model, told = tiny_llama(0, dtype=torch.float32), []
    tokens = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))
    loss = functools.partial(training_steps.next_token_loss, model)
    facts = training_steps.train(
        model, lambda step: [(tokens,)], loss, 20, 1e-2, "test", after=lambda facts: told.append(facts.steps)
    )
    assert told == list(range(1, facts.steps + 1))
    assert facts.tokens == 64 * facts.steps
    assert facts.last_loss < facts.first_loss


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_tables_with_a_row_for_each_id_have_no_muon(family):
    model = tiny(family)
    muon, adam = (
        {id(w) for group in one.param_groups for w in group["params"]} for one in training_steps.optimizers(model, 1e-3)
    )
    tables = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    assert tables <= adam
    assert {id(w) for w in model.parameters()} == muon | adam
    assert not muon & adam


def test_texts_depend_on_the_seed_alone():
    pieces, model = torch.randint(0, VOCAB, (9, 5)), tiny("llama")
    texts = []
    for noise, seed in ((1, 3), (2, 3), (2, 4)):
        torch.manual_seed(noise)
        texts.append(training_texts.continuations(model, pieces, 0, seed, rows=6, length=12))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[1][:, 5:], texts[2][:, 5:])


def test_texts_are_written_with_the_targets_own_positions(monkeypatch):
    """The rotary frequencies keep their precision, whatever the weights have."""
    monkeypatch.setattr(training_texts, "product_dtype", lambda device: torch.bfloat16)
    model = tiny("llama")
    writer = training_texts.in_fast_precision(model)
    assert {weight.dtype for weight in writer.parameters()} == {torch.bfloat16}
    assert all(torch.equal(a, b) for a, b in zip(writer.buffers(), model.buffers(), strict=True))
    assert model.dtype == torch.float64
    texts = training_texts.continuations(writer, torch.randint(0, VOCAB, (9, 5)), 0, 3, rows=6, length=12)
    assert texts.shape == (6, 12)


def _gpt_neo():
    """A model with layers of a window that counts on the shapes of a DynamicCache."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    config = GPTNeoConfig(**sizes, attention_types=[[["global", "local"], 1]], window_size=8, intermediate_size=64)
    return GPTNeoForCausalLM(config).double().eval()


@pytest.mark.parametrize("family", [*sorted(FAMILIES), "gpt_neo"])
def test_continuations_are_what_the_target_chooses(family):
    """At almost no temperature, whatever the target keeps of a text: every token is its most probable one."""
    n_prompt = 12  # longer than a window
    target = _gpt_neo() if family == "gpt_neo" else tiny(family)
    pieces = torch.randint(3, VOCAB, (5, n_prompt), generator=torch.Generator().manual_seed(0))
    texts = training_texts.continuations(target, pieces, 0, 0, rows=4, length=28, temperatures=(1e-5,))
    assert texts.shape == (4, 28)
    assert all(any(torch.equal(text[:n_prompt], piece) for piece in pieces) for text in texts)
    with torch.no_grad():
        logits = target(input_ids=texts, use_cache=False).logits[:, n_prompt - 1 : -1]
    lost = logits.max(-1).values - logits.gather(-1, texts[:, n_prompt:, None])[..., 0]
    assert lost.max() < 1e-3


@pytest.mark.parametrize("fastest", [torch.float32, torch.bfloat16])
def test_products_are_made_in_the_precision_that_is_faster_here(fastest, monkeypatch):
    def repeat(product, **how):
        return [2.0, 1.0 if product.args[0].dtype == fastest else 1.5]

    monkeypatch.setattr(training_steps.timeit, "repeat", repeat)
    training_steps.product_dtype.cache_clear()
    try:
        assert training_steps.product_dtype(torch.device("cuda")) == torch.bfloat16
        precision = training_steps.product_dtype(torch.device("cpu"))
        with training_steps.products_in(precision, torch.device("cpu")):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == fastest
    finally:
        training_steps.product_dtype.cache_clear()


def test_a_target_that_no_head_is_trained_for_is_refused():
    """Before it has written for ten minutes."""
    reason = "rows of 256 tokens are learned from, and the target's context is 128"
    with pytest.raises((UsageProblem, EnvironmentProblem), match=reason):
        heads.check_target(tiny("gpt2", n_positions=128))


def test_models_and_the_tracked_tree_stay_small():
    """Every version of a weight stays in the history for ever."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("no git clone")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    assert sum(size for path, size in sizes.items() if (ROOT / "models") in path.parents) <= 45e6
    assert sum(sizes.values()) <= 58e6


@pytest.fixture
def models(monkeypatch):
    """What main() "trains": two tiny models, at once; and a list of the phases that are run."""
    texts = [Document(f"{i}.py", "def f(x):\n    return x + 1\n" * 40) for i in range(40)]
    monkeypatch.setattr(corpus, "standard_library", lambda: texts)
    made = [tiny_llama(i, vocab_size=64, dtype=torch.float32) for i in range(2)]
    run: list[str] = []
    monkeypatch.setattr(pair, "train_target", lambda *_: run.append("target") or ({"role": 0}, {"steps": 1}))
    monkeypatch.setattr(pair, "pool_of", lambda *_: run.append("pool") or (torch.zeros(2), 1))
    monkeypatch.setattr(pair, "distil", lambda *_: run.append("draft") or ({"role": 1}, {}))
    monkeypatch.setattr(pair, "uncompiled", lambda weights, shape: made[weights["role"]])
    monkeypatch.setattr(pair, "continuations", lambda *_, **__: None)
    monkeypatch.setattr(pair, "held_out_loss", lambda *_: 1.0)
    monkeypatch.setattr(pair, "acceptance", lambda *_: {})
    return made, run


def test_a_pair_goes_on_after_its_last_finished_phase(tmp_path, monkeypatch, capsys, models):
    words, (made, run) = ["pair", "--out", str(tmp_path)], models

    def full(folder, **_):
        raise RuntimeError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(made[1], "save_pretrained", full)
        assert heads.main(words) == 3
    assert "error: cannot write the weights: No space left" in capsys.readouterr().err
    assert heads.main(words) == 0
    assert run == ["target", "pool", "draft", "draft"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "phases", "target", "training.json"]
    assert heads.main([*words, "--seed", "1"]) == 2
    assert "is of a training with" in capsys.readouterr().err
    (tmp_path / "phases" / "pool.pt").write_bytes(b"half of a file")
    assert heads.main(words) == 3
    assert re.search(r"error: cannot go on from .*pool\.pt: .*; delete it", capsys.readouterr().err)


def test_a_full_output_loses_no_facts(tmp_path, monkeypatch, capsys, models):
    """The facts about the training are written although they cannot be printed."""

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(heads, "say", full)
    assert heads.main(["pair", "--out", str(tmp_path)]) == 3
    assert "error: standard output: No space left on device" in capsys.readouterr().err
    assert (tmp_path / "training.json").exists()


def test_distillation_is_best_at_the_target_itself():
    """A draft equal to the target loses only the target's entropy; any other draft loses more."""
    target, other = (tiny_llama(seed, vocab_size=32, dtype=torch.float32) for seed in (0, 1))
    texts = torch.randint(0, 32, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        log_p = target(input_ids=texts).logits.log_softmax(-1)
        ids = torch.arange(32).expand(2, 16, 32).short()
        at_target = pair.distillation_loss(target, texts, log_p.exp(), ids)
        elsewhere = pair.distillation_loss(other, texts, log_p.exp(), ids)
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    assert at_target == pytest.approx(entropy.item(), abs=1e-4)
    assert elsewhere > at_target + 0.1


def test_draft_starts_from_the_target():
    target = pair.llama(pair.TARGET_SHAPE)
    draft = pair.draft_from(target, seed=0)
    assert torch.equal(draft.model.embed_tokens.weight, target.model.embed_tokens.weight)
    mine, theirs = (m.model.layers[0].mlp.up_proj.weight for m in (draft, target))
    rows = min(len(mine), len(theirs))
    assert torch.equal(mine[:rows], theirs[:rows])
    assert mine.std() > 0
