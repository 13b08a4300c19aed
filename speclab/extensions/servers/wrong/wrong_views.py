"""The servers that are wrong on purpose as a table and a page: views of their record."""

from speclab.extensions.servers.wrong.wrong_record import WrongRun, WrongServer
from speclab.present.run_lines import circumstances
from speclab.present.tables import Block, Heading, Lines, Markdown, Table, number, show

COLUMNS = (
    "right: the answer is the one that this fault should get; named: the screen also names this very fault; round: its "
    "cost in plain tokens"
)


HALVES = ("before", "after")


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
        "right": lambda one: "yes" if one.right else f"NO: {one.expected}",
        "named": lambda one: "yes" if one.named else "NO",
    }
    return Table([one for one in run.wrong if one.half == half], columns, n_words=3)


def score(run: WrongRun, half: str) -> list[str]:
    """Return how many answers of one half are right."""
    found = [one for one in run.wrong if one.half == half]
    right, named = (sum(getattr(one, name) for one in found) for name in ("right", "named"))
    return [f"{right} of {len(found)} answers are right, and {named} of {len(found)} screens name the fault"]


def rounds(run: WrongRun) -> list[str]:
    """Return how the engine's counts compare with the lab's own rounds, where they were held against them."""
    return [f"{one.name}, {one.engine}: {one.equal_rounds}" for one in run.wrong if one.equal_rounds]


def page(run: WrongRun) -> str:
    """Return results/NAME.md."""
    blocks: list[Block] = [Markdown("# Servers that are wrong on purpose"), Lines([f"{circumstances(run)}."])]
    for half in HALVES:
        blocks += [Heading(f"Made {half} the thresholds were frozen"), table(run, half), Lines(score(run, half))]
    blocks.append(Lines([COLUMNS]))
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
    return show([*blocks, Lines(rounds(run))])


def _about(one: WrongServer) -> str:
    return f"{one.engine}, {one.model}: {one.flags}. What is wrong: {one.fault}."


def _screen(lines: list[str]) -> Markdown:
    return Markdown("\n".join(["```text", *lines, "```"]))
