"""The kernels, or on a CPU the operations, that take most of the time of a target step and of a round.

A profiler slows everything down, so nothing here is timed for a table.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from speclab.lab.run_config import RunConfig
from speclab.lab.warm import warm_decodings
from speclab.records.rows import Amount, Count, RecordPart

PROFILED = 6  # steps or rounds of each arm


@dataclass(kw_only=True)
class KernelTime(RecordPart):
    """All calls of one kernel, or on a CPU of one operation."""

    name: str
    calls: Count
    seconds: Amount


@dataclass(kw_only=True)
class ArmProfile(RecordPart):
    """The kernels in the steps of the baseline, or in the rounds of a speculative arm."""

    arm: str
    n: Count  # steps or rounds
    seconds: Amount  # of all kernels in them
    kernels: list[KernelTime]  # the most expensive first


def most_expensive(config: RunConfig, n: int = 10) -> list[ArmProfile]:
    """The kernels, or on a CPU the operations, that take most of a target step and of a round, `n` of each."""
    profiles = []
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    for decoding in warm_decodings(config, PROFILED):
        n_before, start = len(decoding.tokens), len(decoding.log)
        with profile(activities=activities) as profiler:
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
