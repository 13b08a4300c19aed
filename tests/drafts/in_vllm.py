"""Decodes prompts with a head in vLLM, greedily: run by test_in_vllm.py with the Python of vLLM's own environment.

Standard input: {"target": folder, "method": vLLM's, "head": folder, "k": tokens of a draft, "n": new tokens, "prompts":
[ids]}. The file named by the first argument gets for each prompt its new ids, rounds and accepted tokens.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ["HF_HUB_OFFLINE"] = "1"


def decode() -> None:
    """Read the order, decode, write."""
    from vllm import LLM, SamplingParams

    order = json.load(sys.stdin)
    drafting = {"method": order["method"], "model": order["head"], "num_speculative_tokens": order["k"]}
    engine = LLM(
        model=order["target"],
        dtype="float32",
        max_model_len=1024,
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config=drafting,
    )
    sampling = SamplingParams(temperature=0, max_tokens=order["n"], ignore_eos=True)

    def counters() -> tuple[int, int]:
        values = {metric.name: metric.value for metric in engine.get_metrics() if hasattr(metric, "value")}
        names = ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens")
        rounds, accepted = (int(values.get(name, 0)) for name in names)
        return rounds, accepted

    done = []
    for ids in order["prompts"]:
        before = counters()
        (output,) = engine.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)
        rounds, accepted = (now - then for now, then in zip(counters(), before, strict=True))
        done.append({"text": list(output.outputs[0].token_ids), "rounds": rounds, "accepted": accepted})
    Path(sys.argv[1]).write_text(json.dumps(done))  # standard output is vLLM's own


if __name__ == "__main__":
    decode()
