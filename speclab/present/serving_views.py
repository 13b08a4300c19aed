"""A comparison of another engine's servers as tables, lines, a picture and a page: views of its record."""

from pathlib import Path

from speclab.present.batch_tables import rate
from speclab.present.pictures import figures
from speclab.present.pictures.figures import Panel, Series, draw
from speclab.present.report import agreement_lines
from speclab.present.run_lines import doubt, noise_lines, provenance, remarks
from speclab.present.tables import (
    Block,
    Cell,
    Heading,
    Lines,
    Table,
    cells,
    interval,
    number,
    of_a_draft,
    show,
    speedup,
    temperature_name,
)
from speclab.records.batches import KneeEntry
from speclab.records.serving import EngineCounts, LoadRow, Reconciled, ServedRow, ServingRun
from speclab.theory.curves import Value

SHORT = (
    "α: accepted / tested; f: accepted / drafted, which vLLM calls acceptance rate; round: what a round takes, in "
    "tokens of the server without speculation; same text: as the lab's own"
)
ON_THE_PAGE = ("end to end", "length")  # columns that the terminal has no room for
COLUMNS = (
    "tok/s and speedup: after the first chunk, by the client's clock; 95 %: over prompts; end to end: from the request "
    "to the last token; same text: as the lab's own greedy text; α: accepted / tested; f: accepted / drafted, which "
    "the engine calls acceptance rate; length: 1 + accepted / drafts, its mean acceptance length; book(α): "
    "1/(1-α+α/k); round: what a round takes, in tokens of the server without speculation"
)
NO_ALPHA = "no α where drafts came shorter than k: the counters do not say how many of their tokens were tested"
RECONCILED = (
    "engine / lab; engine: differences of its counters before and after each prompt; lab: the same prompts on the "
    "lab's own loop with the same draft, decoded past the end, since the engine's last round drafts k tokens, too; "
    "but for the last: equal but for the last round; rounds: those that drafted"
)
UNDER_LOAD = (
    "tok/s: of all requests together; first, token: milliseconds to the first chunk and per token after it, the median "
    "and the 95th percentile over requests; plain: the server without speculation under the same load"
)
NO_FORECAST = (
    "no forecast is shown: what a drafted token and a wider pass cost inside the engine is not measured from outside"
)


def name_of(row: ServedRow | LoadRow | Reconciled) -> str:
    """model k = 4; the baseline has no k."""
    return f"{row.method} k = {row.draft_length}" if row.draft else row.method


# --- how fast ---------------------------------------------------------------------------------------------------------


def speed_table(rows: list[ServedRow], whole: bool) -> Table:
    """One line per arm at one temperature; the baseline first. whole: with all columns"""
    columns: dict[str, Cell] = {
        **cells("draft", "k", "tok/s"),
        "speedup": _speedup,
        "95 %": of_a_draft(lambda row: interval(row.speedup_low, row.speedup_high)),
        **cells("end to end"),
        "same text": lambda row: "-" if row.same_text is None else f"{row.same_text}/{row.n_prompts}",
        **cells("α", "f"),
        "length": lambda row: number(row.acceptance_length),
        "book(α)": lambda row: speedup(row.book_formula),
        "round": lambda row: number(row.round_cost),
    }
    return Table(rows, columns if whole else {head: columns[head] for head in columns if head not in ON_THE_PAGE})


def _speedup(row: ServedRow) -> str:
    word = f" {row.verdict}" if row.verdict in ("slower", "unclear") else ""
    return speedup(row.speedup) + word


def verdict_line(run: ServingRun) -> str | None:
    """The answer in one line: the fastest draft, whether its text is the lab's, whether its counts are."""
    first = [row for row in run.served if row.draft and row.temperature == run.served[0].temperature]
    best = max(first, key=lambda row: row.speedup, default=None)
    if best is None:
        return None
    ends = interval(best.speedup_low, best.speedup_high)
    between = f" ({ends})" if ends != "-" else ""
    says = f"; 1/(1-α+α/k) says {speedup(best.book_formula)}" if best.book_formula else ""
    gain = f"{best.verdict or 'fastest'}, {speedup(best.speedup)}{between}"
    return f"verdict: {run.settings['engine']} with {name_of(best)} is {gain}{says}; {_counts_word(run)}"


def _counts_word(run: ServingRun) -> str:
    if not run.reconciled:
        return "its counts are not reconciled with the lab's"
    equal = sum(one.verdict != "different" for one in run.reconciled)
    return f"{equal} of {len(run.reconciled)} prompts have the lab's own counts"


def agreement(run: ServingRun) -> Lines:
    """Whether the texts are the lab's, and the target's law's."""
    lines = agreement_lines(run.correctness)
    greedy = [entry for entry in run.correctness if entry["temperature"] == 0]
    if greedy:
        n_texts, n_different = sum(e["n_prompts"] for e in greedy), sum(len(e["differences"]) for e in greedy)
        verdict = f"{n_different} differ, first differences above" if n_different else "identical"
        own = f"same text? greedy: {n_texts} texts of {len(greedy)} servers against the lab's own: {verdict}"
        lines = [own if line.startswith("greedy: ") else line for line in lines]
    return Lines([*lines, *remarks(run)])


# --- counts -----------------------------------------------------------------------------------------------------------


def reconciled_table(run: ServingRun) -> Table:
    """One line per arm: how many prompts agree, and the sums of the engine and of the lab."""
    groups: dict[tuple[str, int], list[Reconciled]] = {}
    for entry in run.reconciled:
        groups.setdefault((entry.method, entry.draft_length), []).append(entry)

    def both(name: str) -> Cell:
        def cell(group: list[Reconciled]) -> str:
            sides = ([getattr(one, side) for one in group] for side in ("engine", "own"))
            return " / ".join(str(sum(getattr(counts, name) for counts in side)) for side in sides)

        return cell

    columns: dict[str, Cell] = {
        "draft": lambda group: group[0].method,
        "k": lambda group: str(group[0].draft_length),
        "prompts": lambda group: str(len(group)),
        "equal": lambda group: str(sum(one.verdict == "equal" for one in group)),
        "but for the last": lambda group: str(sum(one.verdict == "last round" for one in group)),
        "rounds": both("n_drafts"),
        "drafted": both("n_drafted"),
        "accepted": both("n_accepted"),
    }
    return Table(list(groups.values()), columns)


def reasons(run: ServingRun) -> Lines:
    """Why counts differ: each reason with the number of its prompts."""
    found: dict[tuple[str, str], int] = {}
    for entry in run.reconciled:
        if entry.reason:
            key = (name_of(entry), entry.reason)
            found[key] = found.get(key, 0) + 1
    return Lines(f"{name}: {n} prompt{'s' * (n != 1)}: {reason}" for (name, reason), n in found.items())


def all_counts(run: ServingRun) -> Table:
    """Prompt by prompt."""

    def three(counts: EngineCounts) -> str:
        return f"{counts.n_drafts} / {counts.n_drafted} / {counts.n_accepted}"

    columns: dict[str, Cell] = {
        "draft": name_of,
        "prompt": lambda one: f"{one.prompt_index} ({one.prompt_kind})",
        "engine: rounds / drafted / accepted": lambda one: three(one.engine),
        "lab": lambda one: three(one.own),
        "": lambda one: one.verdict,
    }
    return Table(run.reconciled, columns, n_words=2)


def places_table(run: ServingRun) -> Table:
    """The share of rounds that kept the drafted token at each place: not conditional on the ones before."""
    rows = [row for row in run.served if row.counts and row.counts.n_drafts]
    longest = max((len(row.counts.accepted_at) for row in rows if row.counts), default=0)

    def at(place: int) -> Cell:
        def cell(row: ServedRow) -> str:
            kept = row.counts.accepted_at if row.counts else []
            return number(kept[place] / row.counts.n_drafts) if row.counts and place < len(kept) else "-"

        return cell

    columns: dict[str, Cell] = {"draft": name_of, "T": lambda row: f"{row.temperature:g}"}
    return Table(rows, columns | {str(place + 1): at(place) for place in range(longest)})


# --- under load -------------------------------------------------------------------------------------------------------


def load_table(rows: list[LoadRow]) -> Table:
    """One line per number of requests at a time."""

    def both(name: str, of_plain: bool, digits: int) -> Cell:
        def cell(row: LoadRow) -> str:
            side = row.plain if of_plain else row.speculative
            return " / ".join(number(1e3 * getattr(side, f"{name}_{end}"), digits) for end in ("p50", "p95"))

        return cell

    columns: dict[str, Cell] = {
        "at a time": lambda row: str(row.concurrency),
        "requests": lambda row: str(row.n_requests),
        "plain tok/s": lambda row: rate(row.plain.n_tokens / row.plain.seconds),
        "tok/s": lambda row: rate(row.speculative.n_tokens / row.speculative.seconds),
        "speedup": lambda row: speedup(row.speedup),
        "f": lambda row: number(row.drafted_fraction),
        "plain first": both("first", of_plain=True, digits=0),
        "first": both("first", of_plain=False, digits=0),
        "plain token": both("token", of_plain=True, digits=1),
        "token": both("token", of_plain=False, digits=1),
    }
    return Table(rows, columns, n_words=0)


def load_blocks(run: ServingRun) -> list[Block]:
    """For every draft its table, and where it stops paying."""
    blocks: list[Block] = []
    for method, k in dict.fromkeys((row.method, row.draft_length) for row in run.load):
        rows = [row for row in run.load if (row.method, row.draft_length) == (method, k)]
        blocks += [Heading(f"{name_of(rows[0])}, under load", 3), load_table(rows)]
    return [*blocks, knee_lines(run), Lines([UNDER_LOAD])]


def load_summary(run: ServingRun) -> Table:
    """One line per number of requests at a time, with the speedups of all drafts."""
    arms = dict.fromkeys((row.method, row.draft_length) for row in run.load)

    def of_arm(arm: tuple[str, int]) -> Cell:
        def cell(level: list[LoadRow]) -> str:
            return speedup(next((row.speedup for row in level if (row.method, row.draft_length) == arm), None))

        return cell

    columns: dict[str, Cell] = {
        "at a time": lambda level: str(level[0].concurrency),
        "plain tok/s": lambda level: rate(
            sum(row.plain.n_tokens for row in level) / sum(row.plain.seconds for row in level)
        ),
    }
    columns |= {f"{method} k = {k}": of_arm((method, k)) for method, k in arms}
    levels = dict.fromkeys(row.concurrency for row in run.load)
    return Table([[row for row in run.load if row.concurrency == n] for n in levels], columns, n_words=0)


def knee_lines(run: ServingRun) -> Lines:
    """Where each draft stops paying."""
    return Lines(
        f"{entry.draft}: speculation pays up to so many requests at a time: {_knee(entry)}" for entry in run.knees
    )


def _knee(entry: KneeEntry) -> str:
    """Where the speedup falls to 1."""
    if entry.below:
        return "none"
    return f"more than {max(map(int, entry.best))}" if entry.batch is None else number(entry.batch, 1)


# --- all of it --------------------------------------------------------------------------------------------------------


def text(run: ServingRun, where: str = "") -> str:
    """What the terminal shows. Numbers that are not to be believed are left out, and that is said."""
    doubtful = doubt(run)
    blocks: list[Block] = [agreement(run), Lines([doubtful])]
    if not doubtful:
        blocks += _speeds(run, whole=False)
    blocks += [refused_lines(run), Heading("Counts, engine / lab"), reconciled_table(run), reasons(run)]
    if not doubtful:
        blocks += [Heading("Under load: speedup of tokens a second"), load_summary(run), knee_lines(run)]
    blocks.append(Lines([verdict_line(run) if not doubtful else None, failure_line(run), where or None]))
    return show(blocks)


def page(run: ServingRun, picture: str) -> str:
    """results/NAME.md."""
    head: list[Block] = ["# vLLM", provenance(run), server_line(run)]
    head.append(Lines([doubt(run) or verdict_line(run), failure_line(run)]))
    if run.load:
        head.append(f"![Speedup under load]({picture})")
    blocks: list[Block] = [Heading("Same text, and how fast"), agreement(run), *_speeds(run, whole=True)]
    blocks += [refused_lines(run), Heading("The engine's counters beside the lab's own counts"), Lines([RECONCILED])]
    blocks += [reconciled_table(run), reasons(run), Heading("Share of rounds that kept the token at each place", 3)]
    blocks += [places_table(run)]
    if run.load:
        blocks += [Heading("Under load"), *load_blocks(run)]
    blocks += [Heading("Prompt by prompt"), all_counts(run)]
    return show([*head, *blocks], markdown=True)


def _speeds(run: ServingRun, whole: bool) -> list[Block]:
    blocks: list[Block] = []
    for temperature in dict.fromkeys(row.temperature for row in run.served):
        rows = [row for row in run.served if row.temperature == temperature]
        blocks += [
            Heading(f"{temperature_name(temperature)}, {rows[0].n_prompts} prompts", 3),
            speed_table(rows, whole),
        ]
    short = any(row.counts and row.acceptance_rate is None for row in run.served)
    legend = [COLUMNS, NO_ALPHA if short else None, NO_FORECAST] if whole else [SHORT]
    return [*blocks, Lines([*legend, *noise_lines(run.noise)])]


def server_line(run: ServingRun) -> str:
    """Which engine, and how its servers were started."""
    facts = run.server
    if not run.settings["started_here"]:
        return "The servers ran already; how they were started is not known."
    starts = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in facts["start_seconds"].items())
    flags = " ".join(facts["flags"])
    return (
        f"Package {facts['package']} {facts['version']} with Python {facts['python']}, torch {facts['torch']}, "
        f"transformers {facts['transformers']}. All servers: `{flags}`. Until they were ready: {starts}."
    )


def refused_lines(run: ServingRun) -> Lines:
    """What the engine does not run, and why."""
    return Lines(f"not run: {one.method} k = {one.draft_length}: {one.reason}" for one in run.refused)


def failure_line(run: ServingRun) -> str | None:
    """What ended the run early."""
    return f"ENDED EARLY: {run.failure}" if run.failure else None


def picture(run: ServingRun, folder: Path, name: str) -> Path:
    """Write folder/name.png: the speedup of every draft against requests at a time."""
    series = []
    for look, key in enumerate(dict.fromkeys((row.method, row.draft_length) for row in run.load)):
        rows = [row for row in run.load if (row.method, row.draft_length) == key]
        series.append(Series(name_of(rows[0]), {r.concurrency: Value(r.speedup, None, None) for r in rows}, look))
    panel = Panel(series, "requests at a time", "speedup of tokens a second, all requests", title="vLLM", log=True)
    return figures.save(draw([panel]), run, folder, name)
