"""CUDA graphs without a GPU; a stand-in for the recording runs the step again at every replay.

So everything is tested but CUDA's own recording and replay: fixed inputs, positions, masks over buckets, padding,
graph caches. What the stand-in gives back is overwritten by the next replay, as a graph's output is.
tests/test_cuda.py has the rest.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.accept import accept_from_logits
from speclab.core.rounds import Draft
from speclab.core.sampling import Sampling, draw_next
from speclab.engines import eager
from speclab.engines.cuda import cuda_graphs, graphs
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.engines.cuda.kernels import GroupedAttention, Joined, Kernels
from speclab.lab.bench import Bench
from speclab.lab.harness import interleaved, measure
from speclab.models import setup
from speclab.models.cached import CachedModel
from speclab.models.family import NoFastBackend
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.rows import BASELINE, Arm
from tests.decoding import speculative_rounds
from tests.engines.families import check_passes
from tests.recorder import graphed, stand_in
from tests.tiny_models import CONTEXT, FAMILIES, VOCAB, tiny

PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def recorder(monkeypatch):
    return stand_in(monkeypatch)


# --- Passes -----------------------------------------------------------------------------------------------------------


SHORT = {"gpt2 of 40 positions": ("gpt2", 40, {"n_positions": 40})}  # no multiple of a bucket
CASES = {family: (family, CONTEXT - 2, {}) for family in FAMILIES} | SHORT  # OPT counts its positions from two


@pytest.mark.parametrize(("family", "room", "changes"), CASES.values(), ids=CASES)
def test_logits_and_states_are_the_models_own(family, room, changes):
    """Buckets crossed, graph caches outgrown, padding at the edge of the context."""
    check_passes(graphed(family, **changes), 9, room)


@pytest.mark.parametrize("family", ["llama", "mistral_window", "gemma3_window"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["model", "ngram"])
def test_rounds_are_those_of_the_eager_engine(kind, sampling, family, recorder, monkeypatch):
    """Texts of 69 tokens, windows of 8: rollbacks go back past the window's edge."""
    rounds = []
    for fast in (False, True):
        monkeypatch.setattr(graphs, "on_graphs", lambda tensor, fast=fast: fast and not recorder.recording)
        target, draft = graphed(family), graphed(family, noise=0.1)
        if not fast:
            target, draft = CachedModel(target.model), CachedModel(draft.model)
        drafter = ModelDrafter(draft) if kind == "model" else NgramDrafter(3, 1)
        before = graphs.captures.n, recorder.n_replays
        rounds.append(list(speculative_rounds(target, drafter, PROMPT, 4, 60, sampling, seed=3)))
    assert rounds[0] == rounds[1]
    assert sum(r.n_accepted for r in rounds[1]) > (0 if kind == "ngram" else 5)
    assert any(r.n_rejected for r in rounds[1])
    assert graphs.captures.n - before[0] < (recorder.n_replays - before[1]) / 2, "shapes must repeat"


def test_what_was_declared_is_recorded_with_the_prompts_pass():
    """Widths, and every bucket up to the longest text; passes of these, or padded to these, record nothing then."""
    cached = graphed()
    for one in (cached, CachedModel(cached.model)):  # nothing is declared to the eager engine
        one.prepare({5}, 60)
    cached.prefill(PROMPT)
    assert set(cached.backend._buffers.graphs) == {(width, rows) for width in (1, 5) for rows in (16, 32, 64)}
    before = graphs.captures.n
    while cached.length < 50:
        for width in (1, 2, 4, 5):
            cached.forward(PROMPT[:, :width])
    assert graphs.captures.n == before


def test_what_was_handed_out_is_not_overwritten():
    cached = graphed()
    cached.prefill(PROMPT)
    first = cached.forward(PROMPT[:, :2])
    kept = first.clone()
    cached.forward(PROMPT[:, 2:4])
    assert torch.equal(first, kept)
    logits, uniforms = torch.eye(VOCAB, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    first = draw_next(logits[3:4], Sampling(), uniforms)
    draw_next(logits[7:8], Sampling(), uniforms)
    assert first.item() == 3, "nor is the result of a function"


def test_graph_caches_outlive_decodings_and_are_never_shared():
    one = graphed()
    two = copy.deepcopy(one)
    one.prefill(PROMPT)
    two.prefill(PROMPT)
    assert one.backend._buffers is not two.backend._buffers
    a, b = one.forward(PROMPT[:, :1]), two.forward(PROMPT[:, :1])
    assert torch.equal(a, b)
    graph_caches, recorded = {id(one.backend._buffers), id(two.backend._buffers)}, []
    for _ in range(2):
        for cached in (one, two):
            cached.prefill(PROMPT[:, :4])
            cached.forward(PROMPT[:, :1])
        assert {id(one.backend._buffers), id(two.backend._buffers)} == graph_caches, "free ones are taken again"
        recorded.append(graphs.captures.n)
    assert recorded[0] == recorded[1], "and with them their graphs"


def test_after_a_recording_that_failed_there_is_no_other(monkeypatch):
    """PyTorch is left on the recording's stream, and its allocator in the middle of it."""
    streams: list = []

    def refuse(graph, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "captures", graphs.Captures())
    for name, value in {"current_stream": lambda: "own", "set_stream": streams.append, "graph": refuse}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    with pytest.raises(RuntimeError, match="not permitted"):
        graphs._record(lambda: ())
    assert graphs.captures.failed
    assert streams == ["own"]
    monkeypatch.undo()
    monkeypatch.setattr(graphs.captures, "failed", True)
    with pytest.raises(RuntimeError, match="after one that failed"):
        graphs.capture(lambda: ())


# --- Functions --------------------------------------------------------------------------------------------------------


def test_functions_are_recorded_once_for_each_kind_of_arguments(recorder):
    """Shapes, types and settings make a kind; values do not, and results are those of the function itself."""
    recorded, generator = graphs.captures.n, torch.Generator().manual_seed(0)
    options = {"generator": generator, "dtype": torch.float64}
    for n, sampling in ((11, Sampling()), (12, Sampling()), (11, Sampling(0.7)), (11, Sampling(1.3))):
        for _ in range(3):
            logits, ids = torch.randn(1, n + 1, VOCAB, **options), torch.randint(0, VOCAB, (1, n), generator=generator)
            probs = None if sampling.greedy else torch.rand(1, n, VOCAB, **options)
            uniforms, draft = torch.rand(1, 15, **options), Draft(ids, torch.tensor([n]), probs)
            found = accept_from_logits(draft, logits, sampling, uniforms)
            recorder.recording = True  # the function itself
            right = accept_from_logits(draft, logits, sampling, uniforms)
            recorder.recording = False
            assert torch.equal(found.n_accepted, right.n_accepted)
            assert torch.equal(found.next_token, right.next_token)
    assert graphs.captures.n - recorded == 4


# --- Nothing is recorded in a timed turn ------------------------------------------------------------------------------


def setup_of(target: CachedModel, sampling: Sampling = Sampling()) -> Setup:
    return Setup(target, None, "tiny", sampling, torch.device("cpu"), torch.float64)


def measured(lengths: tuple[int, ...], setup: Setup, draft: CachedModel, ks: tuple[int, ...] = (2, 4)):
    """Measure every arm, temperature and catch-up on prompts of these lengths.  -> graphs recorded in its turns"""
    bench = Bench(setup, {"model": ModelDrafter(draft), "ngram": NgramDrafter(3, 1)}, 24, seed=0)
    arms = [BASELINE, *(Arm(name, name, k) for name in ("model", "ngram") for k in ks)]
    prompts = [Prompt("code", "", torch.randint(0, VOCAB, (1, n))) for n in lengths]
    instruments = {"model": [*range(max(ks) + 1)], "ngram": [0, 1, 2]}
    found, n_late = measured_on_graphs(bench, arms, prompts, instruments)
    assert len(found.lines) == len(lengths) * 2 * (len(arms) + 1)  # the baseline runs twice
    return n_late


def measured_on_graphs(bench: Bench, arms: list[Arm], prompts: list[Prompt], instruments: dict) -> tuple:
    """-> the measurement, and the number of graphs that are recorded from its first turn on"""
    counts = [graphs.captures.n]

    def schedule(decodings, turn):
        counts.append(graphs.captures.n)
        interleaved(decodings, turn)

    found = measure(bench, arms, [0.0, 0.9], prompts, 1, instruments, schedule=schedule)
    assert counts[1] > counts[0], "nothing is recorded in the warm-up"
    return found, graphs.captures.n - counts[1]


def test_no_graph_is_recorded_in_a_timed_turn():
    """Whatever the prompt's length, with every draft length that instruments try; and in a second measurement of the
    same models with other lengths."""
    setup, draft = setup_of(graphed()), graphed(noise=0.1)
    assert measured((9, 40), setup, draft) == 0
    assert measured((40, 20), setup, draft, (2, 7)) == 0


def test_without_a_word_beforehand_graphs_are_recorded_in_turns(monkeypatch):
    """Otherwise the tests above prove nothing."""
    monkeypatch.setattr(Bench, "prepare", lambda *args: True)
    assert measured((9, 40), setup_of(graphed()), graphed(noise=0.1)) > 0


# --- Kernels ----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.booleans(), st.sampled_from([None, 0.3]))
def test_grouped_attention_is_the_librarys(kv_heads, group, width, wide, scale):
    """In float64, and in bfloat16 within its rounding, for masks in which rows of padding read nothing."""
    generator = torch.Generator().manual_seed(kv_heads + 10 * group + 100 * width)
    heads, dtype = kv_heads * group, torch.float64 if wide else torch.bfloat16
    shapes = (heads, width), (kv_heads, 20), (kv_heads, 20)
    query, key, value = (torch.randn(1, n, m, 8, generator=generator, dtype=torch.float64).to(dtype) for n, m in shapes)
    mask = cuda_graphs.causal_mask(width, 20 - width, 20, dtype, query.device).clone()
    mask[:, :, -1, 3:] = torch.finfo(dtype).min
    exact = [part.double() for part in (query, key, value, mask)]
    right = torch.nn.functional.scaled_dot_product_attention(*exact, enable_gqa=True, scale=scale).transpose(1, 2)
    found, _ = GroupedAttention()(None, query, key, value, mask, scaling=scale)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), right, atol=1e-12 if wide else 0.03)


def test_an_mlp_with_a_further_part_is_left_as_it_is():
    """Its own forward may use the part between the products."""
    model = tiny("llama")
    first, *others = (layer.mlp for layer in model.model.layers)
    first.norm = torch.nn.LayerNorm(4)
    assert [mlp for mlp, _ in Kernels(model).joins.mlps] == others


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma"])
def test_joined_products_are_the_models_own(family):
    """Logits stay, queries, keys and values are one product, an MLP's two are one, and the weights are no copies."""
    model = tiny(family)
    text = torch.randint(0, VOCAB, (1, 25), generator=torch.Generator().manual_seed(6))
    mask = cuda_graphs.causal_mask(25, 0, 25, model.dtype, model.device)
    with torch.inference_mode():
        right = model(text, attention_mask=mask, use_cache=False).logits
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    kernels = Kernels(model)
    layers = model.config.num_hidden_layers
    assert (len(kernels.joins.attention), len(kernels.joins.mlps)) == (layers, layers)
    made = []
    product = torch.nn.functional.linear
    with torch.inference_mode(), kernels.used(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", lambda x, *rest: made.append(rest) or product(x, *rest))
        found = model(text, attention_mask=mask, use_cache=False).logits
    assert torch.allclose(found, right, atol=1e-9)
    assert len(made) == 4 * layers + 1, "queries to values, their output, gate and up, down; and the output layer"
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    joined = kernels.joins.attention[0]
    assert all(one.weight.untyped_storage().data_ptr() == joined.weight.data_ptr() for one in joined.linears)


def test_what_is_not_alike_is_not_joined():
    """Weights of other types or of other inputs, and biases of some alone."""
    linear, kind = torch.nn.Linear(4, 3), torch.nn.Linear
    assert Joined.of([linear, kind(4, 5)]) is not None
    for other in (kind(5, 3), kind(4, 3, bias=False), kind(4, 3, dtype=torch.float64), None):
        assert Joined.of([linear, other]) is None


def test_attention_is_replaced_where_heads_share_keys():
    shared = {"gpt2": {}, "llama": {"num_key_value_heads": 4}}
    assert all(GroupedAttention.of(tiny(family, **changes)) is None for family, changes in shared.items())
    assert GroupedAttention.of(tiny("llama")) is not None


# --- The choice -------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_cuda(monkeypatch):
    """A choice as on a GPU without a compiler."""
    monkeypatch.setattr(setup, "runs_on_graphs", lambda model: True)
    monkeypatch.setattr(cuda_graphs, "usable_compiler", lambda device: None)


def test_a_gpu_gets_graphs(on_cuda):
    """The widths of the check are not those of the run."""
    chosen, why = setup.choose_engine(tiny("gemma3_window", sliding_window=40), "graphs")
    assert isinstance(chosen, GraphedModel), why
    assert why == "asked for"
    assert (chosen.widths, chosen.free, chosen.window) == ({1}, [], (40, False))


def failing_recordings(monkeypatch) -> None:
    """The second recording fails, and after it none can be made."""
    made, capture = [], graphs.capture

    def broken(step):
        if graphs.captures.failed:
            raise RuntimeError("no CUDA graph is recorded after one that failed")
        made.append(capture(step))
        if len(made) > 1:
            monkeypatch.setattr(graphs.captures, "failed", True)
            raise RuntimeError("out of graphs")
        return made[-1]

    monkeypatch.setattr(graphs, "capture", broken)


def wrong_logits(monkeypatch) -> None:
    honest = GraphedModel.forward
    monkeypatch.setattr(GraphedModel, "forward", lambda self, ids, n, *rest: honest(self, ids, n - 1, *rest))


@pytest.mark.parametrize(("breaks", "words"), [(failing_recordings, "out of graphs"), (wrong_logits, "off by")])
def test_what_fails_leaves_no_graphs(breaks, words, on_cuda, monkeypatch):
    breaks(monkeypatch)
    chosen, why = setup.choose_engine(tiny("llama"), "auto")
    assert chosen is None
    assert words in why


def test_windows_of_two_sizes_have_no_graphs(monkeypatch):
    layers = [SimpleNamespace(sliding_window=8), SimpleNamespace(sliding_window=16)]
    monkeypatch.setattr(cuda_graphs, "kv_shapes", lambda model: [])
    monkeypatch.setattr(eager, "cached_layers", lambda model: layers)
    with pytest.raises(NoFastBackend, match="windows of 8 and 16 tokens"):
        GraphedModel(tiny("llama"))
