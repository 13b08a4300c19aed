"""The servers that are wrong on purpose as a table and a page: views of their record."""

import statistics
from collections.abc import Sequence
from itertools import combinations

from speclab.extensions.servers.wrong.wrong_record import WrongRun, WrongServer
from speclab.present.run_lines import circumstances
from speclab.present.tables import Block, Heading, Lines, Markdown, Table, number, show

COLUMNS = (
    "answer: what is said of the speed; right: it is the one that this fault should get, and - is where its cause "
    "alone counts; cause: the true one is the 1st or the 2nd of at most two that the screen names, yes where the line "
    "that refuses the server says it, NO where none of these does, and - where nothing is wrong and nothing is named; "
    "round: its cost in plain tokens"
)

UNSEEN = "third"  # the set that no rule or threshold was made with
HALVES = {"before": "First set", "after": "Second set", "third": "Third set", "vllm": "Servers of vLLM"}


def place(one: WrongServer) -> str:
    """Return where the true cause stands among those that are shown."""
    if not one.named:
        return "NO"
    if one.cause in one.causes:
        return ("1st", "2nd")[one.causes.index(one.cause)]
    return "yes" if one.cause else "-"


def table(run: WrongRun, half: str) -> Table:
    """Return one line for each server of one half."""
    columns = {
        "server": lambda one: one.name,
        "what is wrong": lambda one: one.fault,
        "answer": lambda one: one.answer,
        "tok/rnd": lambda one: number(one.tokens_per_round),
        "round": lambda one: number(one.round_cost),
        "speedup": lambda one: f"{one.speedup:.2f}x" if one.speedup else "-",
        "same text": lambda one: f"{one.n_same}/{one.n_texts}" + f" + {one.n_tied} ties" * bool(one.n_tied),
        "right": lambda one: ("yes" if one.right else f"NO: {one.expected}") if one.expected else "-",
        "cause": lambda one: place(one),
    }
    return Table([one for one in run.wrong if one.half == half], columns, n_words=3)


def score(run: WrongRun, half: str) -> list[str]:
    """Return how many answers of one half are right, and how many true causes are named, with what one answer and one
    pair of causes for every server would reach. A server that has no cause counts for itself: nothing is to be named.
    """
    found = [one for one in run.wrong if one.half == half]
    judged = [one for one in found if one.expected]
    faulty, sound = ([one for one in found if bool(one.cause) == has] for has in (True, False))
    right = sum(one.right for one in judged)
    named, silent = (sum(one.named for one in part) for part in (faulty, sound))
    both = sum(one.named and (one.right or not one.expected) for one in found)
    answers = [one.expected for one in judged]
    rest = f", and {silent} of {len(sound)} sound servers got no cause" if sound else ""
    always = max((answers.count(answer) for answer in answers), default=0)
    causes = f", {named} of {len(faulty)} true causes are named" if faulty else ""
    return [
        f"{right} of {len(judged)} answers are right{causes}{rest}; for {both} servers both hold",
        f"by chance: one answer for every server would be right for {always}, one pair of causes for {_best(found)}",
    ]


def interval(n_right: int, n: int) -> tuple[float, float]:
    """Return the interval of Wilson (1927) that holds a share with 95 %, of which n_right of n were seen; n > 0.

    >>> [round(end, 2) for end in interval(13, 14)]
    [0.69, 0.99]
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    middle, size = n_right + z * z / 2, n + z * z
    spread = z * (n_right * (n - n_right) / n + z * z / 4) ** 0.5
    return (middle - spread) / size, (middle + spread) / size


def _best(found: Sequence[WrongServer]) -> int:
    """Return for how many servers the true cause is in the pair of causes that has most of them."""
    faults = [one.cause for one in found if one.cause]
    counts = [faults.count(one) + faults.count(other) for one, other in combinations(sorted(set(faults)), 2)]
    return max(counts, default=len(faults))


def _unseen(run: WrongRun, half: str) -> list[str]:
    """Return what so few servers leave open, for the set that no rule was made with."""
    judged = [one for one in run.wrong if one.half == half == UNSEEN and one.expected]
    if not judged:
        return []
    low, high = interval(sum(one.right for one in judged), len(judged))
    return [f"95 % interval of the share of right answers (Wilson): {low:.2f} to {high:.2f}"]


def changes(run: WrongRun) -> list[str]:
    """Return what was changed of the expectations when their servers had been run."""
    return [
        f"expected otherwise before the first run: {one.name}: {one.expected_changed}"
        for one in run.wrong
        if one.expected_changed
    ]


def rounds(run: WrongRun) -> list[str]:
    """Return how the engine's counts compare with the lab's own rounds, where they were held against them."""
    return [f"{one.name}, {one.engine}: {one.equal_rounds}" for one in run.wrong if one.equal_rounds]


def page(run: WrongRun) -> str:
    """Return results/NAME.md."""
    blocks: list[Block] = [Markdown("# Servers that are wrong on purpose"), Lines([f"{circumstances(run)}."])]
    if run.settings.get("note"):
        blocks.append(Lines([run.settings["note"]]))
    for half, name in halves(run).items():
        blocks += [Heading(name), table(run, half), Lines([*score(run, half), *_unseen(run, half)])]
    if run.wrong:
        blocks += [Lines([COLUMNS]), Heading("Expectations that were changed after the first run"), Lines(changes(run))]
        blocks += [Heading("Counts beside the lab's own rounds"), Lines(rounds(run))]
    for one in run.loads:
        blocks += [Heading(f"Under load: {one.name}"), Lines([f"{one.engine}, {one.flags}"]), _screen(one.screen)]
    for server in run.wrong:
        blocks += [Heading(server.name), Lines([_about(server)]), _screen(server.screen)]
    return show(blocks, markdown=True)


def halves(run: WrongRun) -> dict[str, str]:
    """Return the sets that the record has, each with its heading."""
    return {half: name for half, name in HALVES.items() if any(one.half == half for one in run.wrong)}


def text(run: WrongRun) -> str:
    """Return what the terminal shows."""
    blocks: list[Block] = []
    for half in halves(run):
        blocks += [table(run, half), Lines(score(run, half))]
    servers = [show([*blocks, Lines([COLUMNS, *changes(run), *rounds(run)])])] if run.wrong else []
    return "\n".join([*servers, *("\n".join([f"Under load: {one.name}", "", *one.screen, ""]) for one in run.loads)])


def _about(one: WrongServer) -> str:
    return f"{one.engine}, {one.model}: {one.flags}. What is wrong: {one.fault}."


def _screen(lines: list[str]) -> Markdown:
    return Markdown("\n".join(["```text", *lines, "```"]))
