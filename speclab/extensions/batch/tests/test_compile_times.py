"""What `python -m benchmarks.compiling` loads and how often, on a tiny pair whose functions are not really compiled."""

import pytest
from speclab.models.backends import packages
from tests.models.test_compiled import pretend_to_compile

from benchmarks import compiling
from speclab.records import files
from speclab.system import cache
from speclab.system.errors import UsageProblem


def test_everything_is_loaded_three_times_and_compiled_once(pair_folder, tmp_path, monkeypatch, capsys):
    """The user's own cache folder is left alone."""
    own = tmp_path / "own"
    monkeypatch.setenv(cache.FOLDER, str(own))
    monkeypatch.setattr(packages, "compiler", lambda: "g++")
    built, folders = [], []
    pretend_to_compile(monkeypatch, lambda module, inputs: lambda given: module(*given))
    pretend = packages.build

    def build(missing):
        pretend(missing)
        built.extend(missing)
        folders.append(cache.folder())
        for name in missing:
            (cache.folder() / f"{name}.pt2").touch()

    monkeypatch.setattr(packages, "build", build)
    monkeypatch.setattr(compiling.engine_choice, "fastest", lambda passes: [2.0, 1.0] * (len(passes) // 2))
    target, draft = str(pair_folder / "target"), str(pair_folder / "draft")
    words = ["--target", target, "--drafts", draft, "--size", "none", "--rows", "2x1,2x3", "--repeats", "2"]
    engines, load = [], compiling.flags.setup_from
    monkeypatch.setattr(compiling.flags, "setup_from", lambda args: engines.append(args.engine) or load(args))
    code = compiling.main([*words, "--threads", "1", "--out-dir", str(tmp_path)])
    out = capsys.readouterr().out
    assert code == 0, out
    run = files.read(tmp_path / "results" / "local-compiling.json", compiling.CompilingRun)
    parts = {folder: [one for one in run.loaded if one.folder == folder] for folder in ("", "empty", "full")}
    assert [len(parts[folder]) for folder in parts] == [2, 3, 3], "the passes over two texts are always compiled"
    assert sum(one.functions for one in parts["empty"]) == len(built) > 0
    assert not any(one.functions for one in parts[""] + parts["full"])
    assert [(one.n_texts, one.width, len(one.compiled), len(one.kernels)) for one in run.passes] == [
        (2, 1, 2, 2),
        (2, 3, 2, 2),
    ]
    rows = [line.split() for line in out.splitlines()]
    [of_all], [of_one] = ([row for row in rows if row[: len(name)] == name] for name in (["all"], ["one", "text"]))
    assert of_all[1:3] == [str(len(built)), "-"], "the fast engine loads no passes over several texts"
    assert of_one[2] == str(sum(one.functions for one in parts["empty"][:2]))
    assert engines == ["fast", "fast", "compiled", "compiled"], "the first one is not timed"
    assert own not in folders
    assert not own.exists()
    assert str(tmp_path) not in files.to_json(run)


@pytest.mark.parametrize("flag", ["--engine fast", "--prompts x", "--limit 2", "--max-new-tokens 8", "--seed 1"])
def test_flags_without_effect_are_refused(flag, capsys):
    assert compiling.main(flag.split()) == 2
    assert flag.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "2", "1x3", "2x0", "2x1,x", "999x1", "-2x1"])
def test_rows_that_are_none_are_refused(text):
    with pytest.raises(UsageProblem, match="--rows"):
        compiling.shapes(text)


def test_rows_are_read_once_each():
    assert compiling.shapes("4x1,2x5,4x1,") == [(2, 5), (4, 1)]
