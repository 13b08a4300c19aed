"""`compare.py --sweep NAME`: turn one dial, keep the rest still.

A sweep is a list of points. Each point is a row like those of a comparison, with predictions, measured in the same
turns as all others wherever one run can hold them.
"""

import argparse
import copy
import itertools
import sys
import time
from collections.abc import Callable

from draft_models import ModelDrafter
from speclab.drafts.oracle import FreeOracleDrafter, OracleDraft
from speclab.lab import degraded_drafts
from speclab.lab.acceptance_chances import CostTable, calibrated
from speclab.lab.comparison import build_rows, explained
from speclab.lab.harness import STOPS, Measurement, is_model, keeping, measure, stopped
from speclab.lab.output_checks import exit_code, judge
from speclab.lab.run_config import Job, instruments, prepare
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.present import sweep_views
from speclab.records.samples import BASELINE, BASELINE_REPEAT, Arm
from speclab.system import terminal
from speclab.system.errors import UsageProblem
from speclab.system.files import do_all, write_whole
from speclab.system.terminal import note
from speclab.theory import attribution

TRAINING_SECONDS = 20.0


def run(args: argparse.Namespace) -> int:
    """One sweep, or all of them into one report.  -> exit code"""
    names = list(SWEEPS) if args.sweep == "all" else [args.sweep]
    if len(names) > 1 and args.json:
        raise UsageProblem("--json takes one record; run the sweeps one by one, or read results/ afterwards")
    if len(names) > 1 and args.prompts == "-":
        raise UsageProblem("standard input can be read once only; give --prompts a file")
    done, code, start = [], 0, time.monotonic()
    try:
        for place, name in enumerate(names, 1):
            if len(names) > 1:
                spent = time.monotonic() - start
                left = f", about {spent / (place - 1) * (len(names) - place + 1) / 60:.0f} min left" if done else ""
                note(f"sweep {place} of {len(names)}: {name}{left}")
            job = _prepare(args, name)
            with job.talk():
                sweep, found = measured(job, name)
                done.append(sweep)
                code = _show_and_write(job, sweep) or code
            wrong = exit_code(found)
            code = code or wrong
            if found.interrupted:
                break
    finally:
        if len(names) > 1 and done:
            path = args.out_dir / "results" / f"{args.name}-sweeps.md"
            pictures = {s["sweep"]: f"../plots/{args.name}-sweep-{s['sweep']}.png" for s in done}
            code = do_all([lambda: write_whole(path, sweep_views.all_pages(done, pictures))]) or code
    return code


def _prepare(args: argparse.Namespace, name: str) -> Job:
    """The sweep's own sizes wherever the command line says nothing."""
    mine = copy.copy(args)
    mine.sweep = name  # of all of them, this one
    for key, value in SWEEPS[name].items():
        if key != "points" and getattr(mine, key) is None:
            setattr(mine, key, value)
    if name == "acceptance" and args.draft:  # a dial for every model the user named, at that model's price
        models = [kind for kind in args.draft.split(",") if kind != "ngram" and not kind.startswith("dial:")]
        if models:
            mine.draft = ",".join([FREE_DIALS, *(_dials(f":{model}") for model in models)])
    return prepare(mine)


def measured(job: Job, name: str) -> tuple[dict, Measurement]:
    """Run one sweep.  -> its record, what it is made from"""
    points, facts, found = SWEEPS[name]["points"](job)
    coolest = job.temperatures[0]
    floor = attribution.noise_floor(found.of(BASELINE, coolest), found.of(BASELINE_REPEAT, coolest))
    return {
        **job.head(found),
        "sweep": name,
        "facts": facts,
        "correctness": found.correctness,
        "noise": [{"temperature": coolest, **floor}] if floor else [],
        "points": points,
    }, found


def _show_and_write(job: Job, sweep: dict) -> int:
    """Table and lines, then the record, the page and the picture.  -> exit code"""
    files = job.writes(sweep, lambda: sweep_views.page(sweep, f"../plots/{job.name}.png"))
    picture = [lambda: sweep_views.picture(sweep, job.plots, job.name)]
    return do_all(itertools.chain([lambda: terminal.say(sweep_views.text(sweep))], files, picture))


# --- what each sweep runs -------------------------------------------------------------------------------------------

Points = tuple[list[dict], dict, Measurement]


def _rows(
    job: Job,
    arms: list[Arm],
    prompts: list[Prompt] | None = None,
    max_new_tokens: int | None = None,
    title: str = "measuring",
) -> tuple[list[dict], Measurement]:
    """Rows of a small comparison, checked, and calibrated in its own turns."""
    prompts, base = prompts or job.prompts, job.setup.sampling
    bench = job.bench(max_new_tokens)
    found = measure(bench, arms, job.temperatures, prompts, job.args.repeats, base, instruments(job, arms), title)
    judge(bench, found, prompts, base, job.setup.tokenizer)
    return explained(found, lambda prices: build_rows(bench, found, prompts, prices, base, job.common)), found


def _points(rows: list[dict], x: Callable[[dict], float | str], series: Callable[[dict], str]) -> list[dict]:
    return [{**row, "x": x(row), "series": series(row)} for row in rows if row["draft"]]


def _of_all(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["prompt_kind"] == "all"]


def _one_run(x: str, series: str = "method", kinds: bool = False) -> Callable[[Job], Points]:
    """A sweep that one run can hold: `x` and `series` are columns of its rows; `kinds`: those of each kind, too."""

    def points(job: Job) -> Points:
        rows, found = _rows(job, job.arms())
        return _points(rows if kinds else _of_all(rows), lambda r: r[x], lambda r: r[series]), {}, found

    return points


def _acceptance(job: Job) -> Points:
    """The dial from never right to always right, once at a real draft's price and once for nothing."""
    dials = {name: d for name, d in job.drafters.items() if isinstance(d, OracleDraft)}
    if len(dials) < len(job.drafters):
        raise UsageProblem("--sweep acceptance turns a dial; leave --draft away or give dials, as in dial:0.5,dial:0.9")

    def series(name: str) -> str:
        if isinstance(dials[name], FreeOracleDrafter):
            return "free drafts"
        model = name.split(":", 2)[2:]  # dial:A:MODEL
        return f"price of {loading.short_name(model[0])}" if model else "draft's price"

    # All dials of a series cost the same: the one in the middle speaks for them.
    speakers = {series(name): name for name in sorted(dials, key=lambda n: -abs(dials[n].accuracy - 0.5))}
    arms, bench, base = job.arms(), job.bench(), job.setup.sampling
    tools = {name: lengths for name, lengths in instruments(job, arms).items() if name in speakers.values()}
    found = measure(bench, arms, [0.0], job.prompts, job.args.repeats, base, tools)
    judge(bench, found, job.prompts, base, job.setup.tokenizer)

    def made(spoken: CostTable) -> list[dict]:
        prices = {(name, 0.0): spoken[speakers[series(name)], 0.0] for name in dials if spoken}
        return build_rows(bench, found, job.prompts, prices, base, job.common)

    rows = _of_all(explained(found, made))
    return _points(rows, lambda r: dials[r["draft"]].accuracy, lambda r: series(r["draft"])), {}, found


def _by_size(sizes: list[int], run: Callable[[int], tuple[list[dict], Measurement]]) -> tuple[list[dict], Measurement]:
    """One run after the other. What is done is kept when one is stopped, as long as that is anything."""
    points, found = [], Measurement()
    for n in sizes:
        try:
            rows, part = run(n)
        except STOPS as stop:
            if not points:
                raise
            note(f"{stopped(stop)}; the points before {n} are complete")
            found.stop = stop
            break
        points += _points(_of_all(rows), lambda r, n=n: n, lambda r: r["method"])
        _merge(found, part)
        if part.interrupted:
            break
    return points, found


def _output_length(job: Job) -> Points:
    lengths = [n for n in (8, 16, 32, 64, 128, 512) if n <= job.args.max_new_tokens]
    if not lengths:
        raise UsageProblem("--sweep output-length begins at 8 tokens; use --max-new-tokens 8 or more")
    points, found = _by_size(lengths, lambda n: _rows(job, job.arms(), max_new_tokens=n, title=f"{n} tokens"))
    return points, {}, found


def _context(job: Job) -> Points:
    """Prompts of growing length: the standard prompts of a kind one behind the other, cut to size."""
    models = [job.setup.target, *(d.draft for d in job.drafters.values() if isinstance(d, ModelDrafter))]
    room = min(model.max_length or sys.maxsize for model in models) - job.args.max_new_tokens
    if room < CONTEXTS[0]:
        raise UsageProblem(
            f"the models have room for {max(0, room)} tokens of prompt and --sweep context needs {CONTEXTS[0]}; use "
            "fewer --max-new-tokens"
        )
    prices = []

    def run(n: int) -> tuple[list[dict], Measurement]:
        rows, part = _rows(job, job.arms(), stretched(job.prompts, n), title=f"{n} tokens of context")
        with keeping(part, "the measurements are complete, their costs are not"):
            prices.extend(
                {"context": n, "drafter": job.method(name), "costs": costs.to_json()}
                for (name, _), costs in calibrated(part).items()
            )
        return rows, part

    points, found = _by_size([n for n in CONTEXTS if n <= room], run)
    return points, {"costs": prices}, found


def stretched(prompts: list[Prompt], n: int) -> list[Prompt]:
    """Each prompt brought to exactly n tokens by putting others of its kind in front of it, as often as it takes."""
    made = []
    for i, prompt in enumerate(prompts):
        others = [p for p in [*prompts[i + 1 :], *prompts[: i + 1]] if p.kind == prompt.kind]  # the last is the prompt
        ids = prompt.ids.new_tensor([token for p in others for token in p.id_list])
        times = -(-n // len(ids))
        made.append(Prompt(prompt.kind, prompt.text, ids.repeat(times)[-n:][None]))
    return made


def _mismatch(job: Job) -> Points:
    """The trained draft, the same with noise in its weights, one trained on the spot, a random one."""
    trained = next((drafter for drafter in job.drafters.values() if is_model(drafter)), None)
    if trained is None:
        raise UsageProblem("--sweep mismatch starts from a draft model; give --draft model or a folder")
    source, vocab = trained.draft.model, trained.draft.vocab_size
    note(f"training a draft for {TRAINING_SECONDS:.0f} s")
    spot, facts = degraded_drafts.trained_on_the_spot(source, job.setup.tokenizer, TRAINING_SECONDS, job.args.seed)
    models = {"trained": source}
    models |= {f"noise {amount:g}": degraded_drafts.noisy(source, amount, job.args.seed) for amount in (0.1, 0.2, 0.4)}
    models |= {
        f"{TRAINING_SECONDS:.0f} s of training": spot,
        "random": degraded_drafts.random_like(source, job.args.seed),
    }
    job.drafters = {name: ModelDrafter(job.setup.cached(model, vocab)) for name, model in models.items()}
    rows, found = _rows(job, job.arms())
    points = _points(_of_all(rows), lambda r: r["method"], lambda r: "draft")
    points.sort(key=lambda p: -(p["acceptance_rate"] or 0))
    return points, {"training": facts}, found


def _merge(found: Measurement, part: Measurement) -> None:
    """Samples of several runs side by side: prompts count on."""
    shift = 1 + max((s.prompt_index for s in found.samples), default=-1)
    for sample in part.samples:
        sample.prompt_index += shift
    found.extend(part)


def _settings(points: Callable[[Job], Points], **sizes) -> dict:
    """Defaults: two prompts of a kind, 64 tokens, k = 4, greedy, model and n-gram."""
    usual = {"draft": "model,ngram", "limit": 2, "max_new_tokens": 64, "repeats": 1}
    return {"points": points, **usual, "draft_length": "4", "temperature": "0", **sizes}


def _dials(price: str) -> str:
    return ",".join(f"dial:{i / 10:g}{price}" for i in range(11))


CONTEXTS = (128, 256, 512, 1024, 1800)  # prompt tokens
FREE_DIALS = _dials(":free")
SWEEPS = {
    "draft-length": _settings(_one_run("draft_length"), draft_length=",".join(map(str, range(17)))),
    "acceptance": _settings(_acceptance, draft_length="2", draft=f"{FREE_DIALS},{_dials('')}"),
    "temperature": _settings(_one_run("temperature"), temperature="0,0.2,0.4,0.6,0.8,1,1.2"),
    "output-length": _settings(_output_length, max_new_tokens=512),
    "context": _settings(_context),
    "draft-kind": _settings(_one_run("method", "prompt_kind", kinds=True), draft="model,ngram,dial:0.5", limit=4),
    "mismatch": _settings(_mismatch, draft="model"),
    "definitions": _settings(_one_run("draft_length"), draft_length="1,2,4,8"),
}
