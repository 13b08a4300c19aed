"""The output is the target's own: token for token when greedy, in distribution when sampling.

Everything goes through the real cached loop. `make test` runs a covering subset, `make test-full` more.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import baseline_autoregressive
import optimized_speculative
from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter, NgramDrafter
from speclab.core import accept as accept_module
from speclab.core.accept import accept
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, DecodeSettings, Draft, Round, tokens_of
from speclab.core.sampling import Sampling, draw
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.engines import eager, parts
from speclab.models import checks
from speclab.models.cached import CachedModel
from speclab.models.checks import Reference
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.theory.losslessness import judge_divergence
from tests.decoding import ScriptedTarget, plain_text, speculative_rounds
from tests.grids import and_in_full
from tests.tiny_models import CONTEXT, DTYPE_ON, FAMILIES, VOCAB, on_engine, perturbed, tiny

LONGEST = 20  # new tokens
DRAFTS = ("good", "bad", "identical", "ngram")  # tests/contract.py has the other kinds


# --- Greedy: token-identical -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """A target, a prompt, and the text that uncached passes say is right."""

    model: torch.nn.Module
    good: torch.nn.Module
    bad: torch.nn.Module
    prompt: Tensor
    text: list[int]
    engine: str

    def cached(self, model: torch.nn.Module) -> CachedModel:
        """A model on the engine of this subject. A family that `c` does not know runs eagerly there, in float32."""
        known = model.config.model_type in parts.FAMILIES
        return CachedModel(model, fast=on_engine(self.engine, model) if known else None)


@functools.cache
def subject(family: str, engine: str = "eager") -> Subject:
    """The target of `family` and its drafts; its text must be varied and free of near-ties."""
    dtype = DTYPE_ON[engine]
    model = tiny(family, dtype=dtype)
    prompt = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(0))
    ids, gaps = prompt, []
    with torch.inference_mode():
        for _ in range(LONGEST):
            best = model(ids, use_cache=False).logits[0, -1].topk(2)
            gaps.append((best.values[0] - best.values[1]).item())
            ids = torch.cat([ids, best.indices[None, :1]], dim=1)
    text = ids[0, prompt.shape[1] :].tolist()
    assert len(set(text)) >= 6, f"{family}: a text of few tokens proves little: {text}"
    assert min(gaps) > 5e-4, f"{family}: a near-tie would let float32 rounding decide: {min(gaps)}"
    return Subject(model, perturbed(model, 0.07), tiny("llama", seed=99, dtype=dtype), prompt, text, engine)


def make_drafter(kind: str, s: Subject):
    if kind == "ngram":
        return NgramDrafter(longest=3, shortest=1)
    return ModelDrafter(s.cached({"good": s.good, "bad": s.bad, "identical": s.model}[kind]))


def rounds_that_must_come(text: list[int], proposed: list[list[int]], limit: int, eos: frozenset[int]) -> list[Round]:
    """The rounds that follow from the right text and the proposals alone, by the definition of the counts."""
    first = "eos" if text[0] in eos else "length" if limit == 1 else None
    rounds, position = [Round(text[:1], prefill=True, finish=first)], 1
    for proposal in proposed:
        agree = [a == b for a, b in zip(proposal, text[position:], strict=False)]
        n_accepted = ([*agree, False]).index(False)
        said = text[position : position + n_accepted + 1]  # the accepted ones and one from the target
        n_rejected = 1 if n_accepted < len(proposal) else 0
        position += len(said)
        finish, n_after_eos = "length" if position == limit else None, 0
        ends = [i for i, token in enumerate(said) if token in eos]
        if ends:
            n_after_eos, finish, said = len(said) - ends[0] - 1, "eos", said[: ends[0] + 1]
            if len(said) <= n_accepted:  # the EOS was a drafted token: nothing behind it was said or tested
                n_accepted, n_rejected = len(said), 0
        rounds.append(Round(said, len(proposal), n_accepted, n_rejected, finish=finish, n_after_eos=n_after_eos))
    return rounds


def check_greedy(s: Subject, kind: str, k: int, limit: int, eos: frozenset[int] = frozenset()) -> list[Round]:
    """One decoding: its text, every count of every round, the pass count and the budget."""
    target, drafter, seen = s.cached(s.model), make_drafter(kind, s), []

    def propose(k: int, uniforms: Tensor, right=drafter.propose):
        draft = right(k, uniforms)
        seen.append((k, draft.tokens[0].tolist()))
        return draft

    drafter.propose = propose
    rounds = list(speculative_rounds(target, drafter, s.prompt, k, limit, eos=eos))
    ends = [i + 1 for i, token in enumerate(s.text[:limit]) if token in eos]
    label = f"{kind}, k = {k}, {limit} new tokens, eos {set(eos)}"
    assert tokens_of(rounds) == s.text[: min(ends, default=limit)], label
    assert rounds == rounds_that_must_come(s.text, [proposal for _, proposal in seen], limit, eos), label
    assert target.n_passes == len(rounds), f"{label}: one pass for the prompt and one per round"
    assert [r.prefill for r in rounds] == [True] + [False] * (len(rounds) - 1), label
    assert [r.finish is not None for r in rounds] == [False] * (len(rounds) - 1) + [True], label
    said = 1
    for (asked, proposal), r in zip(seen, rounds[1:], strict=True):
        assert asked == min(k, limit - said - 1), f"{label}: drafts that cannot be used were asked for, or too few"
        assert len(proposal) == r.n_drafted <= asked, label
        said += len(r.tokens)
    assert kind != "identical" or not any(r.n_rejected for r in rounds), "a draft that is the target is always right"
    return rounds


@pytest.mark.parametrize("engine", DTYPE_ON)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_token_identical_in_every_family(family, engine):
    """A cache, mask or position bug of one architecture or engine changes the text."""
    s = subject(family, engine)
    target = s.cached(s.model)
    assert plain_text(target, s.prompt, LONGEST) == s.text
    assert target.n_passes == LONGEST, "the baseline pays one pass per token, the first from the prompt"
    generated = s.model.generate(
        s.prompt, attention_mask=torch.ones_like(s.prompt), max_new_tokens=LONGEST, do_sample=False, pad_token_id=0
    )
    assert generated[0, s.prompt.shape[1] :].tolist() == s.text

    # 0 to 15: every draft meets every k over the families.
    turn = 2 * list(FAMILIES).index(family) + list(DTYPE_ON).index(engine)
    for i, kind in enumerate(DRAFTS):
        check_greedy(s, kind, (turn + i) % 9, 1 + (7 * turn + 3 * i) % LONGEST)

    good = [r for k in (2, 4) for r in check_greedy(s, "good", k, LONGEST) if not r.prefill]
    assert sum(r.n_accepted for r in good) > 0
    assert sum(r.n_rejected for r in good) > 0
    assert any(0 < r.n_accepted < r.n_drafted for r in good), "no partly accepted round: rollback hardly tested"
    assert any(r.n_accepted == r.n_drafted > 0 for r in good), "no bonus token: catch-up not tested"


USUAL = itertools.product(["llama"], DTYPE_ON, ["good", "ngram"])
FURTHER = [*itertools.product([family for family in FAMILIES if family != "llama"], DTYPE_ON, ["good"])]
FURTHER += itertools.product(["llama", "gemma3_window"], DTYPE_ON, ["bad", "identical"])


@pytest.mark.parametrize(("family", "engine", "kind"), and_in_full(USUAL, FURTHER))
def test_greedy_at_every_draft_length(family, engine, kind):
    """k from 0 (plain decoding) to 8: every width of the verification pass, every depth of rollback."""
    for k in range(9):
        check_greedy(subject(family, engine), kind, k, LONGEST)


def test_greedy_at_every_budget():
    """1 … 20 new tokens: a block that does not fit must be cut short, and the budget never overshot."""
    s = subject("gpt2")
    for limit in range(1, LONGEST + 1):
        check_greedy(s, "good", 5, limit)


def check_eos_everywhere(s: Subject, kind: str, k: int) -> set[str]:
    """Stop at each token of the text in turn.  -> the places of a round where the EOS was met"""
    places = set()
    unstopped = check_greedy(s, kind, k, LONGEST)
    for token in s.text:
        *before, last = check_greedy(s, kind, k, LONGEST, frozenset({token}))
        assert last.finish == "eos"
        if last.prefill:
            places.add("prefill")
        elif len(last.tokens) <= last.n_accepted:
            places.add("drafted, then refused" if unstopped[len(before)].n_rejected else "drafted")
        else:
            places.add("correction" if last.n_rejected else "bonus")
    return places


def test_eos_anywhere_in_a_block():
    """An EOS inside a block ends the text there: what stands behind it is neither said nor counted."""
    s = subject("llama")
    places = set().union(*(check_eos_everywhere(s, kind, 5) for kind in ("good", "identical", "ngram")))
    assert places == {"prefill", "drafted", "drafted, then refused", "correction", "bonus"}


def test_eos_as_generate_and_the_baseline_see_it():
    """All three stop behind the same token, whatever the baseline's chunk; several EOS ids count as one."""
    s = subject("llama")
    mask = torch.ones_like(s.prompt)
    for eos in [{token} for token in s.text[:12:2]] + [{s.text[5], s.text[9]}, {VOCAB - 1, s.text[7]}]:
        right = s.text[: 1 + min(s.text.index(token) for token in eos if token in s.text)]
        generated = s.model.generate(
            s.prompt, attention_mask=mask, max_new_tokens=LONGEST, do_sample=False, pad_token_id=0, eos_token_id=[*eos]
        )
        assert generated[0, s.prompt.shape[1] :].tolist() == right
        for chunk in (1, 2, 7, LONGEST):
            settings = DecodeSettings(LONGEST, eos=frozenset(eos))
            rounds = list(autoregressive_decode(CachedModel(s.model), s.prompt, settings, chunk))
            assert tokens_of(rounds) == right
            n_beyond = -(len(right) - 1) % chunk  # what the last chunk holds after the end token
            assert sum(round_.n_after_eos for round_ in rounds) == min(n_beyond, LONGEST - len(right))
        check_greedy(s, "good", 4, LONGEST, frozenset(eos))


@pytest.mark.parametrize("engine", DTYPE_ON)
@pytest.mark.parametrize("family", ["mistral_window", "gemma3_window"])
def test_prompt_longer_than_the_window(family, engine):
    """The eager prefill drops what left the window before recording starts; rollback must still find the rest."""
    s = subject(family, engine)
    unlimited = CachedModel(tiny(family, sliding_window=CONTEXT))
    assert plain_text(unlimited, s.prompt, LONGEST) != s.text, "the window proves nothing"
    longer = replace(s, prompt=torch.cat([s.prompt, torch.tensor([s.text[:9]])], dim=1), text=s.text[9:])
    for kind, k in itertools.product(("good", "bad", "identical"), (1, 4, 8)):
        check_greedy(longer, kind, k, LONGEST - 9)


# --- Sampling: the law in the long run -------------------------------------------------------------------------------

IDS, N_OF_EACH = 5, (40, 160, 640)  # successors of each id
DRAFTERS = {  # of the draft's table
    "model": lambda table: ModelDrafter(Chain(table)),
    "ngram": lambda table: NgramDrafter(2, 1),
    "model that chooses its lengths": lambda table: on_auto(ModelDrafter(Chain(table))),
}
# N numbers that are drawn independently have a mean total variation of at most sqrt(cells) / 2 / sqrt(N), and are
# further off by t with a probability of at most exp(-2 N t^2) (McDiarmid). All sizes together raise a false alarm with
# a probability below 1e-6.
BOUND = math.sqrt(IDS**2) / 2 + math.sqrt(math.log(len(DRAFTERS) * len(N_OF_EACH) * 1e6) / 2)


class Chain(ScriptedTarget):
    """Its next token depends on the last one alone, so thousands of rounds are cheap. rows: (vocab, vocab)"""

    def __init__(self, rows: Tensor):
        self.rows = rows.log()
        super().__init__(lambda text: rows[0], 0)

    def _logits(self, first: int) -> Tensor:
        return self.rows[self.tokens[first:]][None]


def on_auto(drafter: Drafter) -> AutoLength:
    """How far a draft goes depends on the tokens that it drew, and on everything before."""
    auto = AutoLength(drafter)
    auto.costs[1.0] = RoundCosts((0.0, 0.2, 0.4, 0.6), (1.0, 1.0, 1.001, 1.2))
    return auto


def sampled(target_table: Tensor, drafter: Drafter, n: int) -> list[Round]:
    """n tokens of a Markov chain, in at most n rounds, so that a loop that does not stop fails a test."""
    rounds = speculative_rounds(Chain(target_table), drafter, torch.tensor([[0]]), 3, n, Sampling(1.0))
    rounds = list(itertools.islice(rounds, n))
    kinds = {(r.n_accepted > 0, r.n_accepted < r.n_drafted) for r in rounds if r.n_drafted}
    assert kinds >= {(False, True), (True, False)}, "drafts were rejected, and others were kept"
    return rounds


def total_variations(kind: str = "model") -> dict[int, float]:
    """Of the successors of each id in a sampled text from the target's law: by their number N, times the root of N.

    The n-th successor of an id is drawn from its row, whatever stands before it, so these numbers are independent.
    """
    generator = torch.Generator().manual_seed(11)  # tables in whose texts no id is rare
    target, draft = (torch.randn(IDS, IDS, generator=generator, dtype=torch.float64).softmax(-1) for _ in range(2))
    n_tokens = 8 * N_OF_EACH[-1]
    text = torch.tensor([0, *tokens_of(sampled(target, DRAFTERS[kind](draft), n_tokens))])
    assert len(text) == n_tokens + 1
    found = {}
    for n in N_OF_EACH:
        after = [text[1:][text[:-1] == token][:n] for token in range(IDS)]
        assert min(map(len, after)) == n
        seen = torch.stack([torch.bincount(tokens, minlength=IDS) for tokens in after]) / n
        found[n * IDS] = float((seen - target).abs().sum(-1).mean()) / 2 * math.sqrt(n * IDS)
    return found


@pytest.mark.parametrize("kind", DRAFTERS)
def test_total_variation_falls_as_one_over_the_root_of_the_number_of_tokens(kind):
    """Over thousands of rounds; tests/test_filtered_laws.py enumerates one, with every kind of draft."""
    assert max(total_variations(kind).values()) < BOUND


def test_the_total_variation_of_a_biased_rule_has_a_floor(monkeypatch):
    """Public bug 4, the correction drawn from p: what it is off by does not fall with more tokens."""

    def biased(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        n_accepted = accept(draft, target_probs, uniforms).n_accepted
        return AcceptResult(n_accepted, draw(target_probs[0, n_accepted], uniforms[:, -1]))

    monkeypatch.setattr(accept_module, "accept", biased)
    found = total_variations()
    few, many = min(found), max(found)
    assert found[many] > BOUND
    assert found[many] / math.sqrt(many) > 0.6 * found[few] / math.sqrt(few)


# --- Randomness comes in ---------------------------------------------------------------------------------------------

WARM = Sampling(temperature=0.9, top_p=0.95)


def sampled_text(seed: int, k: int = 3, kind: str = "good") -> list[int]:
    s = subject("llama")
    target, drafter = CachedModel(s.model), make_drafter(kind, s)
    return tokens_of(speculative_rounds(target, drafter, s.prompt, k, LONGEST, WARM, seed=seed))


def test_global_random_state_is_left_alone():
    """Neither decoder nor drafter draws from, or seeds, the global generator; the seed says all."""
    s = subject("llama")
    torch.manual_seed(123)
    before = torch.get_rng_state()
    for kind in ("good", "ngram"):
        assert sampled_text(5, kind=kind) == sampled_text(5, kind=kind) != sampled_text(6, kind=kind)
    plain_text(CachedModel(s.model), s.prompt, LONGEST, WARM)
    assert torch.equal(before, torch.get_rng_state())


def test_every_uniform_is_used_once(monkeypatch):
    """What the draft and the accept rule get, over all rounds, are different numbers (a false alarm has odds 2^-40)."""
    used: list[float] = []

    class Watched(ModelDrafter):
        def propose(self, k, uniforms):
            used.extend(uniforms[0].tolist())
            return super().propose(k, uniforms)

    def watched_accept(draft, target_probs, uniforms):
        used.extend(uniforms[0].tolist())
        return accept(draft, target_probs, uniforms)

    monkeypatch.setattr(accept_module, "accept", watched_accept)
    coin = torch.full((4, 4), 0.25, dtype=torch.float64)
    other = torch.eye(4, dtype=torch.float64) * 0.96 + 0.01
    rounds = sampled(coin, Watched(Chain(other)), 41)
    assert len(used) == len(set(used)) >= 2 * sum(r.n_drafted for r in rounds) + len(rounds) - 1


def test_draft_length_0_is_the_baseline():
    """k = 0 takes one uniform per token, as the baseline does: the same seed gives the same sampled text."""
    s = subject("llama")
    for seed, chunk in itertools.product(range(3), (1, 6)):
        plain = plain_text(CachedModel(s.model), s.prompt, LONGEST, WARM, seed=seed, chunk=chunk)
        assert plain == sampled_text(seed, k=0)


# --- What must be refused --------------------------------------------------------------------------------------------


def both_decoders(model, prompt, limit, sampling=Sampling(), draft=None, engine="eager"):
    """The two decoders as things to call."""

    def cached(model):
        return CachedModel(model, fast=on_engine(engine, model))

    def plain():
        return plain_text(cached(model), prompt, limit, sampling)

    def speculative():
        drafter = ModelDrafter(cached(draft or model))
        return tokens_of(speculative_rounds(cached(model), drafter, prompt, 3, limit, sampling))

    return plain, speculative


@pytest.mark.parametrize("engine", DTYPE_ON)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
def test_non_finite_logits_are_reported(sampling, engine):
    """A damaged weight must end in a clear problem, not in made-up tokens: of the target, or of the draft alone."""
    s = subject("llama", engine)
    broken = tiny("llama", dtype=DTYPE_ON[engine])
    with torch.no_grad():
        broken.lm_head.weight[3, 3] = torch.nan
    of_target = both_decoders(broken, s.prompt, 5, sampling, s.model, engine)
    for decode in (*of_target, both_decoders(s.model, s.prompt, 5, sampling, broken, engine)[1]):
        with pytest.raises(EnvironmentProblem, match="finite"):
            decode()


def test_prompts_that_do_not_fit_are_refused():
    """An empty prompt has no last token; a long one would run past the positions the model knows."""
    model = subject("gpt2").model
    for length, limit in ((0, 5), (CONTEXT - 4, 5), (CONTEXT + 1, 0)):
        for decode in both_decoders(model, torch.zeros((1, length), dtype=torch.long), limit):
            with pytest.raises(UsageProblem):
                decode()
    for limit in (0, 5):
        for decode in both_decoders(model, torch.zeros((1, CONTEXT - 5), dtype=torch.long), limit):
            assert len(decode()) == limit


def test_padded_rows_are_never_said():
    """Output rows above the shared vocabulary are cut off in both decoders, also where they would win."""
    s = subject("llama")
    shared = VOCAB - 8
    assert max(s.text) >= shared, "the whole vocabulary would say such a token"
    plain = plain_text(CachedModel(s.model, shared), s.prompt, LONGEST)
    drafter = ModelDrafter(CachedModel(s.good, shared))
    rounds = speculative_rounds(CachedModel(s.model, shared), drafter, s.prompt, 4, LONGEST)
    assert tokens_of(rounds) == plain
    assert max(plain) < shared


# --- Judging a divergence --------------------------------------------------------------------------------------------


def judged(model: torch.nn.Module, text: list[int], other: list[int], n_ids: int = VOCAB):
    return judge_divergence(Reference(model), subject("llama").prompt[0].tolist(), text, other, n_ids)


def with_other(text: list[int], *changes: tuple[int, int]) -> list[int]:
    """The text with other ids at these places."""
    return [dict(changes).get(place, token) for place, token in enumerate(text)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_judge_calls_a_wrong_token_a_bug(dtype):
    """Only the first difference counts, and a token far from the top is no rounding error."""
    text, model = subject("llama").text, tiny("llama", dtype=dtype)
    wrong = with_other(text, (6, (text[6] + 1) % VOCAB), (7, (text[7] + 1) % VOCAB))
    verdict = judged(model, text, wrong)
    assert (verdict.position, verdict.baseline_token, verdict.speculative_token) == (6, text[6], wrong[6])
    assert not verdict.numerical
    assert model.dtype == dtype, "the float32 reference must be a copy"


def test_judge_calls_an_early_stop_a_bug():
    """One output is a prefix of the other: rounding does not shorten a text."""
    s = subject("llama")
    for ours, theirs in ((s.text, s.text[:9]), (s.text[:9], s.text)):
        verdict = judged(s.model, ours, theirs)
        assert (verdict.position, verdict.numerical) == (9, False)
    assert judged(s.model, s.text, list(s.text)) is None


def test_judge_calls_a_bfloat16_tie_numerical():
    """Two output rows that differ by less than bfloat16 can tell: either token may win, and neither is a bug."""
    model = tiny("llama", dtype=torch.bfloat16)
    text = plain_text(CachedModel(model), subject("llama").prompt, 8)
    twin = next(token for token in range(VOCAB) if token not in text)
    with torch.no_grad():
        row = model.lm_head.weight[text[5]].clone()
        row[0] = torch.nextafter(row[0], torch.tensor(torch.inf, dtype=row.dtype))
        model.lm_head.weight[twin] = row
    verdict = judged(model, text, with_other(text, (5, twin)))
    assert (verdict.position, verdict.numerical) == (5, True)
    assert verdict.gap != 0
    assert not judged(model, text, with_other(text, (5, (twin + 1) % VOCAB))).numerical


def test_a_broken_cache_cannot_excuse_its_own_text(monkeypatch):
    """The judge's tolerance comes from uncached passes: a cache that keeps rejected tokens is still a bug."""
    s, model = subject("llama"), tiny("llama", dtype=torch.float32)
    right = plain_text(CachedModel(model), s.prompt, 24)
    monkeypatch.setattr(eager.EagerBackend, "crop", lambda self, n_tokens, length: None)
    rounds = speculative_rounds(CachedModel(model), ModelDrafter(CachedModel(s.bad)), s.prompt, 4, 24)
    verdict = judged(model, right, tokens_of(rounds))
    assert not verdict.numerical


def test_the_judge_leaves_out_ids_that_are_never_emitted():
    """A padded row far above all others is no top logit, and its rounding is nobody's."""
    model, shared = tiny("llama", dtype=torch.float32), VOCAB - 8
    with torch.no_grad():
        model.lm_head.weight[shared:] *= 100
    text = plain_text(CachedModel(model, shared), subject("llama").prompt, 8)
    verdict = judged(model, text, with_other(text, (3, (text[3] + 1) % shared)), shared)
    assert verdict.gap > 0
    assert not verdict.numerical
    twin = next(token for token in range(shared) if token not in text)
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[text[3]]
    assert judged(model, text, with_other(text, (3, twin)), shared).numerical


@pytest.mark.parametrize(("free", "higher"), [(10**12, torch.float32), (1000, torch.bfloat16), (None, torch.float32)])
def test_without_room_for_a_copy_in_higher_precision_the_models_own_logits_stand_for_it(monkeypatch, free, higher):
    monkeypatch.setattr(checks, "free_memory", lambda device: free)
    reference = Reference(tiny("llama", dtype=torch.bfloat16))
    assert reference._higher is reference._higher
    assert reference._higher.dtype == higher


# --- What the scripts print ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [baseline_autoregressive, optimized_speculative], ids=lambda module: module.__name__)
def test_scripts_count_the_decoded_tokens_alone(module, pair_folder, capsys):
    """Not those of a prompt, not the one its pass gives, and no characters."""
    words = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager", "--max-new-tokens", "11"]
    words += ["--draft", str(pair_folder / "draft")] * (module is optimized_speculative)
    assert module.main([*words, "--ignore-eos", *["--prompt", "def f(x):"] * 3]) == 0
    assert "33 tokens, 30 of them decoded after the prompts' own passes in " in capsys.readouterr().out
