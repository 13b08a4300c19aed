"""Do two servers write the same text? Where not, the plain server's own log-probabilities say whether it is a tie."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from speclab.extensions.servers.ask.client import Order, path_of, seconds_of
from speclab.extensions.servers.ask.engines import Asked, Server
from speclab.extensions.servers.measured import Pair
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note

# A logit of 16 to 32 in bfloat16 is rounded to an eighth, and two of them may be off by one step each.
TIE = 0.25  # nats between two tokens, up to which rounding alone may decide
TOP = 5
PLACES, MOST_PAIRS = 6, 3  # where single tokens are asked for: places of a text, and texts
NEARLY_GREEDY = 0.05  # a temperature, at which a token FAR nats behind comes once in a million draws
FAR = 0.7
FEWEST_KEPT = 10  # drafted tokens of a greedy text, from which on it is no accident that none are kept
FEWEST_ALONE, FEWEST_APART = 6, 2  # single tokens that show anything; those that differ: one may be a tie
Verdict = str
SAME, TIED, UNEXPLAINED, UNJUDGED = "same", "tie within rounding", "different", "not judged"


class Step(NamedTuple):
    """One token of a text, and the most probable ones at its place."""

    token: str
    top: dict[str, float]  # token -> log-probability


def judge(pairs: Sequence[Pair], plain: Server | None, chat: bool) -> list[Verdict]:
    """Return a verdict for each prompt. A text that differs is asked for again, with log-probabilities; without the
    server it is not judged."""
    found: list[Verdict] = []
    for pair in pairs:
        assert pair.plain
        ours, other = pair.plain.answer, pair.speculative.answer
        if ours.text == other.text:
            found.append(SAME)
        else:
            steps = asked_again(plain, Order(pair.prompt, ours.n_tokens, chat)) if plain else []
            found.append(verdict(steps, ours.text, other.text))
    return found


def verdict(steps: Sequence[Step], ours: str, other: str, tie: float = 0.0) -> Verdict:
    """Return whether the token where `other` leaves the plain text `ours` was as probable as the plain one.

    steps: those of `ours`, asked for once more; where they make another text they judge nothing. tie: nats, where more
    than TIE are one.
    """
    place = 0
    for step in steps:
        if not ours.startswith(step.token, place):
            return UNJUDGED
        if not step.token or not other.startswith(step.token, place):
            break
        place += len(step.token)
    else:
        return UNJUDGED  # asked again, the plain server writes the other text, or nothing that can be read
    ended = place >= len(other)  # it stopped there, and no text shows the token that says so
    if ended or not step.token or step.token not in step.top or "\ufffd" in step.token:
        return UNJUDGED
    rivals = [token for token in step.top if token and token != step.token and other.startswith(token, place)]
    if not rivals:
        return UNEXPLAINED
    return TIED if step.top[step.token] - step.top[max(rivals, key=len)] <= max(TIE, tie) else UNEXPLAINED


def agree_alone(
    pairs: Sequence[Pair], verdicts: Sequence[Verdict], speculative: Server, plain: Server, chat: bool
) -> bool | None:
    """Return whether both servers say the same where each is asked for one token, which no draft makes; None where too
    few of these requests are answered.

    Both continue prompts whose texts differ, with a part of the plain text behind them, as they are: without a template
    a chat gets another text than before, and both servers the same one.
    """
    wrong = [pair for pair, one in zip(pairs, verdicts, strict=True) if one == UNEXPLAINED]
    n_asked = n_apart = 0
    for pair in wrong[:MOST_PAIRS]:
        text = pair.plain.answer.text if pair.plain else ""
        for place in range(PLACES):
            order = Order(pair.prompt + "\n" * chat + text[: len(text) * place // PLACES], 1, chat=False)
            with contextlib.suppress(EnvironmentProblem):
                one, other = (server.client.ask(order).text for server in (speculative, plain))
                n_asked, n_apart = n_asked + 1, n_apart + (one != other)
    return n_apart < FEWEST_APART if n_asked >= FEWEST_ALONE else None


def wrong_when_sampled(
    pairs: Sequence[Pair], speculative: Server, plain: Server | None, n_tokens: int, chat: bool
) -> str:
    """Ask the server that speculates once nearly greedily, and return what is wrong then; "" where nothing is seen. Its
    drafts must be kept about as often as greedily, and its text must be one that the probabilities allow."""
    pair = max(pairs, key=lambda one: _kept(one.speculative)[1])
    try:
        found = speculative.ask(Order(pair.prompt, n_tokens, chat, temperature=NEARLY_GREEDY))
    except EnvironmentProblem as problem:
        note(f"  a request at temperature {NEARLY_GREEDY} is not answered: {problem}")
        return ""
    (n_drafted, n_kept), (n_before, n_greedy), said = _kept(found), _kept(pair.speculative), list[str]()
    if n_greedy >= FEWEST_KEPT and 2 * n_drafted >= n_before and not n_kept:
        said.append(f"keeps none of {n_drafted} drafted tokens, and greedily {n_greedy} of {n_before}")
    greedy, server = (pair.plain, plain) if pair.plain and plain else (pair.speculative, speculative)
    ours, other = greedy.answer.text, found.answer.text
    steps = asked_again(server, Order(pair.prompt, greedy.answer.n_tokens, chat)) if ours != other else []
    if steps and verdict(steps, ours, other, FAR) == UNEXPLAINED:
        said.append("writes a text that the target's probabilities rule out")
    return f"at temperature {NEARLY_GREEDY} it {' and '.join(said)}" if said else ""


def _kept(asked: Asked) -> tuple[int, int]:
    """Return drafted and kept tokens; none where they are not counted."""
    counts = asked.counted.speculation if asked.counted else None
    return (counts.n_drafted, counts.n_accepted) if counts else (0, 0)


def asked_again(server: Server, order: Order) -> list[Step]:
    """Return the steps of a greedy answer; none where the server sends no log-probabilities."""
    wish = {"logprobs": True, "top_logprobs": TOP} if order.chat else {"logprobs": TOP}
    with contextlib.suppress(EnvironmentProblem, LookupError, TypeError, AttributeError, ValueError):
        said = server.client.post(path_of(order), server.client.body(order) | wish, seconds_of(order))["choices"][0][
            "logprobs"
        ]
        if "content" in said:
            return [Step(one["token"], {**_tops(one["top_logprobs"]), **_tops([one])}) for one in said["content"]]
        chosen = zip(said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True)
        return [Step(token, {**_finite(top), **_finite({token: own})}) for token, own, top in chosen]
    return []


def _tops(found: list[dict[str, Any]]) -> dict[str, float]:
    return _finite({one["token"]: one["logprob"] for one in found})


def _finite(found: dict[str, Any]) -> dict[str, float]:
    return {
        token: float(value) for token, value in found.items() if isinstance(token, str) and math.isfinite(float(value))
    }
