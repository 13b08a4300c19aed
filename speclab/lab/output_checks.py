"""Correctness before speed: do the timed texts agree with the baseline, or with the target's own distributions?"""

import math
from collections.abc import Iterator

import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import GREEDY, Sampling
from speclab.lab.harness import Bench, Measurement, keeping
from speclab.models.prompts import Prompt
from speclab.records.samples import BASELINE, Sample
from speclab.theory import losslessness


def judge(bench: Bench, found: Measurement, prompts: list[Prompt], base: Sampling, tokenizer) -> None:
    """Check every text that was timed. What ends the checks early leaves the rest of the arms in `found.unchecked`."""
    temperatures = dict.fromkeys(s.temperature for s in found.samples)
    timed = dict.fromkeys((s.arm.label, s.temperature) for s in found.samples if s.arm.speculative)
    with keeping(found, "the measurements are complete, their checks are not"):
        for temperature in temperatures:
            sampling = Sampling(temperature, base.top_k, base.top_p)
            for entry in check(bench, found, prompts, sampling, tokenizer):
                found.correctness.append(entry)
                timed.pop((entry["arm"], entry["temperature"]), None)
    found.unchecked = [f"{label} at temperature {temperature:g}" for label, temperature in timed]


def exit_code(found: Measurement) -> int:
    """1 where a judged text is wrong, else 0.

    Raises what ended the measurement early where that is a problem to mend, and Ctrl-C where texts are not judged.
    """
    if found.stop and not isinstance(found.stop, KeyboardInterrupt):
        raise found.stop
    if not all(entry["passed"] for entry in found.correctness):
        return 1
    if found.stop and found.unchecked:
        raise found.stop
    return 0


def check(bench: Bench, found: Measurement, prompts: list[Prompt], sampling: Sampling, tokenizer) -> Iterator[dict]:
    """One entry for every speculative arm at this temperature; `passed` is false where the output is wrong."""
    samples = [s for s in found.samples if s.temperature == sampling.temperature]
    baseline = {s.prompt_index: s for s in samples if s.arm == BASELINE}
    for arm in dict.fromkeys(s.arm for s in samples if s.arm.speculative):
        mine = [s for s in samples if s.arm == arm]
        if sampling.greedy:
            yield judge_greedy(bench, mine, baseline, prompts, tokenizer)
        else:
            yield _sampled(bench, mine, prompts, sampling)


def judge_greedy(
    bench: Bench, samples: list[Sample], baseline: dict[int, Sample], prompts: list[Prompt], tokenizer
) -> dict:
    """Of one arm: its texts equal the baseline's, or where each first differs and why. baseline: by prompt index."""
    arm = samples[0].arm
    entry: dict = {"arm": arm.label, "temperature": 0.0, "n_prompts": len(samples), "differences": [], "passed": True}
    for sample in samples:
        theirs = baseline[sample.prompt_index].texts[0]
        # Repeats of a greedy decoding are the same text; one that differs is judged like any other.
        text = next((t for t in sample.texts if t != theirs), theirs)
        found = losslessness.judge_divergence(
            bench.setup.reference, prompts[sample.prompt_index].id_list, theirs, text, bench.setup.target.vocab_size
        )
        if found:
            pair = (found.baseline_token, found.speculative_token)
            entry["differences"].append(
                {
                    "prompt": sample.prompt_index,
                    "position": found.position,
                    "tokens": [tokenizer.decode([t]) if t >= 0 else "" for t in pair],
                    "gap": None if found.gap == float("inf") else found.gap,
                    "verdict": "near-tie" if found.numerical else "BUG",
                }
            )
            entry["passed"] &= found.numerical
    return entry


def _sampled(bench: Bench, samples: list[Sample], prompts: list[Prompt], sampling: Sampling) -> dict:
    """The two z statistics of the emitted tokens under the target's own distributions."""
    arm, sums = samples[0].arm, losslessness.ZSums()
    for sample in samples:
        prompt = prompts[sample.prompt_index].id_list
        for tokens in sample.texts:
            target_probs, draft_probs = both_distributions(bench, arm.draft, prompt, tokens, sampling)
            sums.add(torch.tensor(tokens), target_probs, draft_probs)
    z = sums.result()
    return {
        "arm": arm.label,
        "temperature": sampling.temperature,
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
    drafter = bench.drafters[draft]
    if isinstance(drafter, ModelDrafter):
        return target_probs, losslessness.distributions(drafter.draft.model, prompt, tokens, sampling, vocab)
    rows = torch.zeros(len(tokens), vocab)
    for i, proposals in enumerate(lookups(prompt, tokens, 1)):
        for proposal in proposals:
            rows[i, proposal] = 1.0
    return target_probs, rows


def lookups(prompt: list[int], tokens: list[int], k: int) -> Iterator[list[int]]:
    """What prompt lookup proposes at the place of each token: at most `k` ids."""
    drafter = NgramDrafter()
    drafter.prefill(None, torch.tensor([prompt]), GREEDY)
    for token in tokens:
        yield drafter.lookup(k)
        drafter.observe(0, [token])
