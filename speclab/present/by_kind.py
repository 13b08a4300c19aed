"""Tables of a comparison by kind of text, for answers in a chat: the whole budget, and up to the end token."""

from speclab.present.tables import Block, Cell, Heading, Lines, Table, cells, interval, number
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.theory.formulas import FEWEST

WHOLE = "By kind of text, all new tokens (greedy; each draft at the k that is fastest over all prompts)"
ENDED = "By kind of text, up to the end token of each answer (kinds in which an answer ends early)"
NONE_ENDED = "no answer ends before its last token"
TOO_FEW = f"no interval (-): a kind with fewer than {FEWEST} prompts has none"


def blocks(run: ComparisonRun) -> list[Block]:
    """Return the tables: the second one has the kinds in which an answer ends before its last token. None where no
    answer to a chat was decoded greedily."""
    if not run.ended:
        return []
    lengths = best_lengths(run.rows)
    rows = shown(run.rows, lengths)
    whole = {(row.method, row.prompt_kind): row.n_tokens for row in rows}
    early = [row for row in shown(run.ended, lengths) if row.n_tokens != whole.get((row.method, row.prompt_kind))]
    notes = Lines([TOO_FEW] * any(row.n_prompts < FEWEST for row in rows) + [NONE_ENDED] * (not early))
    found: list[Block] = [Heading(WHOLE, 3), Table(rows, _columns(), n_words=2), notes]
    if early:
        columns = _columns() | {"tokens": _tokens(run.settings["repeats"])}
        found += [Heading(ENDED, 3), Table(early, columns, n_words=2)]
    return found


def best_lengths(rows: list[Row]) -> dict[str, int]:
    """Return for each draft the length that is fastest over all prompts, greedily."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.draft and row.temperature == 0 and row.prompt_kind == "all":
            best[row.method] = max(best.get(row.method, row), row, key=lambda one: one.speedup)
    return {method: row.draft_length for method, row in best.items()}


def shown(rows: list[Row], lengths: dict[str, int]) -> list[Row]:
    """Return the greedy rows of these drafts at these lengths, kind by kind, all prompts last."""
    chosen = [
        row
        for row in rows
        if row.temperature == 0 and row.prompt_kind != "not looping" and lengths.get(row.method) == row.draft_length
        if row.draft
    ]
    return sorted(chosen, key=lambda row: row.prompt_kind == "all")


def _columns() -> dict[str, Cell]:
    return {
        "kind": lambda row: row.prompt_kind,
        **cells("draft", "k"),
        "prompts": lambda row: str(row.n_prompts),
        **cells("α", "tok/rnd", "speedup"),
        "95 %": lambda row: interval(row.speedup_low, row.speedup_high),
    }


def _tokens(repeats: int) -> Cell:
    """Return the column of the mean length of an answer: its decoded tokens and the first one."""
    return lambda row: number(row.n_tokens / (row.n_prompts * repeats) + 1, 0)
