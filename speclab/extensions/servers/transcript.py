"""Record what two vLLM servers say of six prompts, for chapter 17: exercises/serving_transcript.json.

    python -m speclab.extensions.servers.transcript          # two minutes; needs make vllm, or SPECLAB_VLLM

One server decodes plainly, the other one with the lab's draft model. Each is asked the same prompts, one at a time, in
turns. What is written: the prompts, and the text that all three sides give; the servers' /metrics pages, cut to what
the chapter needs, the speculative one's before and after every prompt; seconds and tokens of every streamed chunk; and
the lab's own rounds of the same prompts, with what the parts of a round cost there.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import contextlib
import itertools
import json
import re
import statistics
import sys
import time
from typing import Any, NamedTuple

import torch

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.cli import parsing
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.drafts import registry
from speclab.extensions.servers import installed, server_turns, servers
from speclab.extensions.servers.client import Order
from speclab.lab.instruments import LoopFunctions, with_phases
from speclab.models import loading, prompts
from speclab.models.setup import Setup, load_setup
from speclab.records import files
from speclab.system.errors import Problem, reports_problems
from speclab.system.files import write_whole
from speclab.system.paths import ROOT

TRANSCRIPT = ROOT / "exercises" / "serving_transcript.json"
TARGET, DRAFT = loading.LAB_TARGET, "model"
DRAFT_LENGTH, N_TOKENS, OF_EACH_KIND = 4, 64, 2
KEPT = (  # metrics of the page; the others say nothing that the chapter needs
    "vllm:num_requests_running",
    "vllm:generation_tokens",
    "vllm:spec_decode_num_",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_success",
)
BUCKETS = ('le="0.01"', 'le="0.025"', 'le="0.05"', 'le="+Inf"')  # of the histograms
NUMBERS = re.compile(r"\[\s+(-?[\d.]+(?:,\s+-?[\d.]+)*)\s+\]")  # a list of numbers that json has written line by line
ABOUT_TIMES = (
    "All times come from a machine that other programs used, too. They show what such numbers look like; no check "
    "depends on them."
)


def cut(page: str, name: str) -> list[str]:
    """The lines of a /metrics page that the chapter needs; the server's own name becomes "target"."""
    kept = []
    for line in page.splitlines():
        word = line.split(" ")[2] if line.startswith(("# HELP ", "# TYPE ")) else line
        if word.startswith(KEPT) and ("_bucket{" not in word or any(bucket in word for bucket in BUCKETS)):
            kept.append(line.replace(name, "target"))
    return kept


# --- the lab's own loop -----------------------------------------------------------------------------------------------


class Own(NamedTuple):
    """What the lab makes of the prompts. costs: of a round's parts, in plain steps."""

    texts: list[list[int]]
    rounds: list[list[list[int]]]  # of every prompt [drafted, accepted], of rounds that begin before the text's end
    plain_seconds: float
    costs: dict[str, float]


def own_side(setup: Setup, chosen: list[prompts.Prompt]) -> Own:
    """Every prompt decoded plainly and speculatively, twice: the first time warms up."""
    drafter = registry.make(DRAFT, setup)
    for _ in range(2):
        texts, found, timed, steps = [], [], [], []
        for prompt in chosen:
            tokens, seconds = _plain(setup, prompt)
            rounds = _rounds(setup, drafter, prompt)
            if tokens_of(rounds)[:N_TOKENS] != tokens:
                raise Problem("the lab's two loops write different texts; nothing is recorded")
            texts.append(tokens)
            steps += seconds[1:]
            decoding = [one for one in rounds if not one.prefill]
            found.append([[one.n_drafted, one.n_accepted] for one in decoding])
            timed += [one.seconds or {} for one in decoding if one.n_drafted == DRAFT_LENGTH]
    plain = statistics.median(steps)
    parts = {name: statistics.median(one[name] for one in timed) / plain for name in timed[0]}
    draft, verify = parts.pop("draft") / DRAFT_LENGTH, parts.pop("verify")
    costs = {"draft": round(draft, 3), "verify": round(verify, 3), "overhead": round(sum(parts.values()), 3)}
    return Own(texts, found, _short(plain), costs)


def _plain(setup: Setup, prompt: prompts.Prompt) -> tuple[list[int], list[float]]:
    """The baseline's text, and the seconds of each of its tokens."""
    target, found, seconds = setup.target.with_own_cache(), [], []
    begin = time.perf_counter()
    for round_ in autoregressive_decode(target, prompt.ids, DecodeSettings(N_TOKENS), 1):
        found.append(round_)
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    return tokens_of(found), seconds


def _rounds(setup: Setup, drafter: Any, prompt: prompts.Prompt) -> list[Round]:
    """The rounds that begin before the text's end; as a server does, they draft as if the text went on."""
    functions, target = LoopFunctions(speculative_decode), setup.target.with_own_cache()
    settings, found, n_new = DecodeSettings(N_TOKENS + 2 * DRAFT_LENGTH), [], 0
    for round_ in with_phases(functions, target, drafter, prompt.ids, DRAFT_LENGTH, settings):
        if n_new >= N_TOKENS:
            break
        n_new += len(round_.tokens)
        found.append(round_)
    return found


def _short(seconds: float) -> float:
    """To a hundred-thousandth of a second."""
    return round(seconds, 5)


# --- the servers ------------------------------------------------------------------------------------------------------


def asked(server: servers.Server, order: Order, text: list[int]) -> tuple[list[list[float]], list[list[str]]]:
    """One streamed request.  -> [seconds since the request, tokens] of every chunk; the pages before and after it"""
    client = server.client
    servers.wait_until_idle()
    with server.explained():
        before = client.look()
        pages = [cut(client.metrics(), client.model)]
        begin, chunks, tokens = time.perf_counter(), [], []
        for chunk in client.chunks(order):
            chunks.append([_short(time.perf_counter() - begin), len(chunk)])
            tokens += chunk
        client.settled(before, len(tokens))
        pages.append(cut(client.metrics(), client.model))
    if tokens != text:
        raise Problem(f"the server of {server.name} has written another text than the lab; nothing is recorded")
    return chunks, pages


def served(setup: Setup, chosen: list[prompts.Prompt], texts: list[list[int]]) -> dict[str, Any]:
    """What both servers answered, prompt by prompt, in turns, and which vLLM they are."""
    found = installed.find()
    found.check_device("cpu")
    longest = max(prompt.ids.shape[1] for prompt in chosen)
    settings = installed.ServerSettings(
        target=TARGET,
        device="cpu",
        dtype=setup.dtype_name,
        max_length=installed.context_for(longest, N_TOKENS, DRAFT_LENGTH, setup.target.max_length),
        n_threads=torch.get_num_threads(),
    )
    orders = [Order(prompt.id_list, N_TOKENS, setup.sampling) for prompt in chosen]
    streams: dict[str, list] = {"plain": [], "speculative": []}
    pages: dict[str, list] = {name: [] for name in streams}
    with servers.log_folder() as logs, contextlib.ExitStack() as stack:
        both = {}
        for name in streams:
            config = installed.speculative_config(DRAFT, DRAFT_LENGTH) if name == "speculative" else None
            words = settings.words(config)
            start = servers.running(name, found, settings.target, words, settings.environment(), logs)
            both[name] = stack.enter_context(start)
        server_turns.warm_up(list(both.values()), orders)
        for number, (order, text) in enumerate(zip(orders, texts, strict=True)):
            for name in sorted(streams, reverse=bool(number % 2)):
                chunks, around = asked(both[name], order, text)
                streams[name].append(chunks)
                pages[name].append(around)
    return {
        "server": {name: found.facts[name] for name in ("package", "version", "torch", "python")},
        **{name: {"pages": _in_a_row(pages[name]), "streams": streams[name]} for name in streams},
    }


def _in_a_row(around: list[list[list[str]]]) -> list[list[str]]:
    """The page before the first request, and that after each one, which must be the one before the next."""
    for (_, after), (before, _) in itertools.pairwise(around):
        if after != before:
            raise Problem("a counter went on between two requests: somebody else asks these servers, too")
    return [around[0][0], *(after for _, after in around)]


def shown(record: dict[str, Any]) -> str:
    """The file's text: as json has it, but a list of numbers in one line."""
    return NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", json.dumps(record, indent=1)) + "\n"


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Ask and write.  -> exit code"""
    parsing.make_parser(__doc__).parse_args(argv)
    setup = load_setup(TARGET, engine="eager", device="cpu")
    texts = prompts.standard()
    kinds = {kind: [one for one in texts if one[0] == kind][:OF_EACH_KIND] for kind in prompts.KINDS}
    chosen = prompts.encode([one for of_kind in kinds.values() for one in of_kind], setup.tokenizer)
    own = own_side(setup, chosen)
    sides = served(setup, chosen, own.texts)
    plain = sides["plain"]
    plain["pages"] = [plain["pages"][0], plain["pages"][-1]]  # nothing is told of single prompts there
    record = {
        "about": ABOUT_TIMES,
        "command": "python -m speclab.extensions.servers.transcript",
        "created": files.today(),
        "server": sides.pop("server"),
        "threads": torch.get_num_threads(),
        "dtype": setup.dtype_name,
        "draft_length": DRAFT_LENGTH,
        "new_tokens": N_TOKENS,
        "prompts": [
            {"kind": prompt.kind, "ids": prompt.id_list, "text": text, "own_rounds": rounds}
            for prompt, text, rounds in zip(chosen, own.texts, own.rounds, strict=True)
        ],
        "own": {"plain_seconds": own.plain_seconds, "costs": own.costs},
        **sides,
    }
    write_whole(TRANSCRIPT, shown(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
