"""The views of servers' records read only what is declared, and an entry of another type is refused when read."""

import functools
from dataclasses import replace

import pytest

from speclab.extensions.servers.vllm import serving_views
from speclab.extensions.servers.vllm.server_record import ServingRun
from speclab.records import files
from tests.records import test_facts as shared

VIEWS = [serving_views.text, functools.partial(serving_views.page, picture="x")]


def test_views_read_only_what_is_declared(monkeypatch):
    shared.test_views_read_only_what_is_declared("cpu-2-cores-vllm", ServingRun, VIEWS, monkeypatch)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("cpu-2-cores-vllm", ("server", "flags")),
        ("cpu-2-cores-vllm", ("server", "start_seconds", "baseline")),
        ("cpu-2-cores-sampled-vllm", ("correctness", -1, "z_edge")),
        ("cpu-2-cores-sampled-vllm", ("correctness", -1, "n_uncertain")),
    ],
)
def test_an_entry_of_another_type_is_refused(name, place):
    shared.test_an_entry_of_another_type_is_refused(name, ServingRun, place, "x")


def test_a_server_of_which_nothing_is_known_has_a_page():
    run = files.parsed(ServingRun, (shared.RESULTS / "cpu-2-cores-vllm.json").read_text("utf-8"))
    settings = {name: value for name, value in run.settings.items() if name != "started_here"}
    assert serving_views.page(replace(run, server={}, settings=settings), "x")
