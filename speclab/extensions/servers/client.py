"""Asks OpenAI-compatible servers, which nobody vouches for: vLLM, llama-server, or another one.

One bound in time and one in bytes hold for a whole answer, however slowly it comes. Requests go to the address that the
user named: no proxy is asked, and a redirect is an error. What goes wrong is an EnvironmentProblem of one line.

Tokens arrive with text, with ids, or with the chunk that says why the answer ends, which is the last token's. A usage
behind the end counts the tokens and says nothing of their times.
"""

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from speclab.extensions.servers import counters
from speclab.extensions.servers.counters import EngineCounts, Look, Rounds
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.files import read_bytes, shown
from speclab.system.terminal import note, progress

CONNECT, PAGE_SECONDS = 5.0, 30.0  # seconds; of a page: from the request to its last byte
ANSWER_SECONDS, TOKEN_SECONDS = 120.0, 5.0  # of an answer, and for each of its tokens more
MOST_BYTES = 2**26  # of any answer
OK, LOCKED, BUSY, FAILED = 200, (401, 403), (408, 425, 429), 500  # BUSY, and from FAILED on: try again later
BROKEN = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError)  # what a request may end in
SETTLE_LOOKS, SETTLE_SECONDS = 150, 0.02  # looks until a page has counted a request, and the pause after each
WARM_UP_TOKENS = 8
LEAST = 3  # prompts that are asked however long they take: an interval needs as many
KEY = "SPECLAB_API_KEY"
OWN_TEXTS, LARGEST_TEXTS, MOST_PROMPTS = Path(__file__).with_name("prompts.txt"), 2**20, 1000

VLLM, LLAMA, OTHER = "vLLM", "llama-server", "an OpenAI-compatible server"
# A server's own defaults would change the text, such as those of a model's generation_config.json. So the penalties
# that every server knows and the parameters of an engine are sent without effect. No top_p is: TGI refuses 1.0.
NEUTRAL: dict[str, Any] = {"frequency_penalty": 0.0, "presence_penalty": 0.0}
WISHES: dict[str, dict[str, Any]] = {
    VLLM: {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
    LLAMA: {"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": -1.0, "repeat_penalty": 1.0}
    | {"dry_multiplier": 0.0, "xtc_probability": 0.0, "dynatemp_range": 0.0, "mirostat": 0},
}


class Refused(EnvironmentProblem):
    """The server answers that it does not do this."""


class Order(NamedTuple):
    """One greedy request. prompt: a text, or token ids for a server that takes them. chat: as
    a message of a user. ids: whether all n_tokens are wanted, with their ids, as vLLM sends them."""

    prompt: str | list[int]
    n_tokens: int
    chat: bool = True
    ids: bool = False

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def seconds(self) -> float:  # the longest time that its answer may take
        return ANSWER_SECONDS + TOKEN_SECONDS * self.n_tokens


class Answer(NamedTuple):
    """The text that a server sent, its times by the client's clock, and what the server says of this request."""

    text: str
    n_tokens: int  # as the server counts them
    n_first: int  # those of the first arrival: 1 where the server sends no ids with it
    first_seconds: float  # from the request to the first arrival
    decode_seconds: float  # from there to the last one
    whole_seconds: float  # from the request until the server said that the answer is whole
    ids: list[int]  # empty where none were asked for
    rounds: Rounds = []  # noqa: RUF012 - empty where the server does not tell them
    counts: EngineCounts | None = None  # of these rounds, or what the server has counted meanwhile
    shared: bool = False  # requests of others are in the counts, too
    n_running: int = 0  # requests that the server was answering before

    @property
    def seconds_per_token(self) -> float:
        """Return the seconds of a token after the first chunk; 0 where nothing came after it."""
        return self.decode_seconds / max(1, self.n_tokens - self.n_first)


# --- one streamed answer ----------------------------------------------------------------------------------------------


class Stream:
    """The events of one answer, however their bytes are cut. n_tokens: the most that it may have. clock: seconds, read
    at the beginning, at each event and at the mark of the end."""

    def __init__(self, url: str, n_tokens: int, clock: Callable[[], float] = time.perf_counter):
        self._url, self._most, self._clock = url, n_tokens, clock
        self._begin = self._first = self._last = self._end = clock()
        self._finish: float | None = None  # when the server has said why the answer ends
        self._pieces, self._ids, self._said = list[str](), list[int](), dict[str, Any]()
        self._n_first, self._rest = 1, b""
        self.ended = False  # the server has said that the answer is whole

    def take(self, part: bytes) -> bool:
        """Read some bytes.  -> whether the answer is whole. EnvironmentProblem where they are no events of one."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            self._line(line)
        return self.ended

    def answer(self) -> Answer:
        """Return the answer as a whole; nothing more will come. EnvironmentProblem where it is none."""
        self._line(self._rest)
        if not self.ended and self._finish is not None:
            self.ended, self._end = True, self._finish
        if not self.ended:
            none = "sends no events of an answer; give the address of a server of completions that streams"
            raise EnvironmentProblem(f"{self._url} {'ended its answer in the middle' if self._pieces else none}")
        first, last, n_tokens = self._first, self._last, max(_count(self._said.get("usage")), len(self._ids))
        if self._finish and n_tokens > max(len(self._ids), len(self._pieces)):
            last = max(last, self._finish)
        if not self._pieces:
            raise EnvironmentProblem(f"{self._url} sent no text for a prompt; give other ones with --texts")
        if not 0 < n_tokens <= self._most:
            raise EnvironmentProblem(f"{self._url} counts {n_tokens} tokens where 1 to {self._most} were asked for")
        if n_tokens > 1 and last <= first:
            why = f"sent all {n_tokens} tokens at one moment, so that decoding cannot be timed"
            raise EnvironmentProblem(f"{self._url} {why}; have no proxy in between that collects chunks")
        rounds = _rounds(self._said.get("metrics"))
        text, times = "".join(self._pieces), (first - self._begin, last - first, self._end - self._begin)
        counts = counters.of_rounds(*rounds) if rounds else None
        return Answer(text, n_tokens, self._n_first, *times, self._ids, rounds[0] if rounds else [], counts)

    def _line(self, line: bytes) -> None:
        if self.ended or not line.startswith(b"data:"):
            return
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            self.ended, self._end = True, self._clock()
            return
        chunk = _parsed(data, self._url)
        if not isinstance(chunk, dict):
            raise EnvironmentProblem(f"{self._url} sends an event that is no object: {data[:60]!r}")
        if "error" in chunk:
            raise EnvironmentProblem(f"{self._url} ends its answer: {_message(data)}")
        now = self._clock()
        text, new_ids, finished = _content(chunk)
        if text or new_ids:
            if not self._pieces:
                self._first, self._n_first = now, max(1, len(new_ids))
            self._last = now
            self._pieces.append(text)
            self._ids += new_ids
        self._said |= {name: chunk[name] for name in ("usage", "metrics") if isinstance(chunk.get(name), dict)}
        self._finish = now if finished else self._finish


def _content(chunk: dict[str, Any]) -> tuple[str, list[int], bool]:
    """Return the text of an event, thoughts included, its token ids, and whether it says why the answer ends."""
    try:
        choice = chunk["choices"][0]
        said = choice.get("delta", choice)
        thought = "reasoning" if said.get("reasoning") else "reasoning_content"  # vLLM sends a copy under the old name
        text = "".join(said.get(name) or "" for name in (thought, "content", "text"))
        ids, finished = choice.get("token_ids") or [], bool(choice.get("finish_reason"))
    except (LookupError, TypeError, AttributeError):
        return "", [], False
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**31 for one in ids):
        raise EnvironmentProblem("the server sends token ids that are no ids")
    return text, ids, finished


def _count(said: Any, name: str = "completion_tokens") -> int:
    count = said.get(name) if isinstance(said, dict) else None
    return count if type(count) is int and 0 < count < 2**20 else 0


def _rounds(said: Any) -> tuple[Rounds, int] | None:
    """Return the rounds of a request that vLLM tells with `--per-request-spec-decode-metrics detailed`, and k; None
    where it tells none, or in another form than that of 0.32. Rounds without a draft are not among them."""
    with contextlib.suppress(LookupError, TypeError, ValueError):
        found = said["speculative_decoding"]
        rounds = list(zip(found["per_step_drafted"], found["per_step_accepted"], strict=True))
        longest = found["num_spec_tokens"]
        if all(type(n) is type(kept) is int and 0 <= kept <= n <= longest for n, kept in rounds):
            return (rounds, longest) if type(longest) is int and longest <= counters.MOST_POSITIONS else None
    return None


def _parsed(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise EnvironmentProblem(f"{url} sends what is no JSON: {data[:60]!r}") from None


def _message(data: bytes) -> str:
    text = data[:2000].decode(errors="replace")
    found = re.search(r'"message": ?"(.*?)(?<!\\)"', text, re.DOTALL)
    return " ".join((found[1] if found else text).split())[:200] or "no reason given"


# --- one server -------------------------------------------------------------------------------------------------------


class Server:
    """What answers at an address. key: an API key, sent to this server alone and never shown.

    root: the folder or hub name that the model was read from, where that is said. remarks: what is to be known of it.

    Methods send one request in an event loop of their own; `got` and `answered` take what `opened` gives, so that
    several requests are under way at a time.
    """

    def __init__(self, url: str, key: str | None = None):
        self.url, self.engine, self.version, self.model, self.root = url, OTHER, "", "", ""
        self.id, self.has_page, self.remarks = "", False, list[str]()  # id: the model's name in requests
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        trusted = httpx2.create_ssl_context(trust_env=False)  # made once: it reads a file
        how: dict[str, Any] = {"headers": headers, "limits": limits, "timeout": httpx2.Timeout(None, connect=CONNECT)}
        self._settings = {**how, "verify": trusted, "trust_env": False}

    def opened(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(**self._settings)

    def page(self, path: str) -> bytes:
        return self._alone(lambda http: self.got(http, path))

    def json(self, path: str, body: dict[str, Any] | None = None, seconds: float = 0.0) -> Any:
        return _parsed(self._alone(lambda http: self.got(http, path, body, seconds)), self.url)

    def answer(self, order: Order) -> Answer:
        return self._alone(lambda http: self.answered(http, order))

    def look(self) -> Look:
        return counters.read(self.page("/metrics").decode(errors="replace"))

    def ask(self, order: Order) -> Answer:
        """Send a request, and return its answer with its counts: those of its own rounds where the server tells them,
        else what was counted from before it until after it."""
        if not self.has_page:
            return self.answer(order)
        before, answer = self.look(), self.answer(order)
        answer = answer._replace(n_running=before.n_running)
        if answer.counts:
            return answer
        counted = counters.between(before, self._settled(before, answer.n_tokens))
        return answer._replace(counts=counted.speculation, shared=counted.n_generated > answer.n_tokens)

    def _settled(self, before: Look, n_tokens: int) -> Look:
        """Return the counters after `n_tokens` more, which a page may show a moment late.

        Two looks in a row must say the same. The counters of speculation may be later than those of tokens.
        """
        now = self.look()
        for _ in range(SETTLE_LOOKS):
            last, now = now, self.look()
            n_new = now.total.n_generated - before.total.n_generated
            if now == last and n_new >= n_tokens:
                return now
            if n_new < 0:
                break  # `between` names it
            if n_new > 2 * n_tokens and now.n_running:
                return now  # others ask it all the time, so it never stands still
            time.sleep(SETTLE_SECONDS)
        if 0 <= (n_new := now.total.n_generated - before.total.n_generated) < n_tokens:
            why = f"counts {n_new} of the {n_tokens} tokens it sent: its /metrics page is far behind"
            raise EnvironmentProblem(f"{self.url} {why}, or of another engine; give the address of the engine itself")
        return now

    async def got(self, http: httpx2.AsyncClient, path: str, body: Any = None, seconds: float = 0.0) -> bytes:
        """Return a page as a whole, or what comes back for a body. Refused where the server has none such."""
        parts: list[bytes] = []
        await self._send(http, path, body, seconds or PAGE_SECONDS, parts.append)
        return b"".join(parts)

    async def answered(self, http: httpx2.AsyncClient, order: Order) -> Answer:
        stream, body = Stream(self.url, order.n_tokens), self.body(order)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            await self._send(http, order.path, body, order.seconds, stream.take)
        except Refused as problem:
            without = order.chat and "template" in str(problem)  # vLLM's words where the model has none
            raise Refused(f"{str(problem).rstrip('.')}; add --raw" if without else str(problem)) from None
        return stream.answer()

    def body(self, order: Order) -> dict[str, Any]:
        what = {"messages": [{"role": "user", "content": order.prompt}]} if order.chat else {"prompt": order.prompt}
        how = {"model": self.id, "max_tokens": order.n_tokens, "temperature": 0, "seed": 0}
        whole = {"return_token_ids": True, "ignore_eos": True} if order.ids else {}
        return {**what, **how, **NEUTRAL, **WISHES.get(self.engine, {}), **whole}

    def _alone(self, send: Callable[[httpx2.AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
        async def alone() -> Any:
            async with self.opened() as http:
                return await send(http)

        return asyncio.run(alone())

    async def _send(
        self, http: httpx2.AsyncClient, path: str, body: Any, seconds: float, take: Callable[[bytes], bool | None]
    ) -> None:
        """Send a request, and give every part of its answer to `take` until that returns True. seconds: for all of it,
        however slowly its bytes come."""
        n_bytes, reason, method = 0, b"", "GET" if body is None else "POST"
        try:
            async with (
                asyncio.timeout(seconds),
                http.stream(method, self.url + path, json=body) as response,
                aclosing(response.aiter_bytes()) as parts,
            ):
                async for part in parts:
                    n_bytes += len(part)
                    if n_bytes > MOST_BYTES:
                        raise EnvironmentProblem(f"{self.url} sends more than {MOST_BYTES // 2**20} MiB")
                    if response.status_code != OK:
                        reason += part
                    elif take(part):
                        return
        except BROKEN as error:
            why = " ".join((str(error) or type(error).__name__).split())[:200]
            said = f"went away in the middle of an answer: {why}"
            if isinstance(error, TimeoutError):
                said = f"did not end its answer within {seconds:g} s"
            elif isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                said = f"does not answer: {why}; start it, or check the address"
            raise EnvironmentProblem(f"{self.url} {said}") from None
        if response.status_code in LOCKED:
            raise EnvironmentProblem(f"{self.url} wants an API key; put it into the variable {KEY}")
        if response.status_code != OK:
            again = "; try again later" if response.status_code in BUSY or response.status_code >= FAILED else ""
            raise Refused(f"{self.url}{path} answers {response.status_code}: {_message(reason).rstrip('.')}{again}")


def check_url(url: str) -> str:
    """Return the address without what follows the port and path. UsageProblem where it is none."""
    with contextlib.suppress(httpx2.InvalidURL, ValueError):
        place = httpx2.URL(url)
        good = place.scheme in ("http", "https") and place.host and not (place.userinfo or place.query)
        if good and url.isascii() and not set(url) & set(" #?") and place.port in (None, *range(1, 2**16)):
            return url.rstrip("/").removesuffix("/v1")
    raise UsageProblem(f"{url[:200]} is no address of a server; give one such as http://127.0.0.1:8000")


def find(url: str, key: str | None = None) -> Server:
    """Return what answers at this address. EnvironmentProblem where nothing does, or where it wants a key."""
    server = Server(check_url(url), key)
    try:
        models = server.json("/v1/models")
    except Refused as problem:
        raise EnvironmentProblem(f"{problem}; give the address of an OpenAI-compatible server, no page of it") from None
    with contextlib.suppress(LookupError, TypeError):
        model = models["data"][0]
        server.model, server.root = _word(model, "id"), _word(model, "root")
        server.engine = VLLM if _word(model, "owned_by") == "vllm" else OTHER
        server.id = model["id"]  # requests need it whole; vLLM's is a place, or owner/name
    if not server.model:
        raise EnvironmentProblem(f"{url} offers no model; give the address of an OpenAI-compatible server")
    _name(server)
    return server


def _name(server: Server) -> None:
    why = ""  # there is a page, and it cannot be read
    try:
        server.engine, server.has_page = server.look().engine, True
    except EnvironmentProblem as problem:
        why = "" if isinstance(problem, Refused) else f": {problem}"
    pages: dict[str, Any] = {}
    for path in ("/props", "/version"):
        with contextlib.suppress(EnvironmentProblem):
            pages[path] = server.json(path)
    if "build_info" in (props := pages.get("/props") or ()):
        server.engine, server.version = LLAMA, _word(props, "build_info")
        server.root = _word(props, "model_path") or server.root
        if not server.has_page:
            without = ": llama-server was started without --metrics; add it"
            server.remarks.append(f"times and texts only{why or without}")
    elif server.engine == VLLM:
        server.version = _word(pages.get("/version"), "version")
    if server.engine == VLLM and not server.has_page:
        then = "start it without --disable-log-stats, and give the engine's own address"
        raise EnvironmentProblem(f"{server.url} is vLLM without counters{why}; {then}")
    if server.engine == OTHER:
        server.remarks.append(f"{server.url} is no engine that is known here: times and texts only")


def _word(found: Any, name: str) -> str:
    """Return the last part of what a server calls something: no folders of its machine."""
    word = found.get(name) if isinstance(found, dict) else None
    return " ".join(word.split("/")[-1].split())[:60] if isinstance(word, str) else ""


# --- one prompt after the other ---------------------------------------------------------------------------------------


class Prompt(NamedTuple):
    """What a server is asked, and of what kind it is."""

    kind: str
    text: str


class Pair(NamedTuple):
    """One prompt: what the server that speculates answered, and the one that does not, where there is one."""

    kind: str
    prompt: str
    speculative: Answer
    plain: Answer | None


def text_of(path: Path, most: int, flag: str) -> str:
    try:
        return read_bytes(path, most).decode("utf-8-sig")  # an editor's mark may be in front
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        why = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else why
        raise EnvironmentProblem(f"{flag} {shown(path)}: {why}; give another file") from None


def prompts_of(path: Path | None) -> list[Prompt]:
    """Return the prompts of a file, the lab's own ones where none is given. A line "%% KIND" begins each."""
    found: list[Prompt] = []
    for block in f"\n{text_of(path or OWN_TEXTS, LARGEST_TEXTS, '--texts')}".split("\n%%")[1:]:
        kind, _, text = block.partition("\n")
        if text.strip():
            found.append(Prompt(" ".join(kind.split())[:20] or "text", text.strip()))
    if not 0 < len(found) <= MOST_PROMPTS:
        said = f"--texts {shown(path or OWN_TEXTS)} holds {len(found)} prompts, and 1 to {MOST_PROMPTS} are wanted"
        raise EnvironmentProblem(f'{said}; begin each with a line such as "%% code"')
    return found


def api_key() -> str | None:
    """Return the API key, which is never printed. UsageProblem where it could not stand in a request."""
    found = os.environ.get(KEY, "").strip()
    if not (found.isascii() and found.isprintable()):
        raise UsageProblem(f"{KEY} holds characters that no key has; set it to the key alone")
    return found or None


def ask_all(
    speculative: Server, plain: Server | None, prompts: Sequence[Prompt], n_tokens: int, chat: bool, seconds: float
) -> list[Pair]:
    """Ask both servers every prompt, one request at a time, in an order that changes from prompt to prompt. No new
    prompt is asked after so many seconds. What fails after LEAST prompts ends the list, and is noted."""
    servers, pairs = [server for server in (speculative, plain) if server], list[Pair]()
    for server in servers:  # a head before the prompt: no prompt's first answer finds it in a cache
        server.ask(Order(f"First of all: {prompts[0].text}", WARM_UP_TOKENS, chat))
    end = time.monotonic() + seconds
    try:
        with progress(len(prompts), "prompt", "asking") as bar:
            for number, (kind, text) in enumerate(prompts):
                if number >= LEAST and time.monotonic() > end:
                    note(f"  the time of --seconds is over after {number} of {len(prompts)} prompts")
                    break
                order = Order(text, n_tokens, chat)
                found = {one: one.ask(order) for one in (servers if number % 2 else servers[::-1])}
                pairs.append(Pair(kind, text, found[speculative], found[plain] if plain else None))
                bar.update()
    except (EnvironmentProblem, KeyboardInterrupt) as problem:
        if len(pairs) < LEAST:
            raise
        note(f"  only the first {len(pairs)} of {len(prompts)} prompts are counted: {str(problem) or 'stopped'}")
    return pairs
