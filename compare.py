#!/usr/bin/env python3
"""Baseline against speculative decoding on the same prompts: agreement first, then speed, then the book's formula.

What comes out: what ran, whether the outputs agree, one table per temperature, a sentence for every row in which
1/(1-alpha+alpha/k) is more than 10 % off, a run record (JSON), the tables in Markdown, and pictures.

    python compare.py                             # the lab's own pair: no network, no GPU, a few minutes
    python compare.py --quick                     # under a minute
    python compare.py --draft model,ngram,dial:0.9 -k 1,2,4,8 --temperature 0 --by-kind
    python compare.py --target Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct,ngram --device cuda

The arms take turns prompt by prompt, in an order that reverses every time (ABBA), after a warm-up. Prefill and decoding
are timed apart. Timed runs produce a fixed number of tokens: an end-of-text token does not stop them.
Exit code 1 if a greedy difference is not a near-tie, or a sampled row fails its statistics.
"""

import contextlib
import math
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import GenerationConfig

from baseline_autoregressive import autoregressive_decode
from draft_models import DialDrafter, Drafter, ModelDrafter, NgramDrafter, add_draft_flag, make_drafter
from optimized_speculative import speculative_decode
from speclab import losslessness, options, plots, record, report
from speclab.cached_model import check_prompt
from speclab.errors import UsageProblem, reports_problems
from speclab.prompts import Prompt
from speclab.record import Arm, Costs, Sample
from speclab.sampling import Sampling
from speclab.theory import Counts
from speclab.timing import Stopwatch, interleaved

BASELINE, GENERATE = Arm("baseline"), Arm("generate")
CALIBRATION_PROMPTS = 3  # how many prompts the instrumented runs use


class Bench:
    """The two decoders on one target, as arms that can be called in any order."""

    def __init__(self, setup: options.Setup, drafters: dict[str, Drafter], max_new_tokens: int, seed: int):
        self.setup, self.drafters, self.max_new_tokens, self.seed = setup, drafters, max_new_tokens, seed
        # The library's own loop does the same job as ours: no end token, no penalties from the model's own settings.
        setup.target.model.generation_config = GenerationConfig(pad_token_id=0)
        self.references: dict[int, list[int]] = {}  # prompt index -> the baseline's greedy tokens, for the dial

    def run(
        self,
        arm: Arm,
        sampling: Sampling,
        index: int,
        prompt: Prompt,
        repeat: int = 0,
        tokens: int | None = None,
        phases: Counter | None = None,
    ) -> tuple[float, float, Counts, list[int]]:
        """Decode once.  -> (prefill seconds, decode seconds, counts, new tokens)

        `tokens` replaces the budget. Where `phases` is given, the seconds of each phase of the rounds are added to it.
        """
        setup, budget = self.setup, tokens or self.max_new_tokens
        ids = prompt.ids.to(setup.device)
        # A different stream for every prompt and repeat, the same for every arm.
        generator = torch.Generator(setup.device).manual_seed((self.seed * 1009 + repeat) * 100_003 + index)
        counts, output = Counts(), []
        if arm == GENERATE:
            return self._generate(ids, budget)
        if arm.speculative:
            drafter = self._drafter(arm, index, ids)
            watch = Stopwatch(setup.device)
            rounds = speculative_decode(
                setup.target,
                drafter,
                ids,
                arm.draft_length,
                budget,
                sampling,
                generator,
                time_phases=phases is not None,
            )
            for round_ in rounds:
                if round_.prefill:
                    watch.lap("prefill")
                elif phases is not None:
                    phases.update(round_.seconds)
                counts.add(round_)
                output += round_.tokens
        else:
            watch = Stopwatch(setup.device)
            for token in autoregressive_decode(setup.target, ids, budget, sampling, generator, chunk=setup.chunk):
                if not output:
                    watch.lap("prefill")
                output.append(token)
            counts.n_rounds = counts.n_emitted = len(output) - 1
        watch.lap("decode")
        return watch.laps["prefill"], watch.laps["decode"], counts, output

    def calibrate(
        self, arms: list[Arm], sampling: Sampling, prompts: dict[int, Prompt]
    ) -> dict[tuple[Arm, float], Costs]:
        """Seconds by phase of every speculative arm, the baseline run beside them.  -> costs by arm and temperature"""
        seconds, tokens = 0.0, 0
        phases = {arm: Counter() for arm in arms}
        counts = {arm: Counts() for arm in arms}
        for index, prompt in prompts.items():
            _, decode_seconds, baseline_counts, _ = self.run(BASELINE, sampling, index, prompt)
            seconds += decode_seconds
            tokens += baseline_counts.n_emitted
            for arm in arms:
                _, _, arm_counts, _ = self.run(arm, sampling, index, prompt, phases=phases[arm])
                counts[arm].merge(arm_counts)
        per_token = seconds / tokens
        return {
            (arm, sampling.temperature): Costs(per_token, phases[arm], counts[arm].n_rounds, counts[arm].n_drafted)
            for arm in arms
        }

    def _drafter(self, arm: Arm, index: int, ids: torch.Tensor) -> Drafter:
        drafter = self.drafters[arm.draft]
        if isinstance(drafter, DialDrafter):
            if index not in self.references:
                self.references[index] = list(autoregressive_decode(self.setup.target, ids, self.max_new_tokens))
            drafter.replay(self.references[index])
        return drafter

    def _generate(self, ids: torch.Tensor, budget: int):
        watch = Stopwatch(self.setup.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = self.setup.target.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=budget,
                do_sample=False,
                pad_token_id=0,
            )
        watch.lap("all")
        tokens = output[0, ids.shape[1] :].tolist()
        return 0.0, watch.laps["all"], Counts(n_rounds=len(tokens) - 1, n_emitted=len(tokens) - 1), tokens


def measure(
    bench: Bench, arms: list[Arm], temperatures: list[float], prompts: list[Prompt], repeats: int, base: Sampling
) -> tuple[list[Sample], bool]:
    """All arms over all prompts, in turns.  -> samples of the prompts every arm finished, and whether Ctrl-C came"""
    done: list[Sample] = []
    bar = tqdm(total=len(temperatures) * len(prompts) * repeats, unit="prompt", desc="measuring", leave=False)
    try:
        for temperature in temperatures:
            sampling = Sampling(temperature, base.top_k, base.top_p)
            usable = [a for a in arms if temperature == 0 or not _greedy_only(a)]
            for arm in usable:
                bench.run(arm, sampling, 0, prompts[0], tokens=min(16, bench.max_new_tokens))  # warm-up
            for index, prompt in enumerate(prompts):
                samples = [Sample(arm, temperature, index, prompt.kind) for arm in usable]
                for repeat in range(repeats):
                    # The order reverses from prompt to prompt too, so one repeat is enough for ABBA.
                    order = list(interleaved(len(usable), 2))[len(usable) * ((index + repeat) % 2) :][: len(usable)]
                    for i in order:
                        prefill, decode, counts, tokens = bench.run(usable[i], sampling, index, prompt, repeat)
                        samples[i].prefill_seconds += prefill
                        samples[i].decode_seconds += decode
                        samples[i].counts.merge(counts)
                        samples[i].tokens = tokens
                    bar.update()
                done += samples
    except KeyboardInterrupt:
        bar.close()
        options.note(f"stopped: {len({(s.temperature, s.prompt_index) for s in done})} prompts are complete")
        if not done:
            raise
        return done, True
    bar.close()
    return done, False


def _greedy_only(arm: Arm) -> bool:
    return arm == GENERATE or arm.method.startswith("dial")


def check_greedy(bench: Bench, samples: list[Sample], prompts: list[Prompt], tokenizer) -> Iterator[dict]:
    """One entry for every speculative arm: equal, or where it first differs and why."""
    baseline = {s.prompt_index: s.tokens for s in samples if s.arm == BASELINE}
    for arm in dict.fromkeys(s.arm for s in samples if s.arm.speculative):
        entry = {"arm": arm.label, "temperature": 0.0, "n_prompts": len(baseline), "differences": [], "passed": True}
        for sample in (s for s in samples if s.arm == arm):
            found = losslessness.judge_divergence(
                bench.setup.target.model,
                prompts[sample.prompt_index].id_list,
                baseline[sample.prompt_index],
                sample.tokens,
                arm.draft_length + 1,
            )
            if found:
                pair = (found.baseline_token, found.speculative_token)
                words = [tokenizer.decode([t]) if t >= 0 else "" for t in pair]
                verdict = "near-tie" if found.numerical else "BUG"
                entry["differences"].append(
                    {
                        "prompt": sample.prompt_index,
                        "position": found.position,
                        "tokens": words,
                        "gap": None if found.gap == float("inf") else found.gap,
                        "verdict": verdict,
                    }
                )
                entry["passed"] &= found.numerical
        yield entry


def check_sampled(bench: Bench, samples: list[Sample], prompts: list[Prompt], sampling: Sampling) -> Iterator[dict]:
    """One entry for every speculative arm: the two z statistics of its tokens under the target's own distributions."""
    vocab = bench.setup.target.vocab_size
    model = bench.setup.target.model
    for arm in dict.fromkeys(s.arm for s in samples if s.arm.speculative):
        sums = losslessness.ZSums()
        for sample in (s for s in samples if s.arm == arm):
            prompt = prompts[sample.prompt_index].id_list
            target_probs = losslessness.distributions(model, prompt, sample.tokens, sampling, vocab)
            drafter = bench.drafters[arm.draft]
            if isinstance(drafter, ModelDrafter):
                draft = drafter.draft.model
                draft_probs = losslessness.distributions(draft, prompt, sample.tokens, sampling, vocab)
            else:
                draft_probs = _lookups(prompt, sample.tokens, vocab)
            sums.add(torch.tensor(sample.tokens), target_probs, draft_probs)
        z = sums.result()
        yield {
            "arm": arm.label,
            "temperature": sampling.temperature,
            "n_tokens": z.n_tokens,
            "z_residual": z.residual if math.isfinite(z.residual) else None,
            "z_surprise": z.surprise if math.isfinite(z.surprise) else None,  # an impossible token was emitted
            "bound": losslessness.Z_BOUND,
            "passed": z.passed,
        }


def _lookups(prompt: list[int], tokens: list[int], vocab: int) -> torch.Tensor:
    """What prompt lookup would propose at the place of each token, as one-hot rows (none: zeros).  -> (n, vocab)"""
    drafter, rows = NgramDrafter(), torch.zeros(len(tokens), vocab)
    drafter.start(None, torch.tensor([prompt]), Sampling())
    for i, token in enumerate(tokens):
        for proposal in drafter.lookup(1):
            rows[i, proposal] = 1.0
        drafter.observe(0, [token])
    return rows


def is_model(drafter: Drafter) -> bool:
    """A real draft model, not the instrument that pays for one."""
    return isinstance(drafter, ModelDrafter) and not isinstance(drafter, DialDrafter)


def headline(samples: list[Sample], arms: list[Arm], drafters: dict[str, Drafter], common: dict) -> dict | None:
    """The model draft at its best k: chosen on the even prompts of every kind, reported on the odd ones."""
    greedy = [s for s in samples if s.temperature == 0]
    order: dict[str, list[int]] = {}
    for sample in greedy:
        seen = order.setdefault(sample.prompt_kind, [])
        if sample.prompt_index not in seen:
            seen.append(sample.prompt_index)
    held_out = {index for seen in order.values() for index in seen[1::2]}

    def rows(indexes_held_out: bool) -> list[dict]:
        part = [s for s in greedy if (s.prompt_index in held_out) == indexes_held_out]
        candidates = [a for a in arms if a.speculative and a.draft_length > 0 and is_model(drafters[a.draft])]
        baseline = [s for s in part if s.arm == BASELINE]
        return [
            record.row(a, [s for s in part if s.arm == a], baseline, None, common, "held-out half")
            for a in candidates
            if any(s.arm == a for s in part)
        ]

    chosen_on, reported_on = rows(False), rows(True)
    if not chosen_on or not reported_on:
        return None
    best = max(chosen_on, key=lambda r: r["speedup"])
    return next(r for r in reported_on if (r["draft"], r["draft_length"]) == (best["draft"], best["draft_length"]))


def build_rows(samples: list[Sample], costs: dict, common: dict) -> list[dict]:
    """Rows for all prompts, for each kind, and for the prompts whose greedy text does not end in a loop."""
    greedy = [s for s in samples if s.arm == BASELINE and s.temperature == 0]
    looping = {s.prompt_index for s in greedy if record.ends_in_loop(s.tokens)}
    kinds = list(dict.fromkeys(s.prompt_kind for s in samples))
    groups = {"all": lambda s: True}
    if len(kinds) > 1:
        groups |= {kind: (lambda s, kind=kind: s.prompt_kind == kind) for kind in kinds}
    if looping:
        groups["not looping"] = lambda s: s.prompt_index not in looping
    rows = []
    for temperature in dict.fromkeys(s.temperature for s in samples):
        for name, belongs in groups.items():
            part = [s for s in samples if s.temperature == temperature and belongs(s)]
            baseline = [s for s in part if s.arm == BASELINE]
            for arm in dict.fromkeys(s.arm for s in part):
                mine = [s for s in part if s.arm == arm]
                rows.append(record.row(arm, mine, baseline, costs.get((arm, temperature)), common, name))
    return rows


def make_drafters(kinds: list[str], setup: options.Setup, seed: int) -> dict[str, Drafter]:
    """Drafters by the name that tables and records give them: never an absolute path."""
    if not kinds:
        raise UsageProblem("--draft is empty; give at least one kind, for example --draft model,ngram")
    names = [drafter_name(kind) for kind in kinds]
    if len(set(names)) < len(names):
        raise UsageProblem(f"--draft names the same draft twice ({', '.join(names)}); rename one of the folders")
    return {name: make_drafter(kind, setup, seed) for name, kind in zip(names, kinds, strict=True)}


def drafter_name(kind: str) -> str:
    """What tables and records call a draft."""
    word, _, rest = kind.partition(":")
    if word != "dial":
        return options.short_name(kind)
    accuracy, _, model = rest.partition(":")
    return f"dial:{accuracy}" + (f":{options.short_name(model)}" if model else "")


def make_arms(drafters: dict[str, Drafter], lengths: list[int]) -> list[Arm]:
    """The baseline, then every draft at every length."""
    models = [name for name, drafter in drafters.items() if is_model(drafter)]
    arms = [BASELINE]
    for name in drafters:
        method = "model" if [name] == models else name
        arms += [Arm(method, name, k) for k in lengths]
    return arms


def numbers(text: str, kind: type, smallest: float, flag: str) -> list:
    """A comma-separated list from the command line, sorted, without repeats."""
    try:
        values = sorted({kind(word) for word in text.split(",")})
    except ValueError:
        raise UsageProblem(f"{flag} {text}: give numbers with commas between them, for example {flag} 2,4,8") from None
    if values[0] < smallest:
        raise UsageProblem(f"{flag} {text}: {values[0]} is too small, give {smallest} or more")
    if not all(map(math.isfinite, values)):
        raise UsageProblem(f"{flag} {text}: give finite numbers")
    return values


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = options.make_parser(__doc__)
    options.add_shared_flags(parser)
    add_draft_flag(parser, default="model,ngram")
    group = parser.add_argument_group("experiment")
    group.add_argument("-k", "--draft-length", default="2,4,6,8", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--temperature", default="0,0.8", metavar="T,T", help="(default: %(default)s)")
    group.add_argument("--repeats", type=options.at_least(1), help="times each prompt is decoded by each arm")
    size = group.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="2 prompts of a kind, 48 tokens, k = 2, 4")
    size.add_argument("--full", action="store_true", help="all prompts, 128 tokens")
    group = parser.add_argument_group("results")
    group.add_argument("--by-kind", action="store_true", help="a table for each kind of prompt too")
    group.add_argument("--json", metavar="PATH", help="write the run record here as well; - for stdout, alone")
    group.add_argument("--out-dir", type=Path, default=record.ROOT, help="holds results/ and plots/ (default: the lab)")
    group.add_argument("--name", default="local", help="of this run's files (default: local)")
    parser.set_defaults(max_new_tokens=None)
    args = parser.parse_args(argv)

    preset = {"limit": 4, "max_new_tokens": 64, "repeats": 1}
    if args.quick:
        preset = {"limit": 2, "max_new_tokens": 48, "repeats": 1}
        args.draft_length = "2,4" if args.draft_length == parser.get_default("draft_length") else args.draft_length
    if args.full:
        preset = {"limit": 0, "max_new_tokens": 128, "repeats": 1}
    for name, value in preset.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    lengths = numbers(args.draft_length, int, 0, "-k")
    temperatures = numbers(args.temperature, float, 0, "--temperature")
    args.temperature = 0.0
    folders = {name: args.out_dir / name for name in ("results", "plots")}
    for folder in folders.values():
        record.prepare_folder(folder)
    if args.json not in (None, "-"):
        record.prepare_folder(Path(args.json).parent)

    setup = options.load(args)
    drafters = make_drafters([kind for kind in args.draft.split(",") if kind], setup, args.seed)
    prompts = options.read_prompts(args, setup.tokenizer)
    arms = make_arms(drafters, lengths)
    for prompt in prompts:
        check_prompt(setup.target, prompt.ids, args.max_new_tokens)
        for drafter in drafters.values():
            if isinstance(drafter, ModelDrafter):
                check_prompt(drafter.draft, prompt.ids, args.max_new_tokens)
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    if 0 not in temperatures and all(_greedy_only(a) for a in arms if a.speculative):
        raise UsageProblem("the dial only replays greedy output; add 0 to --temperature")
    if 0 in temperatures:
        arms.append(GENERATE)
    common = {"target": setup.target_name, "device": setup.device.type, "dtype": setup.dtype_name}
    bench = Bench(setup, drafters, args.max_new_tokens, args.seed)

    with contextlib.redirect_stdout(sys.stderr if args.json == "-" else sys.stdout):
        print(setup.describe())
        models = {"target": options.describe_model(setup.target_name, setup.target.model)}
        for name, drafter in drafters.items():
            if isinstance(drafter, ModelDrafter):
                models[name] = options.describe_model(name, drafter.draft.model)
                print(f"draft   {models[name]}")
        print(f"prompts {len(prompts)}, {args.max_new_tokens} new tokens each, {args.repeats} x, seed {args.seed}\n")

        samples, interrupted = measure(bench, arms, temperatures, prompts, args.repeats, setup.sampling)
        correctness, costs = [], {}
        try:
            for temperature in dict.fromkeys(s.temperature for s in samples):
                part = [s for s in samples if s.temperature == temperature]
                sampling = Sampling(temperature, args.top_k, args.top_p)
                if temperature == 0:
                    correctness += check_greedy(bench, part, prompts, setup.tokenizer)
                else:
                    correctness += check_sampled(bench, part, prompts, sampling)
                if not interrupted:
                    step = max(1, len(prompts) // CALIBRATION_PROMPTS)
                    some = dict(list(enumerate(prompts))[::step][:CALIBRATION_PROMPTS])
                    speculative = list(dict.fromkeys(s.arm for s in part if s.arm.speculative))
                    costs |= bench.calibrate(speculative, sampling, some)
        except KeyboardInterrupt:
            options.note("stopped: the rows are complete, their checks or costs are not")
            interrupted = True

        greedy = [s for s in samples if s.arm == BASELINE and s.temperature == 0]
        run = {
            "schema_version": record.SCHEMA_VERSION,
            "created": record.today(),
            "interrupted": interrupted,
            "machine": record.machine(setup.device),
            "versions": record.versions(),
            "settings": {
                "draft_lengths": lengths,
                "temperatures": temperatures,
                "max_new_tokens": args.max_new_tokens,
                "repeats": args.repeats,
                "seed": args.seed,
                "top_k": args.top_k,
                "top_p": args.top_p,
                "threads": torch.get_num_threads(),
                "reasons": setup.reasons,
            },
            "models": models,
            "prompts": {
                "n": len({s.prompt_index for s in samples}),
                "kinds": list(dict.fromkeys(p.kind for p in prompts)),
                "n_looping": sum(record.ends_in_loop(s.tokens) for s in greedy) if greedy else None,
            },
            "correctness": correctness,
            "headline": headline(samples, arms, drafters, common),
            "rows": build_rows(samples, costs, common),
            "raw": [record.raw(s) for s in samples],
        }
        text = record.to_json(run)
        record.write_whole(folders["results"] / f"{args.name}.json", text)
        record.write_whole(folders["results"] / f"{args.name}.md", report.comparison(run, by_kind=True, markdown=True))
        written = [*plots.comparison(run, folders["plots"], args.name)]
        where = ", ".join(options.shown_path(p) for p in (folders["results"] / f"{args.name}.json", *written))
        print(report.comparison(run, by_kind=args.by_kind))
        options.note(f"wrote {where}")
    if args.json == "-":
        print(text, end="")
    elif args.json:
        record.write_whole(Path(args.json), text)
    return 0 if all(entry["passed"] for entry in correctness) else 1


if __name__ == "__main__":
    sys.exit(main())
