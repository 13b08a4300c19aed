"""Whether the servers' texts are right: greedily those of the lab's own baseline, when sampling the target's law."""

from dataclasses import replace

import torch

from speclab.lab.harness import Measurement
from speclab.lab.output_checks import judge_greedy
from speclab.lab.serving.served import Served
from speclab.lab.serving.turns import Sent
from speclab.records.runs import Facts
from speclab.records.samples import BASELINE, BASELINE_REPEAT, Arm, Sample
from speclab.theory import losslessness


def judged(served: Served) -> Measurement:
    """The texts of all servers: greedily those of the lab's own baseline, when sampling the target's law."""
    config = served.config
    measured = Measurement(config.bench(), config.prompts, stop=served.stop)
    for index, text in enumerate(served.texts):
        own = Sample(BASELINE, 0.0, index, config.prompts[index].kind, config.prompts[index].ids.shape[1])
        own.add(0.0, 0.0, text)
        measured.samples.append(own)
    for arm in served.arms:
        if arm == BASELINE_REPEAT:
            continue
        name = Arm("served baseline") if arm == BASELINE else arm
        for temperature in config.temperatures:
            samples = [replace(sample, arm=name) for sample in samples_of(served, arm, temperature).values()]
            if not samples:
                continue
            measured.samples += samples
            check = judge_greedy if temperature == 0 else _judge_sampled
            measured.correctness.append(check(measured, name, temperature))
    return measured


def samples_of(served: Served, arm: Arm, temperature: float, turns_of: Arm | None = None) -> dict[int, Sample]:
    """What an arm sent, by prompt; turns_of: in the turns of this arm alone.

    Decoding is scaled to all tokens but one: a first chunk may carry several.
    """
    found: dict[int, Sample] = {}
    for one in sent_by(served, arm, temperature):
        if turns_of not in (None, one.turns_of):
            continue
        prompt, answer = served.config.prompts[one.index], one.answer
        sample = Sample(arm, temperature, one.index, prompt.kind, prompt.ids.shape[1])
        seconds = answer.seconds_per_token * (len(answer.tokens) - 1)
        found.setdefault(one.index, sample).add(answer.first_seconds, seconds, answer.tokens)
    return found


def sent_by(served: Served, arm: Arm, temperature: float) -> list[Sent]:
    """All answers of an arm at a temperature."""
    return [one for one in served.sent if (one.arm, one.temperature) == (arm, temperature)]


def _judge_sampled(measured: Measurement, arm: Arm, temperature: float) -> Facts:
    """The two z statistics of sampled texts under the target's own law; the first one counts improbable tokens.

    Of every prompt one text: requests with the same seed are the same text again, and prove nothing.
    """
    setup, sums = measured.bench.setup, losslessness.ZSums()
    sampling, vocab = setup.sampling_at(temperature), setup.target.vocab_size
    for sample in measured.of(arm, temperature):
        prompt = measured.prompts[sample.prompt_index].id_list
        for text in sample.texts[:1]:
            law = losslessness.distributions(setup.target.model, prompt, text, sampling, vocab)
            sums.add(torch.tensor(text), law, torch.full_like(law, 1 / vocab))
    z = sums.result()
    return {
        "arm": arm.label,
        "temperature": temperature,
        "n_tokens": z.n_tokens,
        "z_residual": _finite(z.residual),
        "z_surprise": _finite(z.surprise),
        "bound": losslessness.Z_BOUND,
        "passed": z.passed,
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
