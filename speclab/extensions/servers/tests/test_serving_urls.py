"""--url: servers that run already must be what they are taken for."""

import pytest

from speclab.extensions.servers.tests.conftest import K
from speclab.extensions.servers.tests.fake_vllm import Fake

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


def test_servers_that_run_already_are_asked(run, honest, tmp_path):
    spec = {"method": "draft_model", "num_speculative_tokens": K}
    with Fake(honest) as plain, Fake(honest, spec) as drafting:
        code, _, err, made = run("--url", plain.url, "--url", drafting.url)
        assert code == 0
        assert made.settings["started_here"] is False
        assert [one.verdict for one in made.reconciled] == ["equal"] * 3
        assert "starting" not in err
        code, _, err, _ = run("--url", drafting.url, "--url", plain.url)
        assert code == 3
        assert "speculates; give the server without speculation first" in err
        code, _, err, _ = run("--url", plain.url, "--url", plain.url)
        assert "does not speculate; give the server with speculation second" in err
    assert not (tmp_path / "script.json.pids").exists()


@pytest.mark.parametrize(
    ("change", "said", "expected"),
    [
        ({"release": "0.31.0"}, "the servers run vLLM 0.31.0 and 0.32.0", 3),
        ({"root": "another/model"}, "the servers serve another/model and some/target", 3),
        ({"prefix_cache": True}, "has a prefix cache", 3),
        ({}, "drafts 3 tokens, as its counters show, and not 2; give -k 3", 2),
    ],
)
def test_servers_that_run_already_must_be_alike(run, honest, change, said, expected):
    k = K if change else K + 1
    with Fake(honest) as plain, Fake(honest, {"method": "draft_model", "num_speculative_tokens": k}) as drafting:
        vars(plain).update(change)
        code, _, err, made = run("--url", plain.url, "--url", drafting.url)
    assert (code, made) == (expected, None)
    assert said in err
