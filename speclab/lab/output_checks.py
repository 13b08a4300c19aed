"""Correctness before speed: do the timed texts agree with the baseline, or with the target's own distributions?"""

import copy
import math
from collections.abc import Iterator

import torch

from draft_models import ModelDrafter
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.heads.drafter import HeadDrafter
from speclab.drafts.hybrid import LookupDrafter, parts
from speclab.lab.harness import Bench, Measurement
from speclab.records.samples import BASELINE, Arm
from speclab.theory import losslessness


def judge(measured: Measurement) -> None:
    """Check every text that was timed. What ends the checks early leaves the other arms in `measured.unchecked`."""
    waiting = to_judge(measured)
    with measured.kept("the measurements are complete, their checks are not"):
        for name, (arm, temperature) in list(waiting.items()):
            measured.correctness.append(check(measured, arm, temperature))
            del waiting[name]
    measured.unchecked = list(waiting)


def to_judge(measured: Measurement) -> dict[str, tuple[Arm, float]]:
    """The arms and temperatures whose texts are to be checked, by what a record calls them."""
    pairs = dict.fromkeys((s.arm, s.temperature) for s in measured.samples if s.arm.speculative)
    return {f"{arm.label} at temperature {temperature:g}": (arm, temperature) for arm, temperature in pairs}


def exit_code(measured: Measurement) -> int:
    """1 where a judged text is wrong, else 0.

    Raises what ended the measurement early where that is a problem to mend, and Ctrl-C where texts are not judged.
    """
    if measured.stop and not isinstance(measured.stop, KeyboardInterrupt):
        raise measured.stop
    if not all(entry["passed"] for entry in measured.correctness):
        return 1
    if measured.stop and measured.unchecked:
        raise measured.stop
    return 0


def check(measured: Measurement, arm: Arm, temperature: float) -> dict:
    """Whether the texts of an arm are right; `passed` is false where one is wrong."""
    return (judge_greedy if temperature == 0 else _judge_sampled)(measured, arm, temperature)


def judge_greedy(measured: Measurement, arm: Arm, temperature: float = 0.0) -> dict:
    """An arm's texts equal the baseline's, or where each first differs and why."""
    setup, samples = measured.bench.setup, measured.of(arm, temperature)
    baseline = {s.prompt_index: s.texts[0] for s in measured.of(BASELINE, temperature)}
    differences = []
    for sample in samples:
        expected = baseline[sample.prompt_index]
        # Repeats of a greedy decoding are the same text; one that differs is judged like any other.
        text = next((t for t in sample.texts if t != expected), expected)
        prompt = measured.prompts[sample.prompt_index].id_list
        divergence = losslessness.judge_divergence(setup.reference, prompt, expected, text, setup.target.vocab_size)
        if divergence:
            pair = (divergence.baseline_token, divergence.speculative_token)
            differences.append(
                {
                    "prompt": sample.prompt_index,
                    "position": divergence.position,
                    "tokens": [setup.tokenizer.decode([t]) if t >= 0 else "" for t in pair],
                    "gap": None if divergence.gap == float("inf") else divergence.gap,
                    "verdict": "near-tie" if divergence.numerical else "BUG",
                }
            )
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_prompts": len(samples),
        "differences": differences,
        "passed": all(difference["verdict"] == "near-tie" for difference in differences),
    }


def _judge_sampled(measured: Measurement, arm: Arm, temperature: float) -> dict:
    """The two z statistics of the emitted tokens under the target's own distributions."""
    sums, sampling = losslessness.ZSums(), measured.bench.setup.sampling_at(temperature)
    for sample in measured.of(arm, temperature):
        prompt = measured.prompts[sample.prompt_index].id_list
        for tokens in sample.texts:
            sums.add(torch.tensor(tokens), *both_distributions(measured.bench, arm.draft, prompt, tokens, sampling))
    z = sums.result()
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_tokens": z.n_tokens,
        "z_residual": z.residual if math.isfinite(z.residual) else None,
        "z_surprise": z.surprise if math.isfinite(z.surprise) else None,  # an impossible token was emitted
        "bound": losslessness.Z_BOUND,
        "passed": z.passed,
    }


def both_distributions(
    bench: Bench, draft: str, prompt: list[int], tokens: list[int], sampling: Sampling
) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's and the draft's distribution at the place of each token, from uncached passes.  -> (n, vocab) twice

    Prompt lookup's are one-hot rows, or zeros where it finds nothing.
    """
    vocab = bench.setup.target.vocab_size
    target_probs = losslessness.distributions(bench.setup.target.model, prompt, tokens, sampling, vocab)
    drafter = parts(bench.drafters[draft])[-1]
    if isinstance(drafter, ModelDrafter):
        return target_probs, losslessness.distributions(drafter.draft.model, prompt, tokens, sampling, vocab)
    if isinstance(drafter, HeadDrafter):
        model = bench.setup.target.model
        return target_probs, next(drafter.chain_probs(model, prompt, tokens, sampling, 1, vocab))
    if not isinstance(drafter, LookupDrafter):
        raise TypeError(f"no distribution is known of a {type(drafter).__name__}")
    rows = torch.zeros(len(tokens), vocab)
    for i, proposals in enumerate(lookups(drafter, prompt, tokens, 1)):
        for proposal in proposals:
            rows[i, proposal] = 1.0
    return target_probs, rows


def lookups(drafter: LookupDrafter, prompt: list[int], tokens: list[int], k: int) -> Iterator[list[int]]:
    """What a lookup proposes at the place of each token: at most `k` ids."""
    drafter = copy.deepcopy(drafter)
    drafter.prefill(None, torch.tensor([prompt]), GREEDY)
    for token in tokens:
        yield drafter.lookup(k)
        drafter.observe(0, [token])
