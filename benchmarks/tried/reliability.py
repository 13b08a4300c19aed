"""Draws how reliable a head's probabilities are, before and after their calibration, from a record of sure.py.

    python -m benchmarks.tried.reliability results/cpu-2-cores-sure.json         # plots/cpu-2-cores-sure.png

A point has the tokens of one range of the head's own probabilities: at what is predicted of them, how many were right.
On the line a prediction is what comes. The title has the best tree over the best chain of the same head.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys
from pathlib import Path
from typing import Any

from benchmarks.tried import sure
from speclab.cli import parsing
from speclab.present.pictures import figures
from speclab.present.pictures.figures import Panel, Series, plain
from speclab.records import files
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_writable, shown
from speclab.system.paths import ROOT
from speclab.system.terminal import say

MARKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def picture(run: sure.SureRun, folder: Path, name: str) -> Path:
    """Draw both into folder/name.png."""
    ranges = [one for one in run.ranges if one.n_edges]

    def points(predicted: str) -> dict[float, Any]:
        return plain((getattr(one, predicted) / one.n_edges, one.n_right / one.n_edges) for one in ranges)

    series = [
        Series("as the head says it", points("said")),
        Series("calibrated by two numbers", points("calibrated"), 1),
        Series("where both would be equal", plain((mark, mark) for mark in MARKS), 6, "-"),
    ]
    way, gain = sure.best_tree(run)
    panel = Panel(
        series,
        "predicted share of right tokens",
        "share that was right",
        f"tokens of right paths; best tree ÷ best chain {gain:.2f}x ({way} nodes)",
        {mark: f"{mark:g}" for mark in MARKS},
        spread=0,
    )
    return figures.save(figures.draw([panel], 6.4, 5.2), run, folder, name)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Draw it.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("record", type=parsing.some_path, help="results/NAME-sure.json")
    parser.add_argument("--out-dir", type=parsing.some_path, default=ROOT, help="holds plots/ (default: the lab)")
    args = parser.parse_args(argv)
    run = files.read(args.record, sure.SureRun)
    if not any(one.n_edges for one in run.ranges) or not run.raw:
        raise UsageProblem(f"{args.record}: nothing was measured there; give another record")
    check_writable(args.out_dir / "plots" / f"{args.record.stem}.png", "--out-dir")
    say(f"wrote {shown(picture(run, args.out_dir / 'plots', args.record.stem))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
