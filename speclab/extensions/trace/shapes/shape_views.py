"""The command `shapes`: the tensors of one round, with a cache and without one."""

import argparse

from transformers import PreTrainedTokenizerBase

from speclab.drafts import registry
from speclab.extensions.trace import decoding
from speclab.extensions.trace.shapes.round_shapes import MEANINGS, STEPS, RoundShapes, Shapes, first_round
from speclab.lab.instruments import LoopFunctions
from speclab.models import loading
from speclab.models.pieces import added
from speclab.present.tables import table
from speclab.system.errors import UsageProblem
from speclab.system.terminal import say


def run(args: argparse.Namespace, functions: LoopFunctions | None) -> int:
    """The command.  -> exit code, 1 where `functions` say other shapes"""
    registry.check_chains("shapes", [registry.read(args.draft)])
    family, _ = loading.family_named(args.target)
    if not family.one_text:
        raise UsageProblem(
            f"shapes does not know {family.plural}, and {loading.short_name(args.target)} is one; "
            "choose another --target"
        )
    found = decoding.load(args, functions)
    ids = found.prompt.ids.to(found.setup.device)
    round_ = first_round(found.setup.target, found.drafter, ids, found.draft_length, found.settings)
    say(tables(round_, found.setup.tokenizer))
    if found.functions.shapes is None:
        return 0
    text, all_right = beside(round_, *(found.functions.shapes(*sizes) for sizes in round_.sizes()))
    say(f"\n{text}")
    return int(not all_right)


def tables(round_: RoundShapes, tokenizer: PreTrainedTokenizerBase) -> str:
    """The shapes with a cache and without one, and which row of the logits verifies which drafted token."""
    cached, uncached, n_cached = round_.cached, round_.uncached, round_.n_cached
    n_drafted = len(round_.ids) - n_cached - 1
    rows = [[name, str(cached[name]), str(uncached[name]), axes] for name, axes in MEANINGS.items()]
    parts = [
        f"One round: {n_cached} tokens of prompt, 1 committed and not in the cache, {n_drafted} drafted; batch first.",
        table(rows, ["tensor", "with a cache", "without one", "axes after the batch"], n_words=4),
    ]
    if round_.head:
        steps = [[one.name, " ".join(map(str, one.takes)), str(one.gives), STEPS[one.name]] for one in round_.head]
        parts[1:1] = [
            "The draft's head, call by call",
            table(steps, ["step", "takes", "gives", "what"], n_words=4),
            "The target's pass over the last committed token and the drafted ones",
        ]
    heads, key_heads = cached["q"][1], cached["k"][1]
    if heads != key_heads:
        parts.append(f"Each of the {key_heads} key heads serves {heads // key_heads} of the {heads} query heads.")

    def quoted(id_: int, n_before: int) -> str:
        return repr(added(tokenizer, round_.ids[:n_before], [id_]))

    fed = [quoted(round_.ids[i], i) for i in range(n_cached, len(round_.ids))]
    verified = [f"draft {i}: {fed[i]}" for i in range(1, n_drafted + 1)] + ["nothing: gives the bonus"]
    rows = [
        [str(i), str(n_cached + i), fed[i], verified[i], quoted(choice, n_cached + i + 1)]
        for i, choice in enumerate(round_.choices)
    ]
    parts += [
        "Which row of the logits verifies which drafted token, with a cache and without",
        table(rows, ["row", "uncached", "after", "verifies", "target's choice"], n_words=5),
        f"The cache changes nothing but the work: these rows differ by {round_.gap:.1e} at most.",
    ]
    return "\n\n".join(parts)


def beside(round_: RoundShapes, cached: Shapes, uncached: Shapes) -> tuple[str, bool]:
    """Exercise 1's answers, which have no batch axis, beside the real shapes.  -> table, do they agree?"""
    rows, all_right = [], True
    for name in MEANINGS:
        right = [_of_one_text(shapes, name) for shapes in (round_.cached, round_.uncached)]
        answers = [tuple(shapes[name]) if name in shapes else None for shapes in (cached, uncached)]
        all_right = all_right and answers == right
        verdict = "yes" if answers == right else f"no: it is {right[0]} and {right[1]}"
        rows.append([name, *(str(answer or "-") for answer in answers), verdict])
    parts = [
        "Yours, without the batch axis",
        table(rows, ["tensor", "with a cache", "without one", "agrees"], n_words=4),
    ]
    query = round_.cached["q"]
    if query[1] * query[3] != round_.cached["hidden"][-1]:
        parts.append("This family's heads do not share the width evenly; exercise 1 assumes that they do.")
    return "\n\n".join(parts), all_right


def _of_one_text(shapes: Shapes, name: str) -> tuple[int, ...]:
    """Without the batch axis. Exercise 1 gives every query head its own keys; here some may share theirs."""
    shape = shapes[name][1:]
    return (shapes["q"][1], *shape[1:]) if name in ("k", "v") else shape
