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
import operator
import sys
from dataclasses import replace
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
PAGES, GRAPHS = "tokens_per_second_of_user", ("graphs 4096", "graphs 1024")
STYLES = [*pictures.STYLES, (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3))]
RULES = {"plain": FIXED, "k = 7": FIXED, "by depth": PUBLISHED, "published": PUBLISHED, "auto": OWN, "oracle": ORACLE}


@functools.cache
def recorded(name: str = "batch-scale") -> dict[str, Any]:
    """Return a record, by default of what others have published; EnvironmentProblem where it is missing, as beside an
    installed package."""
    return read(ROOT / "results" / f"{name}.json", dict)


def machines() -> dict[str, StepCosts]:
    n, rows = np.arange(MOST * (K + 1) + 1), np.arange(MOST + 1)  # tokens and texts of a step
    taken = recorded()
    roofline, gpu = (recorded(taken["recorded"] + ending) for ending in ("-roofline", ""))
    rates, passes, caches = roofline["ceilings"], [], []
    for model in roofline["models"]:
        first, known = model["passes"][0], {one["width"]: one["seconds"] for one in model["passes"]}
        passes.append(np.maximum(np.interp(n, [*known], [*known.values()]), n * first["operations"] / rates["matrix"]))
        caches.append((rows - 1) * (first["bytes"] - model["weight_bytes"]) / rates["matrix_vector"])
    of_round = ("accept_at", "rollback", "host", "draft_idle", "draft_catch")
    outside = sum(gpu["costs"][0]["costs"][part] for part in of_round)
    given, at, length = taken["sheet"], taken["users"], taken["tokens_per_step"]
    share, everything = given["chosen"] / given["experts"], given["parameters"]
    experts = (everything - given["active"]) / (1 - share)  # parameters; tokens choose evenly
    bytes_read = everything - experts + experts * (1 - (1 - share) ** n) * given["bytes_each_of_experts"]
    sheet = np.maximum(bytes_read / given["bytes"], 2 * given["active"] * n / given["operations"])
    merged, before = ({rule: 1 / np.array(rates) for rule, rates in taken[PAGES][name].items()} for name in GRAPHS)
    tokens = [*at, *(users * (K + 1) for users in at[-3:])]
    graphs = np.interp(n, tokens, [*merged["plain"], *length * merged["k = 7"][-3:]])
    beyond = np.where(n < tokens[-2], graphs, np.interp(n, tokens[-2:], length * before["k = 7"][-2:]))
    free, drafting = 0.0 * rows, (passes[1][rows] + caches[1]) * (rows > 0)
    costs = {"H200": (outside, passes[0], caches[0], drafting), "data sheet": (0.0, sheet, free, free)}
    costs |= {name: (0.0, steps, free, free) for name, steps in zip(GRAPHS, (graphs, beyond), strict=True)}
    return {name: StepCosts(first, *(part.tolist() for part in parts)) for name, (first, *parts) in costs.items()}


def drawn(n_texts: int, n_tokens: int) -> np.ndarray:
    """(texts, tokens, K): how likely each drafted token is accepted if all before it are."""
    return np.random.default_rng(1).random((n_texts, n_tokens, K)) ** (1 / np.array(recorded()["accepted"]) - 1)


def simulated(costs: StepCosts, users: int) -> dict[str, Simulated]:
    found, accepts = {}, drawn(max(2 * users, 48), TOKENS)
    for rule, kind in RULES.items():
        traces = [Trace([*of_text], () if rule == "by depth" else [*of_text]) for of_text in accepts]
        k, price = (K, costs) if rule != "plain" else (0, replace(costs, outside=0.0))
        found[rule] = simulate(traces, price, kind, k, users)
    return found


def page(found: dict[str, dict[int, dict[str, Simulated]]]) -> list[Block]:
    """found: by machine and users, what each rule gives."""
    blocks: list[Block] = [Heading("Scale on paper", 1), "A SIMULATION; see docs/batch-budget.md"]
    for machine, by_users in found.items():
        known = recorded()[PAGES].get(machine)
        published = dict(zip(recorded()["users"], known["adaptive"], strict=True)) if known else {}
        rows = [
            {"SIMULATION: tok/s of all / of each": f"SIMULATION, {machine}", "users": str(users)}
            | {rule: "{:,.0f} / {:.1f}".format(*of_rule) for rule, of_rule in of_rules.items()}
            | {"tok/step, published": f"{of_rules['published'].length:.2f}"}
            | ({"vLLM adaptive, of each": str(published.get(users, "-"))} if published else {})
            for users, of_rules in by_users.items()
        ]
        cells: dict[str, Cell] = {head: operator.itemgetter(head) for head in rows[0]}
        blocks += [Heading(f"SIMULATION: {machine}"), Table(rows, cells)]
    return blocks


def picture(by_users: dict[int, dict[str, Simulated]], costs: StepCosts) -> pictures.Figure:
    """Draw the survival of the tokens of one step with what is verified, and throughput against a user's speed."""
    users, (figure, (left, right)) = max(by_users), pictures.blank(2, 5.6, 4.6)
    accepts = drawn(users, 1)[:, 0].tolist()
    survival = np.sort(np.cumprod(accepts, axis=1), axis=None)[::-1]
    left.plot(survival, color="black", label=f"{users} users, {K} tokens each")
    for rule, color, style in zip(RULES, pictures.COLOURS, STYLES, strict=False):
        of_all, of_user, _ = zip(*(of_rules[rule] for of_rules in by_users.values()), strict=True)
        right.plot(of_user, of_all, linestyle=style, color=color, label=rule)
        if rule in ("published", "auto"):
            budget = Budget(costs, RULES[rule], K)
            budget.begin([K] * users, users)
            budget.accepts, budget.rate = accepts, of_all[-1]
            n = sum(budget.lengths())
            left.axvline(n, linestyle=style, color=color, label=f"{rule}: {n} verified, down to {survival[n - 1]:.2f}")
    for (rule, rates), marker in zip(recorded()[PAGES][GRAPHS[0]].items(), pictures.MARKERS, strict=False):
        together = np.multiply(recorded()["users"], rates)
        right.plot(rates, together, marker, color="black", markersize=4, label=f"vLLM, {rule}")
    left.set(xlabel="drafted tokens of one step, the surest first", ylabel="survival")
    right.set(xlabel="tokens a second of a user", ylabel="tokens a second of all users")
    pictures.logarithmic(right, "x", [30, 50, 100, 200, 300], "{:g}")
    pictures.legend_above(left, "SIMULATION: one step")
    pictures.legend_above(right, f"SIMULATION: 1 to {users} users")
    return figure


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parsing.make_parser(__doc__ or "", "python -m speclab.extensions.batch.scale").parse_args(argv)
    costs, found = machines(), dict[str, dict[int, dict[str, Simulated]]]()
    for name, of_one in costs.items():
        most = max(recorded()["users"]) if name in GRAPHS else MOST  # users whose steps are known
        found[name] = {users: simulated(of_one, users) for users in (2**i for i in range(10)) if users <= most}
    say(show(page(found)))
    write_whole(OUTPUT / "results" / "batch-scale.md", show(page(found), markdown=True))
    pictures.written(picture(found[GRAPHS[0]], costs[GRAPHS[0]]), OUTPUT / "plots" / "batch-scale.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
