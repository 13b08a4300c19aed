"""What only a GPU can show. Skipped where there is none; `pytest -m cuda` runs these alone."""

import warnings

import pytest
import torch

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter, NgramDrafter
from speclab.cli import flags, parsing
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.engines.cuda import graphs
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.models import checks, loading, setup
from speclab.models.cached import CachedModel
from speclab.theory import losslessness
from tests.decoding import plain_text, speculative_rounds
from tests.tiny_models import FAMILIES, VOCAB, perturbed, tiny

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
N_NEW = 40


@pytest.fixture(autouse=True)
def exact_products(monkeypatch):
    """TF32 off: float32 means float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def on_gpu(family: str, fast: bool, noise: float = 0.0) -> CachedModel:
    model = tiny(family, dtype=torch.float32)
    model = (perturbed(model, noise) if noise else model).cuda()
    return CachedModel(model, fast=GraphedModel(model) if fast else None)


@pytest.mark.parametrize("fast", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_token_identical_in_float32(family, fast):
    """The chunked baseline, and two kinds of drafts."""
    prompt = PROMPT.cuda()
    target = on_gpu(family, fast)
    text = plain_text(target, prompt, N_NEW, chunk=16)
    assert text == plain_text(on_gpu(family, not fast), prompt, N_NEW)
    for drafter in (ModelDrafter(on_gpu(family, fast, noise=0.1)), NgramDrafter(3, 1)):
        rounds = list(speculative_rounds(target, drafter, prompt, 4, N_NEW))
        assert [t for r in rounds for t in r.tokens] == text
        assert target.n_passes == len(rounds)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_round_waits_for_the_device_once(temperature):
    """PyTorch warns of each wait: one copy brings the round's decision to the host, nothing else waits."""
    target, drafter = on_gpu("llama", True), ModelDrafter(on_gpu("llama", True, noise=0.1))

    def decoding():
        return iter(speculative_rounds(target, drafter, PROMPT.cuda(), 4, N_NEW, Sampling(temperature), seed=3))

    for _ in decoding():  # what is captured on the way
        pass
    rounds, waits = decoding(), []
    next(rounds)  # prefill
    while True:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                ended = next(rounds, None) is None
            finally:
                torch.cuda.set_sync_debug_mode("default")
        if ended:
            break
        waits.append(len([w for w in caught if "called a synchronizing CUDA operation" in str(w.message)]))
    assert waits == [1] * len(waits)
    assert len(waits) > 3


def test_sampled_rounds_do_not_depend_on_the_engine():
    """float32 logits may differ in the last bits, so a rare draw may fall on the other side: 19 of 20 must agree."""
    same = 0
    pairs = [(on_gpu("llama", fast), ModelDrafter(on_gpu("llama", fast, noise=0.1))) for fast in (False, True)]
    for seed in range(20):
        rounds = []
        for target, drafter in pairs:
            rounds.append(list(speculative_rounds(target, drafter, PROMPT.cuda(), 3, 12, Sampling(0.9), seed=seed)))
        same += rounds[0] == rounds[1]
    assert same >= 19


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, 20, 0.9)], ids=["greedy", "sampled"])
def test_the_third_decoding_records_nothing(sampling):
    """The first meets the shapes, the others replay them: the same rounds."""
    target, drafter = on_gpu("llama", True), ModelDrafter(on_gpu("llama", True, noise=0.1))
    found, recorded = [], []
    for _ in range(3):
        found.append(list(speculative_rounds(target, drafter, PROMPT.cuda(), 4, N_NEW, sampling, seed=3)))
        recorded.append(graphs.captures.n)
    assert found[0] == found[1] == found[2]
    assert recorded[1] == recorded[2] > 0


def test_two_decodings_side_by_side_over_many_buckets():
    """600 tokens cross two buckets and outgrow a graph cache; two decodings share weights and none."""
    model = tiny("llama", dtype=torch.float32, max_position_embeddings=2048).cuda()
    graphed = GraphedModel(model)
    prompts = [PROMPT.cuda(), PROMPT.flip(1).cuda()]
    right = [plain_text(CachedModel(model), prompt, 600) for prompt in prompts]
    reference = checks.Reference(model)
    for _ in range(2):  # the second time with the graph caches and graphs of the first
        models = [CachedModel(model, fast=graphed) for _ in prompts]
        running = [autoregressive_decode(m, p, DecodeSettings(600)) for m, p in zip(models, prompts, strict=True)]
        found = list(zip(*running, strict=True))
        for prompt, ours, theirs in zip(prompts, zip(*found, strict=True), right, strict=True):
            ours = tokens_of(ours)
            verdict = losslessness.judge_divergence(reference, prompt[0].tolist(), theirs, ours, VOCAB)
            assert verdict is None or verdict.numerical


@pytest.mark.parametrize("wish", setup.ENGINES)
def test_the_lab_pair_in_bfloat16_differs_at_near_ties_only(wish):
    parser = parsing.make_parser("test")
    flags.add_shared_flags(parser)
    setup = flags.setup_from(parser.parse_args(["--device", "cuda", "--engine", wish]), GREEDY)
    assert setup.dtype == torch.bfloat16
    drafter = ModelDrafter(setup.load_draft(loading.LAB_DRAFT))
    for prompt in flags.read_prompts(parser.parse_args(["--limit", "1"]), setup.tokenizer):
        ids = prompt.ids.cuda()
        theirs = plain_text(setup.target, ids, 64, chunk=setup.chunk)
        ours = [t for r in speculative_rounds(setup.target, drafter, ids, 4, 64) for t in r.tokens]
        found = losslessness.judge_divergence(setup.reference, prompt.id_list, theirs, ours, setup.target.vocab_size)
        assert found is None or found.numerical
