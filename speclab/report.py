"""Tables and sentences: each is a view of counts or of a run record, nothing is measured here."""

import textwrap

import tabulate

from speclab.theory import Counts

tabulate.MIN_PADDING = 0  # its extra blanks around headers would push the table past 80 columns


def number(value: float | None, digits: int = 2) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows: list[list[str]], headers: list[str], markdown: bool = False, n_words: int = 1) -> str:
    """Right-aligned columns after the first `n_words`, which hold words."""
    align = ["left"] * n_words + ["right"] * (len(headers) - n_words)
    return tabulate.tabulate(
        rows,
        headers,
        tablefmt="github" if markdown else "simple",
        colalign=align if rows else None,
        disable_numparse=True,
    )


def counts_summary(counts: Counts) -> str:
    """Rounds, acceptance in all its meanings, and a histogram of accepted lengths."""
    lines = [
        f"rounds {counts.n_rounds}, drafted {counts.n_drafted}, accepted {counts.n_accepted}, "
        f"refused {counts.n_rejected}, never tested {counts.n_drafted - counts.n_accepted - counts.n_rejected}",
        f"alpha (accepted / tested)           {number(counts.acceptance_rate, 3)}",
        f"drafted fraction (accepted/drafted) {number(counts.drafted_fraction, 3)}",
        f"tokens per round (target pass)      {number(counts.tokens_per_round)}",
        "accepted in a round:",
    ]
    most = max(counts.accepted_lengths.values(), default=1)
    for length in range(max(counts.accepted_lengths, default=0) + 1):
        rounds = counts.accepted_lengths[length]
        lines.append(f"  {length:2d} | {'#' * round(40 * rounds / most):40s} {rounds}")
    return "\n".join(lines)


NOT_SLOWER = 0.995  # what rounds to 1.00x is not called slower
FORMULA_TOLERANCE = 0.10  # the book's formula is explained where it misses by more
COLUMNS = ["draft", "k", "tok/s", "speedup", "±95 %", "α", "f", "tok/rnd", "book(α)", "book(f)"]


def speedup_words(row: dict) -> str:
    """Losing rows say so."""
    return f"{row['speedup']:.2f}x" + (" slower" if row["speedup"] < NOT_SLOWER else "")


def speed_table(rows: list[dict], markdown: bool = False) -> str:
    """One line per arm; the baseline first."""
    lines = []
    for row in rows:
        half_width = None if row["speedup_low"] is None else (row["speedup_high"] - row["speedup_low"]) / 2
        speculative = row["draft"] is not None
        lines.append(
            [
                row["method"],
                str(row["draft_length"]) if speculative else "-",
                number(row["tokens_per_second"], 1),
                speedup_words(row) if speculative else "1.00x",
                number(half_width) if speculative else "-",
                number(row["acceptance_rate"]),
                number(row["drafted_fraction"]),
                number(row["tokens_per_round"]),
                number(row["book_formula"]),
                number(row["book_formula_drafted_fraction"]),
            ]
        )
    return table(lines, COLUMNS, markdown)


def formula_sentences(rows: list[dict]) -> list[str]:
    """For each row in which book(alpha) misses by more than FORMULA_TOLERANCE: how far, and what was left out."""
    sentences = []
    for row in rows:
        book = row["book_formula"]
        if book is None or row["verify_cost"] is None:
            continue
        miss = book / row["speedup"] - 1
        if abs(miss) <= FORMULA_TOLERANCE:
            continue
        label = f"{row['method']} k={row['draft_length']}"
        direction = "too high" if miss > 0 else "too low"
        sentences.append(
            f"{label}: the formula says {book:.2f}x, measured {row['speedup']:.2f}x "
            f"({abs(miss):.0%} {direction}); {_reason(row, miss > 0)}."
        )
    return sentences


def _reason(row: dict, formula_too_high: bool) -> str:
    """The measured quantity that moves the formula furthest in the direction it has to go."""
    per_round = row["n_drafted"] / row["n_rounds"]
    draft_share = per_round * (row["draft_cost"] or 0.0)
    if formula_too_high:
        causes = {
            draft_share: f"{per_round:.1f} draft steps of c = {number(row['draft_cost'], 3)} cost "
            f"{draft_share:.2f} of a target step in every round",
            row["verify_cost"] - 1: f"a verification pass costs v = {row['verify_cost']:.2f} target steps, not 1",
            row[
                "overhead"
            ]: f"accepting and rolling back cost o = {row['overhead']:.2f} of a target step in every round",
        }
        short = row["draft_length"] - per_round
        if short > 0.5:
            causes[short / row["draft_length"]] = (
                f"the drafter proposed {per_round:.1f} tokens a round on average, not {row['draft_length']}"
            )
        return causes[max(causes)]
    return (
        f"a round yields {row['tokens_per_round']:.2f} tokens, the kept part of a partly accepted draft and the bonus "
        "token included, which the formula does not count"
    )


def correctness_lines(entries: list[dict]) -> list[str]:
    """Agreement in words: greedy token for token, sampled by its statistics."""
    lines = []
    greedy = [e for e in entries if e["temperature"] == 0]
    for entry in greedy:
        for item in entry["differences"]:
            gap = "-" if item["gap"] is None else f"{item['gap']:.3g}"
            lines.append(
                f"  {entry['arm']}, prompt {item['prompt']}, token {item['position']}: "
                f"{item['tokens'][0]!r} became {item['tokens'][1]!r}, gap {gap}: {item['verdict']}"
            )
    if greedy:
        n_texts = sum(e["n_prompts"] for e in greedy)
        n_different = sum(len(e["differences"]) for e in greedy)
        verdict = "identical" if not n_different else f"{n_different} differ, first differences above"
        lines.append(f"greedy: {n_texts} texts of {len(greedy)} arms against the baseline, token for token: {verdict}")
    for entry in entries:
        if entry["temperature"] > 0:
            word = "consistent with the target" if entry["passed"] else "NOT the target's distribution"
            z_s, z_l = ("inf" if z is None else f"{z:+.2f}" for z in (entry["z_residual"], entry["z_surprise"]))
            lines.append(
                f"T = {entry['temperature']:g}, {entry['arm']}: z_S = {z_s}, z_L = {z_l} "
                f"over {entry['n_tokens']} tokens (bound {entry['bound']}): {word}"
            )
    return lines


def headline_line(run: dict) -> str | None:
    """The best k, chosen on one half of the prompts and reported on the other."""
    row = run["headline"]
    if not row:
        return None
    interval = "" if row["speedup_low"] is None else f" (95 %: {row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
    return (
        f"{row['method']} draft, greedy, best k = {row['draft_length']} chosen on half of the prompts; "
        f"on the other half {speedup_words(row)}{interval}, alpha {number(row['acceptance_rate'])}"
    )


def prefill_line(rows: list[dict]) -> str:
    """Each draft's best row again, with the time to read the prompt counted on both sides."""
    best = {}
    for row in sorted((r for r in rows if r["draft"]), key=lambda r: r["speedup"]):
        best[row["method"]] = f"{row['method']} k={row['draft_length']} {row['speedup_with_prefill']:.2f}x"
    return f"with the prompt's own passes counted (the draft's too), the best rows are: {', '.join(best.values())}"


def losing_lines(rows: list[dict]) -> list[str]:
    """For each kind of prompt on which speculation was slower: the rows, and how much slower."""
    lines = []
    for kind in dict.fromkeys(r["prompt_kind"] for r in rows):
        slower = [r for r in rows if r["prompt_kind"] == kind and r["draft"] and r["speedup"] < NOT_SLOWER]
        names = ", ".join(f"{r['method']} k={r['draft_length']} {r['speedup']:.2f}x" for r in slower)
        if names and kind not in ("all", "not looping"):
            lines.append(f"slower on {kind} prompts: {names}")
    return lines


def generate_line(rows: list[dict]) -> str | None:
    """How our baseline compares with the library's own loop."""
    row = next((r for r in rows if r["method"] == "generate" and r["prompt_kind"] == "all"), None)
    if row is None:
        return None
    words = "the same text" if row["same_as_baseline"] else "NOT the same text"
    return f"the baseline against model.generate, prefill included: {1 / row['speedup']:.2f}x its speed, {words}"


def comparison(run: dict, by_kind: bool = False, markdown: bool = False) -> str:
    """Correctness, then a table per temperature, then what the formula left out."""
    blocks = []

    def heading(text: str) -> None:
        blocks.append(f"## {text}" if markdown else text)

    def lines(items: list[str]) -> None:
        if items:
            wrapped = [textwrap.fill(item, 79, subsequent_indent="    ") for item in items]
            blocks.append("\n".join(f"- {item.strip()}" for item in items) if markdown else "\n".join(wrapped))

    if markdown:
        blocks.append(provenance(run))
    heading("Do the outputs agree?")
    lines(correctness_lines(run["correctness"]))
    kinds = list(dict.fromkeys(r["prompt_kind"] for r in run["rows"]))
    n_looping = run["prompts"]["n_looping"]
    many_loops = n_looping is not None and n_looping > run["prompts"]["n"] / 4
    for temperature in dict.fromkeys(r["temperature"] for r in run["rows"]):
        name = "greedy" if temperature == 0 else "sampling"
        for kind in kinds:
            shown = kind == "all" or by_kind or (kind == "not looping" and many_loops and temperature == 0)
            rows = [r for r in run["rows"] if r["temperature"] == temperature and r["prompt_kind"] == kind]
            if not shown or not rows:
                continue
            what = "all prompts" if kind == "all" else f"prompts: {kind}"
            heading(f"Temperature {temperature:g} ({name}), {what} ({rows[0]['n_prompts']})")
            blocks.append(speed_table([r for r in rows if r["method"] != "generate"], markdown))
            if kind == "all":
                lines([prefill_line(rows)])
                lines(losing_lines([r for r in run["rows"] if r["temperature"] == temperature]))
                lines([line for line in (generate_line(rows), headline_line(run)) if line and temperature == 0])
                sentences = formula_sentences(rows)
                if sentences:
                    blocks.append(f"Where 1/(1-α+α/k) is more than {FORMULA_TOLERANCE:.0%} off, T = {temperature:g}:")
                    lines(sentences)
    if n_looping is not None:
        blocks.append(
            f"{n_looping} of {run['prompts']['n']} greedy texts end in a loop (last 32 tokens of period 8 or less); "
            "\nloops are easy to draft and flatter acceptance."
        )
    if run["interrupted"]:
        blocks.append(
            "Stopped before the end: rows cover the prompts that every arm had finished, checks may be missing."
        )
    return "\n\n".join(blocks) + "\n"


def provenance(run: dict) -> str:
    """Machine, versions, commit and settings in one paragraph."""
    machine, versions, settings = run["machine"], run["versions"], run["settings"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    row = run["rows"][0]
    commit = (versions["commit"] or "none")[:12]
    if versions["uncommitted_changes"]:
        commit += " with uncommitted changes"
    return (
        f"Measured {run['created'][:10]} on {where}; {row['device']}, {row['dtype']}; Python {versions['python']}, "
        f"torch {versions['torch']}, transformers {versions['transformers']}; commit {commit}; "
        f"seed {settings['seed']}; {run['prompts']['n']} prompts, {settings['max_new_tokens']} new tokens each, "
        f"{settings['repeats']} x."
    )
