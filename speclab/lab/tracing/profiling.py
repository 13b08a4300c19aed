"""`compare.py --profile FILE`: where the time of a few rounds goes, kernel by kernel.

The file is a trace for chrome://tracing or ui.perfetto.dev: the baseline's steps, then the rounds of the first
speculative arm, each marked with its name. A profiler slows everything down, so nothing here is timed for a table.
"""

import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from speclab.core.sampling import Sampling
from speclab.lab.run_config import RunConfig
from speclab.records.samples import Arm
from speclab.system.errors import UsageProblem
from speclab.system.files import shown, write_whole
from speclab.system.terminal import note

WARM, PROFILED = 4, 6  # steps or rounds of each arm


def write_trace(config: RunConfig, path: Path) -> None:
    """Profile both arms on the first prompt."""
    arms = [arm for arm in config.arms() if not arm.speculative or arm.draft_length][:2]
    # The baseline hands out a chunk of tokens for each wait of the host, and all its passes lie in front of the first.
    sizes = [arm.draft_length + 1 if arm.speculative else config.setup.chunk for arm in arms]
    room = config.setup.target.max_length
    budget = (WARM + PROFILED + 1) * max(sizes)
    if room is not None and config.prompts[0].ids.shape[1] + budget > room:
        raise UsageProblem(f"--profile decodes {budget} tokens, too many for the context of {room}; use a smaller -k")
    bench = config.bench(budget)
    decodings = [bench.decoding(arm, Sampling(), config.prompts[0]) for arm in arms]
    for decoding in decodings:
        decoding.advance()  # the prompt's own pass
        for _ in range(WARM):  # shapes met for the first time
            decoding.advance()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as profiler:
        for decoding in decodings:
            for _ in range(PROFILED):
                with record_function(_name(decoding.arm)):
                    decoding.advance()
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / f"trace{path.suffix}"  # the library packs what ends in .gz
        profiler.export_chrome_trace(str(exported))
        write_whole(path, exported.read_bytes())
    note(f"wrote {shown(path)}: {' and '.join(f'{PROFILED} x {_name(arm)}' for arm in arms)}")


def _name(arm: Arm) -> str:
    return f"round of {arm.label}" if arm.speculative else "steps of the baseline"
