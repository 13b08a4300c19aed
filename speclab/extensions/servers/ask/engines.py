"""Finds out what answers at an address, and asks it: vLLM, llama-server, or another OpenAI-compatible server."""

import contextlib
import re
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from speclab.extensions.servers import counters
from speclab.extensions.servers.ask.client import Answer, Client, Order, Refused
from speclab.extensions.servers.counters import Between, Look
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.system.errors import EnvironmentProblem

VLLM, LLAMA, OTHER = "vLLM", "llama-server", "an OpenAI-compatible server"
SETTLE_LOOKS, SETTLE_SECONDS = 150, 0.02  # looks until a page has counted a request, and the pause after each
KEY = "SPECLAB_API_KEY"
# What an engine understands besides: its own sampling parameters at the values of no effect, where a flag or the
# model's generation_config.json may set others, and token ids.
WISHES: dict[str, dict[str, Any]] = {
    VLLM: {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
    LLAMA: {"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0, "repeat_penalty": 1.0}
    | {"dry_multiplier": 0.0, "xtc_probability": 0.0, "dynatemp_range": 0.0, "mirostat": 0},
}
# What drafts, by the words of the engines for it. No other method is known to be one of the three.
KINDS = {"lookup": "ngram|suffix", "head": "eagle|medusa|mtp|mlp|dflash", "model": "draft"}
LONGEST_WORD = 60  # characters that are shown of what a server calls something


class Asked(NamedTuple):
    """One answer, and what the server counted meanwhile. shared: it counted requests of others, too. n_running: those
    that it was answering before."""

    answer: Answer
    counted: Between | None
    shared: bool = False
    n_running: int = 0

    @property
    def n_drafts(self) -> int:
        """Return the rounds that drafted something; 0 where no rounds are counted."""
        return self.counted.speculation.n_drafts if self.counted and self.counted.speculation else 0


@dataclass
class Server:
    """What answers at an address. kind: what drafts, "model", "head" or "lookup"; "" where it is not known."""

    client: Client
    engine: str = OTHER
    version: str = ""
    model: str = ""
    root: str = ""  # the folder or hub name that the model was read from, where that is said
    has_page: bool = False
    kind: str = ""
    remarks: list[str] = field(default_factory=list)

    def look(self) -> Look | None:
        """Return the counters now; None where the server has none."""
        return counters.read(self.client.page("/metrics").decode(errors="replace")) if self.has_page else None

    def ask(self, order: Order) -> Asked:
        """Send a request, and return its answer with what was counted from before it until after it."""
        before = self.look()
        answer = self.client.ask(order)
        if before is None:
            return Asked(answer, _from_timings(answer))
        after = self._settled(before, answer.n_tokens)
        counted = counters.between(before, after)
        return Asked(answer, counted, counted.n_generated > answer.n_tokens, before.n_running)

    def _settled(self, before: Look, n_tokens: int) -> Look:
        """Return the counters after `n_tokens` more, which a page may show a moment late.

        Two looks in a row must say the same. The counters of speculation may be later than those of tokens.
        """
        now = self.look()
        assert now
        for _ in range(SETTLE_LOOKS):
            last, now = now, self.look()
            assert now
            if now == last and now.n_generated - before.n_generated >= n_tokens:
                return now
            if now.n_generated < before.n_generated:
                break  # `between` names it
            if now.n_generated - before.n_generated > 2 * n_tokens and now.n_running:
                return now  # others ask it all the time, so it never stands still
            time.sleep(SETTLE_SECONDS)
        if 0 <= now.n_generated - before.n_generated < n_tokens:
            raise EnvironmentProblem(
                f"{self.client.url} counts {now.n_generated - before.n_generated} of the {n_tokens} tokens it sent: "
                "its /metrics page is far behind, or of another engine; give the address of the engine itself"
            )
        return now


def _from_timings(answer: Answer) -> Between | None:
    """Return what llama-server says with a response: all of its rounds count as rounds that drafted."""
    drafted, accepted = (answer.timings.get(name) for name in ("draft_n", "draft_n_accepted"))
    if type(drafted) is not int or type(accepted) is not int or not 0 <= accepted <= drafted:
        return None
    n_rounds = answer.n_tokens - 1 - accepted
    if not 0 < n_rounds <= drafted <= n_rounds * counters.MOST_POSITIONS:
        return None
    counts = EngineCounts(n_drafts=n_rounds, n_drafted=drafted, n_accepted=accepted, accepted_at=[])
    return Between(answer.n_tokens, counts, 0.0, None)


def find(url: str, key: str | None) -> Server:
    """Return what answers at this address. EnvironmentProblem where nothing does, or where it wants a key."""
    server = Server(Client(url, key))
    try:
        models = server.client.json("/v1/models")
    except Refused as problem:
        if " 401" in str(problem) or " 403" in str(problem):
            raise EnvironmentProblem(f"{url} wants an API key; put it into the variable {KEY}") from None
        raise EnvironmentProblem(f"{problem}; give the address of an OpenAI-compatible server, no page of it") from None
    model = _at(models, "data", 0)
    server.model, server.root = _word(model, "id"), _word(model, "root")
    if server.model:
        server.client.model = model["id"]  # requests need it whole; vLLM's is a place, or owner/name
    else:
        raise EnvironmentProblem(
            f"{url} offers no model at /v1/models; give the address of an OpenAI-compatible server"
        )
    _name(server)
    return server


def _name(server: Server) -> None:
    """Find out which engine it is, and what it says of itself."""
    client, problem = server.client, None
    try:
        page = client.page("/metrics").decode(errors="replace")
        look = counters.read(page)
        server.engine, server.has_page = look.engine, True
    except Refused:
        pass
    except EnvironmentProblem as said:
        problem = said
    if props := _page(client, "/props", "build_info", "default_generation_settings"):
        server.engine, server.version = LLAMA, _word(props, "build_info")
        server.root = _word(props, "model_path") or server.root
        server.kind = _kind(str(props.get("default_generation_settings")), "speculative.types?")
        if not server.has_page:
            server.remarks.append("llama-server was started without --metrics: no acceptance by position; add it")
    elif version := _page(client, "/version", "version"):
        server.engine, server.version = VLLM, _word(version, "version")
        with contextlib.suppress(EnvironmentProblem):  # it has this page in its development mode alone
            page = client.page("/server_info").decode(errors="replace")
            server.kind = _kind(page, "speculative_config.{0,2000}?method")
    client.wishes = WISHES.get(server.engine, {})
    if server.engine == VLLM and not server.has_page:
        why = f" ({problem})" if problem else ""
        raise EnvironmentProblem(
            f"{client.url} is vLLM without counters{why}; start it without --disable-log-stats, and give the engine's "
            "own address"
        )
    if server.engine == OTHER:
        server.remarks.append(f"{client.url} is no engine that is known here: times and texts only")


def _kind(page: str, name: str) -> str:
    """Return what drafts by a page that names it behind `name`; "" where it does not say one of the three."""
    found = re.search(rf"{name}\W{{1,6}}([\w-]+)", page)
    return next((kind for kind, words in KINDS.items() if found and re.search(words, found[1])), "")


def _page(client: Client, path: str, *names: str) -> dict[str, Any] | None:
    """Return a JSON page that has one of these names; None where there is none such."""
    with contextlib.suppress(EnvironmentProblem):
        found = client.json(path)
        if isinstance(found, dict) and any(name in found for name in names):
            return found
    return None


def _at(found: Any, name: str, place: int) -> Any:
    try:
        return found[name][place]
    except (LookupError, TypeError):
        return {}


def _word(found: Any, name: str) -> str:
    """Return the last part of what a server calls something: no folders of its machine."""
    word = found.get(name) if isinstance(found, dict) else None
    return " ".join(word.split("/")[-1].split())[:LONGEST_WORD] if isinstance(word, str) else ""
