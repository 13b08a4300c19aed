"""Whether the servers' texts are right: greedily those of the lab's own baseline, when sampling the target's law."""

from collections.abc import Iterable

import torch

from speclab.extensions.servers.served import Served
from speclab.extensions.servers.server_turns import Sent
from speclab.lab.harness import Measurement
from speclab.lab.output_checks import judge, judge_greedy, law_entry
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm
from speclab.records.facts import Facts
from speclab.records.log import Line
from speclab.theory import losslessness

SERVED_BASELINE = Arm("served baseline")  # beside the lab's own one
UNDER_LOAD = "under load"  # key of an entry of the checks


def judged(served: Served) -> Measurement:
    """The texts of all servers: greedily those of the lab's own baseline, when sampling the target's law."""
    config = served.config
    measured = Measurement(config.bench(), config.prompts, stop=served.stop)
    for index, text in enumerate(served.texts):
        own = _sample(served, BASELINE, 0.0, index)
        own.add(0.0, 0.0, text.tokens)
        measured.lines.append(own)
    texts: dict[tuple[Arm, float, bool], list[tuple[int, list[int]]]] = {}
    for one in served.sent:
        key = _checked_as(one.arm), one.temperature, False
        texts.setdefault(key, []).append((one.index, one.answer.tokens))
    for loaded in served.loaded:
        name = f"{loaded.arm.method}, k by load" if loaded.ranges else loaded.arm.label
        for arm, passes in ((SERVED_BASELINE, loaded.level.plain), (Arm(name), loaded.level.other)):
            key = Arm(f"{arm.label} under load"), loaded.temperature, True
            for one_pass in passes:
                answers = zip(loaded.indexes, one_pass.answers, strict=True)
                texts.setdefault(key, []).extend((index, answer.tokens) for index, answer in answers)
    for (arm, temperature, _), found in texts.items():
        measured.lines += _samples(served, arm, temperature, found)
    waiting = {f"{arm.label} at temperature {temperature:g}": key for key in texts for arm, temperature, _ in [key]}
    judge(measured, waiting, _check)
    return measured


def _check(measured: Measurement, arm: Arm, temperature: float, under_load: bool) -> Facts:
    entry = (judge_greedy if temperature == 0 else _judge_sampled)(measured, arm, temperature)
    return entry | ({UNDER_LOAD: True} if under_load else {})


def verdict_of(measured: Measurement, arm: Arm, temperature: float) -> Facts | None:
    """What the checks say of an arm's texts at one request at a time; None where they did not come to it."""
    name = _checked_as(arm).label
    found = (one for one in measured.correctness if (one["arm"], one["temperature"]) == (name, temperature))
    return next(found, None)


def _checked_as(arm: Arm) -> Arm:
    """Both answers of the plain server are checked together."""
    return SERVED_BASELINE if arm in (BASELINE, BASELINE_REPEAT) else arm


def _samples(served: Served, arm: Arm, temperature: float, texts: Iterable[tuple[int, list[int]]]) -> list[Line]:
    found: dict[int, Line] = {}
    for index, tokens in texts:
        found.setdefault(index, _sample(served, arm, temperature, index)).add(0.0, 0.0, tokens)
    return list(found.values())


def _sample(served: Served, arm: Arm, temperature: float, index: int) -> Line:
    prompt = served.config.prompts[index]
    return Line.begin(arm, temperature, index, prompt.kind, prompt.ids.shape[1])


def samples_of(served: Served, arm: Arm, temperature: float, turns_of: Arm | None = None) -> dict[int, Line]:
    """What an arm sent, by prompt; turns_of: in the turns of this arm alone.

    Decoding is scaled to all tokens but one: a first chunk may carry several.
    """
    found: dict[int, Line] = {}
    for one in sent_by(served, arm, temperature):
        if turns_of not in (None, one.turns_of):
            continue
        answer = one.answer
        seconds = answer.seconds_per_token * (len(answer.tokens) - 1)
        sample = found.setdefault(one.index, _sample(served, arm, temperature, one.index))
        sample.add(answer.first_seconds, seconds, answer.tokens)
    return found


def sent_by(served: Served, arm: Arm, temperature: float) -> list[Sent]:
    """All answers of an arm at a temperature."""
    return [one for one in served.sent if (one.arm, one.temperature) == (arm, temperature)]


def _judge_sampled(measured: Measurement, arm: Arm, temperature: float) -> Facts:
    """The z statistics of sampled texts under the target's own law; the first one counts improbable tokens.

    Of every prompt one text: requests with the same seed are the same text again, and prove nothing.
    """
    setup, sums = measured.bench.setup, losslessness.ZSums()
    sampling, vocab = setup.sampling_at(temperature), setup.target.vocab_size
    for sample in measured.of(arm, temperature):
        prompt = measured.prompts[sample.prompt_index].id_list
        for text in sample.texts[:1]:
            even = torch.full((len(text), vocab), 1 / vocab)
            losslessness.judge_text(sums, setup.reference, prompt, text, sampling, vocab, even)
    return law_entry(arm, temperature, sums.result())
