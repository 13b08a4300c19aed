"""The lab from Python: load a pair of models, decode speculatively, read the rounds.

    from speclab import load, speculate

    pair = load()                                     # the lab's own pair; or load("Qwen/...", draft="Qwen/...")
    for round_ in speculate(pair, "def read_config(path):", draft_length=4):
        print(round_.text, end="", flush=True)        # a Round (speclab/core/rounds.py), with its text

What cannot be used raises `UsageProblem` or `EnvironmentProblem`, whose text names the cause and what to do.
docs/python.md is the whole of it on one page.
"""

from speclab.system import startup  # noqa: F401, I001 - before torch is loaded, since it sets how threads wait
import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts import registry
from speclab.drafts.lengths import LONGEST, AutoLength
from speclab.drafts.registry import check_prompts
from speclab.lab.bench import SPECULATIVE
from speclab.lab.round_costs import measure_costs
from speclab.models.loading import DEVICES, DTYPES, LAB_TARGET
from speclab.models.pieces import with_text
from speclab.models.prompts import Messages, encode
from speclab.models.setup import ENGINES, Setup, load_setup
from speclab.system.errors import UsageProblem


@dataclass(frozen=True)
class Pair:
    """A checked target, and its drafter. Every text has caches of its own, so several can be made at once."""

    setup: Setup
    drafter: Drafter
    choice: registry.Choice  # how `--draft` names the draft

    @functools.cached_property
    def on_auto(self) -> Drafter:
        """The same draft choosing its lengths; what rounds cost stays known from text to text."""
        self.choice.check_auto()
        return self.drafter.with_draft(AutoLength)


def load(
    target: str = LAB_TARGET,
    draft: str = "model",
    device: str = "auto",
    dtype: str = "auto",
    engine: str = "auto",
    threads: int | None = None,
) -> Pair:
    """Load and check a pair. Without arguments: the one that comes with the lab.

    target: folder, hub name or lab:SIZE. draft: the same, "model" (the lab's own draft), "ngram" (prompt lookup), or
    another kind of `--draft`. device (auto, cpu, cuda, mps), dtype (auto, float32, bfloat16), engine (auto, c, graphs,
    eager), threads (of a CPU). Raises UsageProblem or EnvironmentProblem."""
    for what, given, names in (("engine", engine, ENGINES), ("device", device, DEVICES), ("dtype", dtype, DTYPES)):
        if given not in names:
            raise UsageProblem(f"there is no {what} {given!r}; choose one of {', '.join(names)}")
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageProblem(f"threads is {threads!r}; give a whole number, 1 or more, or None")
    choice = registry.read(draft)
    if choice.only_greedy:
        raise UsageProblem(f"draft {draft!r} replays the baseline's output, which is for compare.py alone")
    setup = load_setup(target, GREEDY, device, dtype, engine, threads)
    return Pair(setup, choice.make(setup), choice)


def speculate(
    pair: Pair,
    prompt: str | Messages,
    draft_length: int | Literal["auto"] = 4,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[Round]:
    """Continue a prompt by speculative decoding: its rounds, each with the text that it adds.

    prompt: a text, continued as it is; or a chat, which is put into the tokenizer's chat template: a list of messages
    such as {"role": "user", "content": "..."}. draft_length: tokens of a draft, 0 for plain decoding, "auto" to choose
    in every round; some drafts have a size of their own. With "auto", and for hybrids, the cost of a round is measured
    before the first text at each temperature. temperature: 0 is greedy. The text ends with the target's own end token
    or after max_new_tokens tokens. Arguments are checked when this is called, before the first round. Raises
    UsageProblem, and ValueError for a number out of range."""
    k = LONGEST if draft_length == "auto" else draft_length
    for name, n in (("draft_length", k), ("max_new_tokens", max_new_tokens), ("top_k", top_k), ("seed", seed)):
        if type(n) is not int or n < 0:
            raise ValueError(f'{name} must be a whole number, 0 or more (draft_length also "auto"), got {n!r}')
    if seed >= 2**32:  # other seeds are made from it, and PyTorch takes 64 bits
        raise ValueError(f"seed must be less than 2**32, as --seed must, got {seed}")
    setup = pair.setup
    settings = DecodeSettings(max_new_tokens, Sampling(temperature, top_k, top_p), setup.eos, seed)
    is_chat = isinstance(prompt, list) and all(
        isinstance(m, dict) and "role" in m and isinstance(m.get("content"), str) for m in prompt
    )
    if not isinstance(prompt, str) and not (prompt and is_chat):
        raise UsageProblem('a chat is a list of messages, each such as {"role": "user", "content": "..."}')
    [encoded] = encode([("prompt", prompt)], setup.tokenizer, is_chat)
    check_prompts(setup.target, [pair.drafter], [encoded], max_new_tokens)
    drafter, ids = pair.on_auto if draft_length == "auto" else pair.drafter, encoded.ids.to(setup.device)
    if k:
        [k] = drafter.lengths([k])
        if drafter.costs is not None and temperature not in drafter.costs:  # it chooses by them
            measure_costs(SPECULATIVE, setup.target, drafter, [ids], settings)
    own = copy.deepcopy(drafter)
    own.forget()  # texts may have the same random numbers: what one of them taught must not decide in another
    rounds = SPECULATIVE.rounds(setup.target.with_own_cache(), own, ids, k, settings)
    return with_text(rounds, setup.pieces(encoded))
