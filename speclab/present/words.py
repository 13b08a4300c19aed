"""Sentences about a run: each is a view of its record, nothing is measured here."""

from speclab.models import padding
from speclab.theory.ladder import PREDICTORS, UNEXPLAINED, largest_reason, nearly_cancel, prediction_errors

NAME_WIDTH = 8  # of a draft's name in the terminal, where every table fits into 80 columns
NOT_SLOWER = 0.995  # what rounds to 1.00x is not called slower


def number(value: float | None, digits: int = 2) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def label(row: dict) -> str:
    """What sentences call a speculative row."""
    return f"{row['method']} k={row['draft_length']}"


def temperature_words(temperature: float) -> str:
    return f"T = {temperature:g} ({'sampling' if temperature else 'greedy'})"


def short_names(names: list[str], width: int = NAME_WIDTH) -> dict[str, str]:
    """Each name in at most `width` characters, different names staying different: the head, the tail, or numbered."""
    names = list(dict.fromkeys(names))
    cuts = [
        lambda name: name[: width - 1] + "…",
        lambda name: name[: (width - 1) // 2] + "…" + name[-(width // 2) :],
        lambda name: "…" + name[1 - width :],
        lambda name: f"{name[: width - 3]}…{names.index(name) + 1}",
    ]
    for cut in cuts:
        found = {name: name if len(name) <= width else cut(name) for name in names}
        if len(set(found.values())) == len(names):
            break
    return found


def speedup_words(row: dict) -> str:
    """Losing rows say so."""
    return f"{row['speedup']:.2f}x" + (" slower" if row["speedup"] < NOT_SLOWER else "")


# --- why --------------------------------------------------------------------------------------------------------------

REASONS = {
    "bonus and partial drafts": "the bonus token and the kept part of partly accepted drafts",
    "draft cost": "the draft's cost",
    "verification": "the cost of wider target passes",
    "overhead": "accepting, rolling back and the loop around them",
    "real acceptance": "that acceptance comes in streaks",
    "last round": "the last round, cut at the token limit",
    "longer context": "the growing text",
    "chance": "luck",
    UNEXPLAINED: "something that none of the terms explains",
}


def verdict_sentence(row: dict) -> str:
    """One row in words: how fast, what the book's formula says, and the largest reason for the difference."""
    head = f"{label(row)}: {row['speedup']:.2f}x" + (f", {row['verdict']}" if row["verdict"] else "")
    if row["book_formula"] is None:
        return f"{head}."
    says = f"{head}; the book's formula says {row['book_formula']:.2f}x"
    balance = nearly_cancel(row) if row["speedup"] >= 1 else None
    if balance:
        gain, loss = (_reason(row, *effect) for effect in balance)
        return f"{says}, near only because {gain} and {loss} nearly cancel."
    reason = largest_reason(row)
    return f"{says}, and the largest reason for the difference is {_reason(row, *reason)}." if reason else f"{says}."


def _reason(row: dict, name: str, factor: float) -> str:
    words = REASONS[name]
    per_round = row["n_drafted"] / row["n_rounds"]
    if name == "real acceptance" and per_round < 0.8 * row["draft_length"]:  # a lookup that often finds nothing
        words = f"that a round drafted {per_round:.1f} tokens, not {row['draft_length']}"
    return f"{words} (x{factor:.2f})"


def errors_line(rows: list[dict]) -> str | None:
    """Median and largest |predicted / measured - 1| of each predictor over the given rows; None without predictions."""
    found = prediction_errors(rows)
    if not found:
        return None
    kinds = dict.fromkeys(r["prompt_kind"] for r in rows)
    over = f"{len(rows)} rows" + (f" of {len(kinds)} kinds of prompt" if len(kinds) > 1 else "")
    words = []
    for predictor in PREDICTORS:
        if predictor in found:
            one = found[predictor]
            only = f" of {one['n']}" if one["n"] < len(rows) else ""
            words.append(f"{PREDICTORS[predictor]} {one['median']:.1%} ({one['max']:.1%}){only}")
    return f"error without its sign, median (largest) over {over}: {', '.join(words)}"


def noise_line(run: dict, temperature: float) -> str | None:
    """The noise floor: how far the baseline is from itself."""
    found = next((n for n in run["noise"] if n["temperature"] == temperature), None)
    if found is None:
        return None
    interval = "" if found["low"] is None else f" ({found['low']:.2f} to {found['high']:.2f})"
    return f"noise floor: baseline against itself in the same run: {found['ratio']:.2f}x{interval}"


def phases_line(run: dict) -> str | None:
    """Whether the clocks inside a round account for all of it."""
    share = run["phases"]["share"]
    return None if share is None else f"instrumented rounds: the phases sum to {share:.1%} of the wall time"


# --- agreement --------------------------------------------------------------------------------------------------------


def correctness_lines(entries: list[dict]) -> list[str]:
    """Agreement in words: greedy token for token, sampled by its statistics."""
    lines = []
    greedy = [e for e in entries if e["temperature"] == 0]
    for entry in greedy:
        for item in entry["differences"]:
            gap = "-" if item["gap"] is None else f"{item['gap']:.3g}"
            lines.append(
                f"  {entry['arm']}, prompt {item['prompt']}, token {item['position']}: "
                f"{item['tokens'][0]!r} became {item['tokens'][1]!r}, gap {gap}: {item['verdict']}"
            )
    if greedy:
        n_texts = sum(e["n_prompts"] for e in greedy)
        n_different = sum(len(e["differences"]) for e in greedy)
        verdict = "identical" if not n_different else f"{n_different} differ, first differences above"
        arms = f"{len(greedy)} arm{'s' * (len(greedy) > 1)}"
        lines.append(f"greedy: {n_texts} texts of {arms} against the baseline, token for token: {verdict}")
    for entry in entries:
        if entry["temperature"] > 0:
            word = "consistent with the target" if entry["passed"] else "NOT the target's distribution"
            z_s, z_l = ("inf" if z is None else f"{z:+.2f}" for z in (entry["z_residual"], entry["z_surprise"]))
            lines.append(
                f"T = {entry['temperature']:g}, {entry['arm']}: z_S = {z_s}, z_L = {z_l} "
                f"over {entry['n_tokens']} tokens (bound {entry['bound']}): {word}"
            )
    return lines


def unchecked_line(run: dict) -> str | None:
    """Which texts were timed and not judged; None where all are judged."""
    if not run.get("unchecked"):
        return None
    return f"NOT CHECKED: {', '.join(run['unchecked'])}; the run was stopped before these texts were judged"


# --- speed ------------------------------------------------------------------------------------------------------------


def headline_line(run: dict) -> str | None:
    """The best k, chosen on one half of the prompts and reported on the other."""
    row = run["headline"]
    if not row:
        return None
    interval = "" if row["speedup_low"] is None else f" (95 %: {row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
    return (
        f"{row['method']} draft, greedy, best k = {row['draft_length']} chosen on half of the prompts; "
        f"on the other half {speedup_words(row)}{interval}, alpha {number(row['acceptance_rate'])}"
    )


def prefill_line(rows: list[dict]) -> str | None:
    """Each draft's best row again, with the time to read the prompt counted on both sides; None without a draft."""
    best = {}
    for row in sorted((r for r in rows if r["draft"]), key=lambda r: -r["speedup"]):
        best.setdefault(row["method"], f"{label(row)} {row['speedup_with_prefill']:.2f}x")
    if not best:
        return None
    return f"with the prompt's own passes counted (the draft's too), the best of each draft: {', '.join(best.values())}"


def reading_line(run: dict) -> str | None:
    """What the prompt's own pass costs: the baseline's, and each draft's on top of it. None without samples."""
    seconds: dict[str, list[float]] = {}
    lengths = {}
    for sample in run["raw"]:
        if sample["method"] in ("generate", "baseline again"):
            continue
        seconds.setdefault(sample["method"], []).extend(sample["prefill_seconds"])
        lengths[sample["prompt_index"]] = sample["n_prompt"]
    if "baseline" not in seconds:
        return None
    mean = {method: sum(times) / len(times) * 1e3 for method, times in seconds.items()}
    drafts = [f"{mean[m] - mean['baseline']:+.1f} ms with {m} drafts" for m in mean if m != "baseline"]
    tokens = sum(lengths.values()) / len(lengths)
    head = f"reading a prompt of {tokens:.0f} tokens takes the target {mean['baseline']:.1f} ms"
    return head + (f", {', '.join(drafts)}" if drafts else "")


def losing_lines(rows: list[dict]) -> list[str]:
    """For each kind of prompt on which speculation was slower: the rows, how much, and whether it may be noise."""
    lines = []
    for kind in dict.fromkeys(r["prompt_kind"] for r in rows):
        slower = [r for r in rows if r["prompt_kind"] == kind and r["draft"] and r["speedup"] < NOT_SLOWER]
        names = ", ".join(
            f"{label(r)} {r['speedup']:.2f}x" + (" (may be noise)" if r["verdict"] == "unclear" else "") for r in slower
        )
        if names and kind not in ("all", "not looping"):
            lines.append(f"slower on {kind} prompts: {names}")
    return lines


def generate_line(rows: list[dict]) -> str | None:
    """How our baseline compares with the library's own loop."""
    row = next((r for r in rows if r["method"] == "generate" and r["prompt_kind"] == "all"), None)
    if row is None:
        return None
    words = "the same text" if row["same_as_baseline"] else "NOT the same text"
    return (
        "the baseline against model.generate with the lab's settings (greedy, no penalties, no end token), prefill "
        f"included: {1 / row['speedup']:.2f}x its speed, {words}"
    )


def hardware(run: dict) -> str:
    """What a record was taken on."""
    machine = run["machine"]
    return machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"


def circumstances(run: dict) -> str:
    """Machine, engine, versions, commit and seed, for any record."""
    versions, settings = run["versions"], run["settings"]
    commit = (versions["commit"] or "none")[:12]
    if versions["uncommitted_changes"]:
        commit += " with uncommitted changes"
    return (
        f"Measured {run['created'][:10]} on {hardware(run)}; {settings['device']}, {settings['dtype']}, "
        f"{settings['engine']} engine; "
        f"Python {versions['python']}, torch {versions['torch']}, transformers {versions['transformers']}; "
        f"commit {commit}; seed {settings['seed']}"
    )


def provenance(run: dict) -> str:
    """The circumstances and the size of a comparison, a sweep or a plan, in one paragraph."""
    settings = run["settings"]
    n_prompts = run["prompts"]["n"] if "prompts" in run else settings["n_prompts"]
    return (
        f"{circumstances(run)}; {n_prompts} prompts, {settings['max_new_tokens']} new tokens each, "
        f"{settings['repeats']} x.{padding_remark(settings['target'])}"
    )


def padding_remark(target: str) -> str:
    """What must stand beside every number of a padded target; nothing for any other."""
    if not padding.is_lab_size(target):
        return ""
    return f" {target} is {padding.describe_padding(padding.parse_size(target))}."
