"""The lab's decoders against the library's own, in one run: same pair, prompts, dtype, token budget, greedy.

Whether a hand-written loop is worth anything is not seen from its speedup over its own baseline: a slow baseline makes
every speedup look good. So each of ours runs beside what anybody gets from `model.generate`:

    baseline    our token-by-token loop              against   generate
    model k     our speculative loop, a draft model  against   generate(assistant_model=...), the same constant k
    model auto  the same, lengths chosen in rounds   against   generate(assistant_model=...), as its defaults say
    ngram k     our speculative loop, no draft model against   generate(prompt_lookup_num_tokens=k)
    exit k      our speculative loop, early exit     against   generate(assistant_early_exit=N), for the lab's target
    baseline, model k                                against   llama.cpp, plain and with the draft: --llama-cpp

What comes out: tokens per second, each arm over `generate` and over its peer with 95 % intervals over prompts, and
whether the texts agree.

    python -m benchmarks.peers                               # the lab's pair, about three minutes on two cores
    python -m benchmarks.peers -k 4 --limit 2 --repeats 1    # half a minute
    python -m benchmarks.peers --target lab:200m --draft lab:20m -k 4 --limit 2
    python -m benchmarks.peers --target smollm2 --draft ngram --texts served    # no draft model: lookups alone
    python -m benchmarks.peers --target Qwen/Qwen2.5-1.5B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct --device cuda

Seconds are end to end, from the prompt's ids to the last token: the library does not tell prefill and decoding apart.
llama.cpp is timed by its own programs (llama_cpp.py) and compared by decoding alone, too.
A cell is the median over repeats, a total the sum over prompts. The arms of a prompt run one after another in an order
that rotates, an arm always beside its peer. No arm stops at an end-of-text token.
Files: results/NAME-peers.json and .md. Exit code 1 if a text of ours differs from the baseline's and rounding cannot be
the reason.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import contextlib
import sys
from collections.abc import Iterable
from typing import Any

from transformers.utils import logging as transformers_logging

from benchmarks import common
from benchmarks.peers import llama_cpp
from benchmarks.peers.library import PEER
from benchmarks.peers.page import PeersRun, PeerTiming, page
from draft_models import NgramDrafter
from speclab.cli import flags, parsing
from speclab.drafts import registry
from speclab.drafts.lengths import LONGEST, AutoLength
from speclab.lab.comparison import exit_code, judge_greedy
from speclab.lab.harness import measure, take_turns
from speclab.lab.instruments import Decoding
from speclab.models import loading
from speclab.models.cached import check_prompt
from speclab.models.setup import Setup
from speclab.records import files
from speclab.records.rows import BASELINE, GENERATE, Arm, Decoded
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note

AUTO, EXIT, LOOKUP = "model auto", "exit", "ngram"

# --- measuring --------------------------------------------------------------------------------------------------------


def arms_for(draft_lengths: list[int], names: Iterable[str] = ("model", "ngram"), llama: bool = False) -> list[Arm]:
    """Each of the lab's arms, followed by its peer; then the arms of llama.cpp.

    names: of the drafts. Without "model" among them no arm has a draft model.
    """
    names = list(names)
    drafted = [(name, k) for name in names if name != AUTO for k in draft_lengths]
    own = [BASELINE, GENERATE, *(Arm(method, name, k) for name, k in drafted for method in (name, PEER[name]))]
    others = [Arm(llama_cpp.METHOD)]
    if "model" in names:
        own += [Arm(AUTO, AUTO, LONGEST, auto=True), Arm(PEER[AUTO], "model", LONGEST)]
        others += [Arm(llama_cpp.METHOD, "model", k) for k in draft_lengths]
    return [*own, *(others if llama else [])]


def one_after_another(decodings: list[Decoding], turn: int) -> None:
    """Finish each decoding before the next one starts: the library's cannot be interrupted.

    Everyone starts once, and who went first of two neighbours goes second in the next turn.
    """
    start = 2 * turn % len(decodings)  # two by two: an arm and its peer stay neighbours
    order = decodings[start:] + decodings[:start]
    for decoding in order if turn % 2 == 0 else order[::-1]:
        take_turns([decoding])


def timing(line: Decoded) -> PeerTiming:
    of_library = line.arm.method in PEER.values()
    return PeerTiming(
        method=line.arm.method,
        draft_length=line.arm.draft_length,
        prompt_index=line.prompt_index,
        prompt_kind=line.prompt_kind,
        n_prompt=line.n_prompt,
        n_passes=(line.counts.n_rounds + line.counts.n_replays) // len(line.texts) + 1,
        seconds=[prefill + decode for prefill, decode in zip(line.prefill_seconds, line.decode_seconds, strict=True)],
        decode_seconds=[None if of_library else seconds for seconds in line.decode_seconds],
    )


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser.add_argument_group("draft"))
    group = parser.add_argument_group("benchmark")
    group.add_argument("-k", "--draft-length", default="2,4,6", metavar="K,K", help="(default: %(default)s)")
    group.add_argument("--repeats", type=parsing.at_least(1), default=2, help="(default: %(default)s)")
    programs = "llama.cpp as a peer, too: its programs are on the PATH"
    group.add_argument("--llama-cpp", action="store_true", help=programs)
    for role in ("target", "draft"):
        what = f"its {role} as GGUF (default: written anew)"
        group.add_argument(f"--llama-{role}", type=parsing.some_path, metavar="FILE", help=what)
    common.add_result_flags(parser, "peers")
    parser.set_defaults(limit=4, max_new_tokens=64)
    return parser


def drafters_of(args: argparse.Namespace, setup: Setup) -> dict[str, Any]:
    drafters: dict[str, Any] = {LOOKUP: NgramDrafter()}
    if args.draft != LOOKUP:
        drafter = common.model_drafter(args.draft, setup, args.seed, "the library's assistant must be a model")
        drafters = {"model": drafter, **drafters, AUTO: AutoLength(drafter)}
    if EXIT in registry.kinds() and args.target == loading.LAB_TARGET and setup.engine == "c":
        drafters[EXIT] = registry.make(EXIT, setup)
    return drafters


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    lengths = parsing.numbers(args.draft_length, int, 1, "-k")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    given = (args.llama_target, args.llama_draft)
    if lacking := [path for path in given if path and not path.is_file()]:
        raise UsageProblem(f"--llama-target, --llama-draft: there is no file {lacking[0]}; give a GGUF file")
    output = common.check_result_flags(args)
    registry.read(args.draft)
    setup, prompts = flags.load(args)
    drafters = drafters_of(args, setup)
    drafter = drafters.get("model")
    for prompt in prompts:
        for model in (setup.target, *([drafter.draft] if drafter else [])):  # the library drafts to the text's end
            check_prompt(model, prompt.ids, args.max_new_tokens)
    note("\n".join([setup.describe(), *flags.describe_chat(prompts, setup.tokenizer)]))
    transformers_logging.set_verbosity_error()  # its advice on `generate` would break the progress bar
    bench = llama_cpp.PeersBench(setup, drafters, args.max_new_tokens, args.seed)
    models = {"target": loading.describe_model(setup.target_name, setup.target.model)}
    if drafter:
        models["draft"] = loading.describe_model(loading.short_name(args.draft), drafter.draft.model, "draft")
    with contextlib.ExitStack() as stack:
        if args.llama_cpp or any(given):
            bench.llama = stack.enter_context(llama_cpp.programs(setup, drafter, given, prompts))
            as_given = args.llama_target and f"the weights of {args.llama_target.name} as they are"
            weights = as_given or "weights in float32, attention in float16"
            models[llama_cpp.METHOD] = f"{bench.llama.version()}, {weights}"
        arms = arms_for(lengths, drafters, bench.llama is not None)
        measured = measure(bench, arms, [0.0], prompts, args.repeats, {}, schedule=one_after_another)
    checks = {arm: judge_greedy(measured, arm) for arm in arms[1:]}
    measured.correctness = [one for arm, one in checks.items() if arm.method in (*PEER, *drafters)]
    settings = {"draft": loading.short_name(args.draft), "draft_lengths": lengths, "repeats": args.repeats}
    settings |= {"max_new_tokens": args.max_new_tokens, **files.prompt_settings([p.text for p in measured.prompts])}
    settings["n_prompts"] = len(measured.of(BASELINE, 0.0))
    fields = common.head_of(args, setup, **settings) | {"interrupted": measured.stop is not None}
    raw = [timing(line) for line in measured.lines]
    common.finish(output, PeersRun(**fields, models=models, correctness=list(checks.values()), raw=raw), page)
    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main())
