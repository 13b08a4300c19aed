"""A comparison of another engine's servers as tables, lines and a page: views of its record."""

from speclab.extensions.servers.vllm.server_record import EngineCounts, Reconciled, ServedRow, ServingRun
from speclab.extensions.servers.vllm.serving_load import (
    knee_lines,
    load_blocks,
    load_lines,
    load_summary,
    schedule_lines,
)
from speclab.present.report import agreement_lines
from speclab.present.run_lines import marked, noise_lines, provenance, remarks, rough_line
from speclab.present.tables import (
    Block,
    Cell,
    Heading,
    Lines,
    Markdown,
    Table,
    cells,
    drafts_only,
    interval,
    number,
    percent,
    row_interval,
    show,
    speedup,
    temperature_name,
    verdict_of,
    with_verdict,
)
from speclab.records.facts import Facts

SHORT = (
    "α is accepted / tested tokens, and f is accepted / drafted tokens, which vLLM calls acceptance rate. round is the "
    "time of a round in tokens of the server without speculation. same text counts the texts that equal the lab's own. "
    "forecast is the speedup expected from the lab's own loop."
)
# Columns that the terminal has no room for.
ON_THE_PAGE = ("end to end", "length", "tok/rnd", "own round", "own ms", "fixed ms", "error")
COLUMNS = (
    "tok/s and speedup are measured after the first chunk, by the client's clock. 95 % is the interval over prompts. "
    "end to end counts from the request to the last token. same text counts the texts that equal the lab's own greedy "
    "text. α is accepted / tested tokens, and f is accepted / drafted tokens, which the engine calls acceptance rate. "
    "length is 1 + accepted / drafts, its mean acceptance length. book(α) is 1/(1-α+α/k). round is the time of a round "
    "in tokens of the server without speculation."
)
FORECAST = (
    "tok/rnd is the tokens per round of the prompts whose counts agree with the lab's. own round is the time of a "
    "round on the lab's own loop, in plain tokens of that loop, and own ms is the time of such a token; both are "
    "medians over prompts. fixed ms is the time by which a token of the plain server takes longer; every step of the "
    "engine is taken to have it, however wide. forecast is tok/rnd x (own ms + fixed ms) / (median ms of a round on "
    "the lab's own loop + fixed ms), and error is forecast / speedup - 1."
)
NO_ALPHA = "no α where drafts came shorter than k: the counters do not say how many of their tokens were tested"
RECONCILED = (
    "The cells are engine / lab. The engine's counts are the differences of its counters before and after each prompt. "
    "The lab's counts are those of its own loop with the same draft and prompts, decoded past the end, since the "
    "engine's last round drafts k tokens, too. but for the last counts the prompts whose counts differ in the last "
    "round only. Rounds that drafted nothing are not counted."
)


def name_of(row: ServedRow | Reconciled) -> str:
    """model k = 4; the baseline has no k."""
    return f"{row.method} k = {row.draft_length}" if row.draft else row.method


# --- how fast ---------------------------------------------------------------------------------------------------------


def speed_table(rows: list[ServedRow], whole: bool) -> Table:
    """One line per arm at one temperature; the baseline first. whole: with all columns"""
    columns: dict[str, Cell] = {
        **cells("draft", "k", "tok/s"),
        "speedup": _speedup,
        "95 %": drafts_only(row_interval),
        **cells("end to end"),
        "same text": lambda row: "-" if row.same_text is None else f"{row.same_text}/{row.n_prompts}",
        **cells("α", "f"),
        "length": lambda row: number(row.acceptance_length),
        "book(α)": lambda row: speedup(row.book_formula),
        "round": lambda row: number(row.round_cost),
        "tok/rnd": lambda row: number(row.tokens_per_round),
        "own round": lambda row: number(row.own_round_cost),
        "own ms": lambda row: number(row.own_token_seconds and 1e3 * row.own_token_seconds, 1),
        "fixed ms": lambda row: number(row.fixed_seconds and 1e3 * row.fixed_seconds, 1),
        "forecast": lambda row: speedup(row.forecast),
        "error": lambda row: percent(row.forecast / row.speedup - 1 if row.forecast else None),
    }
    return Table(rows, columns if whole else {head: columns[head] for head in columns if head not in ON_THE_PAGE})


def _speedup(row: ServedRow) -> str:
    return with_verdict(speedup(row.speedup), verdict_of(row))


def verdict_line(run: ServingRun) -> str | None:
    """The answer in one line: the fastest draft with the right text, and whether its counts are the lab's."""
    first = [row for row in run.served if row.draft and row.temperature == run.served[0].temperature]
    right = [row for row in first if _has_right_text(run, row)]
    best = max(right, key=lambda row: row.speedup, default=None)
    if best is None:
        return "verdict: no draft has the right text" if first else None
    ends = interval(best.speedup_low, best.speedup_high)
    between = f" ({ends})" if ends != "-" else ""
    says = f"; 1/(1-α+α/k) says {speedup(best.book_formula)}" if best.book_formula else ""
    gain = f"{verdict_of(best) or 'fastest'}, {speedup(best.speedup)}{between}"
    return f"verdict: {run.settings['engine']} with {name_of(best)} is {gain}{says}; {_counts_word(run, best)}"


def _has_right_text(run: ServingRun, row: ServedRow) -> bool:
    """Whether no text of an arm was found wrong; a near-tie is not."""
    name = f"{row.method} k={row.draft_length}"
    return all(one["passed"] for one in run.correctness if (one["arm"], one["temperature"]) == (name, row.temperature))


def _counts_word(run: ServingRun, row: ServedRow) -> str:
    """Of one arm."""
    arm = row.method, row.draft_length
    verdicts = [one.verdict for one in run.reconciled if (one.method, one.draft_length) == arm]
    if not verdicts or row.temperature:
        return "its counts are not reconciled with the lab's"
    last = verdicts.count("last round")
    but = f", in {last} but for the last round" if last else ""
    return f"counts equal to the lab's in {verdicts.count('equal')} of {len(verdicts)} prompts{but}"


def agreement(run: ServingRun) -> Lines:
    """Whether the texts are the lab's, and the target's law's."""
    lines = agreement_lines(run.correctness)
    greedy = [one for one in run.correctness if one["temperature"] == 0 and not one.get("under load")]
    if greedy:
        n_texts = sum(one["n_prompts"] for one in greedy)
        own = f"same text? greedy: {n_texts} texts of {len(greedy)} servers against the lab's own: {_differing(greedy)}"
        lines = [own if line.startswith("greedy: ") else line for line in lines]
    return Lines([*lines, *load_lines(run), *remarks(run)])


def _differing(entries: list[Facts]) -> str:
    verdicts = [one["verdict"] for entry in entries for one in entry["differences"]]
    ties = verdicts.count("near-tie")
    return f"{len(verdicts)} differ, {ties} of them near-ties, first differences above" if verdicts else "identical"


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


# --- all of it --------------------------------------------------------------------------------------------------------


def text(run: ServingRun, where: str = "") -> str:
    """What the terminal shows."""
    blocks: list[Block] = [agreement(run), Lines([rough_line(run)]), *_speeds(run, whole=False)]
    blocks += [refused_lines(run), Heading("Counts, engine / lab"), reconciled_table(run), reasons(run)]
    blocks += [Heading("Under load: speedup of tokens a second"), load_summary(run), knee_lines(run)]
    blocks.append(schedule_lines(run))
    blocks.append(Lines([verdict_line(run), failure_line(run), where or None]))
    return show(blocks)


def page(run: ServingRun, picture: str) -> str:
    """results/NAME.md."""
    head: list[Block] = [Markdown("# vLLM"), provenance(run), server_table(run)]
    head.append(Lines([rough_line(run), verdict_line(run), failure_line(run)]))
    if run.load:
        head.append(Markdown(f"![Speedup under load]({picture})"))
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
            marked(run, speed_table(rows, whole)),
        ]
    short = any(row.counts and row.acceptance_rate is None for row in run.served)
    legend = [COLUMNS, NO_ALPHA if short else None, FORECAST] if whole else [SHORT]
    return [*blocks, Lines([*legend, *_floors(run)])]


def _floors(run: ServingRun) -> list[str]:
    """The noise floor in the turns of each arm."""
    return [
        f"{floor.method} k = {floor.draft_length}, {temperature_name(floor.temperature)}: {line}"
        for floor, line in zip(run.noise, noise_lines(list(run.noise)), strict=True)
    ]


def server_table(run: ServingRun) -> Block:
    """Which engine, and how its servers were started."""
    facts = run.server
    if not run.settings.get("started_here"):
        return "The servers ran already; how they were started is not known."
    names = ("package", "version", "python", "torch", "transformers")
    rows = [(name, facts.get(name) or "-") for name in names]
    rows.append(("flags of all servers", " ".join(facts.get("flags", []))))
    rows += [(f"ready: {name}", f"{seconds:.0f} s") for name, seconds in facts.get("start_seconds", {}).items()]
    return Table(rows, {"servers": lambda row: row[0], "": lambda row: row[1]}, n_words=2)


def refused_lines(run: ServingRun) -> Lines:
    """What the engine does not run, and why."""
    return Lines(f"not run: {one.method} k = {one.draft_length}: {one.reason}" for one in run.refused)


def failure_line(run: ServingRun) -> str | None:
    """What ended the run early."""
    return f"ENDED EARLY: {run.failure}" if run.failure else None
