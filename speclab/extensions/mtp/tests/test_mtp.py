"""MTP heads: what they propose, computed anew from the text alone, for published shapes; and the contract of drafts."""

import functools

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.cache_utils import MtpCache

from speclab.core.rounds import tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts import registry
from speclab.drafts.heads.feature import target_pass
from speclab.extensions.mtp.head import MtpDrafter, MtpHead
from speclab.extensions.mtp.head_weights import empty_model, of_head, read_mtp_head
from speclab.extensions.mtp.tests.tiny_checkpoints import N_LAYERS, SHAPES, VOCAB, write
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.cli.bad_inputs import Row, S
from tests.cli.test_bad_inputs import check_row, folder  # noqa: F401 - a fixture
from tests.contract import WAYS, check, id_of
from tests.decoding import plain_text, speculative_rounds
from tests.heads import N_LEARNT, distance, in_format, learnt_texts
from tests.tiny_models import tiny
from training.recipes import likely

CPU, N_NEW, K = torch.device("cpu"), 24, 3
PROMPT = torch.arange(3, 12)[None]


@functools.cache
def trained() -> MtpHead:
    """A head for the tiny llama that has learnt three of its texts by heart."""
    target = tiny("llama").requires_grad_(False)
    texts = learnt_texts(target)[:N_LEARNT]
    hidden, logits = target_pass(target, texts, (1,))
    model = empty_model(target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.layers.to_empty(device=CPU)
        for weight in model.layers.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.1)
    model.tie_with_main_model(target)
    head = MtpHead(model.double(), target.model.norm, 2)
    stepper = torch.optim.Adam(model.layers.parameters())
    with torch.enable_grad():
        for step in range(120):
            stepper.param_groups[0]["lr"] = 0.02 * (1 - step / 120)
            stepper.zero_grad()
            chains = enumerate(head.chains(hidden, texts, K), start=1)
            sum(distance(likely(logits[:, j : j + drafted.shape[1]]), drafted) for j, drafted in chains).backward()
            torch.nn.utils.clip_grad_norm_(model.layers.parameters(), 1.0)
            stepper.step()
    return head.requires_grad_(False)


@pytest.mark.parametrize(("engine", "sampling"), WAYS, ids=id_of)
def test_a_draft_keeps_the_contract(engine, sampling):
    check(lambda model, on_engine: MtpDrafter(in_format(trained(), model.dtype)), engine, sampling, layers=(1,))


@pytest.fixture(scope="module", params=SHAPES)
def shaped(request, tmp_path_factory):
    """A checkpoint of each shape, its target, and the drafter that `--draft mtp` makes."""
    place = tmp_path_factory.mktemp(request.param)
    checkpoint = write(place, request.param)
    target = loading.load_model(str(place), CPU, torch.float32)
    return checkpoint, target


def drafter_of(target, text="mtp"):
    cached = CachedModel(target)
    return cached, registry.read(text).make(Setup(cached, None, "tiny", GREEDY, CPU, torch.float32))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.9)], ids=str)
def test_proposals_are_an_independent_computation(shaped, sampling):
    """Every drafted token comes from what the definition gives for the whole text, without a cache."""
    checkpoint, target = shaped
    cached, drafter = drafter_of(target)
    drafts, propose = [], drafter.propose
    drafter.propose = lambda k, uniforms: drafts.append(propose(k, uniforms)) or drafts[-1]
    rounds = list(speculative_rounds(cached, drafter, PROMPT, K, N_NEW, sampling))
    text = [*PROMPT[0].tolist(), *rounds[0].tokens]
    for draft, round_ in zip(drafts, rounds[1:], strict=True):
        if draft.tokens.shape[1]:
            drafted = draft.tokens[0].tolist()
            logits = checkpoint.following(text, drafted)
            if sampling.greedy:
                near = logits.max(-1).values - logits.gather(-1, draft.tokens[0][:, None])[:, 0]
                assert (near < 1e-3).all()
            else:
                assert torch.allclose(draft.probs[0], sampling.probs(logits), atol=1e-3)
        text += round_.tokens
    assert len(drafts) > N_NEW / (K + 1)
    if sampling.greedy:
        assert tokens_of(rounds) == plain_text(cached, PROMPT, N_NEW)


def test_every_position_is_what_the_librarys_model_gives(shaped):
    """The library's MtpModel makes the same chain, with masks, positions and a cache of its own.

    Its own loop has a layer for each depth. Here its one layer runs again on its own last state, which the library
    leaves to engines: vLLM 0.32 feeds back the state after the last norm, too (deepseek_mtp.py).
    """
    checkpoint, target = shaped
    head = read_mtp_head(str(checkpoint.folder), target, "mtp")
    text = torch.randint(0, VOCAB, (1, 18), generator=torch.Generator().manual_seed(5))
    n, model, cache = text.shape[1] - 1 - K, head.model, MtpCache(config=head.model.config)
    with torch.no_grad():
        rows = [logits[0, -1] for logits in head.chains(target_pass(target, text, (N_LAYERS - 1,))[0], text, K)]
        states = target.get_decoder()(input_ids=text, use_cache=False).last_hidden_state[:, :n]
        ids, places = text[:, 1 : n + 1], torch.arange(1, n + 1)[None]
        for depth, row in enumerate(rows):
            states = model.forward_layer(0, states, places, cache, input_ids=ids)[:, -1:]
            assert torch.allclose(row, model.shared_head(states)[0, 0], atol=1e-4)
            ids, places = text[:, n + depth + 1 : n + depth + 2], places[:, -1:] + 1
    assert len(rows) == K
    assert len({int(row.argmax()) for row in rows}) > 1


def test_the_target_and_its_config_stay_as_they_are(shaped):
    checkpoint, target = shaped
    before, said = {name: tensor.clone() for name, tensor in target.state_dict().items()}, target.config.to_dict()
    head = read_mtp_head(str(checkpoint.folder), target, "mtp")
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())
    assert target.config.to_dict() == said
    assert head.model.shared_head is target.lm_head
    assert head.model.embed_tokens is target.get_input_embeddings()
    assert not any(tensor.is_meta for tensor in head.state_dict().values())


@pytest.mark.parametrize("kind", SHAPES)
def test_every_tensor_of_the_head_has_a_place_and_no_other_one(kind, tmp_path):
    """Those of the target's own layers, and copies of its embedding and output layer, are passed over."""
    checkpoint = write(tmp_path, kind)
    names = load_file(tmp_path / "model.safetensors").keys()
    of_layer = {name for name in names if name.startswith(checkpoint.shape.layer)} | checkpoint.extra.keys()
    assert {name for name in names if of_head(name, N_LAYERS)} == of_layer
    for name in ("embed_tokens", "shared_head.head"):
        assert of_head(f"{checkpoint.shape.layer}{name}.weight", N_LAYERS) is None


def renewed(weights, name, change):
    weights[f"{name}.weight"] = change(weights[f"{name}.weight"])


MIMO = SHAPES["mimo"].names
FIRST = "model.mtp_layers.0."
WRONG = {  # what is done to the weights -> what is said
    "no norm": (lambda weights: weights.pop(MIMO[1] + ".weight"), "missing"),
    "no part of the layer": (lambda weights: weights.pop(f"{FIRST}self_attn.q_proj.weight"), "missing"),
    "another width": (lambda weights: renewed(weights, MIMO[0], lambda weight: weight[:, :-2].clone()), "shape"),
    "a NaN": (lambda weights: renewed(weights, MIMO[2], lambda weight: weight * float("nan")), "finite"),
    "whole numbers": (lambda weights: renewed(weights, MIMO[2], torch.Tensor.int), "type"),
    "a part more": (lambda weights: weights.update({f"{FIRST}gate.weight": torch.zeros(3)}), "place"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_damaged_head_is_one_line(kind, tmp_path):
    write(tmp_path, "mimo")
    weights = load_file(tmp_path / "model.safetensors")
    change, said = WRONG[kind]
    change(weights)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    target = loading.load_model(str(tmp_path), CPU, torch.float32)
    with pytest.raises(EnvironmentProblem, match=said) as found:
        drafter_of(target)
    assert "\n" not in str(found.value)


def test_a_head_of_another_target_is_one_line_and_a_checkpoint_without_one_says_what_to_type(tmp_path):
    write(tmp_path, "mimo")
    with pytest.raises(EnvironmentProblem) as found:
        drafter_of(tiny("llama", dtype=torch.float32, hidden_size=16), f"mtp:{tmp_path}")
    assert "\n" not in str(found.value)
    with pytest.raises(UsageProblem, match="--draft mtp:FOLDER"):
        drafter_of(tiny("llama", dtype=torch.float32))


ROWS = [
    Row(f"{S} --draft mtp", 2, ("has no MTP head", "--draft feature")),
    Row(f"{S} --draft mtp:./missing", 3, ("there is no model folder ./missing",)),
    Row(f"{S} --draft mtp:", 2, ("'mtp:'",)),
    Row(f"{S} --draft tree:2x2x1:mtp", 2, ("a tree needs a draft",)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command[-20:])
def test_bad_input_is_one_line(folder, capfd, monkeypatch, row):  # noqa: F811
    check_row(folder, capfd, monkeypatch, row)
