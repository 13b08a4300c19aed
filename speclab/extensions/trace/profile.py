"""Where the time of a few steps and rounds goes, kernel by kernel.

`compare.py --profile FILE` writes a trace for chrome://tracing or ui.perfetto.dev: the baseline's steps, then the
rounds of the first speculative arm, each marked with its name. `most_expensive` sums the same up for a record. A
profiler slows everything down, so nothing here is timed for a table.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from speclab.core.sampling import Sampling
from speclab.lab.decodings import Decoding
from speclab.lab.run_config import RunConfig
from speclab.records.rows import Amount, Count, Part
from speclab.records.samples import Arm
from speclab.system.errors import UsageProblem
from speclab.system.files import shown, write_whole
from speclab.system.terminal import note

WARM, PROFILED = 4, 6  # steps or rounds of each arm


@dataclass(kw_only=True)
class KernelTime(Part):
    """All calls of one kernel, or on a CPU of one operation."""

    name: str
    calls: Count
    seconds: Amount


@dataclass(kw_only=True)
class ArmProfile(Part):
    """What the steps of the baseline, or the rounds of a speculative arm, are made of."""

    arm: str
    n: Count  # steps or rounds
    seconds: Amount  # of all kernels in them
    kernels: list[KernelTime]  # the most expensive first


def write_trace(config: RunConfig, path: Path) -> None:
    """Profile both arms on the first prompt."""
    decodings = _warm(config)
    with profile(activities=_activities()) as profiler:
        for decoding in decodings:
            for _ in range(PROFILED):
                with record_function(_name(decoding.arm)):
                    decoding.advance()
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / f"trace{path.suffix}"  # the library packs what ends in .gz
        profiler.export_chrome_trace(str(exported))
        write_whole(path, exported.read_bytes())
    note(f"wrote {shown(path)}: {' and '.join(f'{PROFILED} x {_name(decoding.arm)}' for decoding in decodings)}")


def most_expensive(config: RunConfig, n: int = 10) -> list[ArmProfile]:
    """The kernels, or on a CPU the operations, that take most of a target step and of a round, `n` of each."""
    profiles = []
    for decoding in _warm(config):
        n_before, start = len(decoding.tokens), len(decoding.log)
        with profile(activities=_activities()) as profiler:
            for _ in range(PROFILED):
                decoding.advance()
        on_gpu = config.setup.device.type == "cuda"
        kernels = [
            KernelTime(name=one.key, calls=one.count, seconds=_microseconds(one, on_gpu) / 1e6)
            for one in profiler.key_averages()
            if (one.device_type == DeviceType.CUDA) == on_gpu
        ]
        kernels.sort(key=lambda kernel: -kernel.seconds)
        rounds = len(decoding.log) - start
        profiles.append(
            ArmProfile(
                arm=decoding.arm.label,
                n=rounds if decoding.arm.speculative else len(decoding.tokens) - n_before,
                seconds=sum(kernel.seconds for kernel in kernels),
                kernels=kernels[:n],
            )
        )
    return profiles


def _microseconds(average: Any, on_gpu: bool) -> float:
    return float(average.self_device_time_total if on_gpu else average.self_cpu_time_total)


def _activities() -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()


def _warm(config: RunConfig) -> list[Decoding]:
    """Both arms at work on the first prompt, with the shapes that they meet behind them."""
    arms = [arm for arm in config.arms() if not arm.speculative or arm.draft_length][:2]
    # The baseline hands out a chunk of tokens for each wait of the host, and all its passes lie in front of the first.
    sizes = [arm.draft_length + 1 if arm.speculative else config.setup.chunk for arm in arms]
    room = config.setup.target.max_length
    budget = (WARM + PROFILED + 1) * max(sizes)
    n_before = config.setup.target.room.length_after(config.prompts[0].ids.shape[1])
    if room is not None and n_before + budget > room:
        raise UsageProblem(f"--profile decodes {budget} tokens, too many for the context of {room}; use a smaller -k")
    bench = config.bench(budget)
    longest = config.prompts[0].ids.shape[1] + budget
    bench.prepare({arm.draft_length for arm in arms if arm.speculative}, [Sampling()], longest)
    decodings = [bench.decoding(arm, Sampling(), config.prompts[0]) for arm in arms]
    for decoding in decodings:
        decoding.advance()  # the prompt's own pass
        for _ in range(WARM):  # shapes met for the first time
            decoding.advance()
    return decodings


def _name(arm: Arm) -> str:
    return f"round of {arm.label}" if arm.speculative else "steps of the baseline"
