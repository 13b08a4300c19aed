"""`compare.py --engine vllm`: the lab's question asked of vLLM. Same text? How fast? And why not faster?

One server without speculation runs from the beginning to the end. Beside it runs one server at a time with a draft, and
both answer the same prompts in turns, so that a slow second of the machine meets both. All servers of a run are started
with the same flags but for the draft.

What the servers count is held against the rounds that the lab's own loop makes of the same prompts with the same draft.
No forecast is made: what a drafted token and a wider pass cost inside the engine is not measured here.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from speclab.lab.harness import Measurement
from speclab.lab.run_config import RunConfig
from speclab.lab.serving import counters, turns
from speclab.lab.serving.checks import judged
from speclab.lab.serving.client import Client, Order
from speclab.lab.serving.installed import speculative_config
from speclab.lab.serving.own import greedy_texts, own_rounds
from speclab.lab.serving.rows import record
from speclab.lab.serving.served import Plan, Served
from speclab.lab.serving.servers import Server, ServerProblem, log_folder, running
from speclab.lab.serving.turns import Sent
from speclab.records.samples import Arm
from speclab.records.serving import LoadRow, Refused, ServingRun
from speclab.system.errors import EnvironmentProblem, Problem
from speclab.system.terminal import note, progress


def compare_serving(config: RunConfig, plan: Plan) -> tuple[ServingRun, Measurement]:
    """Measure, check, reconcile.  -> the record, and the texts with what their checks say

    What ends the run early is in the record and in the measurement, where some arm is complete; else it is raised.
    """
    served = Served(config, plan)
    arms = [Arm(config.method(name), name, k) for name in config.drafters for k in config.draft_lengths]
    served.texts = greedy_texts(config.setup, config.prompts, config.max_new_tokens)
    if 0 in config.temperatures:
        served.own = own_rounds(config.setup, config.drafters, arms, config.prompts, config.max_new_tokens)
    try:
        with servers(served, arms) as pairs:
            for arm, plain, start in pairs:
                measure(served, arm, plain, start)
    except (KeyboardInterrupt, Problem) as stop:
        if not served.sent:
            raise
        served.stop = stop
    measured = judged(served)
    return record(served, measured), measured


# --- servers ----------------------------------------------------------------------------------------------------------

Start = Callable[[], contextlib.AbstractContextManager[Server]]
Pair = tuple[Arm, Server, Start]


@contextlib.contextmanager
def servers(served: Served, arms: list[Arm]) -> Iterator[Iterator[Pair]]:
    """For every arm the plain server, and how to get the one with the draft. All are stopped at the end."""
    plan = served.plan
    if plan.urls:
        of_base, of_draft = plan.urls
        both = Server("baseline", Client(of_base)), Server(arms[0].label, Client(of_draft))
        yield iter([(arms[0], *_checked(served, *both))])
        return
    assert plan.installed
    with log_folder() as folder:
        start = functools.partial(_start, plan, folder)
        with start("baseline", None) as plain:
            served.facts = {"flags": plan.settings.words(None), **plan.installed.facts}
            served.facts["start_seconds"] = {"baseline": round(plain.start_seconds or 0, 1)}
            yield ((arm, plain, functools.partial(start, arm.label, arm)) for arm in arms)


def _start(plan: Plan, folder: Path, name: str, arm: Arm | None) -> contextlib.AbstractContextManager[Server]:
    assert plan.installed
    settings = plan.settings
    words = settings.words(speculative_config(arm.draft, arm.draft_length) if arm else None)
    return running(name, plan.installed, settings.target, words, settings.environment(), folder)


def _checked(served: Served, plain: Server, other: Server) -> tuple[Server, Start]:
    """Two servers of somebody else's, which must be what they are taken for."""
    for server in (plain, other):
        client = server.client
        server.client = Client(client.url, client.served_model())
        served.facts.setdefault("version", client.version())
    if plain.client.look().speculation is not None:
        raise EnvironmentProblem(f"{plain.client.url} speculates; give the server without speculation first")
    if other.client.look().speculation is None:
        raise EnvironmentProblem(f"{other.client.url} does not speculate; give the server with speculation second")
    return plain, lambda: contextlib.nullcontext(other)


def measure(served: Served, arm: Arm, plain: Server, start: Start) -> None:
    """Everything about one arm, which is refused where its server does not start."""
    config, plan = served.config, served.plan
    if plan.installed and (why := plan.installed.lacks(arm.draft)):
        _refuse(served, arm, why)
        return
    orders = {temperature: served.orders(temperature) for temperature in config.temperatures}
    first = list(orders[config.temperatures[0]].values())
    try:
        with start() as other:
            served.facts.setdefault("start_seconds", {})[arm.label] = round(other.start_seconds or 0, 1)
            turns.warm_up((plain, other), first)
            n = len(config.prompts) * config.repeats * len(config.temperatures)
            sent: list[Sent] = []
            with progress(n, "prompt", arm.label) as bar:
                for of_temperature in orders.values():
                    sent += turns.in_turns(plain, other, arm, of_temperature, config.repeats, bar.update)
            served.sent += sent  # all of an arm, or nothing
            _load(served, arm, plain, other, first)
    except ServerProblem as problem:
        if not (problem.starting and problem.reason):
            raise
        _refuse(served, arm, problem.reason)


def _refuse(served: Served, arm: Arm, why: str) -> None:
    note(f"  {arm.label}: this vLLM does not run it: {why}")
    served.refused.append(Refused(method=arm.method, draft_length=arm.draft_length, reason=why))


def _load(served: Served, arm: Arm, plain: Server, other: Server, orders: list[Order]) -> None:
    """Both servers with ever more requests at a time; who goes first takes turns."""
    levels = served.plan.concurrency
    with progress(len(levels), "level", f"{arm.label}, under load") as bar:
        for number, concurrency in enumerate(levels):
            asked = turns.orders_for(served.config.prompts, orders, concurrency)
            both = [plain, other] if number % 2 == 0 else [other, plain]
            found = {id(server): turns.under_load(server, asked, concurrency) for server in both}
            (before, _), (after, counts) = found[id(plain)], found[id(other)]
            fraction = counters.as_counts(counts, arm.draft_length).drafted_fraction if counts else None
            served.load.append(
                LoadRow(
                    method=arm.method,
                    draft=arm.draft,
                    draft_length=arm.draft_length,
                    concurrency=concurrency,
                    n_requests=len(asked),
                    speedup=(after.n_tokens / after.seconds) / (before.n_tokens / before.seconds),
                    drafted_fraction=fraction,
                    plain=before,
                    speculative=after,
                )
            )
            bar.update()
