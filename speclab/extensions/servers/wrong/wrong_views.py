"""The servers that are wrong on purpose as a table and a page: views of their record."""

from collections.abc import Sequence

from speclab.extensions.servers.wrong.wrong_record import WrongRun, WrongServer
from speclab.present.run_lines import circumstances
from speclab.present.tables import Block, Heading, Lines, Markdown, Table, number, show

COLUMNS = (
    "answer: what is said of the speed; right: it is the one that this fault should get, and - is where its words "
    "alone count; named: the screen has words for this very fault, which no other server's screen has; round: its cost "
    "in plain tokens"
)


HALVES = {"before": "First set", "after": "Second set"}


def holds(screen: Sequence[str], words: str) -> bool:
    """Return whether a screen has these words, wherever its lines end."""
    return words in " ".join(" ".join(screen).split())


def names(run: WrongRun, one: WrongServer) -> bool:
    """Return whether its screen names its fault: with words that no other screen of the record has, or, where it has
    none, with the right answer."""
    if not one.cause:
        return one.right
    return [other.name for other in run.wrong if holds(other.screen, one.cause)] == [one.name]


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
        "named": lambda one: "yes" if names(run, one) else "NO",
    }
    return Table([one for one in run.wrong if one.half == half], columns, n_words=3)


def score(run: WrongRun, half: str) -> list[str]:
    """Return how many answers of one half are right."""
    found = [one for one in run.wrong if one.half == half]
    judged = [one for one in found if one.expected]
    right, named = sum(one.right for one in judged), sum(names(run, one) for one in found)
    return [f"{right} of {len(judged)} answers are right, and {named} of {len(found)} screens name the fault"]


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
    for half, name in HALVES.items():
        blocks += [Heading(name), table(run, half), Lines(score(run, half))]
    blocks += [Lines([COLUMNS]), Heading("Expectations that were changed after the first run"), Lines(changes(run))]
    blocks += [Heading("Counts beside the lab's own rounds"), Lines(rounds(run))]
    for one in run.loads:
        blocks += [Heading(f"Under load: {one.name}"), Lines([f"{one.engine}, {one.flags}"]), _screen(one.screen)]
    for server in run.wrong:
        blocks += [Heading(server.name), Lines([_about(server)]), _screen(server.screen)]
    return show(blocks, markdown=True)


def text(run: WrongRun) -> str:
    """Return what the terminal shows."""
    blocks: list[Block] = []
    for half in HALVES:
        blocks += [table(run, half), Lines(score(run, half))]
    return show([*blocks, Lines([COLUMNS, *changes(run), *rounds(run)])])


def _about(one: WrongServer) -> str:
    return f"{one.engine}, {one.model}: {one.flags}. What is wrong: {one.fault}."


def _screen(lines: list[str]) -> Markdown:
    return Markdown("\n".join(["```text", *lines, "```"]))
