"""GGUF files of the lab's form: what the head says, and the order of the rows that are rotated."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from speclab.extensions.servers import written_gguf
from speclab.system.errors import EnvironmentProblem

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed; type: pip install gguf")


@pytest.fixture(scope="module")
def pair(pair_folder):
    model = AutoModelForCausalLM.from_pretrained(pair_folder / "target", dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(pair_folder / "target")


@pytest.fixture(scope="module")
def written(pair, tmp_path_factory):
    return gguf.GGUFReader(written_gguf.write_model(*pair, tmp_path_factory.mktemp("gguf") / "x.gguf"))


def test_the_head_describes_config_and_tokenizer(pair, written):
    config, tokenizer = pair[0].config, pair[1]
    entries = {name: field.contents() for name, field in written.fields.items()}
    assert entries["llama.block_count"] == config.num_hidden_layers
    assert entries["llama.attention.head_count_kv"] == config.num_key_value_heads
    assert entries["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(config.rms_norm_eps)
    assert entries["tokenizer.ggml.tokens"][: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert len(entries["tokenizer.ggml.tokens"]) == len(entries["tokenizer.ggml.token_type"]) == config.vocab_size
    assert entries["tokenizer.ggml.token_type"][tokenizer.eos_token_id] == written_gguf.SPECIAL
    assert entries["tokenizer.ggml.add_bos_token"] is False
    assert entries["tokenizer.ggml.eos_token_id"] == 0


def test_rotating_neighbours_equals_rotating_halves():
    """Scores of queries and keys are the same with either order, each with its own rotation."""
    torch.manual_seed(0)
    n_heads, size, width, n = 2, 8, 5, 7
    query, key, x = torch.randn(n_heads * size, width), torch.randn(n_heads * size, width), torch.randn(n, width)
    angles = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)  # (n, size / 2)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]

    def halves(weight):
        a, b = (x @ weight.T).view(n, n_heads, 2, -1).unbind(2)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def neighbours(weight):
        a, b = (x @ written_gguf.interleaved(weight, n_heads).T).view(n, n_heads, -1, 2).unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    right, made = (torch.einsum("ihd,jhd->hij", f(query), f(key)) for f in (halves, neighbours))
    assert torch.allclose(right, made, atol=1e-4)


def test_a_file_has_the_numbers_of_the_model(pair, written):
    """The rows of queries and keys stand in another order, and so do all rows of one head in the same one."""
    found, weights = {tensor.name: tensor.data for tensor in written.tensors}, dict(pair[0].named_parameters())
    assert len(found) == len(weights)
    for name, other in (("blk.0.ffn_down", "layers.0.mlp.down_proj"), ("token_embd", "embed_tokens")):
        assert np.array_equal(found[f"{name}.weight"], weights[f"model.{other}.weight"].detach().numpy())
    query, width = weights["model.layers.0.self_attn.q_proj.weight"].detach().numpy(), pair[0].config.head_dim
    rows = [row % width // 2 + row % 2 * (width // 2) + row // width * width for row in range(len(query))]
    assert np.array_equal(found["blk.0.attn_q.weight"], query[rows])


def test_what_cannot_be_written_is_refused(pair, tmp_path):
    other = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=1))
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0})))
    for model, tokenizer, what in ((other, pair[1], "gpt2"), (pair[0], words, "tokenizer")):
        with pytest.raises(EnvironmentProblem, match=rf"{what}.*convert_hf_to_gguf"):
            written_gguf.write_model(model, tokenizer, tmp_path / "x.gguf")


def test_a_file_is_written_whole_or_not_at_all(pair, tmp_path, monkeypatch):
    """A failure in the middle leaves the old file, and nothing beside it."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"old")

    def fail(writer):
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("gguf.GGUFWriter.write_tensors_to_file", fail)
        with pytest.raises(EnvironmentProblem, match="no space"):
            written_gguf.write_model(*pair, path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x.gguf", b"old")]
    written_gguf.write_model(*pair, path)
    assert [file.name for file in tmp_path.iterdir()] == ["x.gguf"]
    assert path.read_bytes()[:4] == b"GGUF"
