"""The command `profile`: a few steps of the baseline and a few rounds under PyTorch's profiler."""

import argparse
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from speclab.cli import flags, parsing
from speclab.extensions.trace import decoding
from speclab.lab.decodings import Decoding
from speclab.lab.run_config import RunConfig
from speclab.lab.warm import warm_decodings
from speclab.records.arms import Arm
from speclab.system.errors import UsageProblem
from speclab.system.files import shown, write_whole
from speclab.system.terminal import note

PROFILED = 6  # steps or rounds of each arm


def run(args: argparse.Namespace) -> int:
    """Run the command.  -> exit code"""
    if args.file == parsing.DASH:
        raise UsageProblem("profile -: a profiler trace is too long for a terminal; give a file")
    flags.check_file(args.file, "FILE")
    found = decoding.load(args)
    size = (args.max_new_tokens, 1, args.seed)
    lengths = [found.draft_length]
    config = RunConfig(found.setup, {found.name: found.drafter}, [found.prompt], lengths, [0.0], *size)
    decodings = warm_decodings(config, PROFILED)
    note("\n".join(found.head))
    write_trace(decodings, args.file)
    return 0


def write_trace(decodings: list[Decoding], path: Path) -> None:
    """Profile the next steps or rounds of each arm."""
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()) as profiler:
        for one in decodings:
            for _ in range(PROFILED):
                with record_function(_name(one.arm)):
                    one.advance()
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / f"trace{path.suffix}"  # the library packs what ends in .gz
        profiler.export_chrome_trace(str(exported))
        write_whole(path, exported.read_bytes())
    note(f"wrote {shown(path)}: {' and '.join(f'{PROFILED} x {_name(one.arm)}' for one in decodings)}")


def _name(arm: Arm) -> str:
    return f"round of {arm.label}" if arm.speculative else "steps of the baseline"
