"""The benchmark that compares block verification with the token rule. Nothing here looks at a clock."""

from benchmarks import rules
from speclab.records import files


def test_rules_end_to_end(call, pair_folder, tmp_path):
    words = ["--draft", str(pair_folder / "draft"), "-k", "3", "--temperature", "1", "--repeats", "2"]
    code, out, _ = call(rules, *words, "--max-new-tokens", "12")
    assert code == 0
    run = files.read(tmp_path / "results" / "local-rules.json", rules.RulesRun)
    assert [(row.prompt_index, row.rule) for row in run.raw] == [(i, rule) for i in range(3) for rule in rules.RULES]
    assert {row.n_tokens for row in run.raw} == {2 * 11}, "prefill's token was counted, or a budget was missed"
    assert all(row.n_tokens == row.n_accepted + row.n_rounds for row in run.raw)
    n_rounds = [sum(row.n_rounds for row in run.raw if row.rule == rule) for rule in rules.RULES]
    assert f"{n_rounds[0] / n_rounds[1]:.2f}x" in out
    assert call(rules, *words, "--temperature", "0")[0] == 2
