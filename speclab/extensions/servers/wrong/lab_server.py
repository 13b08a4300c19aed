"""An OpenAI-compatible server around the lab's own loop, for faults that no flag of another server makes.

It answers one request at a time, counts its rounds under the names that vLLM has, and says at /version that it is the
lab's own loop. It is for measurements on this machine: it listens on 127.0.0.1 alone and checks little.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.accept import accept_from_logits
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptRule, DecodeSettings, Round
from speclab.core.sampling import Sampling
from speclab.models.setup import Setup

VERSION, LABEL = "the lab's loop", '{engine="0"}'
MOST_BYTES, TOP = 2**20, 5


class LabServer(ThreadingHTTPServer):
    """One server. drafter: None for plain decoding. temperature: instead of the one that a request asks for. one_seed:
    whether all requests are sampled with the same one."""

    daemon_threads = True

    def __init__(
        self,
        setup: Setup,
        drafter: Drafter | None,
        draft_length: int,
        rule: AcceptRule = accept_from_logits,
        temperature: float | None = None,
        one_seed: bool = False,
    ):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.setup, self.drafter, self.draft_length, self.rule = setup, drafter, draft_length, rule
        self.temperature, self.one_seed, self._turn = temperature, one_seed, threading.Lock()
        self.n_waiting, self.n_generated, self._n_asked = 0, 0, 0
        self.drafted: list[tuple[int, int]] = []  # (drafted, kept) of every round that drafted

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "LabServer":
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *stop: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has gone."""

    def rounds(self, text: str, n_tokens: int, temperature: float) -> Iterator[list[int]]:
        """Yield the token ids of every round. Like an engine, it drafts k tokens near the end of a text, too."""
        self.n_waiting += 1
        with self._turn:
            self.n_waiting -= 1
            self._n_asked += 1
            n_new, target = 0, self.setup.target.with_own_cache()
            if self.temperature is not None:
                temperature = self.temperature
            seed = 1 if self.one_seed else self._n_asked
            settings = DecodeSettings(n_tokens + 2 * self.draft_length, Sampling(temperature), frozenset(), seed=seed)
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
        found |= {"num_requests_running": int(self._turn.locked()), "num_requests_waiting": self.n_waiting}
        if self.drafter:
            found["spec_decode_num_drafts_total"] = len(self.drafted)
            found["spec_decode_num_draft_tokens_total"] = sum(drafted for drafted, _ in self.drafted)
            found["spec_decode_num_accepted_tokens_total"] = sum(kept for _, kept in self.drafted)
        lines = [f"vllm:{name}{LABEL} {value}" for name, value in found.items()]
        for place in range(self.draft_length if self.drafter else 0):
            value = sum(kept > place for _, kept in self.drafted)
            lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} {value}')
        return "\n".join(lines) + "\n"

    def log_probabilities(self, text: str, n_tokens: int) -> dict[str, Any]:
        """Return greedy tokens, each with its log-probability and the most probable ones at its place."""
        decode = self.setup.tokenizer.decode
        tokens = [token for ids in self.rounds(text, n_tokens, 0.0) for token in ids]
        prompt = self.setup.tokenizer(text, return_tensors="pt").input_ids
        whole = torch.cat([prompt, torch.tensor([tokens])], dim=1)  # (1, prompt + tokens)
        with torch.inference_mode():
            logits = self.setup.target.model(whole).logits[0, prompt.shape[1] - 1 : -1]  # (tokens, vocab)
        rates = logits.log_softmax(-1)
        tops = [{decode([int(i)]): float(row[i]) for i in row.topk(TOP).indices} for row in rates]
        own = [float(row[token]) for row, token in zip(rates, tokens, strict=True)]
        return {"tokens": [decode([token]) for token in tokens], "token_logprobs": own, "top_logprobs": tops}


class _Handler(BaseHTTPRequestHandler):
    """Speaks for a LabServer."""

    protocol_version = "HTTP/1.1"
    server: LabServer

    def log_message(self, format: str, *words: object) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        """Answer with a page."""
        pages: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": [{"id": "lab-pair/target"}]},
            "/version": {"version": VERSION},
            "/health": {},
        }
        if self.path == "/metrics":
            self._whole(200, self.server.metrics().encode())
        else:
            found = pages.get(self.path)
            self._whole(200 if found is not None else 404, json.dumps(found or {}).encode())

    def do_POST(self) -> None:
        """Answer a request for a text, in a stream or with log-probabilities."""
        body = json.loads(self.rfile.read(min(MOST_BYTES, int(self.headers["Content-Length"]))))
        text, n_tokens = body.get("prompt"), body["max_tokens"]
        if not isinstance(text, str):
            self._whole(400, b'{"error": {"message": "this server takes texts: add --raw"}}')
        elif body.get("logprobs"):
            found = {"choices": [{"logprobs": self.server.log_probabilities(text, n_tokens)}]}
            self._whole(200, json.dumps(found).encode())
        else:
            with suppress(ConnectionError):
                n_prompt = len(self.server.setup.tokenizer(text).input_ids)
                self._stream(self.server.rounds(text, n_tokens, float(body.get("temperature", 0))), n_prompt)

    def _stream(self, rounds: Iterator[Sequence[int]], n_prompt: int) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens, done, decode = list[int](), "", self.server.setup.tokenizer.decode
        for ids in rounds:
            tokens += ids
            whole = str(decode(tokens))
            text = "" if whole.endswith("\ufffd") else whole[len(done) :]  # half a character waits for its rest
            done += text
            self._event({"choices": [{"index": 0, "text": text, "token_ids": list(ids)}]})
        self._event({"choices": [], "usage": {"completion_tokens": len(tokens), "prompt_tokens": n_prompt}})
        self._part(b"data: [DONE]\n\n")
        self._part(b"")

    def _event(self, what: dict[str, Any]) -> None:
        self._part(b"data: " + json.dumps(what).encode() + b"\n\n")

    def _part(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _whole(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
