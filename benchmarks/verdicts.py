"""How often is the verdict on sampled texts wrong? Two errors are counted: false alarms on right texts, and wrong laws
that it does not find.

Two models (the lab's pair, and the pair with its roles exchanged), two number formats, and several settings of
temperature, top-k and top-p. No clock is looked at.

* False alarms: the two loops of the lab decode the prompts, and the texts are judged as compare.py judges them.
* Detection, simulated: at the places of the plain texts, tokens are drawn again and again from a wrong law made of the
  logits of cached passes over five tokens. Every repeat is one run. The place does not depend on what was drawn there,
  so a repeat needs no decoding of its own; and each statistic tests a token given its place, as it does in a decoding.

    python -m benchmarks.verdicts                                # 2,000 tokens, 100 repeats, half an hour
    python -m benchmarks.verdicts --limit 1 --max-new-tokens 32 --repeats 10

Files: results/NAME-verdicts.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import copy
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from benchmarks import common
from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import Sampling
from speclab.models import loading
from speclab.models.checking.uncached import distributions
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.present.tables import Block, Cell, Lines, Table
from speclab.records.rows import Amount, Count, RecordPart
from speclab.system.errors import reports_problems
from speclab.system.terminal import progress
from speclab.theory.losslessness import Places, ZSums, known_law

WIDTH = 5  # tokens of the cached passes whose logits the wrong laws are made of
DRAFT_LENGTH = 4
MODELS = {"target": loading.LAB_TARGET, "draft": loading.LAB_DRAFT}  # judged, each with the other one as its draft
DTYPES = ("float32", "bfloat16")
SAMPLINGS = [
    Sampling(0.3),
    Sampling(1.2),
    Sampling(1.2, top_k=5),
    Sampling(1.2, top_p=0.9),
    Sampling(0.7, top_k=20, top_p=0.95),
]
RIGHT = ("plain", "speculative")

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Verdicts(RecordPart):
    """The verdicts on all runs of one law: of texts that were decoded, one run; of drawn tokens, one run a repeat."""

    model: str
    dtype: str
    temperature: Amount
    top_k: Count
    top_p: Amount
    law: str
    n_runs: Count
    n_tokens: Count  # of all runs
    n_uncertain: Count  # of these, tokens of which rounding decides whether a filter keeps them
    n_alarms: Count  # runs that are called wrong
    largest_z: float | None  # of all runs and statistics; None where a token was impossible


@dataclass(kw_only=True)
class VerdictsRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.verdicts`."""

    raw: list[Verdicts]


# --- laws -------------------------------------------------------------------------------------------------------------


def wrong_laws(sampling: Sampling) -> dict[str, Callable[[Tensor], Tensor]]:
    """Laws that a broken decoder would draw from: logits (n, vocab) -> probabilities, the same shape."""
    temperature, top_k, top_p = sampling.temperature, sampling.top_k, sampling.top_p
    laws: dict[str, Callable[[Tensor], Tensor]] = {
        "temperature twice": replace(sampling, temperature=temperature**2).probs
    }
    if top_k or top_p < 1:
        laws["target not filtered"] = Sampling(temperature).probs
    if top_k:
        laws["top-k + 1"] = replace(sampling, top_k=top_k + 1).probs
        laws["top-k - 1"] = replace(sampling, top_k=top_k - 1).probs
    if top_p < 1:
        laws["top-p without the token that crosses it"] = lambda logits: _without_last(sampling.probs(logits))
    return laws


def _without_last(probs: Tensor) -> Tensor:
    """The probabilities without the least probable token that is kept, where more than one is."""
    several = (probs > 0).sum(-1, keepdim=True) > 1
    least = torch.where(probs > 0, probs, 2.0).argmin(-1, keepdim=True)
    cut = probs.scatter(-1, least, 0.0)
    return torch.where(several, cut / cut.sum(-1, keepdim=True), probs)


# --- measuring --------------------------------------------------------------------------------------------------------


class Tally:
    """Adds up the verdicts on the runs of one law."""

    def __init__(self) -> None:
        self.n_runs = self.n_tokens = self.n_uncertain = self.n_alarms = 0
        self.largest = 0.0

    def add(self, sums: ZSums) -> None:
        """Count one run."""
        z = sums.result()
        self.n_runs += 1
        self.n_tokens += z.n_tokens
        self.n_uncertain += z.n_uncertain
        self.n_alarms += not z.passed
        self.largest = max(self.largest, *map(abs, (z.residual, z.surprise, z.edge)))


def places_of(
    setup: Setup, draft: ModelDrafter, prompt: Prompt, text: list[int], sampling: Sampling
) -> list[tuple[slice, Places]]:
    """The places of this text that compare.py would test."""
    vocab = setup.target.vocab_size
    draft_probs = distributions(draft.draft.model, prompt.id_list, text, sampling, vocab)
    return list(known_law(setup.reference, prompt.id_list, text, sampling, vocab, draft_probs))


@torch.inference_mode()
def cached_logits(setup: Setup, prompt: Prompt, text: list[int]) -> Tensor:
    """The logits at the place of each token of the text, from passes like those of a decoding.  -> (n, vocab)"""
    target = setup.target.with_own_cache()
    rows = [target.prefill(prompt.ids.to(setup.device))[0, -1:]]
    for start in range(0, len(text) - 1, WIDTH):
        rows.append(target.forward(torch.tensor([text[:-1][start : start + WIDTH]], device=setup.device))[0])
    return torch.cat(rows).cpu()


def verdicts_at(
    setup: Setup, draft: ModelDrafter, prompts: list[Prompt], sampling: Sampling, args: argparse.Namespace
) -> Iterator[tuple[str, Tally]]:
    """The verdicts on the texts of both loops, then on the wrong laws, at one setting."""
    texts: dict[str, list[list[int]]] = {law: [] for law in RIGHT}
    for index, prompt in enumerate(prompts):
        settings = DecodeSettings(args.max_new_tokens, sampling, seed=args.seed * 1009 + index)
        ids, target = prompt.ids.to(setup.device), setup.target
        texts["plain"].append(tokens_of(autoregressive_decode(target, ids, settings)))
        texts["speculative"].append(tokens_of(speculative_decode(target, draft, ids, DRAFT_LENGTH, settings)))
    for law, found in texts.items():
        tally, sums = Tally(), ZSums()
        for prompt, text in zip(prompts, found, strict=True):
            for part, places in places_of(setup, draft, prompt, text, sampling):
                sums.add(torch.tensor(text[part]), places)
        tally.add(sums)
        yield law, tally
    pairs = list(zip(prompts, texts["plain"], strict=True))
    places_of_texts = [places_of(setup, draft, prompt, text, sampling) for prompt, text in pairs]
    logits = [cached_logits(setup, prompt, text) for prompt, text in pairs]
    generator = torch.Generator().manual_seed(args.seed)
    for law, probs_of in {"right law, drawn": sampling.probs, **wrong_laws(sampling)}.items():
        tally = Tally()
        drawn = [  # of each text (n, repeats)
            torch.multinomial(probs_of(rows).double(), args.repeats, replacement=True, generator=generator)
            for rows in logits
        ]
        for repeat in range(args.repeats):
            sums = ZSums()
            for tokens, parts in zip(drawn, places_of_texts, strict=True):
                for part, places in parts:
                    sums.add(tokens[part, repeat], places)
            tally.add(sums)
        yield law, tally


def measure(args: argparse.Namespace, raw: list[Verdicts]) -> dict[str, Any]:
    """Measure every model in every number format at every setting.  -> the fields of BenchmarkRun"""
    fields: dict[str, Any] = {}
    cases = list(itertools.product(MODELS, DTYPES))
    with progress(len(cases) * len(SAMPLINGS), "setting", "judging") as bar:
        for model, dtype in cases:
            chosen = copy.copy(args)
            chosen.target, chosen.dtype = MODELS[model], dtype
            setup, prompts = flags.load(chosen, temperature=1.0)
            others = [name for key, name in MODELS.items() if key != model]
            draft = ModelDrafter(setup.load_draft(others[0]))
            fields = fields or common.head_of(
                args,
                setup,
                prompts=prompts,
                dtype=", ".join(DTYPES),
                target=", ".join(MODELS),
                draft_length=DRAFT_LENGTH,
                max_new_tokens=args.max_new_tokens,
                repeats=args.repeats,
            )
            for sampling in SAMPLINGS:
                for law, tally in verdicts_at(setup, draft, prompts, sampling, args):
                    raw.append(
                        Verdicts(
                            model=model,
                            dtype=dtype,
                            temperature=sampling.temperature,
                            top_k=sampling.top_k,
                            top_p=sampling.top_p,
                            law=law,
                            n_runs=tally.n_runs,
                            n_tokens=tally.n_tokens,
                            n_uncertain=tally.n_uncertain,
                            n_alarms=tally.n_alarms,
                            largest_z=tally.largest if math.isfinite(tally.largest) else None,
                        )
                    )
                bar.update()
    return fields


# --- views of the record ----------------------------------------------------------------------------------------------

LEGEND = [
    "plain, speculative: these texts were decoded by the lab's two loops. Each one is a run, and an alarm is false.",
    "right law, drawn: these runs are simulated. Tokens were drawn at the places of the plain texts from the target's "
    "own law, and an alarm is false.",
    "The laws below it are wrong, and their runs are simulated in the same way. An alarm is right there.",
    "uncertain: the share of the tokens of which rounding decides whether a filter keeps them. With top-k alone their "
    "number is tested; with top-p they are counted and not tested.",
    "largest z: it is the largest of all runs and of the three statistics; the bound is 4.9. 'impossible': a token "
    "that no rounding explains was drawn.",
]


def page(run: VerdictsRun) -> list[Block]:
    """The whole page, from the record alone."""
    cells: dict[str, Cell] = {
        "model": lambda row: row.model,
        "dtype": lambda row: row.dtype,
        "T": lambda row: f"{row.temperature:g}",
        "top-k": lambda row: str(row.top_k or "-"),
        "top-p": lambda row: "-" if row.top_p == 1 else f"{row.top_p:g}",
        "tokens drawn from": lambda row: row.law,
        "alarms": lambda row: f"{row.n_alarms} of {row.n_runs}",
        "uncertain": lambda row: f"{100 * row.n_uncertain / max(1, row.n_tokens):.1f} %",
        "largest z": lambda row: "impossible" if row.largest_z is None else f"{row.largest_z:.1f}",
    }
    n = {row.n_tokens // row.n_runs for row in run.raw}
    about = (
        f"{' or '.join(map(str, sorted(n)))} tokens a run; {run.settings['repeats']} runs of every law that is drawn"
    )
    return [
        *common.begin("How often the verdict on sampled texts is wrong", run),
        about,
        Table(run.raw, cells),
        Lines(LEGEND),
    ]


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("benchmark")
    group.add_argument(
        "--repeats", type=parsing.at_least(1), default=100, help="runs of every law (default: %(default)s)"
    )
    common.add_result_flags(parser, "verdicts")
    parser.set_defaults(limit=6, max_new_tokens=112, engine="eager")
    return parser


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    common.check_result_flags(args)
    raw: list[Verdicts] = []
    fields = measure(args, raw)
    return common.finish(args, VerdictsRun(**fields, raw=raw), page)


if __name__ == "__main__":
    sys.exit(main())
