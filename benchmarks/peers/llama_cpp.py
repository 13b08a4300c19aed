"""llama.cpp as a peer: the same pair, prompts, k and threads, greedy, timed by its own programs.

Weights are in float32 as the lab's. Its cache and its attention stay in float16, its default, with which it is fastest.
So its text may differ. With `-ctk f32 -ctv f32 -fa off`, the one text that was checked was the lab's.

Its programs read a prompt from a file and print the text and their own times, so a process's start and the reading of
the weights are not counted. What they print, and what is made of it:

    llama-completion            prompt eval time, the prompt and the first token; eval and sampling time, the others
    llama-speculative-simple    encoded: the prompt but its last token; decoded: every new token, the first one too, and
                                up to k more than asked for. A token's share of that time goes to the prompt's, as in
                                the other arms; what is beyond the budget is left out in proportion

The programs tell no ids. Theirs are the baseline's as far as the texts agree, and from there on the tokenizer's.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from benchmarks.peers.library import PEER, PeerDecoding
from draft_models import ModelDrafter
from speclab.core.counts import Counts
from speclab.core.sampling import Sampling
from speclab.lab.bench import Bench
from speclab.lab.instruments import Decoding
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.rows import Arm
from speclab.system import startup
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.terminal import harmless

METHOD = "llama.cpp"
PLAIN, SPECULATIVE, TOKENIZE = "llama-completion", "llama-speculative-simple", "llama-tokenize"
NEEDED = (PLAIN, SPECULATIVE, TOKENIZE)
NO_TOKEN = -1  # stands where a text ends before the budget
SECONDS = 900  # seconds after which a program counts as hanging
OTHER_LINES = "llama.cpp prints other lines than the version that is known; leave out --llama-cpp"
MILLISECONDS = r" time = +([\d.]+) ms"


class Generated(NamedTuple):
    """The result of one of its programs for one prompt."""

    text: bytes
    prefill: float  # seconds, the first token included
    decode: float  # seconds of the others
    counts: Counts


# --- reading what the programs print ----------------------------------------------------------------------------------


def read_plain(out: bytes, err: str, budget: int) -> Generated:
    """Read the output of llama-completion, which was asked for `budget` tokens and not to show the prompt."""
    prefill, decode, sampling = (_number(f"{what}{MILLISECONDS}", err) for what in ("prompt eval", " eval", "sampling"))
    counts = Counts(n_rounds=int(_number(r" eval time = .*?/ +(\d+) runs", err)), n_emitted=budget - 1)
    return Generated(out.removesuffix(b"\n\n"), prefill / 1e3, (decode + sampling) / 1e3, counts)


def read_speculative(out: bytes, err: str, prompt: bytes, budget: int) -> Generated:
    """Read the output of llama-speculative-simple, which shows the prompt, and may make some tokens more than
    `budget`."""
    encoded, encode_rate = (_number(pattern, err) for pattern in (r"encoded +(\d+)", r"encoded .*speed: +([\d.]+)"))
    n, rate = (_number(pattern, err) for pattern in (r"decoded +(\d+)", r"decoded .*speed: +([\d.]+)"))
    drafted, accepted = (int(_number(rf"n_{what} += (\d+)", err)) for what in ("drafted", "accept"))
    head = b"\n\n" + prompt
    if not out.startswith(head):
        raise EnvironmentProblem(f"{SPECULATIVE} shows another prompt than it was given; leave out --llama-cpp")
    counts = Counts(int(n) - accepted, drafted, accepted, n_emitted=budget - 1)  # a round: the accepted, and one more
    text = out.removeprefix(head).removesuffix(b"\n\n\n\n")
    return Generated(text, encoded / encode_rate + 1 / rate, (budget - 1) / rate, counts)


def read_ids(out: bytes) -> list[int]:
    """Return the ids of the last line. Raises EnvironmentProblem where another version prints something else."""
    try:
        return json.loads(out.decode().strip().splitlines()[-1])
    except (ValueError, LookupError):
        raise EnvironmentProblem(OTHER_LINES) from None


def _number(pattern: str, text: str) -> float:
    """Return the number at the last place of a pattern. Raises EnvironmentProblem where another version prints
    something else."""
    if not (found := re.findall(pattern, text)):
        raise EnvironmentProblem(OTHER_LINES)
    return float(found[-1])


def whole_text(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text of a prompt as the target reads it, inside the chat template where there is one."""
    return str(tokenizer.decode(prompt.id_list, clean_up_tokenization_spaces=False)) if prompt.chat else prompt.text


def ids_of(text: bytes, expected: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """As many ids as `expected` has, that make `text`: the expected ones as far as they agree, then the tokenizer's,
    then NO_TOKEN."""

    def spelled(n: int) -> bytes:
        return str(tokenizer.decode(expected[:n], clean_up_tokenization_spaces=False)).encode()

    def agrees(n: int) -> bool:  # a token that ends inside a character is spelled with U+FFFD
        return text.startswith(spelled(n).removesuffix("\ufffd".encode()))

    n_same = next(n for n in range(len(expected), -1, -1) if agrees(n))
    rest = text[len(spelled(n_same)) :].decode(errors="replace")
    others = tokenizer(rest, add_special_tokens=False).input_ids if n_same < len(expected) and rest else []
    return [*expected[:n_same], *others, *[NO_TOKEN] * len(expected)][: len(expected)]


# --- running them -----------------------------------------------------------------------------------------------------


@dataclass
class Programs:
    """The programs of llama.cpp with one pair. `folder` is for the prompts' files."""

    target: Path
    draft: Path | None  # None: plain decoding alone
    folder: Path
    threads: int

    def run(self, program: str, *words: object) -> tuple[bytes, str]:
        """Run a program.  -> its standard output and its standard error. Raises EnvironmentProblem where it fails."""
        command = [program, "-m", str(self.target), *map(str, words)]
        own = {name: value for name, value in os.environ.items() if name not in startup.SET}
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, env=own)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentProblem(f"{program} cannot be run: {error}; leave out --llama-cpp") from None
        err = done.stderr.decode(errors="replace")
        if done.returncode:
            last = harmless(" ".join((err.strip().splitlines() or [""])[-1].split()))
            raise EnvironmentProblem(f"{program} ended with {done.returncode}: {last}; leave out --llama-cpp")
        return done.stdout, err

    def file(self, prompt: str) -> Path:
        path = self.folder / "prompt.txt"
        path.write_bytes(prompt.encode())
        return path

    def version(self) -> str:
        _, err = self.run(PLAIN, "--version")
        return harmless(err.strip().partition("\n")[0].removeprefix("version: "))

    def check(self, prompts: list[Prompt], tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise UsageProblem where its tokenizer makes other ids of a prompt."""
        for prompt in prompts:
            read = self.file(whole_text(prompt, tokenizer))
            out, _ = self.run(TOKENIZE, "-f", read, "--ids", "--log-disable", "--no-escape")
            if read_ids(out) != prompt.id_list:
                advice = "; try --no-chat, or" if prompt.chat else ";"
                raise UsageProblem(f"llama.cpp makes other ids of a {prompt.kind} prompt{advice} leave out --llama-cpp")

    def generate(self, prompt: str, draft_length: int, budget: int) -> Generated:
        words = ["-bf", self.file(prompt), "--no-escape", "-t", self.threads, "--temp", 0, "--ignore-eos"]
        if not draft_length:
            plain = ["-n", budget, "-no-cnv", "--no-display-prompt", "--simple-io"]
            return read_plain(*self.run(PLAIN, *words, *plain), budget)
        lengths = ["--spec-type", "draft-simple", "--spec-draft-n-max", draft_length, "--spec-draft-p-min", 0]
        speculative = ["-n", budget - 1, "-md", self.draft, *lengths]
        return read_speculative(*self.run(SPECULATIVE, *words, *speculative), prompt.encode(), budget)


@contextlib.contextmanager
def programs(
    setup: Setup, draft: ModelDrafter | None, files: tuple[Path | None, Path | None], prompts: list[Prompt]
) -> Iterator[Programs]:
    """The programs of llama.cpp with this pair, as files that are given, or that exist only while this is open. Raises
    a Problem where it cannot decode the pair as the lab does."""
    if lacking := ", ".join(program for program in NEEDED if not shutil.which(program)):
        raise EnvironmentProblem(f"{lacking} not on the PATH; build llama.cpp, or leave out --llama-cpp")
    if setup.device.type != "cpu" or setup.dtype_name != "float32":
        raise UsageProblem("llama.cpp is compared on the CPU in float32; use --device cpu --dtype float32")
    with tempfile.TemporaryDirectory(prefix="speclab-") as name:
        paths = list(files)
        for i, model in enumerate((setup.target.model, draft and draft.draft.model)):
            if model and not paths[i]:
                from speclab.extensions.servers.written_gguf import write_model

                paths[i] = write_model(model, setup.tokenizer, Path(name) / f"{i}.gguf")
        assert paths[0]
        found = Programs(paths[0], paths[1], Path(name), torch.get_num_threads())
        found.check(prompts, setup.tokenizer)
        yield found


# --- among the other arms ---------------------------------------------------------------------------------------------


class LlamaDecoding(Decoding):
    """llama.cpp at work on one prompt. One `advance` decodes the whole text."""

    def __init__(self, arm: Arm, prompt: Prompt, budget: int, peers: "PeersBench"):
        super().__init__(arm, iter(()), prompt.ids.shape[1], budget)
        self._prompt, self._peers = prompt, peers

    def advance(self) -> None:
        assert self._peers.llama
        text = whole_text(self._prompt, self._peers.setup.tokenizer)
        made = self._peers.llama.generate(text, self.arm.draft_length, self.budget)
        self.prefill_seconds, self.decode_seconds, self.counts = made.prefill, made.decode, made.counts
        expected = self._peers.whole_text(self._prompt)[: self.budget]
        self.tokens = ids_of(made.text, expected, self._peers.setup.tokenizer)


class PeersBench(Bench):
    """The harness with the library's ways to decode among its arms, and llama.cpp where `llama` is set."""

    llama: Programs | None = None

    def decoding(
        self, arm: Arm, sampling: Sampling, prompt: Prompt, stream: int = 0, budget: int | None = None, *more, **others
    ) -> Decoding:
        budget = budget or self.max_new_tokens
        if arm.method == METHOD:
            return LlamaDecoding(arm, prompt, budget, self)
        if arm.method in PEER.values():
            ids = prompt.ids.to(self.setup.device)
            return PeerDecoding(arm, self.setup.target.model, ids, budget, self.drafters.get(arm.draft))
        return super().decoding(arm, sampling, prompt, stream, budget, *more, **others)

    def greedy_only(self, arm: Arm) -> bool:
        return arm.method in (METHOD, *PEER.values()) or super().greedy_only(arm)
