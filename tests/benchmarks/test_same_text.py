"""Texts of every way of decoding are the baseline's, and a difference that is no tie is called a bug."""

from benchmarks import same_text
from speclab.present.tables import show
from speclab.records import files

BUDGET = 12


def words(pair_folder, tmp_path, *more: str) -> list[str]:
    models = ["--target", str(pair_folder / "target"), "--prompt", "def f(x):", "--max-new-tokens", str(BUDGET)]
    return [*models, "--no-chat", "-k", "2", "--out-dir", str(tmp_path), *more]


def test_a_wrong_loop_is_noticed_and_the_record_says_so(pair_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(same_text, "DTYPES", ("float32",))
    honest, ways = same_text.Bench.decoding, []

    def wrong(bench, arm, *rest):
        made = honest(bench, arm, *rest)
        if arm.speculative and ways:
            rounds = enumerate(made._rounds)
            made._rounds = (r._replace(tokens=[(t + 1) % 9 for t in r.tokens]) if i == 2 else r for i, r in rounds)
        return made

    monkeypatch.setattr(same_text.Bench, "decoding", wrong)
    for expected in ([True, True], [True, False]):
        assert same_text.main(words(pair_folder, tmp_path)) == int(not all(expected))
        run = files.read(tmp_path / "results" / "local-same-text.json", same_text.SameTextRun)
        assert [check["passed"] for check in run.correctness] == expected
        assert (show(same_text.page(run)).count("BUG") > 2) == bool(ways)
        ways.append("wrong")
