"""The lab's pair and head in vLLM's servers: the lab's texts, and in every prompt the lab's counts.

Needs an environment with vLLM (make vllm): SPECLAB_VLLM=/path/to/its/python
"""

import os

import pytest

from speclab.extensions.servers.__main__ import main
from speclab.extensions.servers.server_record import ServingRun
from speclab.records.files import read

pytestmark = [
    pytest.mark.allow_hosts(["127.0.0.1"]),
    pytest.mark.skipif(not os.environ.get("SPECLAB_VLLM"), reason="SPECLAB_VLLM names no Python with vLLM"),
]


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_texts_and_counts_are_the_labs(tmp_path, ranks):
    drafts = ["--draft", "model,feature,ngram", "-k", "4", "--limit", "2", "--max-new-tokens", "32"]
    words = ["--concurrency", "2", "--tensor-parallel", ranks, "--out-dir", str(tmp_path)]
    assert main([*drafts, *words]) == 0
    made = read(tmp_path / "results" / "local-vllm.json", ServingRun)
    assert [row.same_text for row in made.served] == [6] * 4
    assert {one.verdict for one in made.reconciled} == {"equal"}
    assert len(made.reconciled) == 3 * 6
    assert made.refused == []
