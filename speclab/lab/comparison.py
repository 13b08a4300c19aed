"""One comparison from end to end: its settings; measure, check, explain, record. Two short ones show what else can
limit a pass.

What a pass waits for decides what speculation gains. On a CPU, as the library runs it, a pass of the lab's pair is
mostly the starting of operations; in one call of the engine `c` arithmetic counts, since the weights are few; of a pair
that is padded to a larger size it is the reading of weights. So a run of the lab's pair shows it in all these ways.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from speclab.core.drafter import Drafter
from speclab.core.rules import TOKEN
from speclab.drafts import registry
from speclab.drafts.lengths import LONGEST
from speclab.lab.bench import SPECULATIVE, Bench
from speclab.lab.harness import Measurement, kept_when_stopped, measure, mixed
from speclab.lab.instruments import LoopFunctions
from speclab.lab.known_texts import CostTable, calibrated, probs_along, rounds_along
from speclab.lab.rows import noise_floors, rows_of
from speclab.models import loading, padding
from speclab.models.memory import USABLE, bandwidth, block_bytes, free_memory, is_mixture_of_experts, weights_read
from speclab.models.prompts import Prompt, first_of_each_kind
from speclab.models.setup import Setup, load_setup
from speclab.records import files
from speclab.records.files import ComparisonRun
from speclab.records.rows import AUTO, BASELINE, GENERATE, LOOKUP, Arm, Row
from speclab.theory import attribution, losslessness

SIZES = ("lab:50m", "lab:100m", "lab:200m", "lab:1b", "lab:2b", "lab:8b")  # of the padded target
SECONDS = 110.0  # that the padded comparison may take
READINGS = 5200  # of the target's weights that take as long as it: passes of all arms, prefill, loading, checks
DRAFT_SHARE = 10  # the padded draft has a tenth of the target's parameters, a usual ratio: 8b and 1b, 70b and 8b
PROMPTS_OF_A_KIND, NEW_TOKENS, LENGTHS = 2, 48, [2, 4]  # of a short comparison


@dataclass
class RunConfig:
    """Everything that a run needs."""

    setup: Setup
    drafters: dict[str, Drafter]  # by the name that tables and records give them
    prompts: list[Prompt]
    draft_lengths: list[int]
    temperatures: list[float]
    max_new_tokens: int
    repeats: int
    seed: int
    functions: LoopFunctions = SPECULATIVE

    def bench(self) -> Bench:
        return Bench(self.setup, self.drafters, self.max_new_tokens, self.seed, self.functions)

    def arms(self) -> list[Arm]:
        arms = [BASELINE]
        for name, drafter in self.drafters.items():
            auto = drafter.chooses_length
            lengths = drafter.lengths([LONGEST] if auto else self.draft_lengths)
            arms += [Arm(self.method(name), name, k, auto, drafter.branches) for k in lengths]
        return arms

    def instruments(self, arms: list[Arm]) -> dict[str, list[int]]:
        """Return for every draft the lengths that its instrumented decoding tries: all of them, those in use three
        times. A draft on auto chooses its own. One that runs a part of the target's pass itself has no such decoding:
        its passes cost something else than those of all others."""
        found = {}
        for name, drafter in self.drafters.items():
            if lengths := [arm.draft_length for arm in arms if arm.draft == name]:
                every = [] if drafter.chooses_length else [*range(max(lengths) + 1), *lengths]
                found[name] = [] if drafter.runs_target else [*every, *lengths]
        return found

    def method(self, name: str) -> str:
        """Return the name of a draft's rows; where only one draft is a model, it is called just that."""
        models = [name for name, drafter in self.drafters.items() if drafter.is_model]
        auto = AUTO * name.endswith(AUTO)
        return f"model{auto}" if [name.removesuffix(AUTO)] == models else name

    def models(self) -> dict[str, str]:
        lines = {"target": loading.describe_model(self.setup.target_name, self.setup.target.model)}
        said = {name: drafter.describe(name, self.setup.engine) for name, drafter in self.drafters.items()}
        return lines | {name: line for name, line in said.items() if line and name not in lines}

    def head(self, measured: Measurement) -> dict[str, Any]:
        """Return the fields of files.LabRun: what ran, where and how."""
        given = self.setup.target.model.generation_config
        return {
            "schema_version": files.SCHEMA_VERSION,
            **files.when_and_where(self.setup.device),
            "interrupted": measured.stop is not None,
            "settings": {
                **self.setup.recorded,
                "draft_lengths": self.draft_lengths,
                "temperatures": self.temperatures,
                "max_new_tokens": self.max_new_tokens,
                "repeats": self.repeats,
                **files.prompt_settings([prompt.text for prompt in self.prompts]),
                "seed": self.seed,
                "top_k": self.setup.sampling.top_k,
                "top_p": self.setup.sampling.top_p,
                "why_engine": self.setup.why_engine,
                "unapplied_generation_settings": loading.unapplied_settings(given),
                "rule": self.functions.rule.name if self.functions.rule.name != TOKEN.name else None,
                "functions": self.functions.about,
                "chat": any(prompt.chat for prompt in self.prompts),
            },
            "models": self.models(),
        }


def compare(config: RunConfig) -> tuple[ComparisonRun, Measurement]:
    """Measure, check and explain. -> the record, and the measurement that it is made from"""
    arms = config.arms()
    plain = [GENERATE] if 0 in config.temperatures else []  # the library's own plain decoding, which is greedy
    measured = measure_and_judge(config, [*arms, *plain], config.instruments(arms))
    greedy, device, dtype = measured.of(BASELINE, 0.0), config.setup.device, config.setup.dtype
    costs, rows, speed = CostTable(), list[Row](), None
    with kept_when_stopped(lambda: "what is measured is kept, and not all of it is explained") as stops:
        costs = calibrated(measured)
        rows = build_rows(measured, costs)
        speed = max(bandwidth(block_bytes(device), device, dtype, repeats=3).values())
    measured.stop = measured.stop or next(iter(stops), None)
    run = ComparisonRun(
        **config.head(measured),
        prompts={
            "n": len({line.prompt_index for line in measured.lines}),
            "kinds": list(dict.fromkeys(line.prompt_kind for line in measured.lines)),
            "n_cut": sum(bool(line.loops) for line in greedy) if greedy else None,
        },
        correctness=measured.correctness,
        noise=noise_floors(measured.lines),
        costs=[
            {"drafter": config.method(draft), "temperature": temperature, "costs": asdict(draft_costs)}
            for (draft, temperature), draft_costs in costs.items()
        ],
        rows=rows or rows_of(measured.lines),
        raw=[line.recorded() for line in measured.lines],
        bandwidth=speed,
    )
    if not is_mixture_of_experts(model := config.setup.target.model):  # whose passes read more or fewer experts
        run.weight_bytes = weights_read(model)[1] - getattr(config.setup.target.fast, "bytes_spared", 0)
    return run, measured


def measure_and_judge(
    config: RunConfig, arms: list[Arm], instruments: dict[str, list[int]], title: str = "measuring"
) -> Measurement:
    """Measure all arms over the prompts of the run, and judge whether their texts are right."""
    measured = measure(config.bench(), arms, config.temperatures, config.prompts, config.repeats, instruments, title)
    judge(measured)
    return measured


def exit_code(measured: Measurement) -> int:
    """Return 1 where a judged text is wrong, else 0. Raises what ended the measurement, but for Ctrl-C."""
    if measured.stop and not isinstance(measured.stop, KeyboardInterrupt):
        raise measured.stop
    return int(not all(entry["passed"] for entry in measured.correctness))


def judge(measured: Measurement, asked: Iterable[tuple[Arm, float]] | None = None) -> None:
    """Check every text that a speculative arm made in a timed turn: does it agree with the baseline's, or with the
    target's own distributions? asked: arms and temperatures; None: all of them."""
    speculative = dict.fromkeys((line.arm, line.temperature) for line in measured.lines if line.arm.speculative)
    for arm, temperature in speculative if asked is None else asked:
        check = _judge_sampled if temperature else judge_greedy
        measured.correctness.append(check(measured, arm, temperature))


def judge_greedy(measured: Measurement, arm: Arm, temperature: float = 0.0) -> dict[str, Any]:
    """Say whether an arm's texts equal the baseline's, or where each differs first and why; `passed`: none is wrong."""
    setup, lines = measured.bench.setup, measured.of(arm, temperature)
    baseline = {line.prompt_index: line.texts[0] for line in measured.of(BASELINE, temperature)}
    differences = []
    for line in lines:
        expected, asked = baseline[line.prompt_index], measured.prompts[line.prompt_index]
        found = [  # repeats of a greedy decoding may differ, where lengths choose themselves and on a server
            losslessness.judge_divergence(setup.reference, asked.id_list, expected, [*text], setup.target.vocab_size)
            for text in dict.fromkeys(map(tuple, line.texts))
            if [*text] != expected
        ]
        # A wrong text comes before near-ties.
        if first := min(filter(None, found), key=lambda one: one.numerical, default=None):
            same, pair = expected[: first.position], (first.baseline_token, first.speculative_token)
            tokens = [setup.token_text(asked, same, t) if t >= 0 else "" for t in pair]
            said: dict[str, Any] = {"prompt": line.prompt_index, "position": first.position, "tokens": tokens}
            verdict = "near-tie" if first.numerical else "BUG"
            differences.append(said | {"gap": _finite(first.gap), "verdict": verdict})
    passed = all(one["verdict"] == "near-tie" for one in differences)
    entry = {"arm": arm.label, "temperature": temperature, "n_prompts": len(lines)}
    return entry | {"differences": differences, "passed": passed}


def _judge_sampled(measured: Measurement, arm: Arm, temperature: float) -> dict[str, Any]:
    """Return the z statistics of the emitted tokens under the target's own distributions.

    A lossy rule is not held to them, only to tokens that the target may emit; how far it is off is measured instead.
    """
    bench, setup, rule = measured.bench, measured.bench.setup, measured.bench.functions.rule
    sampling, n_ids = setup.sampling_at(temperature), setup.target.vocab_size
    lossy_rule = bench.lossy_rule(arm)

    def places() -> Iterator[losslessness.Places]:
        for line in measured.of(arm, temperature):
            prompt = measured.prompts[line.prompt_index].id_list
            for tokens in line.texts:
                law = bench.drafters[arm.draft].law(setup.target, prompt, tokens, sampling, 1)
                draft_probs = law.drawn_from([(start, 0, 1) for start in range(len(tokens))])
                yield from losslessness.known_law(setup.reference, prompt, tokens, sampling, n_ids, draft_probs)

    z = losslessness.z_statistics(places())
    off = rule.distance(measured, arm, temperature) if lossy_rule and rule.distance else None
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_tokens": z.n_tokens,
        "z_residual": _finite(z.residual),
        "z_surprise": _finite(z.surprise),  # None: an impossible token was emitted
        "n_uncertain": z.n_uncertain,
        "bound": losslessness.Z_BOUND,
        "passed": math.isfinite(z.surprise) if lossy_rule else z.passed,
        **({"lossy_rule": lossy_rule, "total_variation": off} if lossy_rule else {}),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def build_rows(measured: Measurement, costs: CostTable) -> list[Row]:
    """Return the rows, with what the costs and the baseline's texts say of every line of a draft that has costs."""
    baseline = {(line.temperature, line.prompt_index): line for line in measured.lines if line.arm == BASELINE}
    longest = max((line.draft_length for line in measured.lines), default=0)
    bench, rule, found = measured.bench, measured.bench.functions.rule, {}
    # Every draft length asks for the same probabilities. What was learned in the run counts in no forecast.
    probs_once = functools.cache(functools.partial(probs_along, bench, longest))
    rounds_once = functools.cache(functools.partial(rounds_along, replace(bench, taught={})))
    # In the order of the first repeat: what a draft on auto or a hybrid learns from a text counts in the next ones.
    turns = {index: turn for turn, index in enumerate(mixed(measured.prompts))}
    for line in sorted(measured.lines, key=lambda line: turns[line.prompt_index]):
        arm, place = line.arm, (line.temperature, line.prompt_index)
        if (own := costs.get((arm.draft, line.temperature))) is None:
            continue
        prompt, drafter = measured.prompts[line.prompt_index], bench.drafters[arm.draft]
        looked_up = costs.get((arm.draft + LOOKUP, line.temperature))
        probs = rounds = None
        if drafter.parts == (drafter,):  # the text alone decides what is proposed; the rule must judge token by token
            if rule.name == TOKEN.name or not line.temperature or not (drafter.draws or rule.law):
                probs = functools.partial(probs_once, arm.draft, bench.setup.sampling_at(line.temperature), prompt)
        elif line.temperature == 0:
            rounds = functools.partial(rounds_once, arm, prompt)
        if part := attribution.price(line, baseline[place], own, probs, rounds, looked_up):
            found[arm, *place] = part
    return rows_of(measured.lines, found)


def padded_size(config: RunConfig, bytes_a_second: float) -> str | None:
    """Return the largest size whose comparison takes SECONDS at most and whose weights fit; None where none does."""
    setup, chosen = config.setup, None
    free, in_c = free_memory(setup.device), setup.engine == "c"  # which has a copy of its own, of half as many bytes
    for size in SIZES:
        n_bytes = padding.millions_of(size) * 10**6 * setup.dtype.itemsize
        fits = free is None or n_bytes * (1.5 if in_c else 1) * (1 + 1 / DRAFT_SHARE) <= USABLE * free
        if fits and READINGS * n_bytes / (2 if in_c else 1) <= SECONDS * bytes_a_second:
            chosen = size
    return chosen


def padded_kinds(kinds: list[str], size: str) -> list[str]:
    """Return those of `--draft` for a target of this size: the lab's draft at a tenth of it, its head, and lookups."""
    tenth = [name for name, (n, *_) in padding.SIZES.items() if n * DRAFT_SHARE == padding.millions_of(size)]
    drafts = [f"lab:{name}" for name in tenth if padding.rows_of(name) == padding.rows_of(size)]
    usable = ("model", "feature", "hybrid", *registry.lookups())
    return [drafts[0] if kind == "model" else kind for kind in kinds if kind in usable]


def short_config(config: RunConfig, target: str, engine: str, kinds: list[str]) -> RunConfig:
    """Return a short comparison: some of the same prompts at the first temperature. Loads and checks its models.

    kinds: words of `--draft`. Raises a Problem where the models cannot be loaded.
    """
    setup = config.setup
    other = load_setup(target, setup.sampling_at(0.0), setup.device.type, setup.dtype_name, engine)
    return replace(
        config,
        setup=other,
        drafters={choice.name: choice.make(other, config.seed) for choice in registry.read_all(kinds)},
        prompts=first_of_each_kind(config.prompts, PROMPTS_OF_A_KIND),
        draft_lengths=LENGTHS,
        temperatures=config.temperatures[:1],
        max_new_tokens=min(NEW_TOKENS, config.max_new_tokens),
        repeats=1,
    )
