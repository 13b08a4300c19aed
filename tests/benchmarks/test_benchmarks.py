"""The benchmarks on tiny models: what they count, how they price, what they write. Nothing here looks at a clock."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import common, experts, roofline, scaling, verdicts
from benchmarks.peers import __main__ as peers
from benchmarks.peers import llama_cpp
from benchmarks.peers import page as peers_page
from draft_models import ModelDrafter, NgramDrafter
from speclab.cli import flags
from speclab.core.counts import Counts
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.lengths import AutoLength
from speclab.lab.decodings import Decoding, counted_passes
from speclab.lab.harness import measure
from speclab.lab.turns import take_turns
from speclab.models import memory, prompts, timing
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present import tables
from speclab.records import files
from speclab.records.arms import BASELINE, BEAM, GENERATE, Arm
from speclab.records.log import Line
from speclab.system.errors import EnvironmentProblem
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


# --- peers ------------------------------------------------------------------------------------------------------------


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
    """The library's default schedule leaks its k into the next call; ours is set anew every time."""
    first = decode(bench, Arm("assisted", "model", 4), prompt).counts
    decode(bench, Arm("assisted", "model", 2), prompt)
    assert decode(bench, Arm("assisted", "model", 4), prompt).counts == first


def test_a_draft_gets_its_own_settings_back(bench, prompt):
    draft = bench.drafters["model"].draft.model
    own = draft.generation_config
    decode(bench, Arm("assisted", "model", 2), prompt)
    assert draft.generation_config is own


def test_all_arms_emit_the_same_text_and_count_their_passes(bench, prompt):
    check_arms(bench, prompt, peers.arms_for([2]))


def check_arms(bench, prompt, arms):
    prompts, schedule = [Prompt("code", "", prompt)], peers.one_after_another
    samples = {s.arm: s for s in measure(bench, arms, [0.0], prompts, 2, {}, schedule=schedule).lines}
    assert list(samples) == arms
    assert len({tuple(text) for s in samples.values() if s.arm not in peers.BEAMS for text in s.texts}) == 1
    assert peers.timing(samples[BASELINE]).n_passes == peers.timing(samples[GENERATE]).n_passes == BUDGET
    for arm, sample in samples.items():
        assert sample.counts.n_emitted == 2 * (BUDGET - 1)
        assert len(sample.decode_seconds) == 2
        assert (sum(sample.prefill_seconds) == 0) == (arm.method not in peers_page.PEER)
        one = decode(bench, arm, prompt)
        assert arm.auto or peers.timing(sample).n_passes == (BUDGET if arm == BASELINE else one.counts.n_rounds + 1)


def test_beams_are_the_librarys(bench, prompt):
    """Its texts, at least as probable as the greedy one, by the number of beams."""
    model = bench.setup.target.model
    probable = []
    for arm in [GENERATE, *peers.BEAMS]:
        text = decode(bench, arm, prompt).tokens
        ids = torch.cat([prompt, torch.tensor([text])], dim=1)
        with torch.inference_mode():
            logs = model(ids).logits[0, prompt.shape[1] - 1 : -1].double().log_softmax(-1)
            options = {"num_beams": arm.draft_length or 1, "max_new_tokens": BUDGET, "do_sample": False}
            expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), pad_token_id=0, **options)
        assert text == expected[0, prompt.shape[1] :].tolist()
        probable.append(logs[torch.arange(BUDGET), torch.tensor(text)].sum().item())
    assert probable[2] > probable[0], "four beams found nothing"


class Recorded:
    """A decoding that is done after two steps, and notes each of them."""

    def __init__(self, arm: Arm, steps: list[Arm]):
        self.arm, self.steps, self.tokens = arm, steps, []

    @property
    def done(self):
        return len(self.tokens) == 2

    @property
    def progress(self):
        return len(self.tokens)

    def advance(self):
        self.steps.append(self.arm)
        self.tokens.append(0)


def order_of(arms: list[Arm], turn: int) -> list[Arm]:
    """In which order the arms are decoded; each is finished before the next one begins."""
    steps: list[Arm] = []
    peers.one_after_another([Recorded(arm, steps) for arm in arms], turn)
    order = steps[::2]
    assert steps == [arm for arm in order for _ in range(2)]
    return order


def test_peers_stay_neighbours_and_everyone_is_first_once():
    arms = peers.arms_for([2, 4])
    orders = [order_of(arms, turn) for turn in range(len(arms) // 2)]
    for order in orders:
        assert sorted(map(arms.index, order)) == list(range(len(arms)))
        pairs = {frozenset(order[i : i + 2]) for i in range(0, len(order), 2)}
        assert pairs == {frozenset(arms[i : i + 2]) for i in range(0, len(arms), 2)}
    assert len({order[0] for order in orders}) == len(orders)


def samples_by_hand():
    """Six prompts: generate 2 s, our baseline 1 s, model 0.5 s, assisted 0.6 s; ngram 0.5 s against lookup's 0.5 s."""
    seconds = {
        BASELINE: (0.2, 0.8),
        GENERATE: (0.0, 2.0),
        Arm("model", "model", 4): (0.1, 0.4),
        Arm("assisted", "model", 4): (0.0, 0.6),
        Arm("ngram", "ngram", 4): (0.1, 0.4),
        Arm("lookup", "ngram", 4): (0.0, 0.5),
    }
    samples = []
    for i, kind in enumerate(["code", "code", "code", "copy", "copy", "copy"]):
        for arm, (prefill, decode) in seconds.items():
            made = Line.begin(arm, 0.0, i, kind, 20)
            for slow in (0.0, 9.0, 0.0):  # the middle one met a slow second
                counts = Counts(n_rounds=9, n_drafted=36, n_accepted=18, n_rejected=6, n_emitted=27)
                made.add(prefill, decode + slow, list(range(28)), counts if arm.speculative else None)
            samples.append(made)
    return samples


def record_by_hand() -> peers_page.PeersRun:
    near_tie = {"prompt": 1, "position": 7, "tokens": ["a", "b"], "gap": 1e-6, "verdict": "near-tie"}
    check = {"temperature": 0.0, "n_prompts": 6, "passed": True}
    settings = {"n_prompts": 6, "max_new_tokens": 28, "repeats": 3, "seed": 0, "device": "cpu", "dtype": "float32"}
    args = SimpleNamespace(benchmark="peers")
    return peers_page.PeersRun(
        **common.head(args, torch.device("cpu"), settings | {"engine": "c"}),
        models={"target": "a target", "draft": "a draft"},
        correctness=[
            check | {"arm": "model k=4", "differences": [near_tie]},
            check | {"arm": "lookup k=4", "differences": []},
        ],
        raw=[peers.timing(s) for s in samples_by_hand()],
    )


def cells(run: peers_page.PeersRun, title: str) -> dict[tuple[str, str], list[str]]:
    """The table under a title of the page, by the first two columns."""
    page = tables.show(peers_page.page(run), markdown=True)
    lines = page.partition(f"## {title}\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], row[1]): row[2:] for row in rows}


def test_ratios_are_sums_of_medians():
    """One slow repeat in three changes nothing."""
    run = record_by_hand()
    assert peers_page.over_peers(run)["baseline", 0].value == pytest.approx(2)
    assert peers_page.over_peers(run, "copy")["model", 4].value == pytest.approx(1.2)
    arms = peers_page.by_arm(run.raw, "copy")
    assert len(arms["model", 4]) == 3
    assert peers_page.ratio(arms["baseline", 0], arms["model", 4], "decode_seconds").value == pytest.approx(2)
    speeds = cells(run, "How fast")
    assert speeds["model", "4"][0] == "56.0", "tokens per second"
    assert speeds["model", "4"][3:] == ["2.00x", "2.80", "5 of 6"]
    assert speeds["generate", "-"][2] == "-", "it has no peer"
    assert speeds["lookup", "4"][-1] == "6 of 6"


def test_asked_and_measured_says_what_was_missed():
    goals = cells(record_by_hand(), "Asked and measured")
    verdicts = {row: (values[0], values[1], values[-1]) for row, values in goals.items()}
    assert verdicts["baseline ÷ generate", "-"] == ("all", "1.15x", "met")
    assert verdicts["model ÷ assisted", "4"] == ("all", "1.50x", "MISSED by 20%")
    assert verdicts["ngram ÷ lookup", "4"] == ("copy", "1.20x", "MISSED by 17%")
    assert verdicts["model ÷ baseline", "4"] == ("all", "2.40x", "MISSED by 17%"), "0.8 x 3 tokens per round"


def test_without_a_draft_model_only_lookups_have_peers_and_further_drafts_have_none():
    arms = peers.arms_for([2, 4], ["ngram", "feature"], llama=True)
    methods = [(arm.method, arm.draft_length) for arm in arms]
    assert len(set(methods)) == len(methods)
    for k in (2, 4):
        assert methods.index(("lookup", k)) == methods.index(("ngram", k)) + 1
        assert ("feature", k) in methods
    assert methods.count(("llama.cpp", 0)) == 1
    assert not {method for method, _ in methods} & {"model", "assisted", "model auto", "dynamic"}
    assert ("llama.cpp", 2) not in methods


@pytest.mark.full
def test_peers_end_to_end(call, pair_folder, tmp_path):
    code, out, _ = call(
        peers, "--draft", str(pair_folder / "draft"), "-k", "2", "--repeats", "1", "--max-new-tokens", "12"
    )
    assert code == 0
    assert "Asked and measured" in out
    run = files.read(tmp_path / "results" / "local-peers.json", peers_page.PeersRun)
    of_lab = {"exit", "early exit"}  # there is an adapter for the lab's target alone
    assert {t.method for t in run.raw} == {*peers_page.PEER, *peers_page.PEER.values(), BEAM} - of_lab
    assert all(entry["passed"] and entry["n_prompts"] == 3 for entry in run.correctness)
    assert all(len(r.seconds) == 1 for r in run.raw)
    assert str(tmp_path) not in files.to_json(run)
    assert (tmp_path / "results" / "local-peers.md").read_text().startswith("# Against")
    assert not list(tmp_path.rglob("*.part"))


# --- experts ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_experts_end_to_end(call, tmp_path):
    """On the lab's own target, the smallest size there is."""
    words = ["--target", "lab:20m:e4k2", "--widths", "3", "--n-texts", "2", "--repeats", "2", "--context", "40"]
    code, out, _ = call(experts, *words)
    assert code == 0
    run = files.read(tmp_path / "results" / "local-experts.json", experts.ExpertsRun)
    assert [p.width for p in run.passes] == [1, 3]
    assert (run.n_experts, run.n_used, run.n_texts, run.n_same) == (4, 2, 2, 2)
    assert run.passes[0].union == run.passes[0].scattered == run.passes[0].expected == 2
    assert 2 < run.passes[1].union <= 4
    assert 2 < run.passes[1].scattered <= 4
    assert all(min(p.seconds, p.dense_seconds, p.predicted) > 0 for p in run.passes)
    assert "same with experts and without: 2 of 2" in out
    for target in ("lab:200m", "models/lab-pair/target"):
        code, _, err = call(experts, "--target", target)
        assert code == 2
        assert "give one such as lab:200m:e8k2" in err
    code, _, err = call(experts, "--target", "lab:20m:e4k2", "--context", "4090")
    assert code == 2
    assert err.startswith("error: --context 4090 and a pass over 9 do not fit")
    assert err.endswith("use --context 4087 or less\n")


def test_unions_of_experts_are_counted():
    """Two layers; side by side the tokens agree, and nowhere else."""
    chosen = [torch.tensor([[0, 1], [0, 1], [2, 3], [2, 3]]), torch.tensor([[4, 5], [5, 4], [6, 7], [6, 0]])]
    assert experts.counted_union(chosen, torch.arange(0, 2)) == 2
    assert experts.counted_union(chosen, torch.arange(2, 4)) == 2.5
    pairs = [2, 4, 4, 4, 4, 2, 2, 4, 4, 4, 4, 3]  # of the first layer, then of the second one
    assert experts.scattered_union(chosen, 2) == pytest.approx(sum(pairs) / 12, abs=0.15)
    assert experts.scattered_union(chosen, 4) == 4.5


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_verdicts_end_to_end(call, pair_folder, tmp_path, monkeypatch):
    """Right texts raise no alarm, and tokens from beyond the filters do; the page has a row for every law."""
    monkeypatch.setattr(verdicts, "MODELS", {name: str(pair_folder / name) for name in ("target", "draft")})
    monkeypatch.setattr(verdicts, "DTYPES", ("bfloat16",))
    monkeypatch.setattr(verdicts, "SAMPLINGS", [Sampling(1.2, top_k=5, top_p=0.9)])
    code, out, _ = call(verdicts, "--max-new-tokens", "24", "--repeats", "5")
    assert code == 0
    run = files.read(tmp_path / "results" / "local-verdicts.json", verdicts.VerdictsRun)
    assert [row.n_runs for row in run.raw] == 2 * [1, 1, 5, 5, 5, 5, 5, 5]
    assert {row.n_tokens / row.n_runs for row in run.raw} == {3 * 24}
    by_law = {(row.model, row.law): row for row in run.raw}
    for model in ("target", "draft"):
        assert not any(by_law[model, law].n_alarms for law in (*verdicts.RIGHT, "right law, drawn"))
        assert by_law[model, "target not filtered"].n_alarms == 5
        assert by_law[model, "target not filtered"].largest_z is None
    assert out.count("impossible") >= 2


# --- roofline ---------------------------------------------------------------------------------------------------------


def test_weights_are_read_once_and_a_plain_embedding_not_at_all():
    tied, untied = tiny("llama", tie_word_embeddings=True), tiny("llama", tie_word_embeddings=False)
    table = untied.get_input_embeddings().weight.numel()
    everything = sum(p.numel() for p in untied.parameters())
    assert memory.weights_read(untied) == (everything - table, (everything - table) * 8)
    assert memory.weights_read(tied) == memory.weights_read(untied)


def test_cache_bytes_and_operations_of_a_known_shape():
    model = tiny("llama", dtype=torch.float32)  # 2 layers, 4 heads, 2 of them in the cache, 8 numbers each
    assert memory.cached_shapes(model) == [(2 * 2 * 8, 8)] * 2
    assert memory.cache_bytes(model, 10) == 2 * 2 * 2 * 8 * 10 * 4
    weights = memory.weights_read(model)[0]
    assert memory.operations(model, 1, 0) == 2 * weights + 4 * 2 * 4 * 8
    assert memory.operations(model, 3, 5) == 6 * weights + 4 * 2 * 4 * 8 * (6 + 7 + 8)


def test_passes_leave_the_cache_as_it_was(prompt):
    cached = CachedModel(tiny_llama(0))
    times = timing.time_passes([(cached, width) for width in (1, 3, 2)], 20, 2)
    assert [len(of_one) for of_one in times] == [2, 2, 2]
    assert cached.length == 20
    assert cached.n_passes == 1 + 6  # prefill, timed


def test_roofline_end_to_end(call, pair_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(roofline, "matrix_rate", lambda *_: 1e11)  # a second on a busy machine
    target, draft = str(pair_folder / "target"), str(pair_folder / "draft")
    words = ["--sizes", f"{target},{draft}", "--draft", draft, "--widths", "1,4", "--repeats", "1", "--context", "8"]
    code, out, _ = call(roofline, *words)
    assert code == 0
    assert "GB/s" in out
    run = files.read(tmp_path / "results" / "local-roofline.json", roofline.RooflineRun)
    assert [model.role for model in run.models] == ["target", "draft", "target", "draft"]
    for model in run.models:
        assert [p.width for p in model.passes] == [1, 4]
        assert roofline.best_bandwidth(model, run.ceilings) >= max(run.ceilings[way] for way in roofline.READING)
    assert str(tmp_path) not in files.to_json(run)
    assert pair_folder.as_posix() not in files.to_json(run)


def test_what_is_measured_before_a_stop_is_written(call, pair_folder, tmp_path, monkeypatch):
    """The second target cannot be loaded."""
    target, draft, honest = str(pair_folder / "target"), str(pair_folder / "draft"), flags.setup_from

    def load(args):
        if args.target == draft:
            raise EnvironmentProblem("cannot load it")
        return honest(args)

    monkeypatch.setattr(flags, "setup_from", load)
    monkeypatch.setattr(roofline, "matrix_rate", lambda *_: 1e11)
    words = ["--sizes", f"{target},{draft}", "--widths", "1,4", "--repeats", "1", "--context", "8"]
    code, out, err = call(roofline, *words)
    assert code == 3
    assert "error: cannot load it" in err
    assert "GB/s" in out
    run = files.read(tmp_path / "results" / "local-roofline.json", roofline.RooflineRun)
    assert run.interrupted
    assert [model.role for model in run.models] == ["target"]


# --- scaling ----------------------------------------------------------------------------------------------------------


def line(seconds: list[float], n_tokens: int, k: int = 4) -> scaling.Line:
    """Rounds that took so many seconds and made so many tokens each."""
    round_ = SimpleNamespace(tokens=[0] * n_tokens)
    arm = Arm("model", "model", k) if k else BASELINE
    return scaling.Line(arm, 1900, [], log=[(0, one, round_) for one in seconds])


def test_blocks_keep_every_round():
    assert line([1.0] * 19, 2).blocks() == [3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert line([1.0, 2.0], 2).blocks() == [1.0, 2.0]


def test_a_point_is_a_ratio_to_its_first():
    first, last = line([1.0] * 64, 2), line([3.0] * 64, 3)
    point = scaling.point("length", last, first)
    assert (point.token_ratio, point.round_ratio) == (pytest.approx(2), pytest.approx(3))
    assert (point.round_low, point.round_high) == (pytest.approx(3), pytest.approx(3))
    assert (point.n_tokens, point.n_rounds, point.seconds) == (192, 64, 192.0)
    assert scaling.point("length", first, first).round_low is None


@pytest.mark.parametrize(
    ("words", "ratio", "low", "high"),
    [
        ("flat", 1.01, 1.005, 1.02),
        ("grows", 3.0, 2.9, 3.1),
        ("grows, may be noise", 1.2, 0.9, 1.3),
        ("shrinks", 0.5, None, None),
    ],
)
def test_verdict_on_what_grows(words, ratio, low, high):
    assert scaling.verdict(ratio, low, high) == words


def test_the_baseline_takes_its_turns_in_chunks(bench, prompt, monkeypatch):
    """A GPU's baseline fetches several tokens at once; so it goes on in every chunk-th turn, and makes as many."""
    monkeypatch.setattr(Setup, "chunk", 4)
    one = Prompt("code", "", prompt)
    baseline, model = (bench.decoding(arm, GREEDY, one) for arm in (BASELINE, Arm("model", "model", 2)))
    for decoding in (baseline, model):
        decoding.advance()
    scaling.alternate([baseline, model], 6, chunk=4)
    assert len(model.log) == 6
    assert len(baseline.log) == 2
    assert len(baseline.tokens) == 1 + 2 * 4


@pytest.mark.full
def test_scaling_end_to_end(call, pair_folder, tmp_path):
    code, out, _ = call(
        scaling, "--draft", str(pair_folder / "draft"), "--turns", "6", "-k", "2",
        "--limit", "1", "--draft-lengths", "0,3", "--lengths", "4,20", "--contexts", "8,40",
    )  # fmt: skip
    assert code == 0
    assert "Tokens generated so far" in out
    run = files.read(tmp_path / "results" / "local-scaling.json", scaling.ScalingRun)
    points = {(p.sweep, p.series, p.x): p for p in run.points}
    assert {p.sweep for p in run.points} == set(scaling.SWEEPS)
    assert points["length", "baseline", 20].n_tokens == 6
    assert points["length", "draft", "20 ÷ prompt"].n_rounds == 6
    assert points["context", "baseline", 8].round_ratio == 1
    assert points["length", "draft", "20 ÷ prompt"].seconds == points["length", "draft", 20].seconds
    baseline, *ks = (p for p in run.points if p.sweep == "k")
    assert (baseline.series, baseline.n_rounds) == ("baseline", 3 * 6)
    assert [p.x for p in ks] == [0, 3]
    assert ks[1].speedup == pytest.approx(
        baseline.seconds / baseline.n_tokens / (ks[1].seconds / ks[1].n_tokens), rel=1e-5
    )
    assert all(p.host_seconds > 0 and 0 < p.host_share < 1 for p in ks)
    assert ks[0].n_tokens == ks[0].n_rounds == 3 * 6, "k = 0 commits one token in a round"
    assert str(tmp_path) not in files.to_json(run)
