"""A block of the pages shows trees beside chains of the same draft with as many tokens, from the record of a
comparison."""

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from speclab.present import tables
from speclab.records.arms import AUTO
from speclab.records.files import read
from speclab.records.log import Line
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.system.paths import ROOT
from speclab.theory.formulas import ratio_interval

RECORD = ROOT / "results" / "cpu-2-cores-200m-trees.json"


class TreeAndChain(NamedTuple):
    """A tree and a chain of one draft, and the chain's time over the tree's on the same prompts."""

    tree: Row
    chain: Row
    times_as_fast: float
    low: float | None
    high: float | None

    @property
    def shape(self) -> str:
        """Return the part of the tree's name after `tree:`."""
        return str(self.tree.draft).split(":")[1]


def trees(path: Path = RECORD) -> str:
    """Show every tree of a greedy comparison beside the chain that has as many tokens, and the fastest of both
    kinds."""
    run = read(path, ComparisonRun)
    rows = [row for row in run.rows if row.draft and row.prompt_kind == "all" and row.temperature == 0]
    tree_rows = [row for row in rows if _is_tree(row)]
    chains = {(row.draft, row.draft_length): row for row in rows if not _is_tree(row)}
    pairs = [_beside(run, row, chains[key]) for row in tree_rows if (key := (_inner(row), row.draft_length)) in chains]
    cells: dict[str, tables.Cell] = {
        "draft": lambda pair: str(pair.chain.draft),
        "tree": lambda pair: pair.shape,
        "tokens": lambda pair: str(pair.tree.draft_length),
        "chain tok/rnd": lambda pair: tables.number(pair.chain.tokens_per_round),
        "tree tok/rnd": lambda pair: tables.number(pair.tree.tokens_per_round),
        "chain": lambda pair: tables.speedup(pair.chain.speedup),
        "tree speedup": lambda pair: tables.speedup(pair.tree.speedup),
        "tree ÷ chain": lambda pair: tables.speedup(pair.times_as_fast),
        "95 %": lambda pair: tables.interval(pair.low, pair.high),
    }
    lines = []
    for draft in dict.fromkeys(map(_inner, tree_rows)):
        both = [row for row in rows if draft == (_inner(row) if _is_tree(row) else str(row.draft).removesuffix(AUTO))]
        best_tree = max(filter(_is_tree, both), key=attrgetter("speedup"))
        best_chain = max((row for row in both if not _is_tree(row)), key=attrgetter("speedup"))
        pair = _beside(run, best_tree, best_chain)
        lines.append(
            f"- {draft}: the fastest tree ({pair.shape}, {_tokens(best_tree)} tokens) "
            f"{tables.speedup(best_tree.speedup)}, the fastest chain ({_tokens(best_chain)} tokens) "
            f"{tables.speedup(best_chain.speedup)}; tree ÷ chain {tables.speedup(pair.times_as_fast)} "
            f"({tables.interval(pair.low, pair.high)})"
        )
    return "\n\n".join([tables.show([tables.Table(pairs, cells)], markdown=True).strip(), "\n".join(lines)])


def _is_tree(row: Row) -> bool:
    return str(row.draft).startswith("tree:")


def _inner(row: Row) -> str:
    """Return the draft of which a tree is made."""
    return str(row.draft).split(":", 2)[2]


def _tokens(row: Row) -> str:
    """Return how many tokens a round may draft."""
    return f"-k auto, at most {row.draft_length}" if row.auto else str(row.draft_length)


def _beside(run: ComparisonRun, tree: Row, chain: Row) -> TreeAndChain:
    """Compare both on the same prompts."""
    tops, bottoms = _seconds(run, chain), _seconds(run, tree)
    low, high = ratio_interval(tops, bottoms) or (None, None)
    return TreeAndChain(tree, chain, sum(tops) / sum(bottoms), low, high)


def _seconds(run: ComparisonRun, row: Row) -> list[float]:
    """Return the decoding seconds of a row, by prompt."""
    key = attrgetter("method", "draft_length", "temperature")
    timings: list[Line] = sorted((line for line in run.raw if key(line) == key(row)), key=attrgetter("prompt_index"))
    return [sum(line.decode_seconds) for line in timings]


BLOCKS: dict[str, Callable[[], str]] = {"trees": trees}
