"""The answer of a comparison on one screen: whether the texts are right, how fast each draft is, and why not faster.

A view of the record: every line is a fixed template filled with its numbers. Records of other commands show the same
lines about their origin, their texts and their noise.
"""

import math

from speclab.core.clock import what_load_means
from speclab.models import padding
from speclab.present import tables
from speclab.present.tables import Block, Heading, Lines, Table, cells, interval, number, speedup, speedup_of
from speclab.records.files import ComparisonRun, Head, LabRun
from speclab.records.rows import AUTO, Facts, Noise, Row
from speclab.theory import attribution
from speclab.theory.attribution import factors

LAB = "lab pair"
LARGEST_FACTOR = 99  # that a line names; beyond it the size no longer matters
UNTESTED = "NOT TESTED, the run's number format rounds too coarsely at this temperature; give --dtype float32"
ROUGH = "ROUGH: the baseline, timed twice in the same turns, may differ from itself by a factor of up to"
STARTING = "most of it is the starting of operations one by one, which wide passes share."
READING = "it waits for memory, and further tokens cost little."
ARITHMETIC = "arithmetic limits a wide pass, and every further token is paid."
UNKNOWN = "these two do not tell what limits it."
SHARED = "other work holds the cores, for which threads wait; --threads 1 may be faster."
CUT = "greedy texts end in repetition, and count only up to where it begins"
LOSSY = (
    "accept rule: {rule} is LOSSY: the texts do not follow the target's distribution. The number after LOSSY is the "
    "mean total variation distance of a decoded token's distribution from the target's after the same text (0: the "
    "same, 1: nothing in common). Such rows have no forecast."
)


def screen(run: ComparisonRun, brief: bool = False, where: list[str] | None = None, markdown: bool = False) -> str:
    """Show whether the text is the same; the result and the table; what lies between the formula and the measurement;
    and `where` the rest is. brief: only the tables, below the lines that say that texts are wrong, or speeds rough."""
    runs = run.parts
    rough = Lines([rough_line(*runs)])
    checked, facts, speeds = Lines(), Lines(), list[Block]()
    for shown in runs:
        floors = [floor for floor in shown.noise if shown is run and floor.temperature == shown.noise[0].temperature]
        checked += [line for line in (*same_text_lines(shown), *remarks(shown)) if line not in checked]
        facts += [ladder_line(shown)]
        if n_cut := shown.prompts.get("n_cut"):
            facts.append(f"{target_name(shown)}: {n_cut} of {shown.prompts['n']} {CUT}")
        facts += [f"{target_name(shown)}: {line}" for line in noise_lines(floors)]
        said = [padding_remark(shown), *([] if brief else [limit_line(shown), result_line(shown)])]
        speeds += [Heading(target_name(shown), 3) if len(runs) > 1 else None, Lines(said), speed_table(shown)]
    if brief:
        return tables.show([Lines(map(wrong_line, runs)), rough, *speeds], markdown)
    return tables.show([checked, rough, *speeds, Lines(facts), Lines(where or [])], markdown)


def target_name(run: LabRun) -> str:
    name = run.settings["target"]
    if name == "models/lab-pair/target":
        return LAB + ", eager" * (run.settings["engine"] == "eager")
    return name.rpartition("/")[2]


def hardware(run: Head) -> str:
    machine = run.machine
    return machine["gpu"] or f"{machine['cpu']}, {machine['threads']} thread{'s' * (machine['threads'] != 1)}"


def circumstances(run: Head) -> str:
    """Return the machine, engine, versions, commit and seed of any record."""
    versions, settings = run.versions, run.settings
    commit = (versions["commit"] or "none")[:12] + " with uncommitted changes" * bool(versions["uncommitted_changes"])
    return (
        f"Measured {run.created[:10]} on {hardware(run)}; {settings['device']}, {settings['dtype']}, "
        f"{settings['engine']} engine; Python {versions['python']}, torch {versions['torch']}, "
        f"transformers {versions['transformers']}; commit {commit}; seed {settings['seed']}"
    )


def provenance(run: LabRun) -> str:
    settings, padded = run.settings, padding_remark(run)
    size = f"{settings['n_prompts']} prompts, up to {settings['max_new_tokens']} new tokens each"
    return f"{circumstances(run)}; {size}, {timed(settings['repeats'])}." + f" {padded}" * bool(padded)


def timed(repeats: int) -> str:
    return "each text timed once" if repeats == 1 else f"each text timed {repeats} times"


def padding_remark(run: LabRun) -> str | None:
    """This text must stand beside every number of a padded target; any other target has none."""
    target = run.settings["target"]
    if not target.startswith(padding.PREFIX):
        return None
    padded = [name for name in run.models if name.startswith(padding.PREFIX)]
    small = [name for name in run.models if name not in ("target", *padded)]  # lookups and hybrids are not among them
    said = f"{target} is {padding.describe_padding(target)}."
    said += f" Its draft model is padded, too: {', '.join(padded)}." * bool(padded)
    return said + f" Not padded, as small as for the lab's target: {', '.join(small)}." * bool(small)


def small_print(run: Head) -> str:
    """Return the line under a picture. It never leaves out that the target is padded, or the rule lossy."""
    target = run.settings["target"] + " (padded)" * run.settings["target"].startswith(padding.PREFIX)
    lossy, commit = f"; LOSSY, accept rule {run.settings.get('rule')}" * _is_lossy(run), run.versions["commit"] or ""
    return f"{target} on {hardware(run)}, {run.settings['dtype']}; {run.created}, commit {commit[:8]}{lossy}"


def _is_lossy(run: Head) -> bool:
    return any(getattr(row, "lossy_rule", None) for row in getattr(run, "rows", []))


def same_text_lines(run: ComparisonRun) -> list[str]:
    """Return a line for each temperature, below its greedy differences, above sampling arms that are wrong or lossy."""
    lines = []
    for temperature in sorted({entry["temperature"] for entry in run.correctness}):
        entries = [entry for entry in run.correctness if entry["temperature"] == temperature]
        if not temperature:
            differences = [_difference(entry, one) for entry in entries for one in entry["differences"]]
            verdict = f"{len(differences)} differ, first differences above" if differences else "identical"
            arms = f"{len(entries)} arm{'s' * (len(entries) > 1)}"
            made = f"{sum(entry['n_prompts'] for entry in entries)} texts of {arms}"
            said = f"greedy: {made} against the baseline, token for token: {verdict}"
            lines += [*differences, f"same text? {target_name(run)}, {said}"]
            continue
        named = [entry for entry in entries if entry.get("lossy_rule") or not entry["passed"]]
        tested = [entry["n_tokens"] - entry.get("n_uncertain", 0) for entry in entries]
        n_tested = sum(tested)
        n_right = sum(n > 0 and entry not in named for entry, n in zip(entries, tested, strict=True))
        right = f"{n_right} of {len(entries)} arms, |z| < {entries[0]['bound']:g}"
        said = f"{n_tested} sampled tokens, no difference found in {right}" if n_tested else UNTESTED
        if any(entry.get("lossy_rule") for entry in named):
            said = "NO, the rule is LOSSY; its arms below"
        lines.append(f"same text? {target_name(run)}, T = {temperature:g}: {said}")
        lines += map(_sampled, named)
    return lines


def _difference(entry: Facts, one: Facts) -> str:
    gap = "-" if one["gap"] is None else format(one["gap"], ".3g")
    where = f"  {entry['arm']}, prompt {one['prompt']}, token {one['position']}"
    return f"{where}: {one['tokens'][0]!r} became {one['tokens'][1]!r}, gap {gap}: {one['verdict']}"


def _sampled(entry: Facts) -> str:
    scores = {"z_S": entry["z_residual"], "z_L": entry["z_surprise"]}
    z = ", ".join(f"{name} = {'inf' if value is None else format(value, '+.2f')}" for name, value in scores.items())
    lossy = f"LOSSY, mean total variation {number(entry.get('total_variation'), 3)}"
    verdict = lossy if entry["passed"] else "NOT the target's distribution"
    return f"T = {entry['temperature']:g}, {entry['arm']}: {z} over {entry['n_tokens']} tokens: {verdict}"


def remarks(run: LabRun) -> list[str]:
    """Name what took part in the run and what disturbed it, and the texts that are wrong."""
    lines, settings = list[str](), run.settings
    if about := settings.get("functions"):
        lines.append(f"These functions took part in the speculative rows: {about}. The baseline is the lab's own.")
    lines += filter(None, [busy_line(run)])
    if rule := settings.get("rule"):
        plain = f"accept rule: {rule}; sampled rows of models have no forecast"
        lines.append(LOSSY.format(rule=rule) if _is_lossy(run) else plain)
    stopped = "Stopped before the end: rows cover the prompts that every arm had finished, and may have no forecast."
    return [*lines, *filter(None, [wrong_line(run), stopped * run.interrupted])]


def busy_line(run: Head) -> str | None:
    if (probe := run.machine.get("probe")) is None or probe["free"]:
        return None
    return f"BUSY when the run began: {what_load_means(probe['load'], run.machine['cores'])}"


def wrong_line(run: LabRun) -> str | None:
    wrong = [entry["arm"] for entry in getattr(run, "correctness", []) if not entry["passed"]]
    return f"WRONG OUTPUT: {', '.join(wrong)}; see correctness in the record" if wrong else None


def rough_line(*runs: LabRun) -> str | None:
    """Say in one sentence which runs' speeds are rough, what is not, and what to do; None where none are."""
    found = [(factor, f" ({target_name(run)})" * (len(runs) > 1)) for run in runs if (factor := rough_factor(run))]
    kept = "so speeds and speedups may be off by as much; texts and counts do not depend on the clock"
    said = f"{ROUGH} {', '.join(factor + name for factor, name in found)}, {kept}"
    return f"{said}; stop other work and run again for better ones" if found else None


def rough_factor(run: Head) -> str | None:
    """Return by how much the baseline of a run differs from itself; None where its speeds are not rough."""
    widest = max(map(attribution.reach, getattr(run, "noise", [])), default=1.0)
    return f"{math.ceil(100 * min(widest, LARGEST_FACTOR)) / 100:.2f}" if widest > attribution.FURTHEST else None


def noise_lines(floors: list[Noise]) -> list[str]:
    of = "noise floor, the baseline against itself in the same run"
    named = [of + f", B = {one.n_texts}" * (one.n_texts > 1) for one in floors]
    return [f"{name}: {speedup(one.ratio)}{_ends(one.low, one.high)}" for name, one in zip(named, floors, strict=True)]


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None else f" ({interval(low, high)})"


def speed_table(run: ComparisonRun) -> Table:
    """Return one line per draft and length. Further temperatures have a column each."""
    rows = [row for row in run.rows if row.prompt_kind == "all" and (row.draft or row.method == "baseline")]
    at = {(row.method, row.draft_length, row.temperature): row for row in rows}
    first, *further = dict.fromkeys(row.temperature for row in rows) or [0.0]
    heads = cells("draft", *tables.batches(rows), "k", "α", "tok/rnd", "tok/s")
    heads |= {"speedup": in_words} | cells("95 %")
    heads |= {"forecast": lambda row: speedup(row.forecast), "book(α)": lambda row: speedup(row.book_formula)}
    others = {f"T = {t:g}": lambda row, t=t: in_words(at.get((row.method, row.draft_length, t))) for t in further}
    return Table([row for row in rows if row.temperature == first], heads | others)


def in_words(row: Row | None) -> str:
    """Return the speedup of a row, and the verdict where it is none or may be none."""
    return "-" if not row else speedup_of(row) + f" {row.verdict}" * (row.verdict in ("slower", "unclear"))


def drafted(run: ComparisonRun) -> list[Row]:
    return [row for row in run.rows if row.prompt_kind == "all" and row.draft]


def first_rows(run: ComparisonRun) -> list[Row]:
    """Return those of the first temperature."""
    return [row for row in drafted(run) if row.temperature == run.rows[0].temperature]


def full_rows(run: ComparisonRun) -> list[Row]:
    """Return those of drafts that nearly always have k tokens: v, a mean over rounds, is that of a pass over k + 1."""
    rows = [row for row in first_rows(run) if row.verify_cost]
    return [row for row in rows if row.n_drafted > 0.9 * row.draft_length * row.n_rounds]


def result_line(run: ComparisonRun) -> str | None:
    """Say in one sentence what the table shows, at its first temperature; None for a run without drafts."""
    rows = sorted(first_rows(run), key=lambda row: row.speedup)
    if not rows:
        return None
    why = "; the baseline may differ from itself by as much" * ((rows[-1].speedup_low or 0) > 1)
    doubt = {"slower": ", slower", "unclear": f", not shown to be faster{why}"}.get(rows[-1].verdict or "", "")
    best = f"{_named(rows[-1])}, {speedup_of(rows[-1])}{_ends(rows[-1].speedup_low, rows[-1].speedup_high)}{doubt}"
    lowest = f"; lowest: {_named(rows[0])}, {speedup_of(rows[0])}" * (len(rows) > 1)
    return f"Highest: {best}{lowest}."


def _named(row: Row) -> str:
    length, batch = "auto" if row.auto else row.draft_length, f", B = {row.n_texts}" * (row.n_texts > 1)
    return f"{row.method.removesuffix(AUTO)}, k = {length}{batch}"


def step_seconds(run: ComparisonRun) -> float:
    """Return the seconds of a decode step of the baseline, at the first temperature."""
    baseline = next(row for row in run.rows if (row.method, row.prompt_kind) == ("baseline", "all"))
    return baseline.seconds / max(1, baseline.n_emitted)


def limit_line(run: ComparisonRun) -> str | None:
    """Say what share of a step the reading of weights takes, what further tokens add, and, if it follows, the limit."""
    if not run.rows or not run.bandwidth or run.weight_bytes is None:
        return None
    step, whole = step_seconds(run), full_rows(run)
    share = min(1.0, run.weight_bytes / run.bandwidth / step)
    said = f"A step takes {1e3 * step:.3g} ms; reading {run.weight_bytes / 1e6:.0f} MB of weights at "
    said += f"{run.bandwidth / 1e9:.0f} GB/s is {share:.0%} of it"
    if not whole:
        return f"{said}."
    row = min(whole, key=lambda row: abs(row.draft_length - 4))  # five tokens, where there is such a row
    wide, limit = row.verify_cost or 0.0, UNKNOWN
    narrow = wide <= 1 + 0.075 * row.draft_length
    if share < 0.25 and narrow and run.settings["engine"] == "eager":
        limit = STARTING
    elif not narrow and share >= 0.25:
        limit = ARITHMETIC
    elif share >= 0.5:
        limit = READING
    elif busy_line(run):
        limit = SHARED
    return f"{said}, and a pass over {row.draft_length + 1} tokens takes {wide:.2f} steps: {limit}"


def ladder_line(run: ComparisonRun) -> str | None:
    """Say what lies between the formula and the speedup of the fastest row with a ladder, else the fastest it knows."""
    rows = [row for row in first_rows(run) if row.book_formula is not None]
    row = max(rows, key=lambda row: (bool(factors(row)), row.speedup), default=None)
    if row is None:
        return None
    forecast = f", forecast {speedup(row.forecast)}" * (row.forecast is not None)
    return (
        f"{target_name(run)}, {_named(row)}: 1/(1-α+α/k) with α = {number(row.acceptance_rate)} says "
        f"{speedup(row.book_formula)}; measured {speedup_of(row)}{forecast}{between(row)}"
    )


def between(row: Row) -> str:
    """Name the factors between the formula and the row's speedup that move it by more than a tenth. That of the others
    is computed from the numbers as they are printed, so that the product is the printed speedup."""
    known = [item for item in factors(row).items() if item[0] != "all else"]
    large = [item for item in known if abs(math.log(max(item[1], 1e-9))) > math.log(1.1)]
    said = math.prod([round(row.book_formula or 0.0, 2), *(round(factor, 2) for _, factor in large)])
    named = "".join(f"x{factor:.2f} {name}, " for name, factor in large)
    return f"; between them: {named}x{round(row.speedup, 2) / said:.4g} the rest" if known and said else ""
