"""GGUF files: read back by a reader of a few lines, and the order of the rows that are rotated."""

import struct

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from speclab.system.errors import UsageProblem
from tools import gguf


class Reader:
    """The head and the tensors of a GGUF file, as its description has them."""

    def __init__(self, data: bytes):
        self.data, self.place = data, 4
        assert data[:4] == b"GGUF"
        version, n_tensors, n_entries = self.take("<IQQ")
        assert version == 3
        self.entries = {self.string(): self.value(self.take("<I")[0]) for _ in range(n_entries)}
        infos = []
        for _ in range(n_tensors):
            name = self.string()
            (n,) = self.take("<I")
            shape, (kind, offset) = self.take(f"<{n}Q"), self.take("<IQ")
            assert kind == 0
            assert offset % 32 == 0
            infos.append((name, shape[::-1], offset))
        start = self.place + -self.place % 32
        self.tensors = {
            name: np.frombuffer(data, "<f4", int(np.prod(shape)), start + offset).reshape(shape)
            for name, shape, offset in infos
        }

    def take(self, form: str) -> tuple:
        """The next numbers."""
        values = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return values

    def string(self) -> str:
        """The next text."""
        (n,) = self.take("<Q")
        self.place += n
        return self.data[self.place - n : self.place].decode()

    def value(self, kind: int):
        """The next value of a type."""
        if kind == 8:
            return self.string()
        if kind == 9:
            kind, n = self.take("<IQ")
            return [self.value(kind) for _ in range(n)]
        return self.take({4: "<I", 5: "<i", 6: "<f", 7: "<?"}[kind])[0]


@pytest.fixture(scope="module")
def pair(pair_folder):
    model = AutoModelForCausalLM.from_pretrained(pair_folder / "target", dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(pair_folder / "target")


def test_a_file_holds_config_tokenizer_and_all_weights(pair):
    model, tokenizer = pair
    made = Reader(gguf.gguf(model, tokenizer))
    config, entries = model.config, made.entries
    assert entries["general.architecture"] == "llama"
    assert entries["llama.block_count"] == config.num_hidden_layers
    assert entries["llama.attention.head_count_kv"] == config.num_key_value_heads
    assert entries["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(config.rms_norm_eps)
    assert entries["tokenizer.ggml.tokens"][: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert len(entries["tokenizer.ggml.tokens"]) == len(entries["tokenizer.ggml.token_type"]) == config.vocab_size
    assert entries["tokenizer.ggml.token_type"][tokenizer.eos_token_id] == gguf.CONTROL
    assert entries["tokenizer.ggml.add_bos_token"] is False
    assert entries["tokenizer.ggml.eos_token_id"] == 0
    weights = dict(model.named_parameters())
    assert len(made.tensors) == len(weights)
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
    ):
        assert np.array_equal(made.tensors[theirs], weights[ours].detach().numpy())
    query = weights["model.layers.0.self_attn.q_proj.weight"].detach()
    assert np.array_equal(made.tensors["blk.0.attn_q.weight"], gguf.interleaved(query, config.num_attention_heads))


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
        a, b = (x @ gguf.interleaved(weight, n_heads).T).view(n, n_heads, -1, 2).unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    right, made = (torch.einsum("ihd,jhd->hij", f(query), f(key)) for f in (halves, neighbours))
    assert torch.allclose(right, made, atol=1e-4)


def test_what_cannot_be_written_is_refused(pair):
    model, tokenizer = pair
    other = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=1))
    with pytest.raises(UsageProblem, match=r"gpt2 .* cannot be written as GGUF here; .*convert_hf_to_gguf"):
        gguf.gguf(other, tokenizer)
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0})))
    with pytest.raises(UsageProblem, match="does not split texts as GPT-2's"):
        gguf.gguf(model, words)


def test_the_command_writes_both_files(pair_folder, tmp_path, capsys):
    words = [
        "--target",
        str(pair_folder / "target"),
        "--draft",
        str(pair_folder / "draft"),
        "--out",
        str(tmp_path / "x"),
    ]
    assert gguf.main(words) == 0
    assert "target.gguf" in capsys.readouterr().err
    for role in ("target", "draft"):
        assert len(Reader((tmp_path / "x" / f"{role}.gguf").read_bytes()).tensors) > 10
