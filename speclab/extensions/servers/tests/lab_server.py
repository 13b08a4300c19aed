"""An OpenAI-compatible server around the lab's own loop, for tests of what the command counts.

It answers one request at a time, counts its rounds under the names that vLLM has, and says at /version that it is the
lab's own loop. It is for tests: it listens on 127.0.0.1 alone and checks little.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.accept import accept_from_logits
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptRule, DecodeSettings, Round
from speclab.extensions.servers.tests.simulated import LocalServer, Speaking
from speclab.models.setup import Setup

VERSION, LABEL = "the lab's loop", '{engine="0"}'


class LabServer(LocalServer):
    """One server, greedy. drafter: None for plain decoding. rule: another one makes a server that is wrong."""

    def __init__(
        self,
        setup: Setup,
        drafter: Drafter | None,
        draft_length: int,
        rule: AcceptRule = accept_from_logits,
    ):
        super().__init__(_Handler)
        self.setup, self.drafter, self.draft_length, self.rule = setup, drafter, draft_length, rule
        self._turn, self.n_generated = threading.Lock(), 0
        self.drafted: list[tuple[int, int]] = []  # (drafted, kept) of every round that drafted

    def rounds(self, text: str, n_tokens: int) -> Iterator[list[int]]:
        """Yield the token ids of every round. Like an engine, it drafts k tokens near the end of a text, too."""
        with self._turn:
            n_new, target = 0, self.setup.target.with_own_cache()
            settings = DecodeSettings(n_tokens + 2 * self.draft_length)
            ids = self.setup.tokenizer(text, return_tensors="pt").input_ids
            rounds = (
                speculative_decode(target, self.drafter, ids, self.draft_length, settings, self.rule)
                if self.drafter
                else autoregressive_decode(target, ids, settings)
            )
            for round_ in rounds:
                left = n_tokens - n_new
                if left <= 0:
                    break
                self._count(round_, min(left, len(round_.tokens)))
                yield round_.tokens[:left]
                n_new += len(round_.tokens)

    def _count(self, round_: Round, n_tokens: int) -> None:
        self.n_generated += n_tokens
        if round_.n_drafted:
            self.drafted.append((round_.n_drafted, round_.n_accepted))

    def metrics(self) -> str:
        """Return the page of counters."""
        found = {"generation_tokens_total": self.n_generated}
        if self.drafter:
            found["spec_decode_num_drafts_total"] = len(self.drafted)
            found["spec_decode_num_draft_tokens_total"] = sum(drafted for drafted, _ in self.drafted)
            found["spec_decode_num_accepted_tokens_total"] = sum(kept for _, kept in self.drafted)
        lines = [f"vllm:{name}{LABEL} {value}" for name, value in found.items()]
        for place in range(self.draft_length if self.drafter else 0):
            value = sum(kept > place for _, kept in self.drafted)
            lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {value}')
        return "\n".join(lines) + "\n"


class _Handler(Speaking, BaseHTTPRequestHandler):
    """Speaks for a LabServer."""

    server: LabServer

    def do_GET(self) -> None:
        """Answer with a page."""
        pages: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": [{"id": "lab-pair/target"}]},
            "/version": {"version": VERSION},
            "/health": {},
        }
        if self.path == "/metrics":
            self.whole(200, self.server.metrics().encode())
        else:
            found = pages.get(self.path)
            self.whole(200 if found is not None else 404, json.dumps(found or {}).encode())

    def do_POST(self) -> None:
        """Answer a request for a text, in a stream."""
        body = self.body()
        text, n_tokens = body.get("prompt"), body["max_tokens"]
        if not isinstance(text, str):
            self.whole(400, b'{"error": {"message": "this server takes texts: add --raw"}}')
        else:
            with suppress(ConnectionError):
                n_prompt = len(self.server.setup.tokenizer(text).input_ids)
                self._stream(self.server.rounds(text, n_tokens), n_prompt)

    def _stream(self, rounds: Iterator[Sequence[int]], n_prompt: int) -> None:
        self.begin_events()
        tokens, done, decode = list[int](), "", self.server.setup.tokenizer.decode
        for ids in rounds:
            tokens += ids
            whole = str(decode(tokens))
            text = "" if whole.endswith("\ufffd") else whole[len(done) :]  # half a character waits for its rest
            done += text
            self.event({"choices": [{"index": 0, "text": text, "token_ids": list(ids)}]})
        self.event({"choices": [], "usage": {"completion_tokens": len(tokens), "prompt_tokens": n_prompt}})
        self.end_events()
