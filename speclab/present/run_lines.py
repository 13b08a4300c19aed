"""Any record may have these lines: its origin, what is wrong with it, and how noisy the machine was."""

import math
from statistics import mean

from speclab.models.padded import sizes
from speclab.present.tables import Table, interval, speedup
from speclab.records.files import Head, LabRun, Noise
from speclab.records.rows import Row
from speclab.system import cores
from speclab.theory import attribution

COSTS = (
    "c, v and o are costs in decode steps of the target: of a drafted token, a pass over k + 1 tokens, the rest of a "
    "round"
)

REJECTED_PLACES = (
    "a draft with branches has several tokens for one place, and more than one of them can be tested and fail; a place "
    "where none passes is counted once as rejected. α of such drafts: accepted / tested places"
)

ROUGH = "rough"  # the mark of a row whose speeds are rough
LARGEST_FACTOR = 99  # that a line names; beyond it the size no longer matters

REPLAYS = "passes in which recurrent layers, which cannot be cropped, read accepted tokens once more"

LOSSY = (
    "accept rule: {rule} is LOSSY: the texts do not follow the target's distribution. The number after LOSSY says how "
    "far the distribution of a decoded token is from the target's after the same text: their total variation distance "
    "(0: they are the same, 1: they have nothing in common). It is the mean over the timed texts, where bonus tokens "
    "count as 0. Such rows have no forecast."
)


def hardware(run: Head) -> str:
    """Return the processor that a record was taken on."""
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
    """Return the circumstances and the size of a run, in one paragraph."""
    settings = run.settings
    return (
        f"{circumstances(run)}; {settings['n_prompts']} prompts, up to {settings['max_new_tokens']} new tokens each, "
        f"{timed(settings['repeats'])}.{padding_remark(settings['target'])}"
    )


def timed(repeats: int) -> str:
    """Say how many times every text was decoded and timed."""
    return "each text timed once" if repeats == 1 else f"each text timed {repeats} times"


def padding_remark(target: str) -> str:
    """This text must stand beside every number of a padded target; any other target has none."""
    if not sizes.is_lab_size(target):
        return ""
    return f" {target} is {sizes.describe_padding(target)}."


def small_print(run: Head) -> str:
    """Return the line under a picture: model, machine, number format, time and commit of any record."""
    commit = (run.versions["commit"] or "")[:8]
    target, dtype = (run.settings[name] for name in ("target", "dtype"))
    target += " (padded)" * sizes.is_lab_size(target)
    rules = {rule for row in getattr(run, "rows", []) if (rule := getattr(row, "lossy_rule", None))}
    lossy = "".join(f"; LOSSY, accept rule {rule}" for rule in rules)
    return f"{target} on {hardware(run)}, {dtype}; {run.created}, commit {commit}{lossy}"


def remarks(run: LabRun) -> list[str]:
    """Name the texts that were not checked or are wrong, and say whether the run was stopped."""
    lines = [line for line in (busy_line(run), late_line(run)) if line]
    if rule := run.settings.get("rule"):
        lines.append(rule_line(rule, [row for row in getattr(run, "rows", []) if row.lossy_rule]))
    if replays := replay_line(run):
        lines.append(replays)
    lines += own_rates_lines(run)
    if run.unchecked:
        lines.append(f"NOT CHECKED: {', '.join(run.unchecked)}; the run was stopped before these texts were judged")
    if wrong := wrong_line(run):
        lines.append(wrong)
    if run.interrupted:
        lines.append("Stopped before the end: rows cover the prompts that every arm had finished.")
    return lines


def wrong_line(run: LabRun) -> str | None:
    """Return the arms whose texts are not the target's; None where there are none."""
    wrong = [entry["arm"] for entry in getattr(run, "correctness", []) if not entry["passed"]]
    return f"WRONG OUTPUT: {', '.join(wrong)}; see correctness in the record" if wrong else None


def rule_line(rule: str, lossy: list[Row]) -> str:
    """The line says what a rule other than the token rule means for the rows. lossy: the rows that a lossy rule
    judged."""
    if lossy:
        return LOSSY.format(rule=rule)
    return f"accept rule: {rule}; sampled rows of models have no forecast"


def replay_line(run: LabRun) -> str | None:
    """Say how many rounds were followed by a replay, and what one cost; None where the target has no recurrent
    layers."""
    rows = [row for row in getattr(run, "rows", []) if isinstance(row, Row) and row.draft]
    if not any(row.n_replays for row in rows):
        return None
    whole = [row for row in rows if row.prompt_kind == "all"] or rows
    n, n_rounds = sum(row.n_replays or 0 for row in whole), sum(row.n_rounds for row in whole)
    seconds = [s for entry in getattr(run, "costs", []) if (s := entry["costs"].get("replay"))]
    each = f"; one takes {interval(1e3 * min(seconds), 1e3 * max(seconds))} ms, part of o" if seconds else ""
    return f"replays: after {n} of {n_rounds} speculative rounds, {REPLAYS}{each}"


def own_rates_lines(run: LabRun) -> list[str]:
    """One line for each draft and temperature gives the means of the draft's own columns over the draft lengths."""
    rows = [row for row in getattr(run, "rows", []) if isinstance(row, Row) and row.prompt_kind == "all"]
    by_draft: dict[tuple[str, float], dict[str, list[float]]] = {}
    for row in rows:
        for name, share in (row.own_rates or {}).items():
            by_draft.setdefault((row.method, row.temperature), {}).setdefault(name, []).append(share)
    return [
        f"{method}, T = {temperature:g}: {', '.join(f'{name} {mean(shares):.3f}' for name, shares in found.items())}"
        for (method, temperature), found in by_draft.items()
    ]


def busy_line(run: Head) -> str | None:
    """Say that the cores were not free when the run began; None where they were, or where nothing looked."""
    probe = run.machine.get("probe")
    if probe is None or probe["free"]:
        return None
    said = cores.complaint(probe["load"], run.machine["cores"] or 1)
    return f"BUSY: when the run began, {said or 'the cores were not free'}"


def late_line(run: LabRun) -> str | None:
    """Say that CUDA graphs were recorded while something was timed; None where none was."""
    late = (run.settings.get("graphs") or {}).get("in_turns", 0)
    return f"SLOWED: {late} CUDA graphs were recorded in timed turns, where there should be none" if late else None


def rough_line(run: Head) -> str | None:
    """Say in one sentence that a run's speeds are rough, what is not, and what to do; None where they are not rough.

    It stands above the tables. What to do is left out where the user was told before the run that the cores are busy.
    """
    if (said := rough_in_short(run)) is None:
        return None
    was_told = busy_line(run) is not None
    return (
        f"{said}, so speeds and speedups that are marked rough may be off by as much; texts and counts do not depend "
        "on the clock" + "; stop other work and run again for better ones" * (not was_told)
    )


def rough_in_short(run: Head) -> str | None:
    """Say that the speeds of a run are rough; this line stands above a picture. None where they are not."""
    worst = attribution.too_wide(getattr(run, "noise", None) or [])
    if worst is None:
        return None
    factor = math.ceil(100 * min(attribution.reach(worst), LARGEST_FACTOR)) / 100
    return f"ROUGH: the baseline, timed twice in the same turns, differs from itself by a factor of up to {factor:.2f}"


def marked(run: Head, table: Table) -> Table:
    """Return a table of the run's speeds, with a mark in every row where they are rough."""
    if rough_in_short(run) is None:
        return table
    return table._replace(cells=table.cells | {"": lambda row: ROUGH})


def floor_text(floor: Noise) -> str:
    """Write 1.01x (0.98 to 1.03), without an interval where there is none."""
    ends = interval(floor.low, floor.high)
    return speedup(floor.ratio) + f" ({ends})" * (ends != "-")


def noise_lines(floors: list[Noise]) -> list[str]:
    """Return the noise floors of a record: the baseline against a second baseline in the same run."""
    return [f"noise floor, the baseline against itself in the same run: {floor_text(floor)}" for floor in floors]
