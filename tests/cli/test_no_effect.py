"""A flag that changes nothing is named as such, and one that changes something is not."""

import argparse
import re

import pytest
import torch

import baseline_autoregressive
import compare
import optimized_speculative
from speclab.cli import compare_flags, no_effect
from tests.rules import make_known

FILTERS = ["--top-k", "3", "--top-p", "0.5"]
SEED = ["--seed", "7"]
SCRIPTS = {"baseline": baseline_autoregressive, "speculative": optimized_speculative, "compare": compare}


def named(err: str) -> set[str]:
    """The flags that the lines on standard error name."""
    lines = [line.partition(" no effect: ")[0] for line in err.splitlines() if " no effect: " in line]
    return {word.strip(",") for line in lines for word in line.split() if word.startswith("--")}


def without_times(out: str) -> list[str]:
    """The lines in which nothing is measured; of the others the words before the first time."""
    return [re.split(r" (?=[\d.]+ (?:m?s|tok/s)\b)", line)[0] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("script", "words", "idle", "flags"),
    [
        ("baseline", "", [*FILTERS, *SEED, "--limit", "2"], {"--top-k", "--top-p", "--seed", "--limit"}),
        ("baseline", "--top-k 0 --top-p 1 --seed 0 --temperature 0.8", [], set()),
        ("baseline", "--temperature 0.8 --top-k 3 --top-p 0.5 --seed 7", [], set()),
        ("speculative", "--draft ngram", [*SEED, "--rule", "renamed"], {"--seed", "--rule"}),
        ("speculative", "--draft dial:0.5:free --seed 7", ["--top-k", "3"], {"--top-k"}),
        ("speculative", "--draft ngram --temperature 0.8 --rule renamed --seed 7", [], set()),
        ("compare", "--draft ngram -k 1 --temperature 0 --no-padded", FILTERS, {"--top-k", "--top-p"}),
    ],
)
def test_flags_without_effect_are_named_and_have_none(
    pair_folder, capsys, monkeypatch, tmp_path, script, words, idle, flags
):
    """The text is the same without them, and so is the exit code."""
    make_known(monkeypatch)
    usual = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager", "--max-new-tokens", "12"]
    usual += ["--prompt", "def f(x): return x + 1", *words.split()]
    if script == "compare":
        usual += ["--out-dir", str(tmp_path), "--brief"]
    assert SCRIPTS[script].main([*usual, *idle]) == 0
    out, err = capsys.readouterr()
    assert named(err) == flags
    if idle and script != "compare":  # whose numbers are times
        assert SCRIPTS[script].main(usual) == 0
        other, err = capsys.readouterr()
        assert named(err) == set()
        assert without_times(out) == without_times(other)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("--top-p 0.9 --seed 1 --temperature 0,0.8", set()),
        ("--top-p 0.9 --seed 1 --temperature 0", {"--top-p", "--seed"}),
        ("--seed 1 --temperature 0 --draft ngram,dial:0.5", set()),
        ("--seed 1 --temperature 0 --draft lab:50m,ngram", {"--seed"}),
        ("--limit 3", set()),
        ("--limit 3 --prompts some.txt", {"--limit"}),
        ("--prompt x", set()),  # though a default of --limit is filled in
    ],
)
def test_of_several_temperatures_one_is_enough(words, flags):
    args = compare_flags.filled(compare_flags.make_parser("").parse_args(words.split()), "default")
    temperatures = [float(word) for word in args.temperature.split(",")]
    assert named("\n".join(no_effect.notes(args, temperatures, torch.device("cpu")))) == flags


@pytest.mark.parametrize(
    ("device", "device_map", "flags"), [("cpu", None, set()), ("cuda", None, {"--threads"}), ("cuda", "auto", set())]
)
def test_threads_are_for_models_on_the_cpu(device, device_map, flags):
    """A plan may leave weights in memory, and their layers then run there."""
    args = compare_flags.filled(compare_flags.make_parser("").parse_args(["--threads", "2"]), "default")
    args = argparse.Namespace(**vars(args) | {"device_map": device_map})
    assert named("\n".join(no_effect.notes(args, [0.0], torch.device(device)))) == flags
