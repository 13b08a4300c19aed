"""The plan in words, as a table and as a picture. Nothing is measured here."""

import textwrap
from pathlib import Path

from speclab.present.plots import COLOURS, STYLES, markers, panels, save
from speclab.present.report import number, provenance, table
from speclab.present.words import unchecked_line
from speclab.theory.curves import decoding

COLUMNS = ["draft", "k", "tokens/round", "alpha", "c", "v(k+1)", "o", "expected speedup"]


def sentences(fact: dict) -> list[str]:
    """What to do with one draft, plainly."""
    where = "greedy" if fact["temperature"] == 0 else f"temperature {fact['temperature']:g}"
    alpha, k = fact["acceptance_rate"], fact["best_draft_length"]
    even = fact["break_even"]
    pays = f"speculation pays from alpha = {even:.2f}; " if even is not None else ""
    name = "this pair" if fact["method"] == "model" else fact["method"]
    if k == 0 or fact["speedup"] <= 1:
        advice = "every draft length is expected to be slower than plain decoding; leave speculation off"
    else:
        advice = f"alpha is {number(alpha)}, best k is {k}; expect {fact['speedup']:.2f}x"
    return [
        f"{fact['method']} draft, {where}: with {name} on this machine, {pays}{advice}.",
        f"A drafter that knew the best draft length at every place would reach {fact['oracle']:.2f}x; "
        "no rule for changing k can pass that.",
        f"A decode step takes {fact['step_seconds'] * 1e3:.2f} ms; in such steps a drafted token costs "
        f"c = {fact['draft_cost']:.3f} and verification at this k v = {fact['verify_cost']:.2f}.",
    ]


def yours_sentence(run: dict, fact: dict) -> list[str]:
    """What exercise 6 chose, and what the plan expects of that length."""
    if "yours" not in fact:
        return []
    k = fact["yours"]
    mine = _of(run["plan"], fact["method"], fact["temperature"])
    expected = next((e["speedup"] for e in mine if e["draft_length"] == k), None)
    says = f"the plan expects {expected:.2f}x of it" if expected is not None else "the plan has not tried it"
    return [
        f"best_draft_length of {run['settings']['impl']['package']} says k = {k}; {says}, and "
        f"{fact['speedup']:.2f}x of its own k = {fact['best_draft_length']}."
    ]


def verified_sentences(run: dict) -> list[str]:
    """How the plan did on prompts it had not seen."""
    if not run["verified"]:
        return []
    lines = []
    for item in run["verified"]["drafts"]:
        planned, best = item["planned"], item["best_measured"]
        miss = planned["speedup"] / item["measured"] - 1
        lines.append(
            f"{item['method']}, T = {item['temperature']:g}: planned k = {planned['draft_length']} at "
            f"{planned['speedup']:.2f}x, measured {item['measured']:.2f}x on {run['verified']['n_prompts']} other "
            f"prompts ({miss:+.1%}); the best of all lengths measured there is k = {best['draft_length']} with "
            f"{best['speedup']:.2f}x, so the plan's choice reaches {item['share_of_best']:.1%} of the best."
        )
    return lines


def _of(rows: list[dict], method: str, temperature: float) -> list[dict]:
    return [r for r in rows if (r["method"], r["temperature"]) == (method, temperature)]


def _measured(run: dict, method: str, temperature: float) -> list[dict]:
    return _of(run["verified"]["rows"], method, temperature) if run["verified"] else []


def plan_table(run: dict, method: str, temperature: float, markdown: bool = False) -> str:
    """One line per draft length; where the plan was measured, measured values stand beside it."""
    measured = {r["draft_length"]: r for r in _measured(run, method, temperature)}
    lines = []
    for entry in _of(run["plan"], method, temperature):
        cells = [
            method,
            str(entry["draft_length"]),
            number(entry["tokens_per_round"]),
            number(entry["acceptance_rate"]),
            number(entry["draft_cost"], 3),
            number(entry["verify_cost"]),
            number(entry["overhead"], 3),
            f"{entry['speedup']:.2f}x",
        ]
        row = measured.get(entry["draft_length"])
        if measured:
            cells.append(f"{row['speedup']:.2f}x" if row else "-")
        lines.append(cells)
    return table(lines, COLUMNS + ["measured"] * bool(measured), markdown)


def text(run: dict, markdown: bool = False) -> str:
    """Verdicts first, then a table for every draft."""
    blocks = []
    for fact in run["facts"]["drafts"]:
        lines = sentences(fact) + yours_sentence(run, fact)
        blocks.append("\n".join(lines) if markdown else "\n".join(textwrap.fill(line, 79) for line in lines))
        blocks.append(plan_table(run, fact["method"], fact["temperature"], markdown))
    checked = [*verified_sentences(run), *filter(None, [unchecked_line(run)])]
    if checked:
        blocks.append("\n".join(checked) if markdown else "\n".join(textwrap.fill(line, 79) for line in checked))
    if run["interrupted"]:
        blocks.append("Stopped before the end: this rests on the prompts that were finished.")
    return "\n\n".join(blocks) + "\n"


def page(run: dict) -> str:
    """The same in Markdown, with where it comes from."""
    return f"# The plan\n\n{provenance(run)}\n\n{text(run, markdown=True)}"


def picture(run: dict, folder: Path, name: str) -> Path:
    """Expected speedup against k as lines, the oracle as thin lines, what was measured as markers."""
    figure, (axis,) = panels(1, 6.4, 4.4)
    for i, fact in enumerate(run["facts"]["drafts"]):
        key = (fact["method"], fact["temperature"])
        label = fact["method"] if fact["temperature"] == 0 else f"{fact['method']}, T = {fact['temperature']:g}"
        mine = _of(run["plan"], *key)
        colour = COLOURS[i % len(COLOURS)]
        lengths = [e["draft_length"] for e in mine]
        axis.plot(
            lengths, [e["speedup"] for e in mine], STYLES[i % len(STYLES)], color=colour, label=f"{label}, expected"
        )
        axis.axhline(fact["oracle"], color=colour, linewidth=0.8, linestyle=":")
        axis.annotate(
            f"oracle, {label}: {fact['oracle']:.2f}",
            (lengths[-1], fact["oracle"]),
            (0, -9 if i % 2 else 3),  # above and below in turns: oracles may lie close together
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color=colour,
        )
        rows = _measured(run, *key)
        if rows:
            lengths, values = [r["draft_length"] for r in rows], [decoding(r) for r in rows]
            markers(axis, lengths, values, i, f"{label}, measured on other prompts")
    axis.axhline(1, color="black", linewidth=1)
    axis.set_xlabel("draft length k")
    axis.set_ylabel("speedup over the baseline (decoding)")
    figure.legend(frameon=False, fontsize=8, ncols=2, loc="outside upper center")
    return save(figure, run, folder, name)
