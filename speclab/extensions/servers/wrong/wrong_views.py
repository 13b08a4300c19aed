"""The servers that are wrong on purpose as a table and a page: views of their record."""

from speclab.extensions.servers.wrong.wrong_record import WrongRun, WrongServer
from speclab.present.run_lines import circumstances
from speclab.present.tables import Block, Heading, Lines, Markdown, Table, number, show

COLUMNS = (
    "right: the answer is the one that this fault should get; named: the screen also names this very fault; half: "
    "whether the server was made before the thresholds were frozen, or after"
)


def table(run: WrongRun) -> Table:
    """Return one line for each server."""
    columns = {
        "server": lambda one: one.name,
        "what is wrong": lambda one: one.fault,
        "answer": lambda one: one.answer,
        "half": lambda one: one.half,
        "tok/rnd": lambda one: number(one.tokens_per_round),
        "round": lambda one: number(one.round_cost),
        "speedup": lambda one: f"{one.speedup:.2f}x" if one.speedup else "-",
        "same text": lambda one: f"{one.n_same}/{one.n_texts}" + f" + {one.n_tied} ties" * bool(one.n_tied),
        "right": lambda one: "yes" if one.right else f"NO: {one.expected}",
        "named": lambda one: "yes" if one.named else "NO",
    }
    return Table(run.wrong, columns, n_words=3)


def score(run: WrongRun) -> list[str]:
    """Return how many answers are right, for each half."""
    lines = []
    for half in ("before", "after"):
        found = [one for one in run.wrong if one.half == half]
        if found:
            right, named = (sum(getattr(one, name) for one in found) for name in ("right", "named"))
            lines.append(f"made {half} the thresholds were frozen: {right} of {len(found)} right, {named} named")
    return lines


def rounds(run: WrongRun) -> list[str]:
    """Return how the engine's counts compare with the lab's own rounds, where they were held against them."""
    return [f"{one.name}, {one.engine}: {one.equal_rounds}" for one in run.wrong if one.equal_rounds]


def page(run: WrongRun) -> str:
    """Return results/NAME.md."""
    blocks: list[Block] = [Markdown("# Servers that are wrong on purpose"), Lines([f"{circumstances(run)}."])]
    blocks += [Heading("Answers"), table(run), Lines([*score(run), COLUMNS])]
    blocks += [Heading("Counts beside the lab's own rounds"), Lines(rounds(run))]
    for one in run.loads:
        blocks += [Heading(f"Under load: {one.name}"), Lines([f"{one.engine}, {one.flags}"]), _screen(one.screen)]
    for server in run.wrong:
        blocks += [Heading(server.name), Lines([_about(server)]), _screen(server.screen)]
    return show(blocks, markdown=True)


def text(run: WrongRun) -> str:
    """Return what the terminal shows."""
    return show([table(run), Lines([*score(run), *rounds(run)])])


def _about(one: WrongServer) -> str:
    return f"{one.engine}, {one.model}: {one.flags}. What is wrong: {one.fault}."


def _screen(lines: list[str]) -> Markdown:
    return Markdown("\n".join(["```text", *lines, "```"]))
