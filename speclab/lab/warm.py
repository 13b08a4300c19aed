"""Decodings of the baseline and of the first speculative arm that have met their shapes, for a look with a profiler."""

from speclab.core.sampling import Sampling
from speclab.lab.decodings import Decoding
from speclab.lab.run_config import RunConfig
from speclab.system.errors import UsageProblem

WARM = 4  # steps or rounds of each arm before the look


def warm_decodings(config: RunConfig, n: int) -> list[Decoding]:
    """Start both arms on the first prompt, greedily, with room for `n` further steps or rounds.

    Raises UsageProblem where these do not fit the target's context.
    """
    arms = [arm for arm in config.arms() if not arm.speculative or arm.draft_length][:2]
    # The baseline hands out a chunk of tokens for each wait of the host, and all its passes lie in front of the first.
    sizes = [arm.draft_length + 1 if arm.speculative else config.setup.chunk for arm in arms]
    room = config.setup.target.max_length
    budget = (WARM + n + 1) * max(sizes)
    n_before = config.setup.target.room.length_after(config.prompts[0].ids.shape[1])
    if room is not None and n_before + budget > room:
        raise UsageProblem(f"a profile decodes {budget} tokens, too many for the context of {room}; use a smaller -k")
    bench = config.bench(budget)
    longest = config.prompts[0].ids.shape[1] + budget
    bench.prepare({arm.draft_length for arm in arms if arm.speculative}, [Sampling()], longest)
    decodings = [bench.decoding(arm, Sampling(), config.prompts[0]) for arm in arms]
    for decoding in decodings:
        decoding.advance()  # the prompt's own pass
        for _ in range(WARM):  # shapes met for the first time
            decoding.advance()
    return decodings
