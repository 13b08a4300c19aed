"""The flags that all scripts share, and what they become: a target, sampling settings, prompts."""

import argparse
import functools
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase

from speclab.cli.parsing import at_least, plain_name, seed, some_name, some_path
from speclab.core.clock import busy
from speclab.core.rules import TOKEN, Rule, all_rules, rule_of
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.models import loading, prompts
from speclab.models.loading import DEVICES, DTYPES, LAB_TARGET
from speclab.models.prompts import LAB_TEXTS, Prompt
from speclab.models.setup import ENGINES, Setup, load_setup
from speclab.system.errors import UsageProblem
from speclab.system.files import OUTPUT, shown
from speclab.system.terminal import note

PLANS = ("auto", "balanced", "sequential")  # of the library, for the weights of a target
DRAFT_HELP = "--draft help lists all kinds"

Group = argparse._ActionsContainer  # a parser, or a group of its flags


def add_shared_flags(parser: argparse.ArgumentParser, spread: bool = True) -> None:
    """Add those of the models, the machine and the text. spread: whether weights can lie on several devices."""
    group = parser.add_argument_group("models, machine and text")
    names = "folder, hub name or lab:SIZE, the lab's target padded, as in lab:200m"
    group.add_argument("--target", type=some_name, default=LAB_TARGET, metavar="NAME", help=names)
    for flag, choices, auto in (("--device", DEVICES, "cuda, else cpu"), ("--dtype", DTYPES, "bfloat16 on cuda")):
        listed = f"{', '.join(choices)}; auto: {auto}"
        group.add_argument(flag, choices=choices, default="auto", metavar="NAME", help=listed)
    threads = "CPU threads (default: OMP_NUM_THREADS, else one per core)"
    group.add_argument("--threads", type=at_least(1, 1024), metavar="N", help=threads)
    engines = f"{', '.join(ENGINES)}; auto: c on a CPU, graphs on cuda, else eager"
    group.add_argument("--engine", choices=ENGINES, default="auto", metavar="NAME", help=engines)
    if spread:
        plans = f"spread the weights: {', '.join(PLANS)}"
        group.add_argument("--device-map", choices=PLANS, metavar="PLAN", help=plans)
    where = group.add_mutually_exclusive_group()
    where.add_argument("--prompt", action="append", metavar="TEXT", help="a text to continue; may be given again")
    given = "file of prompts with lines of %%%% between them; - for stdin"
    where.add_argument("--prompts", type=some_name, metavar="FILE", help=given)
    own = f"JSONL with prompts or chats, or the lab's own: {', '.join(LAB_TEXTS)}"
    where.add_argument("--texts", type=some_name, metavar="FILE", help=own)
    group.add_argument("--limit", type=at_least(0), metavar="N", help="at most N of a kind of the lab's own; 0: all")
    chat = "use the chat template (default: if there is one and the prompt is typed)"
    group.add_argument("--chat", action=argparse.BooleanOptionalAction, help=chat)
    tokens = "tokens per prompt (default: 128; comparisons 64)"
    group.add_argument("--max-new-tokens", type=at_least(1), default=128, metavar="N", help=tokens)
    kept = ("keep the K most probable tokens; 0: all", "keep the smallest set of this mass (default: 1)")
    group.add_argument("--top-k", type=at_least(0), default=0, metavar="K", help=kept[0])
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help=kept[1])
    group.add_argument("--seed", type=seed, default=0, metavar="N", help="randomness of sampling (default: 0)")


def add_output_flags(group: Group) -> None:
    where = f"folder for results/ and plots/ (default: {shown(OUTPUT)})".replace("%", "%%")
    group.add_argument("--out-dir", type=some_path, default=OUTPUT, metavar="DIR", help=where)
    name = "what names of this run's files begin with (default: local)"
    group.add_argument("--name", type=plain_name, default="local", metavar="NAME", help=name)


def add_run_flags(group: Group, lengths: str, temperatures: str) -> None:
    """Add what a command varies that tries several draft lengths and temperatures, with these helps."""
    group.add_argument("-k", "--draft-length", metavar="K", help=lengths)
    group.add_argument("--temperature", metavar="T,T", help=temperatures)
    repeats = "times each prompt is decoded (default: 1, or 3 where one arm is timed)"
    group.add_argument("--repeats", type=at_least(1), metavar="N", help=repeats)


def add_decoding_flags(parser: argparse.ArgumentParser) -> Group:  # for further flags beside them
    group = parser.add_argument_group("decoding")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    group.add_argument("--ignore-eos", action="store_true", help="go on to --max-new-tokens also after an end token")
    return group


def _or_help(table: Callable[[], str], read: Callable[[str], Any], text: str) -> Any:
    """Return a value, as `read` gives it; `help` prints a table of all values and ends the run."""
    if text == "help":
        print(table())
        raise SystemExit
    return read(text)


def add_draft_flag(
    parser: Group,
    default: str | None = "model",
    help: str = f"what drafts (default: %(default)s); {DRAFT_HELP}",
) -> None:
    """Add --draft, which `speclab/drafts/registry.py` reads. A command that has no --rule has the usual one."""
    parser.set_defaults(rule=TOKEN, auto=False)
    kind = functools.partial(_or_help, registry.shown, str)
    parser.add_argument("--draft", default=default, metavar="KIND", type=kind, help=help)


def add_rule_flag(parser: Group) -> None:
    rule = functools.partial(
        _or_help, lambda: "\n".join(f"{kind.usage:<49} {kind.line}" for kind in all_rules().values()), rule_of
    )
    judged = f"how drafted tokens are judged (default: {TOKEN.name}); --rule help lists all"
    parser.add_argument("--rule", type=rule, default=TOKEN, metavar="RULE", help=judged)


def check_rule(rule: Rule, temperatures: list[float], choices: list[registry.Choice]) -> None:
    """Raise UsageProblem where a rule does not fit a draft, or is lossy with temperature 0, where all rules are one."""
    if rule.chains_only:
        registry.check_chains(f"--rule {rule.name}", choices)
    if rule.law and 0 in temperatures:
        raise UsageProblem(f"--rule {rule.name} changes sampled text only; give --temperature above 0, for example 0.8")


def with_defaults(args: argparse.Namespace, defaults: dict[str, Any]) -> argparse.Namespace:
    """Return the arguments of a comparison, with `defaults` wherever the command line gives none."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    return argparse.Namespace(**vars(args) | defaults | given)


def load(args: argparse.Namespace, temperature: float | None = None) -> tuple[Setup, list[Prompt]]:
    """Load the target and the prompts, which are read before the weights: a mistake in them is found soon."""
    sampling, tokenizer = sampling_from(args, temperature), loading.load_tokenizer(args.target)
    given = read_prompts(args, tokenizer)
    setup = setup_from(args, sampling, tokenizer)
    if setup.device.type == "cpu" and (line := busy()):
        note(f"busy    {line}")
    return setup, given


def sampling_from(args: argparse.Namespace, temperature: float | None = None) -> Sampling:
    try:
        given = getattr(args, "temperature", 0.0) if temperature is None else temperature
        return Sampling(given, args.top_k, args.top_p)
    except ValueError as error:
        raise UsageProblem(f"{error}; see --help") from None


def setup_from(args: argparse.Namespace, sampling: Sampling, tokenizer: PreTrainedTokenizerBase | None = None) -> Setup:
    """Load target, tokenizer and machine from the shared flags. tokenizer: the target's, where it is loaded already."""
    where = (args.device, args.dtype, args.engine, args.threads)
    return load_setup(args.target, sampling, *where, tokenizer, getattr(args, "device_map", None))


def read_prompts(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> list[Prompt]:
    """Tokenise --prompt, --prompts, or the standard set; with --chat they are put into the chat template."""
    if getattr(args, "texts", None):
        given = prompts.encode(prompts.read_texts(args.texts), tokenizer, chat=args.chat is not False)
        return prompts.first_of_each_kind(given, args.limit or 0 if args.texts in LAB_TEXTS else 0)
    typed = bool(args.prompt) or args.prompts == "-"
    chat = typed and bool(tokenizer.chat_template) if args.chat is None else args.chat
    if args.prompt:
        return prompts.encode([("prompt", text) for text in args.prompt], tokenizer, chat)
    pairs = prompts.from_file(args.prompts) if args.prompts else prompts.standard()
    limit = 0 if args.prompts else args.limit or 0
    return prompts.first_of_each_kind(prompts.encode(pairs, tokenizer, chat), limit)


def describe_chat(prompts: list[Prompt], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return a line of a run's head where the tokenizer has a chat template: whether the prompts are in it."""
    on = "on: the prompt is in the tokenizer's chat template; --no-chat continues the bare text"
    off = "off: the prompt is continued as it is; --chat puts it into the tokenizer's chat template"
    return [f"chat    {on if prompts[0].chat else off}"] if tokenizer.chat_template else []
