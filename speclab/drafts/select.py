"""From `--draft KIND` to a drafter, and whether a run's prompts fit it."""

import difflib
import sys
from collections.abc import Iterable

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.rounds import Drafter
from speclab.drafts.oracle import NEEDS_GREEDY, FreeOracleDrafter, OracleDraft, OracleModelDrafter
from speclab.models import loading
from speclab.models.cached import CachedModel, check_prompt
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem
from speclab.system.terminal import note


def make_drafter(kind: str, setup: Setup, seed: int = 0) -> Drafter:
    """The drafter that `--draft KIND` means, for this target."""
    word, _, rest = kind.partition(":")
    if kind == "ngram":
        return NgramDrafter()
    if word == "dial":
        number, _, name = rest.partition(":")
        accuracy = _accuracy(kind, number)
        if not setup.sampling.greedy:
            raise UsageProblem(NEEDS_GREEDY)
        if name == "free":
            return FreeOracleDrafter(accuracy, seed)
        return OracleModelDrafter(setup.load_draft(name or loading.LAB_DRAFT), accuracy, seed)
    likely = difflib.get_close_matches(kind, ("model", "ngram", "dial:0.8"), 1, 0.7)
    if "," in kind:
        raise UsageProblem(f"--draft {kind}: this takes one draft; compare.py takes several")
    if not kind.strip() or (likely and kind not in likely and not loading.exists(kind)):
        raise UsageProblem(f"unknown draft kind {kind!r}; use model, ngram, dial:0.8, lab:SIZE, a folder or a hub name")
    return ModelDrafter(setup.load_draft(loading.LAB_DRAFT if kind == "model" else kind))


def _accuracy(kind: str, number: str) -> float:
    """The number of dial:NUMBER; UsageProblem where it is none, before a model is loaded."""
    try:
        return OracleDraft(float(number)).accuracy
    except ValueError:
        raise UsageProblem(f"--draft {kind}: give the dial a number from 0 to 1, for example dial:0.8") from None


def make_drafters(kinds: list[str], setup: Setup, seed: int) -> dict[str, Drafter]:
    """Drafters by the name that tables and records give them: never an absolute path."""
    if not kinds:
        raise UsageProblem("--draft is empty; give at least one kind, for example --draft model,ngram")
    names = [drafter_name(kind) for kind in kinds]
    if len(set(names)) < len(names):
        raise UsageProblem(f"--draft names the same draft twice ({', '.join(names)}); leave one out or rename it")
    return {name: make_drafter(kind, setup, seed) for name, kind in zip(names, kinds, strict=True)}


def drafter_name(kind: str) -> str:
    """What tables and records call a draft."""
    word, _, rest = kind.partition(":")
    if word != "dial":
        return loading.short_name(kind)
    accuracy, _, model = rest.partition(":")
    return f"dial:{accuracy}" + (f":{loading.short_name(model)}" if model else "")


def check_prompts(target: CachedModel, drafters: Iterable[Drafter], prompts: list[Prompt], max_new_tokens: int) -> None:
    """Before decoding: every prompt and its new tokens fit the target's context, and every prompt fits each draft's.

    UsageProblem where they do not. Text beyond a draft's context is only noted: rounds there draft fewer tokens.
    """
    for prompt in prompts:
        check_prompt(target, prompt.ids, max_new_tokens)
    longest = max(prompt.ids.shape[1] for prompt in prompts)
    for draft in (d.draft for d in drafters if isinstance(d, ModelDrafter)):
        room = sys.maxsize if draft.max_length is None else draft.max_length
        if longest > room:
            raise UsageProblem(
                f"a prompt has {longest} tokens and the draft model's context only {room}; shorten the prompt or use "
                "--draft ngram"
            )
        if longest + max_new_tokens > room + 1:
            note(f"the draft model's context is {room} tokens: near and beyond it rounds draft fewer, or none")
