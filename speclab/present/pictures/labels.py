"""Where the printed values of a picture stand: beside their markers, off every line, marker, tick and other label."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from speclab.present.pictures.library import Bbox

CLEAR = 6.0  # points between a marker's centre and its label
SAMPLE = 3.0  # pixels between two samples of a line
OUTSIDE, CROSSED, MARKED = 60.0, 3.0, 8.0  # what a label costs outside the axes, on a line's sample, on another mark


class Label(NamedTuple):
    """A value to be printed beside its marker."""

    text: str
    x: float  # of the marker, in data
    y: float
    low: float  # ends of its interval, in data; its own value where it has none
    high: float
    right: float = 0.0  # points that the marker stands beside its place
    color: str = "black"


class _Place(NamedTuple):
    """Where a label may stand: the point of its text box that is held, and how much worse than the best it is."""

    x: float  # points from the marker's centre
    y: float
    ha: str
    va: str
    cost: float


def place(axis: Any, labels: list[Label]) -> None:
    """Print the labels on `axis`, each where it covers least. The axis is whole: its limits and lines do not change.

    Labels are placed one after the other, twice, so that the first ones see where the later ones stand.
    """
    if not labels:
        return
    figure = axis.figure
    figure.draw_without_rendering()  # the layout decides where data lie
    scale = figure.dpi / 72
    lines, frame = _samples(axis), axis.get_window_extent()
    centres = axis.transData.transform([(one.x, one.y) for one in labels])  # (n, 2) pixels
    centres[:, 0] += [one.right * scale for one in labels]
    taken: list[Bbox | None] = [None] * len(labels)
    others = [text.get_window_extent() for text in axis.texts]
    chosen = [_places(axis, one, scale)[0] for one in labels]
    notes = [_print(axis, one, where) for one, where in zip(labels, chosen, strict=True)]
    sizes = [note.get_window_extent() for note in notes]
    for _ in range(2):
        for i, one in enumerate(labels):
            boxes = [*others, *(box for j, box in enumerate(taken) if box is not None and j != i)]
            costs = []
            for where in _places(axis, one, scale):
                box = _box(centres[i], sizes[i], where, scale)
                costs.append((where.cost + _cost(box, frame, lines, centres, i, boxes, scale), where, box))
            _, chosen[i], taken[i] = min(costs, key=lambda entry: entry[0])
    for one, where, note in zip(labels, chosen, notes, strict=True):
        note.set(position=(one.right + where.x, where.y), ha=where.ha, va=where.va)


def _print(axis: Any, one: Label, where: _Place) -> Any:
    box = {"boxstyle": "round,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.8}
    look: dict[str, Any] = {"fontsize": 7.5, "color": one.color, "bbox": box, "zorder": 5}
    where_to = (one.right + where.x, where.y)
    look |= {"ha": where.ha, "va": where.va, "textcoords": "offset points"}
    return axis.annotate(one.text, (one.x, one.y), where_to, **look)


def _places(axis: Any, one: Label, scale: float) -> list[_Place]:
    """Right and left of the marker, then above and below its interval, then between the two."""
    low, middle, high = (axis.transData.transform((one.x, y))[1] / scale for y in (one.low, one.y, one.high))
    up, down = max(high - middle, 3.0) + 3, min(low - middle, -3.0) - 3
    beside = [_Place(CLEAR, 0, "left", "center", 0.0), _Place(-CLEAR, 0, "right", "center", 0.5)]
    ends = [_Place(0, up, "center", "bottom", 2.5), _Place(0, down, "center", "top", 2.5)]
    corners = [
        _Place(side * CLEAR * 0.7, rise, ha, "bottom" if rise > 0 else "top", 1.0 + abs(rise) / 20)
        for rise in (4, -4, 9, -9, 15, -15)
        for side, ha in ((1, "left"), (-1, "right"))
    ]
    return [*beside, *ends, *corners] if (one.low, one.high) != (one.y, one.y) else [*ends, *beside, *corners]


def _box(centre: np.ndarray, size: Bbox, where: _Place, scale: float) -> Bbox:
    """The text's box in pixels."""
    x, y = centre[0] + where.x * scale, centre[1] + where.y * scale
    left = {"left": 0.0, "center": 0.5, "right": 1.0}[where.ha] * size.width
    bottom = {"bottom": 0.0, "center": 0.5, "top": 1.0}[where.va] * size.height
    return Bbox.from_bounds(x - left, y - bottom, size.width, size.height)


def _cost(
    box: Bbox, frame: Bbox, lines: np.ndarray, marks: np.ndarray, own: int, boxes: list[Bbox], scale: float
) -> float:
    """How much a box covers: samples of lines, markers, other labels, and what lies outside the axes."""
    cost = CROSSED * _inside(lines, box.padded(1.5 * scale))
    cost += MARKED * _inside(np.delete(marks, own, axis=0), box.padded(3 * scale))
    cost += sum(OUTSIDE for other in boxes if box.overlaps(other))
    spills = box.x0 < frame.x0 + 2 or box.x1 > frame.x1 - 2 or box.y0 < frame.y0 + 2 or box.y1 > frame.y1
    return cost + OUTSIDE * spills


def _inside(points: np.ndarray, box: Bbox) -> int:
    """How many points (n, 2) lie in the box."""
    if not len(points):
        return 0
    inside = (points >= (box.x0, box.y0)) & (points <= (box.x1, box.y1))
    return int(inside.all(axis=1).sum())


def _samples(axis: Any) -> np.ndarray:
    """Points along every drawn line and interval of the axis, in pixels: (n, 2)."""
    paths = [line.get_transform().transform(line.get_xydata()) for line in axis.lines if line.get_linestyle() != "None"]
    for collection in axis.collections:
        if hasattr(collection, "get_segments"):
            segments = [collection.get_transform().transform(segment) for segment in collection.get_segments()]
            paths += segments * 3  # a hidden piece of an interval says something wrong; a curve can be followed
    samples = [np.empty((0, 2))]
    for path in paths:
        for start, end in pairwise(path):
            n = int(np.hypot(*(end - start)) / SAMPLE) + 2
            samples.append(start + (end - start) * np.linspace(0, 1, n)[:, None])
    return np.concatenate(samples)
