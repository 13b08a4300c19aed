"""The picture of a comparison of batches: a view of its record."""

from collections.abc import Callable
from pathlib import Path

from speclab.extensions.batch.batch_record import BatchRow, BatchRun
from speclab.extensions.batch.batch_views import drafts, pairs, plain_row
from speclab.present.pictures import figures
from speclab.present.pictures.figures import STYLES, Panel, Series, draw, plain
from speclab.theory.attribution import Value


def picture(run: BatchRun, folder: Path, name: str) -> Path:
    """Write folder/name.png: speedups by batch, a panel for each draft, and tokens a second."""
    panels = [_speedups(run, draft) for draft in drafts(run)]
    return figures.save(draw([*panels, _rates(run)]), run, folder, name)


def _series(
    rows: list[BatchRow], label: str, look: int, value: Callable[[BatchRow], Value], expected: str
) -> list[Series]:
    predicted = plain((row.n_texts, getattr(row, expected)) for row in rows)
    return [
        Series(label, {row.n_texts: value(row) for row in rows}, look),
        Series("expected", predicted, look, STYLES[0]),
    ]


def _speedups(run: BatchRun, draft: str) -> Panel:
    series = []
    lengths = sorted({row.draft_length for row in run.rows if row.draft == draft})
    for look, k in enumerate(lengths):
        rows = [r for r in run.rows if (r.draft, r.draft_length) == (draft, k)]
        series += _series(
            rows, f"k = {k}", look, lambda r: Value(r.speedup, r.speedup_low, r.speedup_high), "predicted_speedup"
        )
    label = "speedup over plain decoding of as many texts"
    return Panel(series, "texts at a time, B", label, title=draft, log=True)


def _rates(run: BatchRun) -> Panel:
    series = _series(
        [plain_row(run, n) for n in sorted({1, *run.batches})],
        "plain",
        6,
        lambda r: Value(r.tokens_per_second, None, None),
        "predicted_tokens_per_second",
    )
    for look, draft in enumerate(drafts(run)):
        rows = [pair.best for pair in pairs(run, draft)]
        series += _series(
            rows,
            f"{draft}, best k",
            look,
            lambda r: Value(r.tokens_per_second, None, None),
            "predicted_tokens_per_second",
        )
    return Panel(series, "texts at a time, B", "tokens a second, all texts together", title="all texts", log=True)
