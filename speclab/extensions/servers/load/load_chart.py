"""The chart that the field uses: tokens a second of all users against those of one user, a point for each load."""

import io
from collections.abc import Sequence
from pathlib import Path

from speclab.extensions.servers.load.levels import Level, Side
from speclab.present.pictures import library
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import write_whole

BLUE, ORANGE, DPI = "#0072B2", "#D55E00", 130  # Okabe and Ito's, as in the lab's other pictures


def check(path: Path) -> None:
    """Raise EnvironmentProblem where no picture can be drawn, before anything is measured."""
    if not library.is_here():
        raise EnvironmentProblem(f"--chart {path.name}: matplotlib is not installed; type: pip install matplotlib")


def draw(levels: Sequence[Level], model: str, path: Path) -> Path:
    """Draw both curves, each pass as a small marker and their mean as a large one. path: its ending is the format."""
    figure, axis = library.plt.subplots(figsize=(6.4, 4.8), layout="constrained")
    _curve(axis, levels, [level.plain for level in levels], ("without speculation", BLUE, "o", "--"))
    _curve(axis, levels, [level.speculative for level in levels], ("with speculation", ORANGE, "s", "-"))
    axis.set_xlabel("tokens a second of one user, from its first token on")
    axis.set_ylabel("tokens a second of all users")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.set_title(f"{model}: the number at a point is the users at a time", fontsize=9)
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    data = io.BytesIO()
    figure.savefig(data, format=path.suffix.lstrip(".") or "png", dpi=DPI)
    library.plt.close(figure)
    return write_whole(path, data.getvalue())


def _curve(axis, levels: Sequence[Level], sides: Sequence[Sequence[Side]], look: tuple[str, str, str, str]) -> None:
    label, colour, marker, style = look
    shown = [(level.n_users, each) for level, each in zip(levels, sides, strict=True) if each]
    if not shown:
        return
    points = [
        (
            sum(side.user_tokens_per_second for side in each) / len(each),
            sum(side.tokens_per_second for side in each) / len(each),
        )
        for _, each in shown
    ]
    axis.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=style, label=label)
    for each in (side for _, sides_ in shown for side in sides_):
        axis.plot(each.user_tokens_per_second, each.tokens_per_second, marker, color=colour, markersize=3, alpha=0.5)
    for (n_users, _), point in zip(shown, points, strict=True):
        axis.annotate(str(n_users), point, (5, 5), textcoords="offset points", fontsize=9, color=colour)
