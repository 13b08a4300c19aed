"""The fast backend computes what the model computes: same logits, texts and rounds; and it falls back where it must."""

import copy
import functools

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from benchmarks.families import tiny_families
from draft_models import ModelDrafter
from speclab.cli import flags, parsing
from speclab.core.sampling import Sampling
from speclab.models import engine_choice, timing
from speclab.models.backends import eager, exported, rewrites
from speclab.models.backends.exported import ExportedModel
from speclab.models.cached import CachedModel
from speclab.models.family import NoFastBackend
from speclab.models.first_layers import check_split
from speclab.models.memory import is_mixture_of_experts
from tests.decoding import counted_kernels, keys_and_values, plain_text, speculative_rounds
from tests.grids import pairs_often
from tests.tiny_models import CONTEXT, VOCAB, flattened, in_parts, perturbed, tiny

PLAIN = ["llama", "qwen2", "gpt2", "gpt_neox", "opt", "gemma"]
WINDOWED = ["mistral_window", "gemma3_window"]
PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
model_of = functools.cache(tiny)
built = functools.cache(lambda model: engine_choice.build(model)[0])


def pair(family: str, dtype: torch.dtype, fast: bool) -> tuple[CachedModel, ModelDrafter]:
    """A target and a draft that is often right."""
    model = model_of(family, dtype=dtype)
    draft = noisy(family, dtype)
    target = CachedModel(model, fast=flattened(model) if fast else None)
    return target, ModelDrafter(CachedModel(draft, fast=flattened(draft) if fast else None))


@functools.cache
def noisy(family: str, dtype: torch.dtype):
    return perturbed(model_of(family, dtype=dtype), 0.1)


# --- Same logits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*PLAIN, *WINDOWED])
@pytest.mark.parametrize("form", [flattened, in_parts])
def test_logits_at_every_width_and_across_a_growing_buffer(family, form):
    """Widths of 1 to 80, up to the edge of the model's context, with rollbacks between."""
    model = model_of(family)
    fast = CachedModel(model, fast=form(model))
    room = CONTEXT - 2  # OPT counts its positions from two
    ids = torch.randint(0, VOCAB, (1, room), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        right = model(input_ids=ids, use_cache=False).logits
    found = fast.prefill(ids[:, :9])
    assert torch.allclose(found[0, -1], right[0, 8], atol=1e-9)
    widths, place = [1, 2, 5, 64, 65, 80, 1, 3], 9
    while place < room:
        width = min(widths[0], room - place)
        widths = widths[1:] + widths[:1]
        found = fast.forward(ids[:, place : place + width])
        assert torch.allclose(found, right[:, place : place + width], atol=1e-9), f"width {width} at {place}"
        if place % 3 == 0:  # something else in between, and back
            fast.forward(ids[:, :2])
            fast.crop(place + width)
        place += width
    assert fast.length == room


def test_a_buffer_grows_by_doubling_and_keeps_what_it_holds():
    model = tiny("llama", max_position_embeddings=4096)
    fast = CachedModel(model, fast=ExportedModel(model))
    ids = torch.randint(0, VOCAB, (1, 1100), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        right = model(input_ids=ids, use_cache=False).logits
    fast.prefill(ids[:, :500])
    places = [data.data_ptr() for data, _ in keys_and_values(fast)]
    n_moves = 0
    for place in range(500, 1100, 10):
        assert torch.allclose(fast.forward(ids[:, place : place + 10]), right[:, place : place + 10], atol=1e-9)
        now = [data.data_ptr() for data, _ in keys_and_values(fast)]
        n_moves, places = n_moves + (now != places), now
    assert n_moves == 1, "from 1,012 rows to 2,024"


def test_a_buffer_holds_no_more_rows_than_the_model_has_positions():
    model = tiny("llama", max_position_embeddings=1100)
    fast = CachedModel(model, fast=ExportedModel(model))
    ids = torch.zeros(1, 1100, dtype=torch.long)
    for n_tokens, rows in ((500, 1012), (1000, 1100)):
        fast.prefill(ids[:, :n_tokens])
        assert fast._backend._buffers.capacity == rows
        fast.forward(ids[:, n_tokens:])
        assert fast._backend._buffers.capacity == 1100


@pytest.mark.parametrize("family", PLAIN)
def test_the_model_itself_is_left_as_it_was(family):
    """Flattening reads the weights and packs copies; checks and `generate` go on using the model."""
    model = tiny(family, dtype=torch.float32)
    with torch.inference_mode():
        before = model(PROMPT, use_cache=False).logits
        ExportedModel(model)
        after = model(PROMPT, use_cache=False).logits
    assert torch.equal(before, after)


def test_deep_copies_share_weights_and_not_their_caches():
    model = model_of("llama")
    one = CachedModel(model, fast=flattened(model))
    two = one.__deepcopy__({})
    one.prefill(PROMPT)
    two.prefill(PROMPT[:, :3])
    assert (one.length, two.length) == (9, 3)
    assert two.fast is one.fast
    again = two.forward(PROMPT[:, 3:])[:, -1]
    assert torch.allclose(one.forward(PROMPT[:, :1]), two.forward(PROMPT[:, :1]), atol=1e-9)
    assert again.isfinite().all()


# --- Same texts, same rounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", PLAIN)
def test_greedy_texts_and_rounds_are_those_of_the_eager_engine_in_float32(family):
    texts, rounds = [], []
    for fast in (False, True):
        target, drafter = pair(family, torch.float32, fast)
        texts.append(plain_text(target, PROMPT, 40))
        rounds.append(list(speculative_rounds(target, drafter, PROMPT, 4, 40)))
        assert target.n_passes == len(rounds[-1])
    assert texts[0] == texts[1] == [t for r in rounds[0] for t in r.tokens]
    assert rounds[0] == rounds[1]
    assert sum(r.n_accepted for r in rounds[1]) > 0
    assert any(r.n_rejected for r in rounds[1])


def test_sampled_rounds_are_those_of_the_eager_engine():
    """The same uniforms give the same rounds, 60 seeds long: the law that the eager loop was proved to have."""
    pairs = [pair("qwen2", torch.float64, fast) for fast in (False, True)]
    n_accepted = n_rejected = 0
    for seed in range(60):
        rounds = [
            list(
                speculative_rounds(
                    target, drafter, PROMPT, 3, 12, Sampling(0.9, top_p=0.95), torch.Generator().manual_seed(seed)
                )
            )
            for target, drafter in pairs
        ]
        assert rounds[0] == rounds[1], f"seed {seed}"
        n_accepted += sum(r.n_accepted for r in rounds[1])
        n_rejected += sum(r.n_rejected for r in rounds[1])
    assert min(n_accepted, n_rejected) > 50


# --- What is rewritten ------------------------------------------------------------------------------------------------


def test_products_of_one_input_are_one_product():
    """A layer has four products (qkv, output, gate and up, down) where it had seven, and there is the head."""
    if not rewrites.can_prepack(torch.device("cpu"), torch.float32):
        pytest.skip("oneDNN is not here")
    with counted_kernels() as lists:
        ExportedModel(tiny("qwen2", dtype=torch.float32))
    own, packed = lists
    assert (own["aten.linear.default"], own["mkldnn._linear_pointwise.default"]) == (15, 0)
    assert (packed["aten.linear.default"], packed["mkldnn._linear_pointwise.default"]) == (0, 9)


# --- Falling back -----------------------------------------------------------------------------------------------------


@functools.cache
def sliding(family: str):
    """Tiny models with windows of 8 tokens, in float64; of experts the plain code, which the fast kernels have not."""
    if family in WINDOWED:
        return model_of(family)
    model = tiny_families.tiny(family).double()
    if is_mixture_of_experts(model):
        model.set_experts_implementation("eager")
    return model


@pytest.mark.parametrize(
    ("family", "k"),
    pairs_often([*WINDOWED, "gemma2", "cohere2", "olmo3"], [1, 4], lambda family, k: (k == 1) == (family in WINDOWED)),
)
def test_texts_longer_than_the_window_are_those_of_the_eager_engine(family, k):
    """40 tokens, with rollbacks past the window's edge; buffers hold what one pass over the whole text writes."""
    model = sliding(family)
    fast, draft = built(model), perturbed(model, 0.05)
    assert fast is not None
    assert fast.window.size == 8
    rounds = {}
    for engine in (None, fast):
        target = CachedModel(model, fast=engine)
        rounds[engine] = list(speculative_rounds(target, ModelDrafter(CachedModel(draft)), PROMPT, k, 40))
    assert rounds[fast] == rounds[None]
    assert any(r.n_accepted < r.n_drafted for r in rounds[fast])
    text = [*PROMPT[0].tolist(), *(token for r in rounds[fast] for token in r.tokens)][:-1]
    whole = CachedModel(model, fast=fast)
    whole.prefill(torch.tensor([text]))
    for mine, right in zip(keys_and_values(target), keys_and_values(whole), strict=True):
        assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(mine, right, strict=True))


@pytest.mark.parametrize("family", WINDOWED)
def test_a_windowed_pass_can_be_run_in_two_parts(family):
    """The first layers, then the others."""
    target = CachedModel(model_of(family), fast=flattened(model_of(family)))
    check_split(target, 1)


def test_the_check_of_a_window_reads_a_longer_text(monkeypatch):
    """Where that would take too long there is no fast form; nor of chunks."""
    model, lengths = model_of("gemma3_window"), []
    right = engine_choice.checks.cached_logits
    monkeypatch.setattr(
        engine_choice.checks,
        "cached_logits",
        lambda cached, text, **how: lengths.append(text.shape[1]) or right(cached, text, **how),
    )
    assert engine_choice.build(model)[0] is not None
    assert lengths == [engine_choice.checks.N_TOKENS + 8]
    monkeypatch.setattr(engine_choice.checks, "MOST_OPERATIONS", 1e3)
    fast, why = engine_choice.build(model)
    assert fast is None
    assert "a check of its window of 8 tokens would take too long" in why
    chunked = tiny_families.tiny("llama4_text")
    with pytest.raises(NoFastBackend, match="chunks of the text"):
        ExportedModel(chunked)


@pytest.fixture
def wrong_rewrite(monkeypatch):
    """A rewrite that is wrong for every model: it turns the rows of the last weight around."""
    real = rewrites.lift_constants

    def broken(graph):
        *others, last = real(graph)
        return [*others, last.flip(0)]

    monkeypatch.setattr(exported.rewrites, "lift_constants", broken)


def test_wrong_logits_are_noticed(wrong_rewrite):
    """They must not get as far as a decoding."""
    chosen, why = engine_choice.choose(tiny("llama"), "fast")
    assert chosen is None
    assert "off by" in why
    assert "64 * eps(float64) * max|logit|" in why


def test_experts_do_not_excuse_a_fast_engine_that_loses_its_cache(monkeypatch):
    """Wrong after every rollback: half of the positions of a mixture of experts are no routing accident."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = MixtralConfig(**sizes, num_key_value_heads=2, vocab_size=VOCAB, initializer_range=0.3)
        model = MixtralForCausalLM(config).eval()
    assert engine_choice.choose(model, "fast")[0] is not None

    def crop(self, n_tokens, length):
        with torch.inference_mode():
            for keys, values in zip(*self._buffers.first(self._buffers.capacity), strict=True):
                keys[:, :, 8:] = values[:, :, 8:] = 0.0

    monkeypatch.setattr(exported.ExportedBackend, "crop", crop)
    chosen, why = engine_choice.choose(model, "fast")
    assert chosen is None
    assert "off by" in why


def test_wrong_logits_are_no_fast_engine_however_noisy_the_eager_one(monkeypatch, wrong_rewrite):
    """The bound comes from uncached logits: an eager cache that is broken as well does not widen it."""
    monkeypatch.setattr(eager.EagerBackend, "crop", lambda self, n_tokens, length: None)
    assert engine_choice.choose(tiny("llama"), "fast")[0] is None


@pytest.mark.parametrize("error", [KeyError("what"), RuntimeError(), torch.OutOfMemoryError("too large\nreally")])
def test_any_trouble_with_the_fast_backend_leaves_the_eager_one(monkeypatch, error):
    """A kernel library may raise anything, also something without words."""

    def trouble(*args):
        raise error

    monkeypatch.setattr(exported.rewrites, "drop_mask", trouble)
    chosen, why = engine_choice.choose(tiny("llama"), "auto")
    assert chosen is None
    assert type(error).__name__ in why
    assert "\n" not in why


def test_damaged_weights_are_no_fast_engine():
    model = tiny("llama", seed=5)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    assert engine_choice.choose(model, "fast")[0] is None


def test_a_model_whose_code_cannot_be_exported_stays_eager(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("data-dependent branch\nsecond line")

    monkeypatch.setattr(torch.export, "export", refuse)
    chosen, why = engine_choice.choose(tiny("llama"), "auto")
    assert chosen is None
    assert "data-dependent branch" in why
    assert "second line" not in why


@pytest.mark.parametrize(("wide", "fast"), [(5.0, True), (20.0, False)])
def test_auto_takes_the_winner_of_a_race(monkeypatch, wide, fast):
    """Eager: 3 s a token, 8 s for five. Fast: 2 s a token."""
    taken = {(False, 1): 3.0, (False, 5): 8.0, (True, 1): 2.0, (True, 5): wide}
    monkeypatch.setattr(engine_choice, "fastest", lambda passes: [taken[m.fast is not None, w] for m, w in passes])
    chosen, why = engine_choice.choose(model_of("llama", dtype=torch.float64), "auto")
    assert (chosen is not None) == fast
    assert "1.50x" in why
    assert f"{8 / wide:.2f}x at 5" in why
    assert ("no clear winner after 3 races" in why) != fast


@pytest.mark.parametrize(
    ("races", "expected", "words"),
    [
        ([(3, 2, 8, 5)], (1.5, 1.6, 1), "1.50x the eager engine's speed at 1 token, 1.60x at 5"),
        ([(2, 3, 5, 8)] * 9, (2 / 3, 5 / 8, 3), "the fast engine was no faster: 0.67x"),
        # Other work slowed the fast one down in the first race.
        ([(2, 3, 5, 8), (2, 1.6, 5, 4)], (1.25, 1.25, 2), "1.25x the eager"),
        # The eager engine met a slow moment at one width; the second race sees it.
        ([(3, 4, 9, 8), (3, 4, 6, 8), (3, 4, 6, 8)], (0.75, 0.75, 3), "the fast engine was no faster"),
        # So did the fast one, at one token and then at five: every pass counts at its fastest.
        ([(3, 4, 8, 5), (3, 2, 8, 9)], (1.5, 1.6, 2), "1.50x the eager"),
        ([(8, 9, 3, 2)] * 9, (8 / 9, 1.5, 3), "no clear winner after 3 races"),
        ([(98, 100, 3, 2)] * 9, (0.98, 1.5, 1), "0.98x the eager"),
        ([(98, 100, 100, 101)] * 9, (0.98, 100 / 101, 3), "no clear winner after 3 races"),
        ([(96, 100, 3, 2)] * 9, (0.96, 1.5, 3), "no clear winner after 3 races"),
        ([(9, 8, 2, 3)] * 9, (9 / 8, 2 / 3, 3), "no clear winner after 3 races"),
        ([(9, 5, 8, 9)] * 9, (9 / 5, 8 / 9, 3), "no clear winner after 3 races"),
        ([(3, 9, 3, 2)] * 9, (1 / 3, 1.5, 3), "no clear winner after 3 races"),
    ],
)
def test_engines_race_again_until_the_fast_one_wins(races, expected, words):
    """Seconds of eager and fast at one token, then at five."""
    rest = iter(races)
    result = engine_choice.race(lambda: next(rest))
    assert result == pytest.approx(expected)
    assert result.takes_fast == (expected[0] > 0.97 and expected[0] * expected[1] > 1)
    assert result.reason.startswith(words)
    assert f"{expected[1]:.2f}x at 5" in result.reason
    assert len(list(rest)) == len(races) - expected[2]


@pytest.mark.parametrize(
    ("own", "packed", "one", "several"),
    [
        ((2, 2), (2, 2), True, True),
        ((1.9, 2), (2, 2), True, True),
        ((1, 2), (2, 2), False, True),
        ((2, 1), (2, 2), True, False),
        ((1, 5), (2, 2), False, True),
        ((1, 1), (2, 2), False, False),
    ],
)
def test_weights_are_packed_where_that_is_no_slower(monkeypatch, own, packed, one, several):
    """Seconds of passes over one and five tokens."""
    fast = copy.copy(flattened(model_of("llama", dtype=torch.float32)))
    if not fast.can_pack:
        pytest.skip("oneDNN is not here")
    seconds = {False: dict(zip((1, 5), own, strict=True)), True: dict(zip((1, 5), packed, strict=True))}
    monkeypatch.setattr(
        engine_choice, "fastest", lambda passes: [seconds[m.fast.packs_one][width] for m, width in passes]
    )
    engine_choice.choose_kernels(fast)
    assert (fast.packs_one, fast.packs_several) == (one, several)


@pytest.mark.parametrize("packed", [False, True])
def test_both_lists_of_kernels_give_the_models_logits(packed):
    """In float32 the one reads packed weights and the other the model's own."""
    model = model_of("qwen2", dtype=torch.float32)
    fast = ExportedModel(model)
    if not fast.can_pack:
        pytest.skip("oneDNN is not here")
    fast.packs_one = fast.packs_several = packed
    with torch.inference_mode():
        right = model(PROMPT, use_cache=False).logits[:, -1]
    for width in (1, 3):
        cached = CachedModel(model, fast=fast)
        cached.prefill(PROMPT[:, :-width])
        assert torch.allclose(cached.forward(PROMPT[:, -width:])[:, -1], right, atol=1e-4)


def test_every_backend_and_width_is_timed():
    model = model_of("llama")
    fast = CachedModel(model, fast=flattened(model))
    times = timing.time_passes([(CachedModel(model), 1), (fast, 1), (fast, 4)], 8, 3)
    assert [len(of_one) for of_one in times] == [3, 3, 3]
    assert min(map(min, times)) > 0


def test_timing_a_slow_model_ends_early(monkeypatch):
    """Two passes of each are enough where patience is short."""
    monkeypatch.setattr(engine_choice, "PATIENCE", 0.0)
    passes = []
    honest = CachedModel.forward
    monkeypatch.setattr(CachedModel, "forward", lambda self, tokens: passes.append(1) or honest(self, tokens))
    model = CachedModel(model_of("llama"))
    engine_choice.fastest([(model, 1), (model, 5)])
    assert len(passes) == 4


def test_eager_is_eager():
    assert engine_choice.choose(model_of("llama"), "eager") == (None, "asked for")


# --- The flag ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eager", "fast"])
def test_both_arms_run_on_the_engine_that_was_asked_for(pair_folder, name, capsys):
    parser = parsing.make_parser("test")
    flags.add_shared_flags(parser)
    setup = flags.setup_from(parser.parse_args(["--target", str(pair_folder / "target"), "--engine", name]))
    draft = setup.load_draft(str(pair_folder / "draft"))
    assert f"engine  {name} (asked for)" in setup.describe()
    if name == "fast" and setup.target.fast.can_pack:
        fast = setup.target.fast
        for packs, words in (
            ((True, True), "(asked for)\n"),
            ((False, True), "; weights not packed for 1 token\n"),
            ((True, False), "; weights not packed for several tokens\n"),
            ((False, False), "; weights not packed\n"),
        ):
            fast.packs_one, fast.packs_several = packs
            assert words in setup.describe()
    assert (setup.target.fast is not None) == (draft.fast is not None) == (name == "fast")
    assert f"engine  {name} (asked for)" in setup.describe()
