"""GGUF files of the lab's form: another reader finds the same model, and nothing is written by halves."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from speclab.extensions.servers import written_gguf
from speclab.system.errors import EnvironmentProblem

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed; type: pip install gguf")
TEXT = "def f(x):\n    return {'a': 10}  # naïve"


@pytest.fixture(scope="module")
def pair(pair_folder):
    model = AutoModelForCausalLM.from_pretrained(pair_folder / "target", dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(pair_folder / "target")


def test_a_file_says_what_the_folder_says(pair, pair_folder, tmp_path):
    """Read by the library's own converter: the logits, which feel the order of rotated rows, the words, and the end."""
    model, tokenizer = pair
    assert written_gguf.main([str(pair_folder / "target"), str(tmp_path / "x.gguf")]) == 0
    found = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="x.gguf", dtype=torch.float32)
    ids = torch.arange(2, 30)[None]
    assert torch.equal(found(ids).logits, model(ids).logits)
    words = AutoTokenizer.from_pretrained(tmp_path, gguf_file="x.gguf")
    assert words(TEXT).input_ids == tokenizer(TEXT).input_ids
    entries = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "x.gguf").fields.items()}
    assert len(entries["tokenizer.ggml.tokens"]) == len(entries["tokenizer.ggml.token_type"]) == model.config.vocab_size
    assert entries["tokenizer.ggml.token_type"][tokenizer.eos_token_id] == written_gguf.SPECIAL
    assert entries["tokenizer.ggml.add_bos_token"] is False
    assert entries["tokenizer.ggml.eos_token_id"] == 0


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
        with pytest.raises(OSError, match="no space"):
            written_gguf.write_model(*pair, path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x.gguf", b"old")]
    written_gguf.write_model(*pair, path)
    assert [file.name for file in tmp_path.iterdir()] == ["x.gguf"]
    assert path.read_bytes()[:4] == b"GGUF"
