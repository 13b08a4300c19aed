"""The benchmarks on tiny models: what they count, how they price, what they write. Nothing here looks at a clock."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import roofline
from benchmarks.peers import __main__ as peers
from benchmarks.peers import llama_cpp
from benchmarks.peers import page as peers_page
from benchmarks.peers.library import counted_passes
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import GREEDY
from speclab.drafts.lengths import AutoLength
from speclab.lab.harness import measure, take_turns
from speclab.lab.instruments import Decoding
from speclab.models import memory, prompts
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records import files
from speclab.records.rows import BASELINE, GENERATE, Arm
from tests.llamas import tiny_llama
from tests.tiny_models import tiny

BUDGET = 20
TEXTS = [("code", "def f(x):\n    return x + 1"), ("prose", "return x"), ("copy", "x + 1, x + 1, x + 1,")]


@pytest.fixture
def bench(pair_folder):
    """Two different random models: nearly every draft is refused."""
    target, draft = CachedModel(tiny_llama(0)), CachedModel(tiny_llama(1))
    setup = Setup(target, None, "tiny", GREEDY, torch.device("cpu"), torch.float32)
    drafters = {"model": ModelDrafter(draft), "ngram": NgramDrafter(), peers.AUTO: AutoLength(ModelDrafter(draft))}
    return llama_cpp.PeersBench(setup, drafters, BUDGET, seed=0)


def decode(bench, arm: Arm, prompt) -> Decoding:
    """One arm over one prompt, finished."""
    decoding = bench.decoding(arm, GREEDY, Prompt("code", "", prompt))
    take_turns([decoding])
    return decoding


@pytest.fixture
def call(pair_folder, tmp_path, capsys, monkeypatch):
    """A benchmark's main() on the tiny pair; returns (exit code, stdout, stderr)."""
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)

    def run(module, *words):
        models = ["--target", str(pair_folder / "target")]
        code = module.main([*models, "--threads", "1", "--engine", "eager", "--out-dir", str(tmp_path), *words])
        return (code, *capsys.readouterr())

    return run


def test_the_librarys_assistant_drafts_exactly_k(bench, prompt):
    """Every round but the last makes k passes of the draft, and a pass of the target over k + 1 tokens."""
    k = 3
    draft = bench.drafters["model"].draft.model
    with counted_passes(bench.setup.target.model) as target_widths, counted_passes(draft) as draft_widths:
        decoding = decode(bench, Arm("assisted", "model", k), prompt)
    assert len(decoding.tokens) == BUDGET
    assert decoding.counts.n_rounds == len(target_widths) - 1
    assert target_widths[0] == prompt.shape[1] + k  # it drafts before the prompt's own pass
    shortened = [w for w in target_widths[1:] if w != k + 1]
    assert all(w < k + 1 for w in shortened)
    assert target_widths[1 : len(target_widths) - len(shortened)] == [k + 1] * (len(target_widths) - 1 - len(shortened))
    assert len(shortened) <= k + 1, "only the last rounds may be shorter"
    assert len(draft_widths) == sum(w - 1 for w in target_widths[1:]) + k


def test_k_stays_k_when_arms_take_turns(bench, prompt):
    """The library's default schedule leaks its k into the next call; ours is set anew every time, and a draft gets its
    own settings back."""
    draft = bench.drafters["model"].draft.model
    own, first = draft.generation_config, decode(bench, Arm("assisted", "model", 4), prompt).counts
    decode(bench, Arm("assisted", "model", 2), prompt)
    assert decode(bench, Arm("assisted", "model", 4), prompt).counts == first
    assert draft.generation_config is own


def test_all_arms_emit_the_same_text_and_count_their_passes(bench, prompt):
    arms, prompts, schedule = peers.arms_for([2]), [Prompt("code", "", prompt)], peers.one_after_another
    samples = {s.arm: s for s in measure(bench, arms, [0.0], prompts, 2, {}, schedule=schedule).lines}
    assert list(samples) == arms
    assert len({tuple(text) for s in samples.values() for text in s.texts}) == 1
    assert peers.timing(samples[BASELINE]).n_passes == peers.timing(samples[GENERATE]).n_passes == BUDGET
    for arm, sample in samples.items():
        assert sample.counts.n_emitted == 2 * (BUDGET - 1)
        assert len(sample.decode_seconds) == 2
        assert (sum(sample.prefill_seconds) == 0) == (arm.method not in peers_page.PEER)
        one = decode(bench, arm, prompt)
        assert arm.auto or peers.timing(sample).n_passes == (BUDGET if arm == BASELINE else one.counts.n_rounds + 1)


def test_peers_stay_neighbours_and_everyone_is_first_once(monkeypatch):
    arms, orders = peers.arms_for([2, 4]), []
    monkeypatch.setattr(peers, "take_turns", lambda decodings: orders[-1].extend(decodings))
    for turn in range(len(arms) // 2):
        orders.append([])
        peers.one_after_another(arms, turn)
    for order in orders:
        assert sorted(map(arms.index, order)) == list(range(len(arms)))
        pairs = {frozenset(order[i : i + 2]) for i in range(0, len(order), 2)}
        assert pairs == {frozenset(arms[i : i + 2]) for i in range(0, len(arms), 2)}
    assert len({order[0] for order in orders}) == len(orders)


SECONDS = {  # of six prompts each, before the first token and after it; and passes
    ("baseline", 0): (0.2, 0.8, 28),
    ("generate", 0): (0.0, 2.0, 28),
    ("model", 4): (0.1, 0.4, 10),
    ("assisted", 4): (0.0, 0.6, 10),
    ("ngram", 4): (0.1, 0.4, 10),
    ("lookup", 4): (0.0, 0.5, 10),
}


def test_ratios_are_sums_of_medians():
    """One slow repeat in three changes nothing."""
    raw, slow = [], (0.0, 9.0, 0.0)
    for i in range(6):
        for (method, k), (prefill, decode, n) in SECONDS.items():
            about = {"method": method, "draft_length": k, "prompt_index": i, "prompt_kind": "code", "n_prompt": 20}
            times = {"seconds": [prefill + decode + s for s in slow], "decode_seconds": [decode + s for s in slow]}
            raw.append(peers_page.PeerTiming(**about, **times, n_passes=n))
    differences = [{"prompt": 1, "position": 7, "verdict": "near-tie"}]
    checks = [{"arm": "model k=4", "differences": differences}, {"arm": "lookup k=4", "differences": []}]
    run = SimpleNamespace(raw=raw, correctness=[check | {"n_prompts": 6} for check in checks])
    assert peers_page.over_peers(run)["baseline", 0].value == pytest.approx(2)
    assert peers_page.over_peers(run)["model", 4].value == pytest.approx(1.2)
    arms = peers_page.by_arm(raw)
    assert peers_page.ratio(arms["baseline", 0], arms["model", 4], "decode_seconds").value == pytest.approx(2)
    cells = peers_page.speed_tables(run)[0].cells
    heads = ("tok/s", "÷ baseline", "tok/pass", "same text")
    assert [cells[head](("model", 4)) for head in heads] == ["56.0", "2.00x", "2.80", "5 of 6"]
    assert cells["÷ peer"](("generate", 0)) == "-", "it has no peer"
    assert cells["same text"](("lookup", 4)) == "6 of 6"


def test_weights_are_read_once_and_a_plain_embedding_not_at_all():
    tied, untied = tiny("llama", tie_word_embeddings=True), tiny("llama", tie_word_embeddings=False)
    table = untied.get_input_embeddings().weight.numel()
    everything = sum(p.numel() for p in untied.parameters())
    assert memory.weights_read(untied) == (everything - table, (everything - table) * 8)
    assert memory.weights_read(tied) == memory.weights_read(untied)


def test_cache_bytes_and_operations_of_a_known_shape():
    model = tiny("llama", dtype=torch.float32)  # 2 layers, 4 heads, 2 of them in the cache, 8 numbers each
    assert roofline.cached_shapes(model) == [(2 * 2 * 8, 8)] * 2
    assert roofline.cache_bytes(model, 10) == 2 * 2 * 2 * 8 * 10 * 4
    weights = memory.weights_read(model)[0]
    assert roofline.operations(model, 1, 0) == 2 * weights + 4 * 2 * 4 * 8
    assert roofline.operations(model, 3, 5) == 6 * weights + 4 * 2 * 4 * 8 * (6 + 7 + 8)


def test_passes_leave_the_cache_as_it_was(prompt):
    cached = CachedModel(tiny_llama(0))
    times = roofline.time_passes(cached, torch.arange(23)[None], [1, 3, 2], 1)
    assert [len(of_one) for of_one in times] == [1, 1, 1]
    assert cached.length == 20
    assert cached.n_passes == 1 + 6  # prefill, timed


def test_roofline_end_to_end(call, pair_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(roofline, "matrix_rate", lambda *_: 1e11)  # a second on a busy machine
    words = ["--draft", str(pair_folder / "draft"), "--widths", "1,4", "--repeats", "1", "--context", "8"]
    code, out, _ = call(roofline, *words)
    assert (code, "GB/s" in out) == (0, True)
    run = files.read(tmp_path / "results" / "local-roofline.json", roofline.RooflineRun)
    assert [model.role for model in run.models] == ["target", "draft"]
    for model in run.models:
        assert [p.width for p in model.passes] == [1, 4]
        assert roofline.best_bandwidth(model, run.ceilings) >= max(run.ceilings[way] for way in roofline.READING)
    assert str(tmp_path) not in files.to_json(run)
    assert pair_folder.as_posix() not in files.to_json(run)
