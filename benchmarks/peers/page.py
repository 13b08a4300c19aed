"""The result of `python -m benchmarks.peers`: its record, the ratios between its arms, and its page."""

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks import common
from benchmarks.peers import llama_cpp
from benchmarks.peers.library import PEER
from speclab.drafts.lengths import LONGEST
from speclab.present.screen import timed
from speclab.present.tables import Block, Cell, Heading, Lines, Table, interval, speedup
from speclab.records.rows import Amount, Count, Facts, RecordPart
from speclab.theory.formulas import ratio_interval

# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class PeerTiming(RecordPart):
    """The seconds of every repeat of one arm on one prompt."""

    method: str
    draft_length: Count
    prompt_index: Count
    prompt_kind: str
    n_prompt: Count  # tokens
    n_passes: Count  # of the target, the prompt's own included
    seconds: list[Amount]  # from the prompt's ids to the last token
    decode_seconds: list[Amount | None]  # None: the library does not tell them apart


@dataclass(kw_only=True)
class PeersRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.peers`."""

    models: dict[str, str]
    correctness: list[Facts]  # of speclab/lab/comparison.py, one entry for every arm but the baseline
    raw: list[PeerTiming]


# --- from seconds to ratios -------------------------------------------------------------------------------------------

Timings = list[PeerTiming]  # of one arm, one for each prompt
AUTO = [("model auto", LONGEST), ("dynamic", LONGEST)]  # arms whose length changes from round to round
Key = tuple[str, int]  # method and draft length of an arm


class Ratio(NamedTuple):
    """A ratio of speeds, with a 95 % interval over prompts."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return speedup(self.value) + (f" ({interval(self.low, self.high)})" if self.low is not None else "")


def by_arm(timings: Timings) -> dict[Key, Timings]:
    arms = defaultdict(list)
    for t in timings:
        arms[t.method, t.draft_length].append(t)
    return arms


def typical(timings: Timings, seconds: str = "seconds") -> list[float]:
    return [statistics.median(getattr(t, seconds)) for t in timings]


def ratio(before: Timings, after: Timings, seconds: str = "seconds") -> Ratio:
    top, bottom = typical(before, seconds), typical(after, seconds)
    return Ratio(sum(top) / sum(bottom), *(ratio_interval(top, bottom) or (None, None)))


def over_peers(run: PeersRun) -> dict[Key, Ratio]:
    arms = by_arm(run.raw)
    return {(name, k): ratio(arms[PEER[name], k], arms[name, k]) for name, k in list(arms) if name in PEER}


# --- views of the record ----------------------------------------------------------------------------------------------

METHODS = {  # what each is, in the order of the page
    "baseline": "our loop, one pass for every token",
    "generate": "the library's loop, model.generate",
    "model": "our speculative loop with the draft model",
    "assisted": "generate(assistant_model=...), constant k, no confidence stop",
    "model auto": f"our loop with the draft model, a length of at most {LONGEST} chosen in every round",
    "dynamic": "generate(assistant_model=...) with its defaults: 20 tokens at most, a stop below a confidence of 0.4",
    "ngram": "our speculative loop with prompt lookup",
    "lookup": "generate(prompt_lookup_num_tokens=k)",
    "exit": "our speculative loop with the target's own first layers and the lab's adapter",
    "early exit": "generate(assistant_early_exit=N), the same layers without an adapter, constant k",
    "beam": "generate(num_beams=k), which searches for a more probable text, and gives another one",
}
LEGEND = [
    "÷ says how many times as fast an arm is, with a 95 % interval over prompts.",
    "tok/pass is the number of new tokens per pass of the target. The library drafts already in the prompt's own pass, "
    "our loop starts after it.",
    "same text counts the texts that equal the baseline's token for token. The others are listed. A near-tie means "
    "that two logits are so close that rounding decides; BUG means that rounding cannot be the reason.",
]


def speed_tables(run: PeersRun) -> list[Block]:
    arms, to_peer = by_arm(run.raw), over_peers(run)
    n_tokens = sum(t.n_passes for t in arms["baseline", 0])  # a token for every pass
    same = {
        check["arm"]: f"{check['n_prompts'] - len(check['differences'])} of {check['n_prompts']}"
        for check in run.correctness
    }
    keys: dict[str, Cell] = {"arm": lambda arm: arm[0], "k": lambda arm: "auto" if arm in AUTO else str(arm[1] or "-")}
    speeds: dict[str, Cell] = {
        "tok/s": lambda arm: f"{n_tokens / sum(typical(arms[arm])):.1f}",
        "÷ generate": lambda arm: str(ratio(arms["generate", 0], arms[arm])),
        "÷ peer": lambda arm: str(to_peer.get(arm, "-")),
        "÷ baseline": lambda arm: speedup(ratio(arms["baseline", 0], arms[arm]).value),
        "tok/pass": lambda arm: f"{n_tokens / sum(t.n_passes for t in arms[arm]):.2f}",
        "same text": lambda arm: same.get(f"{arm[0]} k={arm[1]}", same.get(arm[0], "-")),
    }
    measured = {method for method, _ in arms}
    methods = [f"{method}: {meaning}" for method, meaning in METHODS.items() if method in measured]
    return [Table(list(arms), keys | speeds), Lines(methods + LEGEND)]


def llama_table(run: PeersRun) -> list[Block]:
    """A table of the lab's arms beside those of llama.cpp, decoding alone; none where it was not measured."""
    arms = by_arm(run.raw)
    theirs = {
        ("model" if k else "baseline", k): timings for (name, k), timings in arms.items() if name == llama_cpp.METHOD
    }
    if not theirs:
        return []
    n_tokens = sum(t.n_passes - 1 for t in arms["baseline", 0])  # the first comes with the prompt

    def speed(timings: Timings) -> str:
        return f"{n_tokens / sum(typical(timings, 'decode_seconds')):.1f}"

    cells: dict[str, Cell] = {
        "arm": lambda key: key[0],
        "k": lambda key: str(key[1] or "-"),
        "ours tok/s": lambda key: speed(arms[key]),
        "llama.cpp tok/s": lambda key: speed(theirs[key]),
        "ours ÷ llama.cpp": lambda key: str(ratio(theirs[key], arms[key], "decode_seconds")),
        "our speedup": lambda key: speedup(ratio(arms["baseline", 0], arms[key], "decode_seconds").value),
        "its speedup": lambda key: speedup(ratio(theirs["baseline", 0], theirs[key], "decode_seconds").value),
    }
    legend = [
        "llama.cpp runs its llama-completion, and its llama-speculative-simple with the same draft and k.",
        "The times are those of decoding alone, without the prompt, by its own clocks. They do not count the start of "
        "a process and the reading of the weights. A speedup is over plain decoding of the same program.",
    ]
    return [Heading("Against llama.cpp"), Table(list(theirs), cells), Lines(legend)]


def page(run: PeersRun) -> list[Block]:
    settings = run.settings
    size = (
        f"{settings['n_prompts']} prompts, up to {settings['max_new_tokens']} new tokens each, "
        f"{timed(settings['repeats'])}, greedy; seconds end to end, reading the prompt included"
    )
    differences = Lines()
    for check in run.correctness:
        for one in check["differences"]:
            foreign = check["arm"].startswith(llama_cpp.METHOD) and one["verdict"] != "near-tie"
            verdict = "more than rounding in float32 explains" if foreign else one["verdict"]
            differences.append(f"{check['arm']}, prompt {one['prompt']}: from token {one['position']} on, {verdict}")
    return [
        *common.begin("Against the library's own decoders", run),
        Lines([*(f"{role}: {text}" for role, text in run.models.items()), size]),
        Heading("How fast"),
        *speed_tables(run),
        *llama_table(run),
        Heading("Other texts than the baseline's"),
        differences,
    ]
