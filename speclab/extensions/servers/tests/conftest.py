"""What the tests of servers share: simulated servers, and the command."""

import pytest

from speclab.extensions.servers import client
from speclab.extensions.servers.__main__ import main
from speclab.extensions.servers.tests.simulated import Simulated


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Do not wait between two looks at a page."""
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def fake():
    """A simulated vLLM that speculates."""
    with Simulated(rates=(0.8, 0.6, 0.5, 0.4)) as server:
        yield server


@pytest.fixture
def plain():
    """The same without speculation."""
    with Simulated() as server:
        yield server


@pytest.fixture
def command(capsys):
    """Run the command.  -> (exit code, standard output, standard error)"""

    def call(*words):
        return main(list(map(str, words))), *capsys.readouterr()

    return call
