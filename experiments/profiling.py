"""`compare.py --profile FILE`: where the time of a few rounds goes, kernel by kernel.

The file is a trace for chrome://tracing or ui.perfetto.dev: the baseline's steps, then the rounds of the first
speculative arm, each marked with its name. A profiler slows everything down, so nothing here is timed for a table.
"""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from experiments.job import Job
from speclab import options, record
from speclab.rows import Arm
from speclab.sampling import Sampling

WARM, PROFILED = 4, 6  # steps or rounds of each arm


def write_trace(job: Job, path: Path) -> None:
    """Profile both arms on the first prompt."""
    record.prepare_folder(path.parent)
    arms = [arm for arm in job.arms() if not arm.speculative or arm.draft_length][:2]
    longest = max(arm.draft_length for arm in arms)
    budget = (WARM + PROFILED + 1) * (longest + 1)
    bench = job.bench(budget)
    decodings = [bench.decoding(arm, Sampling(), job.prompts[0]) for arm in arms]
    for decoding in decodings:
        for _ in range(WARM + 1):  # the prompt's own pass, and shapes met for the first time
            decoding.advance()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as profiler:
        for decoding in decodings:
            for _ in range(PROFILED):
                with record_function(_name(decoding.arm)):
                    decoding.advance()
    temporary = path.with_name(path.name + ".part")
    profiler.export_chrome_trace(str(temporary))
    temporary.replace(path)
    options.note(f"wrote {options.shown_path(path)}: {PROFILED} steps and rounds of {' and '.join(map(_name, arms))}")


def _name(arm: Arm) -> str:
    return f"round of {arm.label}" if arm.speculative else "step of the baseline"
