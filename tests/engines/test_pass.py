"""pass.c computes what the library computes: every family, width, length, mask and number of threads."""

import pytest
import torch

from speclab.engines.parts import FAMILIES, parts_of
from speclab.models import setup
from tests.engines.families import CASES, WINDOW, check_passes, made, on_c, on_engine, packed, text_of, tiny, uncached
from tests.tiny_models import assert_close

EAGER = ("eager llama", "eager mistral", "eager gemma3_text", "eager gpt2")


def test_every_family_is_tried():
    assert {kind for kind, _ in CASES.values()} == set(FAMILIES)


# Within a page and across several; and both sides of the edges of pages.
PROMPTS = [(case, n) for case in (*CASES, *EAGER) for n in (20, 326)]
PROMPTS += [(case, n) for case in ("llama", "mistral") for n in (*range(62, 67), *range(126, 131))]


@pytest.mark.parametrize(("case", "n_prompt"), PROMPTS)
def test_logits_and_states_are_the_librarys(case, n_prompt):
    check_passes(on_engine(case), n_prompt)


TURNED = ("phi3, some turned", "gpt_neox")  # four of six numbers of a head


def test_the_cases_are_what_they_are_called():
    assert [packed(tiny(case)).model.turned for case in TURNED] == [4, 4]
    assert packed(tiny("smollm3")).layers[1].rotary == 0
    assert {layer.window for layer in packed(tiny("gemma3_text")).layers} == {0, WINDOW}
    assert packed(tiny("olmo2")).model.whole_norms
    for case in ("llama with biases", "qwen2", "gpt2", "gpt_neox"):
        assert all(layer["qkv"][1].abs().min() > 0 for layer in parts_of(tiny(case))["layer"])


PARENTS = [-1, 0, 0, 1, 1, 4, 2, 6, 5, 7, -1, 10]  # of drafted tokens; -1: the last committed token


def path_to(node: int) -> list[int]:
    return [] if node < 0 else [*path_to(PARENTS[node]), node]


@pytest.mark.parametrize("n_prompt", [5, 61, 252])  # within the window, over the end of a page, later
@pytest.mark.parametrize("case", ["llama", "mistral", "gemma3_text", "qwen2", "gpt2", "gpt_neox", "smollm3", *EAGER])
def test_every_token_of_a_tree_gets_the_logits_of_its_branch(case, n_prompt):
    """And where one branch is kept, the text goes on as after that branch alone; nothing of the others is read."""
    cached = on_engine(case)
    model = cached.model
    text, tree = text_of(model, n_prompt + 9), text_of(model, 1 + len(PARENTS), seed=2)
    cached.hidden_layers = (0, 1)
    for deepest in (9, 8, 3, 11):
        cached.prefill(text[:, :n_prompt])
        reads = torch.zeros(1, 1 + len(PARENTS), 1 + len(PARENTS), dtype=torch.bool)
        for node in range(-1, len(PARENTS)):
            reads[0, 1 + node, [0, *(1 + i for i in path_to(node))]] = True
        found, states = cached.forward(tree, reads), cached.hidden((1,))
        for node in range(-1, len(PARENTS)):
            rows = [0, *(1 + i for i in path_to(node))]
            branch = torch.cat([text[:, :n_prompt], tree[:, rows]], dim=1)
            assert_close(found[:, 1 + node], uncached(model, branch)[:, -1])
        path = path_to(deepest)
        cached.keep(path)
        kept = [0, *(1 + i for i in path)]
        assert torch.equal(cached.hidden((1,)), states[:, kept])
        whole = torch.cat([text[:, :n_prompt], tree[:, kept], text[:, n_prompt:]], dim=1)
        assert_close(cached.forward(text[:, n_prompt:]), uncached(model, whole)[:, -9:])


@pytest.mark.parametrize("case", ["llama", "mistral", "gpt2"])
def test_a_tree_can_grow_by_several_passes(case):
    """A mask over the last tokens of the cache, too, of which some are not read."""
    model, cached, text = tiny(case), on_c(tiny(case)), text_of(tiny(case), 70)
    cached.prefill(text[:, :62])
    tree, parents = text[:, 62:69], [-1, 0, 0, 1, 2, 2, 5]
    reads = torch.eye(7, dtype=torch.bool)
    for node, parent in enumerate(parents[1:], start=1):
        reads[node] |= reads[parent]
    found = [cached.forward(tree[:, a:b], reads[None, a:b, :b]) for a, b in ((0, 3), (3, 6), (6, 7))]
    for node, logits in enumerate(torch.cat(found, dim=1)[0]):
        branch = torch.cat([text[:, :62], tree[:, reads[node]]], dim=1)
        assert_close(logits, uncached(model, branch)[0, -1])


@pytest.mark.parametrize("case", ["llama", "mistral", "gemma2", "gpt2"])
@torch.inference_mode()
def test_several_texts_in_one_pass_are_each_alone(case):
    """Texts of other lengths, their tokens in turns; logits are asked for in another order."""
    model, fast, lengths = tiny(case), packed(tiny(case)), (1, 60, 87)
    ids, texts = [text_of(model, n + 3, seed=n) for n in lengths], [fast.start() for _ in lengths]
    for text, of_text, n in zip(texts, ids, lengths, strict=True):
        text.prefill(of_text[:, :n])
        text.reserve(n + 3)
    tokens = [(t, n + i) for i in range(3) for t, n in enumerate(lengths)]
    token = torch.tensor([[t, row, row, row + 1] for t, row in tokens], dtype=torch.int32)
    chosen = torch.tensor([[ids[t][0, row] for t, row in tokens]])
    found, _ = fast.run(texts, token, chosen, wanted=range(len(tokens))[::-1])
    for (t, row), logits in zip(tokens[::-1], found[0], strict=True):
        assert_close(logits, uncached(model, ids[t][:, : row + 1])[0, -1])


@pytest.mark.parametrize("case", ["llama", "gemma2", "gpt2"])
def test_a_chain_is_as_many_passes_over_the_most_probable_token(case):
    """Over the end of a page, with fewer ids than there are; the text goes on as after these tokens."""
    model, text, n_ids = tiny(case), text_of(tiny(case), 62), 40
    for first, k in ((1, 1), (1, 4), (3, 5)):
        one, other = (made_on(model, text[:, :-first]) for _ in range(2))
        tokens, highest = one.chain(text[:, -first:], one.length, k, n_ids)
        ids, right = text[:, -first:], []
        for _ in range(k):
            right.append(other.forward(ids, other.length)[0, -1, :n_ids].max(-1))
            ids, other.length = right[-1].indices[None, None], other.length + ids.shape[1]
        assert tokens.tolist() == [step.indices.item() for step in right]
        assert torch.equal(highest, torch.stack([step.values for step in right]))
        length, after = one.length + first + k - 1, text[:, 5:9]
        assert torch.equal(one.forward(after, length), other.forward(after, length))


def made_on(model, prompt):
    """The engine's backend after a prompt."""
    backend = packed(model).start()
    backend.prefill(prompt)
    backend.length = prompt.shape[1]
    return backend


@pytest.mark.parametrize("case", ["llama, three blocks", "gemma2", "gpt_neox", "qwen3"])
def test_the_number_of_threads_changes_no_bit(case):
    model, found = tiny(case), []
    text = text_of(model, 100)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 1):
            torch.set_num_threads(threads)
            cached = on_c(model)
            first = cached.prefill(text[:, :70])
            found.append(torch.cat([first, *(cached.forward(text[:, i : i + 5]) for i in range(70, 100, 5))], dim=1))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("case", ["llama with biases", "gemma3_text", "gpt2", "gpt_neox", "olmo2"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_weight_that_is_no_number_shows(case, bad):
    """Where the library's logits are not finite, these are not either: nothing is assumed away in any part."""
    kind, changes = CASES[case]
    model = made(kind, **changes)
    text = text_of(model, 12)
    for name, weight in model.named_parameters():
        place = (
            (int(text[0, 5]), 3)
            if weight.shape[0] == model.config.vocab_size and "head" not in name
            else (0,) * weight.ndim
        )
        before = weight.data[place].clone()
        weight.data[place] = bad
        right = uncached(model, text)
        with torch.inference_mode():
            fast = setup.on_c(model)
            found = on_c(model, fast).prefill(text)
            _, highest = fast.start().chain(text, 0, 1, model.config.vocab_size)
        weight.data[place] = before
        assert highest.isfinite() == right[:, -1].max().isfinite(), name
        assert torch.equal(found.isfinite(), right[:, -1:].isfinite()), name
