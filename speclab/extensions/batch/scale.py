"""A SIMULATION of up to 512 users: what the rules of a batch would give at costs that are computed or published.

    python -m speclab.extensions.batch.scale      # writes results/batch-scale.md and plots/batch-scale.png

Nothing is decoded or measured for it; what is taken from others stands in results/batch-scale.json. How likely a
drafted token is accepted is drawn for each: u^(1/m - 1) with an even u has the mean m of its depth. The draft knows it,
or only its depth. What a step takes:

    H200          lab:8b and its draft model: the record's passes over up to nine tokens; beyond, and for the caches of
                  several texts, operations and bytes at the record's own ceilings
    data sheet    DeepSeek-V4-Pro on 8 x B300: its bytes, or its operations if they take longer; drafting is free
    graphs 4096   the same as vLLM published it: plain steps of up to 256 tokens, beyond them those with k = 7; passes
    graphs 1024   over up to so many tokens are CUDA graphs
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import functools
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from speclab.cli import parsing
from speclab.extensions.batch.decoding.budget import OWN, PUBLISHED, Budget, StepCosts
from speclab.extensions.batch.expectations import FIXED, ORACLE, Simulated, Trace, simulate
from speclab.present import pictures
from speclab.present.tables import Block, Cell, Heading, Table, show
from speclab.records.files import read
from speclab.system.errors import reports_problems
from speclab.system.files import OUTPUT, ROOT, write_whole
from speclab.system.terminal import say

K, TOKENS, MOST = 7, 128, 512  # drafted tokens of a step; of a text; users
PAGES = "tokens_per_second_of_user"
STEPS = (("4096", "plain"), ("4096", "k = 7"), ("1024", "k = 7"))
STYLES = [*pictures.STYLES, (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3))]
RULES = {"plain": FIXED, "k = 7": FIXED, "by depth": PUBLISHED, "published": PUBLISHED, "auto": OWN, "oracle": ORACLE}


@functools.cache
def recorded(name: str) -> dict[str, Any]:
    """Return a record; EnvironmentProblem where it is missing, as beside an installed package."""
    return read(ROOT / "results" / f"{name}.json", dict)


def taken(name: str) -> Any:
    """Return an entry of the record of what others have published."""
    return recorded("batch-scale")[name]


def machines() -> dict[str, StepCosts]:
    n, rows = np.arange(MOST * (K + 1) + 1), np.arange(MOST + 1)  # tokens and texts of a step
    roofline, gpu = (recorded(taken("recorded") + ending) for ending in ("-roofline", ""))
    rates, passes, caches = roofline["ceilings"], [], []
    for model in roofline["models"]:
        width, seconds, n_bytes, operations = (
            [one[name] for one in model["passes"]] for name in ("width", "seconds", "bytes", "operations")
        )
        passes.append(np.maximum(np.interp(n, width, seconds), n * operations[0] / rates["matrix"]))
        caches.append((rows - 1) * (n_bytes[0] - model["weight_bytes"]) / rates["matrix_vector"])
    of_round = ("accept_at", "rollback", "host", "draft_idle", "draft_catch")
    outside = sum(gpu["costs"][0]["costs"][part] for part in of_round)
    given, at, length = taken("sheet"), taken("users"), taken("tokens_per_step")
    share, everything = given["chosen"] / given["experts"], given["parameters"]
    experts = (everything - given["active"]) / (1 - share)  # parameters; tokens choose evenly
    bytes_read = everything - experts + experts * (1 - (1 - share) ** n) * given["bytes_each_of_experts"]
    sheet = np.maximum(bytes_read / given["bytes"], 2 * given["active"] * n / given["operations"])
    tokens = [*at, *(users * (K + 1) for users in at[-3:])]
    plain, fixed, slow = (np.array(taken(PAGES)[f"graphs {most}"][rule]) for most, rule in STEPS)
    graphs = np.interp(n, tokens, [*1 / plain, *length / fixed[-3:]])
    beyond = np.where(n < tokens[-2], graphs, np.interp(n, tokens[-2:], length / slow[-2:]))
    others = {"data sheet": sheet, "graphs 4096": graphs, "graphs 1024": beyond}
    costs = {"H200": (outside, passes[0], caches[0], (passes[1][rows] + caches[1]) * (rows > 0))}
    costs |= {name: (0.0, seconds, 0.0 * rows, 0.0 * rows) for name, seconds in others.items()}
    return {name: StepCosts(first, *(part.tolist() for part in parts)) for name, (first, *parts) in costs.items()}


def drawn(n_texts: int, n_tokens: int) -> np.ndarray:
    """(texts, tokens, K): how likely each drafted token is accepted if all before it are."""
    return np.random.default_rng(1).random((n_texts, n_tokens, K)) ** (1 / np.array(taken("accepted")) - 1)


def simulated(costs: StepCosts, users: int) -> dict[str, Simulated]:
    found, accepts = {}, drawn(max(2 * users, 48), TOKENS)
    for rule, kind in RULES.items():
        traces = [Trace([*of_text], () if rule == "by depth" else [*of_text]) for of_text in accepts]
        k, price = (K, costs) if rule != "plain" else (0, replace(costs, outside=0.0))
        found[rule] = simulate(traces, price, kind, k, users)
    return found


def page(found: dict[str, dict[int, dict[str, Simulated]]]) -> list[Block]:
    """found: by machine and users, what each rule gives."""

    def of(rule: str) -> Cell:
        return lambda row: "{:,.0f} / {:.1f}".format(*row[2][rule])

    def published(row: tuple) -> str:
        return str(dict(zip(taken("users"), taken(PAGES)[row[0]]["adaptive"], strict=True)).get(row[1], "-"))

    cells: dict[str, Cell] = {"SIMULATION: tok/s of all / of each": lambda row: f"SIMULATION, {row[0]}"}
    cells |= {"users": lambda row: str(row[1])} | {rule: of(rule) for rule in RULES}
    cells["tok/step, published"] = lambda row: f"{row[2]['published'].length:.2f}"
    blocks: list[Block] = [Heading("Scale on paper", 1), "A SIMULATION; see docs/batch-budget.md"]
    for machine, by_users in found.items():
        rows = [(machine, *of_users) for of_users in by_users.items()]
        known = cells | ({"vLLM adaptive, of each": published} if machine in taken(PAGES) else {})
        blocks += [Heading(f"SIMULATION: {machine}"), Table(rows, known)]
    return blocks


def picture(by_users: dict[int, dict[str, Simulated]], costs: StepCosts, path: Path) -> Path:
    """Draw the survival of the tokens of one step with what is verified, and throughput against a user's speed."""
    users, (figure, (left, right)) = max(by_users), pictures.blank(2, 5.6, 4.6)
    accepts = drawn(users, 1)[:, 0].tolist()
    survival = np.sort(np.cumprod(accepts, axis=1), axis=None)[::-1]
    left.plot(survival, color="black", label=f"{users} users, {K} tokens each")
    for (rule, kind), color, style in zip(RULES.items(), pictures.COLOURS, STYLES, strict=False):
        of_all, of_user, _ = zip(*(of_rules[rule] for of_rules in by_users.values()), strict=True)
        right.plot(of_user, of_all, linestyle=style, color=color, label=rule)
        if rule in ("published", "auto"):
            budget = Budget(costs, kind, K)
            budget.begin([K] * users, users)
            budget.accepts, budget.rate = accepts, of_all[-1]
            n = sum(budget.lengths())
            left.axvline(n, linestyle=style, color=color, label=f"{rule}: {n} verified, down to {survival[n - 1]:.2f}")
    for (rule, rates), marker in zip(taken(PAGES)["graphs 4096"].items(), pictures.MARKERS, strict=False):
        together = np.multiply(taken("users"), rates)
        right.plot(rates, together, marker, color="black", markersize=4, label=f"vLLM, {rule}")
    left.set(xlabel="drafted tokens of one step, the surest first", ylabel="survival")
    right.set(xlabel="tokens a second of a user", ylabel="tokens a second of all users")
    pictures.logarithmic(right, "x", [30, 50, 100, 200, 300], "{:g}")
    for axis, what in ((left, "one step"), (right, f"1 to {users} users")):
        pictures.legend_above(axis, f"SIMULATION: {what}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=pictures.DPI, metadata={"Software": None})
    return write_whole(path, buffer.getvalue())


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parsing.make_parser(__doc__ or "", "python -m speclab.extensions.batch.scale").parse_args(argv)
    costs, found = machines(), dict[str, dict[int, dict[str, Simulated]]]()
    for name, of_one in costs.items():
        most = max(taken("users")) if name in taken(PAGES) else MOST  # users whose steps are known
        found[name] = {users: simulated(of_one, users) for users in (2**i for i in range(10)) if users <= most}
    say(show(page(found)))
    write_whole(OUTPUT / "results" / "batch-scale.md", show(page(found), markdown=True))
    picture(found["graphs 4096"], costs["graphs 4096"], OUTPUT / "plots" / "batch-scale.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
