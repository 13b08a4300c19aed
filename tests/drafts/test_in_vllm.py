"""The lab's feature head in vLLM: the same texts, and in every prompt as many rounds and accepted tokens as here.

vLLM 0.32 on a CPU reads no block heads: "Model Runner V1 does not support: dspark".

Needs an environment with vLLM, since its requirements are not the lab's: SPECLAB_VLLM=/path/to/its/python
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from optimized_speculative import speculative_decode
from speclab import load
from speclab.core.rounds import DecodeSettings
from speclab.models import loading, prompts

PYTHON = os.environ.get("SPECLAB_VLLM")
N_NEW, K = 96, 4


def in_the_lab(draft: str) -> list[dict]:
    """A round that goes past the end counts as a whole one, as it does there."""
    pair, done = load(draft=draft, engine="eager"), []
    for prompt in prompts.encode(prompts.standard(), pair.setup.tokenizer):
        target, text, n_rounds, n_accepted = pair.setup.target.with_own_cache(), list[int](), 0, 0
        for round_ in speculative_decode(target, pair.drafter, prompt.ids, K, DecodeSettings(N_NEW + 2 * K)):
            if len(text) >= N_NEW:
                break
            text += round_.tokens
            n_rounds, n_accepted = n_rounds + (not round_.prefill), n_accepted + round_.n_accepted
        done.append({"prompt": prompt.id_list, "text": text[:N_NEW], "rounds": n_rounds, "accepted": n_accepted})
    return done


@pytest.mark.skipif(not PYTHON, reason="SPECLAB_VLLM names no Python with vLLM")
def test_the_head_does_in_vllm_what_it_does_here(tmp_path):
    expected = in_the_lab("feature")
    order = {
        "target": str(loading.LAB_TARGET),
        "method": "eagle3",
        "head": str(loading.LAB_PAIR / "feature"),
        "k": K,
        "n": N_NEW,
        "prompts": [one["prompt"] for one in expected],
    }
    script = Path(__file__).with_name("in_vllm.py")
    done = subprocess.run(
        [PYTHON or "", script, tmp_path / "done.json"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "done.json").read_text())
    assert len(found) == len(expected) == 30
    for index, (theirs, ours) in enumerate(zip(found, expected, strict=True)):
        assert theirs == {key: ours[key] for key in theirs}, f"prompt {index}"
