"""`python -m speclab.extensions.servers`: the lab's question asked of vLLM. Same text? How fast? And why not faster?

One server without speculation runs from the beginning to the end. Beside it runs one server at a time with a draft, and
both answer the same prompts in turns, so that a slow second of the machine meets both. All servers of a run are started
with the same flags but for the draft.

What the servers count is held against the rounds that the lab's own loop makes of the same prompts with the same draft,
and how fast they are against what a round costs on that loop.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator

from speclab.extensions.servers import load, server_turns
from speclab.extensions.servers.client import Client
from speclab.extensions.servers.installed import by_load, speculative_config
from speclab.extensions.servers.own import greedy_texts, own_rounds
from speclab.extensions.servers.schedules import schedule
from speclab.extensions.servers.served import Loaded, Plan, Ranges, Served
from speclab.extensions.servers.server_checks import judged, sent_by
from speclab.extensions.servers.server_record import Refused, Schedule, ServingRun
from speclab.extensions.servers.server_rows import load_row, record
from speclab.extensions.servers.server_turns import Sent
from speclab.extensions.servers.servers import Logs, Server, ServerProblem, log_folder, running
from speclab.lab.harness import Measurement
from speclab.lab.run_config import RunConfig
from speclab.records.arms import BASELINE, Arm
from speclab.system.errors import EnvironmentProblem, Problem, UsageProblem, first_line
from speclab.system.terminal import note, progress

BY_LOAD = ", k by load"  # after the name of a draft whose k follows a schedule


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
        with servers(served, arms) as (plain, start):
            for _, of_draft in itertools.groupby(arms, key=lambda arm: arm.draft):
                lengths = list(of_draft)
                for arm in lengths:
                    measure(served, arm, plain, start)
                if plan.schedule:
                    follow_load(served, lengths, plain, start)
    except (KeyboardInterrupt, Problem, OSError) as stop:
        if not served.sent:
            raise
        served.stop = EnvironmentProblem(f"a server: {first_line(stop)}") if isinstance(stop, OSError) else stop
    measured = judged(served)
    return record(served, measured), measured


# --- servers ----------------------------------------------------------------------------------------------------------

Start = Callable[[Arm, Ranges | None], contextlib.AbstractContextManager[Server]]


@contextlib.contextmanager
def servers(served: Served, arms: list[Arm]) -> Iterator[tuple[Server, Start]]:
    """The plain server, and how to get one with a draft. All are stopped at the end."""
    plan = served.plan
    if plan.urls:
        of_base, of_draft = plan.urls
        plain, other = Server("baseline", Client(of_base)), Server(arms[0].label, Client(of_draft))
        _check_running(served, plain, other, arms[0].draft_length)
        yield plain, lambda arm, ranges: contextlib.nullcontext(other)
        return
    assert plan.installed
    with log_folder() as logs:
        start = functools.partial(_started, served, logs)
        with start(None, None) as plain:
            served.facts |= {"flags": plan.settings.shown_words, **plan.installed.facts}
            yield plain, start


@contextlib.contextmanager
def _started(served: Served, logs: Logs, arm: Arm | None, ranges: Ranges | None) -> Iterator[Server]:
    """A server of this run, which drafts where there is an arm, and only there."""
    plan = served.plan
    assert plan.installed
    config = speculative_config(arm.draft, arm.draft_length) if arm else None
    if config and ranges:
        config = by_load(config, ranges)
    words, settings = plan.settings.words(config), plan.settings
    name = label(arm, ranges) if arm else "baseline"
    with running(name, plan.installed, settings.target, words, settings.environment(), logs) as server:
        served.facts.setdefault("start_seconds", {})[name] = round(server.start_seconds or 0, 1)
        speculates = server.client.look().speculation is not None
        if speculates != (arm is not None):
            does = "speculates" if speculates else "does not speculate"
            raise EnvironmentProblem(f"the server of {name} {does}; leave out the --vllm-flags that change that")
        yield server


def label(arm: Arm, ranges: Ranges | None) -> str:
    """What an arm is called in notes: model k=4, or model, k by load."""
    return f"{arm.method}{BY_LOAD}" if ranges else arm.label


def _check_running(served: Served, plain: Server, other: Server, draft_length: int) -> None:
    """Two servers of somebody else's must be what they are taken for, and differ by the draft alone."""
    said, looks, urls = [], [], [plain.client.url, other.client.url]
    for server in (plain, other):
        client = server.client
        model = client.served_model()
        server.client = Client(client.url, model.name)
        said.append((client.version(), model.root))
        looks.append(client.look())
    (version, root), (other_version, other_root) = said
    served.facts["version"] = version
    counts = looks[1].speculation
    if looks[0].speculation is not None:
        raise EnvironmentProblem(f"{urls[0]} speculates; give the server without speculation first")
    if counts is None:
        raise EnvironmentProblem(f"{urls[1]} does not speculate; give the server with speculation second")
    if len(counts.accepted_at) != draft_length:
        n = len(counts.accepted_at)
        raise UsageProblem(f"{urls[1]} drafts {n} tokens, as its counters show, and not {draft_length}; give -k {n}")
    if version != other_version:
        raise EnvironmentProblem(f"the servers run vLLM {version} and {other_version}; compare one version with itself")
    if root != other_root:
        raise EnvironmentProblem(f"the servers serve {root} and {other_root}; compare one target with itself")
    for url, look in zip(urls, looks, strict=True):
        if look.prefix_cache:
            raise EnvironmentProblem(
                f"{url} has a prefix cache: a prompt that comes again would be cheaper; start it with "
                "--no-enable-prefix-caching"
            )


# --- one arm ----------------------------------------------------------------------------------------------------------


def measure(served: Served, arm: Arm, plain: Server, start: Start) -> None:
    """Everything about one arm, which is refused where its server does not take its settings."""
    config, plan = served.config, served.plan
    if plan.installed and (why := plan.installed.lacks(arm.draft)):
        note(f"  {arm.label}: this vLLM does not run it: {why}")
        served.refused.append(Refused(method=arm.method, draft_length=arm.draft_length, reason=why))
        return
    orders = {temperature: served.orders(temperature) for temperature in config.temperatures}
    with _or_refused(served, arm, None), start(arm, None) as other:
        for of_temperature in orders.values():
            server_turns.warm_up((plain, other), list(of_temperature.values()))
        n = len(config.prompts) * config.repeats * len(config.temperatures)
        sent: list[Sent] = []
        with progress(n, "prompt", arm.label) as bar:
            for of_temperature in orders.values():
                sent += server_turns.in_turns(plain, other, arm, of_temperature, config.repeats, bar.update)
        served.sent += sent  # all of an arm, or nothing
        _load(served, arm, None, plain, other)


@contextlib.contextmanager
def _or_refused(served: Served, arm: Arm, ranges: Ranges | None) -> Iterator[None]:
    """Notes that the engine does not take an arm's settings, and goes on; every other failure goes further up."""
    try:
        yield
    except ServerProblem as problem:
        if not problem.refused:
            raise
        name = label(arm, ranges)
        note(f"  {name}: did not start: {problem.reason} (all of its log: {problem.log})")
        method = f"{arm.method}{BY_LOAD}" if ranges else arm.method
        served.refused.append(Refused(method=method, draft_length=arm.draft_length, reason=problem.reason))


def _load(served: Served, arm: Arm, ranges: Ranges | None, plain: Server, other: Server) -> None:
    """Both servers with ever more requests at a time."""
    config, levels = served.config, served.plan.concurrency
    temperature = config.temperatures[0]
    orders = list(served.orders(temperature).items())
    if levels and not served.limits:
        served.limits = served.plan.limits or load.usual_limits(
            [one.answer for one in sent_by(served, BASELINE, temperature)]
        )
        first, token = 1e3 * served.limits.first, 1e3 * served.limits.token
        note(
            f"  a request under load is good with its first chunk within {first:.0f} ms, then {token:.1f} ms per token"
        )
    with progress(len(levels), "level", f"{label(arm, ranges)}, under load") as bar:
        for concurrency in levels:
            asked = [orders[place] for place in load.asked(len(orders), concurrency)]
            found = load.level(plain, other, [order for _, order in asked], concurrency)
            loaded = Loaded(arm, ranges, temperature, concurrency, [index for index, _ in asked], found)
            served.loaded.append(loaded)
            served.load.append(load_row(served, loaded))
            bar.update()


def follow_load(served: Served, arms: list[Arm], plain: Server, start: Start) -> None:
    """One more server of a draft, whose k is the best measured one for so many requests at a time."""
    speedups: dict[int, dict[int, float]] = {}
    for row in served.load:
        if (row.draft, row.schedule) == (arms[0].draft, None):
            speedups.setdefault(row.concurrency, {})[row.draft_length] = row.speedup
    if not speedups:
        return
    ranges = schedule(speedups)
    ks = {k for _, _, k in ranges}
    why = "no k pays at any level" if ks == {0} else "the same k is best at every level" if len(ks) == 1 else ""
    plan = Schedule(method=arms[0].method, ranges=[list(one) for one in ranges], left_out=why)
    served.schedules.append(plan)
    if why:
        note(f"  {arms[0].method}{BY_LOAD}: {why}")
        return
    arm = Arm(arms[0].method, arms[0].draft, max(ks))
    n_refused = len(served.refused)
    with _or_refused(served, arm, ranges), start(arm, ranges) as other:
        server_turns.warm_up((plain, other), list(served.orders(served.config.temperatures[0]).values()))
        _load(served, arm, ranges, plain, other)
    if len(served.refused) > n_refused:
        plan.left_out = served.refused[-1].reason
