"""The training of the lab pair: what it reads, that it resumes, that distillation pulls towards the target."""

import argparse
import functools
import os
import re
import signal
import subprocess

import pytest
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.paths import ROOT
from tests.conftest import tiny_llama
from tests.tiny_models import FAMILIES, VOCAB, tiny
from training import corpus, documents, heads, pair, work
from training import steps as training_steps
from training import texts as training_texts
from training.corpus import Document
from training.kinds import KINDS, recipes_of_extensions
from training.work import Checkpoint


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


def a_training(monkeypatch, seconds=1000, checkpoint=None, stop_at=None, where="_gradients"):
    """A training by a clock that ticks when it is read.  -> facts, model, steps begun

    At step `stop_at` Ctrl-C comes in the function `where`; the facts are then None.
    """
    monkeypatch.setattr(training_steps.time, "monotonic", iter(range(10_000)).__next__)
    # The rate must not depend on the clock, or a resumed run could not be the same.
    monkeypatch.setattr(training_steps, "learning_rate_factor", lambda share: 1.0)
    stream = torch.randint(0, 64, (3000,), generator=torch.Generator().manual_seed(0))
    model, begun = tiny_llama(0, dtype=torch.float32), []

    def batches(step):
        begun.append(step)
        return [(stream[step * 8 : step * 8 + 64].view(4, 16),)]

    right = getattr(training_steps, where)

    def stopping(*args):
        if begun[-1] == stop_at:
            raise KeyboardInterrupt
        return right(*args)

    loss = functools.partial(training_steps.next_token_loss, model)
    with monkeypatch.context() as patch:
        patch.setattr(training_steps, where, stopping)
        try:
            facts = training_steps.train(
                model, batches, loss, seconds, 1e-3, "test", checkpoint and Checkpoint(checkpoint)
            )
        except KeyboardInterrupt:
            facts = None
    return facts, model, begun


@pytest.mark.parametrize(("where", "kept"), [("_gradients", True), ("_update", False)])
def test_ctrl_c_keeps_every_whole_step(where, kept, tmp_path, monkeypatch):
    """The weights of a run that was stopped and resumed are those of one that was not, bit for bit."""
    path = tmp_path / "m.pt"
    facts, *_ = a_training(monkeypatch, checkpoint=path, stop_at=9, where=where)
    assert facts is None
    assert path.exists() == kept, "half of an update must not be saved"
    _, resumed, begun = a_training(monkeypatch, checkpoint=path, stop_at=15)
    assert begun == list(range(9 if kept else 0, 16))
    _, at_once, _ = a_training(monkeypatch, stop_at=15)
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), at_once.parameters(), strict=True))


def test_a_signal_waits_for_the_end_of_a_step(tmp_path, monkeypatch):
    path, right = tmp_path / "m.pt", training_steps._update

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        right(*args)

    monkeypatch.setattr(training_steps, "_update", interrupted)
    facts, _, begun = a_training(monkeypatch, checkpoint=path)
    assert (facts, begun) == (None, [0])
    assert torch.load(path, weights_only=True)["facts"]["steps"] == 1


def test_a_loss_that_is_not_finite_ends_a_training_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    path, right = tmp_path / "m.pt", training_steps._gradients
    a_training(monkeypatch, 20, checkpoint=path)
    before = path.read_bytes()
    monkeypatch.setattr(training_steps, "_gradients", lambda *args: right(*args) * float("nan"))
    with pytest.raises(EnvironmentProblem, match="the loss is not finite at step"):
        a_training(monkeypatch, 1000, checkpoint=path)
    assert path.read_bytes() == before


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


def test_a_work_folder_has_one_training(tmp_path):
    """Texts and checkpoints of another target must not be taken for those of this one."""
    settings = {"KIND": "feature", "--target": "a", "--init": None, "--rate": 0.1}
    work.check_settings(tmp_path, settings | {"--target": "mistyped"})
    work.check_settings(tmp_path, settings)  # nothing was learned of the mistyped one
    (tmp_path / "own-256.pt").write_text("")
    work.check_settings(tmp_path, settings)
    for flag, other in {"KIND": "block", "--target": "b", "--init": "c", "--rate": None, "--layers": 2}.items():
        message = f"{flag} is {settings.get(flag)} there, and not {other}; use another --work-dir"
        with pytest.raises(UsageProblem, match=re.escape(message)):
            work.check_settings(tmp_path, settings | {flag: other})
    for damaged in ("{", "[1]"):
        (tmp_path / "settings.json").write_text(damaged)
        with pytest.raises(EnvironmentProblem, match="cannot go on from"):
            work.check_settings(tmp_path, settings)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(UsageProblem, match="says of what"):
        work.check_settings(tmp_path, settings)


CHECKPOINT = {
    "no dict": lambda state: [1],
    "no facts": lambda state: {"model": state["model"], "optimizers": state["optimizers"]},
    "steps in words": lambda state: state | {"facts": state["facts"] | {"steps": "many"}},
    "seconds that are no number": lambda state: state | {"facts": state["facts"] | {"seconds": float("nan")}},
    "no loss": lambda state: state | {"facts": state["facts"] | {"last_loss": None}},
    "an unknown precision": lambda state: state | {"facts": state["facts"] | {"products": "system"}},
    "a fact that is a tensor": lambda state: state | {"facts": state["facts"] | {"tokens": torch.ones(2)}},
    "one optimizer": lambda state: state | {"optimizers": state["optimizers"][:1]},
    "an optimizer's number in words": lambda state: with_number(state, "momentum_buffer", "x"),
    "an optimizer's numbers of another shape": lambda state: with_number(state, "momentum_buffer", torch.ones(3)),
}


def with_number(state: dict, name: str, value: object) -> dict:
    """A checkpoint with another number in its first optimizer."""
    state["optimizers"][0]["state"][0][name] = value
    return state


@pytest.mark.parametrize("damage", CHECKPOINT.values(), ids=CHECKPOINT)
def test_a_checkpoint_with_wrong_facts_is_one_line(damage, tmp_path, monkeypatch):
    path, ending = tmp_path / "m.pt", ""
    a_training(monkeypatch, 20, checkpoint=path)
    work.save_tensors(path, damage(torch.load(path, weights_only=True)))
    try:
        a_training(monkeypatch, 1000, checkpoint=path)
    except Exception as error:
        ending = f"{type(error).__name__}: {error}"
    assert re.fullmatch(
        r"EnvironmentProblem: cannot go on from .*m\.pt: .*; delete it, or use another --work-dir", ending
    )


@pytest.mark.parametrize(
    "damage",
    [
        {0: torch.zeros(3, 9, dtype=torch.long)},
        {1: torch.zeros(21, 9, 9)},
        {1: "x"},
        {2: torch.full((21, pair.CONTINUED, pair.TEACHER_TOP), 10**6)},
        {3: 21},
        {3: "three"},
    ],
)
def test_a_pool_that_does_not_fit_together_is_refused(damage):
    of_teacher = torch.zeros(21, pair.CONTINUED, pair.TEACHER_TOP)
    texts = torch.zeros(21, pair.CONTINUED, dtype=torch.long)
    parts = [texts, of_teacher, of_teacher.long(), 3]
    pair._check_pool(*parts)
    with pytest.raises(ValueError, match=r"texts|teacher|ids"):
        pair._check_pool(*(damage.get(i, part) for i, part in enumerate(parts)))


def test_a_pipe_in_a_work_folder_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "settings.json")
    (tmp_path / "own-256.pt").touch()
    with pytest.raises(EnvironmentProblem, match=r"settings\.json is a device or a pipe, no file"):
        work.check_settings(tmp_path, {})
    for place in (tmp_path / "settings.json", tmp_path):
        with pytest.raises(EnvironmentProblem, match="pipe"), work.readable(place):
            pytest.fail("it would be opened")


# Flags that say how long, how fast and where to: a training goes on with others. `train` is no flag.
NOT_LEARNED = {"kind", "train", "minutes", "own_minutes", "threads", "keep", "work_dir", "out", "texts"}
WORDS = {kind: [kind] for kind in (*KINDS, "pair") if kind not in recipes_of_extensions()}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_every_flag_that_decides_what_is_learned_is_a_setting(words):
    args = heads.parse(words)
    settings = heads.settings_of(args)
    named = {name: "--" + name.replace("_", "-") for name in set(vars(args)) - NOT_LEARNED}
    assert settings.keys() == {"KIND", *named.values()}
    as_given = named.keys() - {"target"}  # that is a folder's path
    assert all(settings[named[name]] == getattr(args, name) for name in as_given)


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


def test_a_second_training_in_a_work_folder_is_refused(tmp_path, capsys):
    words = ["--work-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    with work.alone_in(tmp_path):
        for kind in ("feature", "pair"):
            assert heads.main([kind, *words]) == 2
            assert "another training is writing into" in capsys.readouterr().err
    with work.alone_in(tmp_path):
        pass


def test_a_draft_learns_from_the_target_as_it_is_now(tmp_path, monkeypatch):
    """A target that was trained further writes new texts, and the draft begins anew."""
    made = []
    rows = torch.zeros(3, pair.CONTINUED, dtype=torch.long)
    of_teacher = torch.zeros(21, pair.CONTINUED, pair.TEACHER_TOP)
    monkeypatch.setattr(pair, "continuations", lambda *_: made.append(1) or rows)
    monkeypatch.setattr(pair, "teacher_targets", lambda target, texts: (of_teacher, of_teacher.long()))
    monkeypatch.setattr(pair, "draft_from", lambda *_: tiny_llama(0, dtype=torch.float32))
    monkeypatch.setattr(pair, "compile_layers", lambda model: None)
    monkeypatch.setattr(pair, "train", lambda *_: training_steps.TrainingFacts())
    args, device = argparse.Namespace(work_dir=tmp_path, seed=0, rate=0.1), torch.device("cpu")
    checkpoint = tmp_path / "draft.pt"
    for n_steps, n_made, goes_on in ((5, 1, True), (5, 1, True), (7, 2, False)):
        checkpoint.touch()
        pair.distil(args, device, {"continuations": 0, "draft": 0}, None, n_steps, torch.zeros(2000))
        assert (len(made), checkpoint.exists()) == (n_made, goes_on)
    work.save_tensors(tmp_path / "pool.pt", (rows, rows, rows, 3))  # of an older version
    with pytest.raises(EnvironmentProblem, match="cannot go on from"):
        pair.distil(args, device, {"continuations": 0, "draft": 0}, None, 7, torch.zeros(2000))


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


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "m.pt").write_bytes(b"half of a file")
    with pytest.raises(EnvironmentProblem, match=r"cannot go on from .*m\.pt: .*; delete it"):
        training_steps.train(tiny_llama(0), list, lambda _: None, 60, 1e-3, "test", Checkpoint(tmp_path / "m.pt"))


@pytest.fixture
def models(monkeypatch):
    """What main() "trains": two tiny models, at once."""
    texts = [Document(f"{i}.py", "def f(x):\n    return x + 1\n" * 40) for i in range(40)]
    monkeypatch.setattr(corpus, "standard_library", lambda: texts)
    models = {role: tiny_llama(i, vocab_size=64, dtype=torch.float32) for i, role in enumerate(("target", "draft"))}
    monkeypatch.setattr(pair, "train_target", lambda *_: (models["target"], {"steps": 1}))
    monkeypatch.setattr(pair, "distil", lambda *_: (models["draft"], {}))
    monkeypatch.setattr(pair, "uncompiled", lambda model, shape: model)
    monkeypatch.setattr(pair, "continuations", lambda *_, **__: None)
    monkeypatch.setattr(pair, "held_out_loss", lambda *_: 1.0)
    monkeypatch.setattr(pair, "acceptance", lambda *_: {})
    return models


def test_a_full_output_loses_no_facts(tmp_path, monkeypatch, capsys, models):
    """The facts about the training are written although they cannot be printed; other files in the folder stay."""

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(heads, "say", full)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("mine")
    assert heads.main(["pair", "--work-dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")]) == 3
    assert "error: standard output: No space left on device" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "draft",
        "target",
        "training.json",
    ]


def test_weights_that_cannot_be_written_are_one_line(tmp_path, monkeypatch, capsys, models):
    def full(folder, **_):
        raise RuntimeError("No space left on device")

    monkeypatch.setattr(models["draft"], "save_pretrained", full)
    assert heads.main(["pair", "--work-dir", str(tmp_path / "work"), "--out", str(tmp_path / "out")]) == 3
    assert "error: cannot write the weights: No space left" in capsys.readouterr().err


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
