"""Compiled passes: one real compilation, what the cache folder refuses, and when nothing is compiled.

That the parts of a pass give its logits, masks, hidden layers and halves included, is shown without a compiler by
tests/contract.py ("in parts") and tests/models/test_exported.py.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from speclab.models import engine_choice
from speclab.models.backends import compile_functions, compiled, packages
from speclab.models.backends.exported import ExportedModel, Replayed
from speclab.models.cached import CachedModel
from speclab.models.checking import checks
from speclab.models.family import NoFastBackend
from speclab.system import cache as user_cache
from speclab.system.paths import ROOT
from tests.decoding import plain_text
from tests.tiny_models import FAMILIES, in_parts, tiny, uncompiled

LAYERS = {"llama": 1, "gpt2": 1, "qwen2": 1, "gemma": 1, "mistral_window": 1, "gemma3_window": 2}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(user_cache.FOLDER, str(tmp_path))
    return tmp_path


def exported(family: str = "llama") -> CachedModel:
    model = tiny(family, dtype=torch.float32)
    return CachedModel(model, fast=ExportedModel(model))


def pretend_to_compile(monkeypatch, compile_one):
    """Functions are made by compile_one(module, example inputs), and kept here instead of in the folder."""
    kept = {}
    made = lambda missing: kept.update({name: compile_one(*source[:2]) for name, source in missing.items()})  # noqa: E731
    monkeypatch.setattr(packages, "build", made)
    monkeypatch.setattr(packages, "load", kept.get)


@pytest.mark.skipif(packages.compiler() is None, reason="there is no C++ compiler")
def test_a_compiled_pass_is_the_pass_and_is_compiled_once(cache, monkeypatch):
    """Logits of passes of one to three tokens over buffers of two sizes, with rejected tokens between."""
    model = exported()
    missing = packages.Missing()
    assert model.fast.cut.program(3, 1, missing) is None
    packages.build(missing)
    model.fast.programs[3] = model.fast.cut.program(3, 1)
    text = checks.random_text(model.model, 40)
    right = checks.uncached_logits(model.model, text)[:, -30:]
    found = checks.cached_logits(model, text, (3, 1, 2) * 5, (0, 2, 1) * 5)
    assert checks.gap(model.model, found, right) < 1e-5 * right.abs().max()
    longer = torch.cat([text, text], dim=1)  # ends in the second block of rows
    right = checks.uncached_logits(model.model, longer)[:, -30:]
    assert checks.gap(model.model, checks.cached_logits(model, longer, (3,) * 10), right) < 1e-5 * right.abs().max()

    again = exported()
    assert again.fast.cut.program(3, 1).width == 3, "whatever comes now is in the folder"
    assert again.fast.cut.program(3, 2) is None, "with other threads it is another function"
    for package in cache.glob("*.pt2"):
        package.chmod(0o666)
    packages._loaded.cache_clear()
    assert again.fast.cut.program(3, 1) is None, "nothing is loaded that others can write"
    for package in cache.glob("*.pt2"):
        package.chmod(0o600)
    assert again.fast.cut.program(3, 1).width == 3
    for package in cache.glob("*.pt2"):
        with zipfile.ZipFile(package) as parts:
            code = max(parts.infolist(), key=lambda part: part.file_size)
        whole = package.read_bytes()
        middle = code.header_offset + code.file_size // 2
        package.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    packages._loaded.cache_clear()
    assert again.fast.cut.program(3, 1) is None, "one other bit makes it no package"
    kinds = {name.partition("-")[0] for name in os.listdir(cache) if not name.endswith(".pt2")}
    assert kinds <= {"shared"}, "nothing half is left"


def test_a_shared_folder_ends_with_its_program(cache):
    """Also with one that was killed: the next program deletes it. That of a program that runs stays."""
    words = "from speclab.models.backends import packages; import pathlib, os; packages._shared(pathlib.Path({!r})); {}"
    kill = words.format(str(cache), "os.kill(os.getpid(), 9)")
    subprocess.run([sys.executable, "-c", kill], cwd=ROOT, check=False, timeout=120)
    [killed] = cache.glob("shared-*")
    packages._shared.cache_clear()
    own = Path(packages._shared(cache).name)
    assert not killed.exists()
    subprocess.run([sys.executable, "-c", words.format(str(cache), "")], cwd=ROOT, check=True, timeout=120)
    assert list(cache.glob("shared-*")) == [own]
    packages._held.pop().release()
    packages._shared(cache).cleanup()
    packages._shared.cache_clear()
    assert not list(cache.glob("shared-*"))


def test_without_the_labs_headers_the_users_stay(monkeypatch):
    headers, other = compile_functions.HEADERS, "/opt/headers"
    for folders, left in ((f"{headers}{os.pathsep}{other}", other), (headers, None), (other, other)):
        monkeypatch.setenv(compile_functions.INCLUDED, folders)
        assert compile_functions.without_own_headers() == (headers in folders)
        assert os.environ.get(compile_functions.INCLUDED) == left


def test_auto_builds_nothing_where_a_function_is_missing(cache, monkeypatch):
    """The folder has the note that all were compiled, and one of them is gone."""
    monkeypatch.setattr(packages, "compiler", lambda: "g++")
    monkeypatch.setattr(packages, "build", pytest.fail)
    model = tiny("llama", dtype=torch.float32)
    packages.note_done(engine_choice.choose(model, "fast")[0].name_when_compiled((1, 3)))
    fast, words = engine_choice.choose(model, "auto", (1, 3))
    assert not fast or not fast.programs
    assert engine_choice.to_compile() in words


@pytest.mark.parametrize("family", LAYERS)
def test_layers_that_are_alike_share_one_function(family):
    model = exported(family)
    assert len(model.fast.cut.parts) == 2 + model.model.config.num_hidden_layers
    missing = packages.Missing()
    assert model.fast.cut.program(3, 1, missing) is None
    assert len(missing) == LAYERS[family] + 1
    assert set(FAMILIES) > set(LAYERS)


@pytest.mark.parametrize("family", LAYERS)
def test_a_function_is_written_down_for_another_process_and_read_back(family):
    """It computes the same there, bit for bit, from inputs of the same sizes and strides."""
    missing = packages.Missing()
    exported(family).fast.cut.program(3, 1, missing)
    for module, inputs, sizes, threads in missing.values():
        about = json.loads(json.dumps(compile_functions.written_down(module, inputs, sizes, threads)))
        assert (about["sizes"], about["threads"]) == (sizes, 1)
        function, found = compile_functions.read_back(about)
        assert [(t.shape, t.stride(), t.dtype) for t in found] == [(t.shape, t.stride(), t.dtype) for t in inputs]
        results = []
        for one in (module, function):
            generator = torch.Generator().manual_seed(1)
            given = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in found]
            for t in given:
                t.normal_(generator=generator) if t.is_floating_point() else t.zero_()
            results.append([*one(*given), *given])  # buffers are written, too
        for right, other in zip(*results, strict=True):
            assert torch.equal(right, other)


def test_a_pass_that_is_wrong_or_slow_is_not_used(cache, monkeypatch):
    """Compiled passes are held against the model's own logits, and against the clock."""
    right = exported()
    monkeypatch.setattr(packages, "compiler", lambda: "g++")
    pretend_to_compile(monkeypatch, lambda module, inputs: lambda given: module(*given))
    times = {"fast": [2.0, 1.0] * 2, "slow": [1.0, 2.0] * 2}
    for speed, used in (("slow", []), ("fast", [1, 3])):
        monkeypatch.setattr(engine_choice, "fastest", lambda passes, speed=speed: times[speed][: len(passes)])
        words = engine_choice.compile_passes(right, {1, 3, compiled.WIDEST + 1})
        assert [width for width, program in right.fast.programs.items() if program] == used
        assert ("3" in words) == bool(used)
    for bad in (1, 3):
        wrong = exported()

        def compile_one(module, inputs, bad=bad):
            width = next(t.shape[1] for t in inputs if t.ndim == 3 and t.shape[0] == 1)
            return lambda given: [output + 0.1 * (width == bad) for output in module(*given)]

        pretend_to_compile(monkeypatch, compile_one)
        assert "off by" in engine_choice.compile_passes(wrong, {1, 3}), f"a wrong pass over {bad} tokens is found"
        assert not wrong.fast.programs
    assert not list(cache.glob("*.pt2")), "nothing of this reached the folder"


def test_branches_and_halves_run_on_compiled_passes(monkeypatch):
    """Tokens that do not all follow each other, and the first layers without the others, give the model's logits."""
    model, missing = exported(), packages.Missing()
    pretend_to_compile(monkeypatch, lambda module, inputs: lambda given: module(*given))
    assert model.fast.cut.program(5, 1, missing) is None
    packages.build(missing)
    model.fast.programs[5] = model.fast.cut.program(5, 1)
    alone = CachedModel(model.model)
    text = checks.random_text(model.model, 30)
    branches = torch.tensor([[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]], dtype=torch.bool)
    tokens = text[:, :4]
    ran = []
    right_call = compiled.Program._run
    monkeypatch.setattr(compiled.Program, "_run", staticmethod(lambda *given: ran.append(1) or right_call(*given)))
    logits = []
    for cached in (model, alone):
        cached.prefill(text)
        logits.append([cached.forward(tokens, branches)])
        cached.keep([1, 2])  # the second branch
        cached.crop(cached.length)
        logits[-1].append(cached.forward(tokens[:, :2]))
    assert len(ran) == 2, "both passes over the compiled model ran its functions"
    for found, right in zip(*logits, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    halves = []
    for cached in (model, alone):
        cached.prefill(text)
        states = cached.run(0, lambda backend, length: backend.forward_first(tokens, length, 1))
        halves.append(cached.run(4, lambda backend, length, states=states: backend.forward_rest(states, length, 1)))
    assert len(ran) > 3
    torch.testing.assert_close(*halves, rtol=1e-4, atol=1e-5)


def test_auto_takes_compiled_passes_once_they_are_in_the_folder(cache, monkeypatch):
    """It compiles no target; a model of other sizes, other widths and threads have functions of their own."""
    wish = "auto"
    monkeypatch.setattr(packages, "compiler", lambda: "g++")
    monkeypatch.setattr(engine_choice, "fastest", lambda passes: [2.0, 1.0] * (len(passes) // 2))
    pretend_to_compile(monkeypatch, lambda module, inputs: lambda given: module(*given))
    model, other = tiny("llama", dtype=torch.float32), tiny("qwen2", dtype=torch.float32)
    build, never = packages.build, pytest.fail
    for asked, widths, expected in ((wish, (1, 3), []), ("compiled", (1, 3), [1, 3]), (wish, (1, 3), [1, 3])):
        monkeypatch.setattr(packages, "build", build if asked == "compiled" else never)
        fast, words = engine_choice.choose(model, asked, widths)
        assert [width for width, program in fast.programs.items() if program] == expected, words
        assert engine_choice.is_compiled(fast) == bool(expected)
        assert (engine_choice.to_compile() in words) == (not expected)
    monkeypatch.setattr(packages, "build", never)
    assert not engine_choice.choose(model, wish, (1, 5))[0].programs
    assert not engine_choice.choose(other, wish, (1, 3))[0].programs
    torch.set_num_threads(threads := torch.get_num_threads() + 1)
    try:
        assert not engine_choice.choose(model, wish, (1, 3))[0].programs
    finally:
        torch.set_num_threads(threads - 1)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_a_product_in_blocks_is_the_product(size, n, m, has_bias):
    """A matrix whose rows do not fill its last block is padded, and the padding gives nothing."""
    states, weight = torch.randn(1, m, n, dtype=torch.float64), torch.randn(size, n, dtype=torch.float64)
    bias = torch.randn(size, dtype=torch.float64) if has_bias else None
    found = compiled.product(states, compiled.in_blocks(weight), size, bias)
    torch.testing.assert_close(found, torch.nn.functional.linear(states, weight, bias))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5))
def test_weights_that_bfloat16_holds_are_stored_so_and_give_the_same_sums(size, n, m):
    """The sums are equal to the last bit; one number that would be rounded keeps the matrix as it is."""
    states, weight = torch.randn(1, m, n), torch.randn(size, n).bfloat16().float()
    short = compiled.in_blocks(weight)
    assert short.dtype == torch.bfloat16
    assert torch.equal(compiled.product(states, short, size), compiled.product(states, short.float(), size))
    weight[size - 1, n - 1] = 1 + 2**-9
    assert compiled.in_blocks(weight).dtype == torch.float32
    weight[size - 1, n - 1] = torch.nan
    assert compiled.in_blocks(weight).dtype == torch.float32


def test_names_of_functions_are_the_same_in_every_process():
    """An address in a name would make every run compile again."""
    parts = exported().fast.cut.parts
    assert any("product" in part.form for part in parts)
    assert not any("0x" in part.form for part in parts)


def test_a_pass_has_another_name_where_its_weights_are_stored_otherwise():
    """The functions of one are not those of the other, so a note that one is compiled says nothing of the other."""
    engine = exported()
    before = engine.fast.name_when_compiled((1, 3))
    with torch.no_grad():
        for weight in engine.model.parameters():
            weight.copy_(weight.bfloat16())
    assert engine.fast.name_when_compiled((1, 3)) != before


def test_a_folder_that_others_can_write_to_is_refused_first(cache, monkeypatch):
    cache.chmod(0o777)
    monkeypatch.setattr(packages, "build", None)
    monkeypatch.setattr(packages, "compiler", lambda: "g++")
    assert "chmod 700" in engine_choice.compile_passes(exported(), {1})


def test_a_pass_that_was_no_faster_is_not_padded_to_a_wider_one():
    model = tiny("llama", dtype=torch.float32)
    parts = in_parts(model)
    parts.programs = {**parts.programs, 1: None}
    assert isinstance(parts.pass_over(1), Replayed)
    assert parts.pass_over(2) is parts.programs[3]
    assert isinstance(parts.pass_over(10), Replayed)


def test_without_a_compiler_the_run_goes_on(cache, monkeypatch):
    model = exported()
    monkeypatch.setattr(packages, "build", None)
    monkeypatch.setattr(packages, "compiler", lambda: None)
    assert "g++" in engine_choice.compile_passes(model, {1})
    assert not model.fast.programs


def test_no_pass_of_a_text_is_compiled_or_replayed_on_other_kernels(monkeypatch):
    """Widths between the compiled ones are padded; only a text's last passes may have no room for that."""
    model = tiny("llama", dtype=torch.float32)
    parts = in_parts(model)
    monkeypatch.setattr(ExportedModel, "forward", None)
    for name in ("load", "build"):
        monkeypatch.setattr(packages, name, None)
    assert plain_text(CachedModel(model, fast=parts), torch.tensor([[3, 4, 5]]), 70)
    cached = CachedModel(model, fast=parts)
    cached.prefill(torch.tensor([[3, 4, 5]]))
    for width in range(1, 10):
        cached.forward(torch.ones(1, width, dtype=torch.long))


def test_a_pass_without_layers_is_not_cut():
    graph = ExportedModel(tiny("llama"), layers=[])._graphs[False]
    with pytest.raises(NoFastBackend):
        compiled.cut(graph)


def test_matrices_whose_names_differ_by_a_dot_alone_stay_apart():
    """`a.b_c` and `a_b.c` are two matrices, and so are their copies in blocks."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ModuleDict({"b_c": nn.Linear(8, 8, bias=False)})
            self.a_b = nn.ModuleDict({"c": nn.Linear(8, 8, bias=False)})

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return self.a_b["c"](self.a["b_c"](states))

    two, states = Two().eval(), torch.randn(2 * compile_functions.BLOCK, 8)
    with torch.inference_mode():
        run = compiled.whole_function(two, (states,), [[0]], torch.get_num_threads(), uncompiled)
        assert torch.allclose(run(states)[0], two(states), atol=1e-5)
