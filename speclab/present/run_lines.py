"""Lines that any record may carry: where it comes from, whether its texts were checked, how noisy the machine was."""

from speclab.models import padding
from speclab.present.tables import interval, speedup
from speclab.records.runs import ComparisonRun, Head, LabRun, Noise, SweepRun

COSTS = "c: a drafted token, v: a target pass over k + 1 tokens, o: the rest of a round, in decode steps of the target"


def hardware(run: Head) -> str:
    """The processor that a record was taken on."""
    machine = run.machine
    return machine.gpu or f"{machine.cpu}, {machine.threads} threads"


def circumstances(run: Head) -> str:
    """Machine, engine, versions, commit and seed of any record."""
    versions, settings = run.versions, run.settings
    commit = (versions.commit or "none")[:12]
    if versions.uncommitted_changes:
        commit += " with uncommitted changes"
    return (
        f"Measured {run.created[:10]} on {hardware(run)}; {settings['device']}, {settings['dtype']}, "
        f"{settings['engine']} engine; "
        f"Python {versions.python}, torch {versions.torch}, transformers {versions.transformers}; "
        f"commit {commit}; seed {settings['seed']}"
    )


def provenance(run: LabRun) -> str:
    """The circumstances and the size of a comparison, a sweep or a plan, in one paragraph."""
    settings = run.settings
    n_prompts = run.prompts["n"] if isinstance(run, ComparisonRun) else settings["n_prompts"]
    return (
        f"{circumstances(run)}; {n_prompts} prompts, {settings['max_new_tokens']} new tokens each, "
        f"{settings['repeats']} x.{padding_remark(settings['target'])}"
    )


def padding_remark(target: str) -> str:
    """What must stand beside every number of a padded target; nothing for any other."""
    if not padding.is_lab_size(target):
        return ""
    return f" {target} is {padding.describe_padding(target)}."


def small_print(run: Head) -> str:
    """Model, machine, number format, time and commit of any record: the line under a picture."""
    commit = (run.versions.commit or "")[:8]
    target, dtype = (run.settings[name] for name in ("target", "dtype"))
    target += " (padded)" * padding.is_lab_size(target)
    return f"{target} on {hardware(run)}, {dtype}; {run.created}, commit {commit}"


def unchecked_line(run: LabRun) -> str | None:
    """Which texts were timed and not judged; None where all are judged."""
    if not run.unchecked:
        return None
    return f"NOT CHECKED: {', '.join(run.unchecked)}; the run was stopped before these texts were judged"


def wrong_output_line(run: ComparisonRun | SweepRun) -> str | None:
    """Which arms wrote a wrong text; None where all are right."""
    wrong = [entry["arm"] for entry in run.correctness if not entry["passed"]]
    return f"WRONG OUTPUT: {', '.join(wrong)}; see correctness in the record" if wrong else None


def interrupted_line(run: Head) -> str | None:
    """That the run was stopped; None where it was not."""
    if not run.interrupted:
        return None
    return "Stopped before the end: rows cover the prompts that every arm had finished, checks may be missing."


def noise_lines(floors: list[Noise]) -> list[str]:
    """The noise floors of a record: the baseline against a second baseline in the same run."""
    return [
        f"noise floor, the baseline against itself in the same run: {speedup(floor.ratio)} "
        f"({interval(floor.low, floor.high)})"
        for floor in floors
    ]
