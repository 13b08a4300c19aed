"""What makes two servers, one that speculates and one that does not: llama-server, vLLM, or the lab's own loop.

Each knows what it lacks here, how both are started and found, and which rounds of the lab its counts are held against.
"""

import contextlib
import itertools
import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from speclab.core.accept import accept_from_logits
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptRule
from speclab.extensions.servers.ask import engines
from speclab.extensions.servers.ask.asking import Prompt
from speclab.extensions.servers.ask.client import Order
from speclab.extensions.servers.ask.inputs import prompts_of
from speclab.extensions.servers.curves.measuring import Lab
from speclab.extensions.servers.load.work import Orders, work
from speclab.extensions.servers.referee.__main__ import compared
from speclab.extensions.servers.referee.own import ended_rounds
from speclab.extensions.servers.start import programs, starting
from speclab.extensions.servers.wrong.lab_server import LabServer
from speclab.models.loading import LAB_PAIR
from speclab.models.outside import written_gguf
from speclab.models.setup import Setup
from speclab.system.files import shown

PORT = 18080  # of the server that speculates; the plain one has the next one


@dataclass
class Place:
    """Where servers come from. llama, vllm: the programs. smollm2: a GGUF file, None where none was named. folder:
    where files are written."""

    lab: Lab
    llama: programs.Program
    vllm: programs.Program
    smollm2: Path | None
    folder: Path
    _written: dict[str, Path] = field(default_factory=dict)

    def file(self, name: str, folder: str, altered: Callable[[Any], Any] = lambda model: model) -> Path:
        """Return a GGUF file of one of the lab's models, written once."""
        if name not in self._written:
            self._written[name] = written_gguf.write(LAB_PAIR / folder, self.folder / f"{name}.gguf", altered)
        return self._written[name]

    def altered_head(self, name: str, **changes: Any) -> Path:
        """Return a copy of the lab's feature head whose config.json says something else."""
        folder = shutil.copytree(LAB_PAIR / "feature", self.folder / name, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_bytes()) | changes
        (folder / "config.json").write_text(json.dumps(config))
        return folder


class Found(NamedTuple):
    """Both servers as they answer. flags: what makes the first one speculate, in words."""

    speculative: engines.Server
    plain: engines.Server
    flags: str


@dataclass(frozen=True, kw_only=True)
class Both(ABC):
    """What makes two servers. k: the drafted tokens of a round. smollm2: whether they serve SmolLM2, which chats, or
    the lab's target. referee: the draft whose rounds in the lab the counts are held against; empty: none."""

    k: int = 4
    smollm2: bool = False
    referee: str = ""

    def missing(self, place: Place) -> str:
        """Return what is not there and how to get it; empty where the servers can be started."""
        return ""

    @abstractmethod
    def started(self, place: Place) -> contextlib.AbstractContextManager[Found]:
        """Start both, and end them behind the block."""

    def verdicts(self, place: Place, server: engines.Server, n_tokens: int) -> list[str]:
        """Return for each of the lab's prompts how the server's counts are beside the lab's rounds."""
        raise NotImplementedError

    @property
    def model(self) -> str:
        """Return what the servers serve, in words."""
        return f"SmolLM2-135M-Instruct, {self.smollm2_format}" if self.smollm2 else "the lab's pair"

    smollm2_format = ""  # in which it is served

    def prompts(self, place: Place) -> list[Prompt]:
        """Return what the servers are asked."""
        return prompts_of(None) if self.smollm2 else [Prompt(one.kind, one.text) for one in place.lab.prompts]

    def orders(self, place: Place, n_tokens: int) -> Orders:
        """Return what users ask the servers, from a number on."""
        return lambda first: work(self.prompts(place), n_tokens, itertools.count(first), alter=True)


@dataclass(frozen=True)
class Programs(Both):
    """Two servers of one program. draft: what the first one drafts with."""

    draft: Callable[[Place], programs.Served]

    @abstractmethod
    def _program(self, place: Place) -> programs.Program: ...

    @abstractmethod
    def _lab_target(self, place: Place) -> Path:
        """Return the lab's target in the form that the program reads."""

    def _said_of_both(self) -> str:
        return ""

    def missing(self, place: Place) -> str:
        """Return what is not there and how to get it; empty where the servers can be started."""
        without = "no GGUF file of SmolLM2 was named; give it with --smollm2"
        return self._program(place).missing() or without * (self.smollm2 and place.smollm2 is None)

    @contextlib.contextmanager
    def started(self, place: Place) -> Iterator[Found]:
        """Start both, and end them behind the block."""
        target = place.smollm2 if self.smollm2 else self._lab_target(place)
        commands = self._program(place).both(str(target), self.draft(place), self.k)
        flags = commands[0][len(commands[1]) :]
        with starting.started(commands, PORT) as (one, other):
            said = re.sub(r'[^\s"]*/', "", " ".join(flags))  # names, and no folders
            yield Found(engines.find(one, None), engines.find(other, None), said + self._said_of_both())


@dataclass(frozen=True)
class Llama(Programs):
    """llama-server. slots: requests at a time. writes: whether a model of the lab is written as a GGUF file."""

    slots: int = field(default=1, kw_only=True)
    writes: bool = field(default=True, kw_only=True)
    smollm2_format = "Q4_1"

    def missing(self, place: Place) -> str:
        """Return what is not there and how to get it; empty where the servers can be started."""
        return super().missing(place) or (written_gguf.missing() if self.writes else "")

    def _program(self, place: Place) -> programs.Program:
        return replace(place.llama, slots=self.slots)

    def _lab_target(self, place: Place) -> Path:
        return place.file("target", "target")

    def _said_of_both(self) -> str:
        return f" -np {self.slots}"

    def verdicts(self, place: Place, server: engines.Server, n_tokens: int) -> list[str]:
        """Return for each of the lab's prompts how the server's counts are beside the lab's rounds. Both draft no more
        than the text has room for."""
        lab, verdicts = place.lab, list[str]()
        for prompt in lab.prompts:
            found = server.ask(Order(prompt.text, n_tokens, chat=False))
            own = ended_rounds(lab.setup, lab.draft(self.referee), prompt, self.k, n_tokens)
            same = found.answer.text == lab.setup.tokenizer.decode(own.tokens)
            equal = same and found.counted is not None and found.counted.speculation == own.counts
            verdicts.append("equal" if equal else "different")
        return verdicts


@dataclass(frozen=True)
class InVllm(Programs):
    """vLLM. weights: the folder of the repository that it drafts with; None: a lookup."""

    weights: Path | None = field(default=None, kw_only=True)
    smollm2_format = "float32"

    def missing(self, place: Place) -> str:
        """Return what is not there and how to get it; empty where the servers can be started."""
        gone = self.weights is not None and not (self.weights / "config.json").is_file()
        without = f"{shown(self.weights)} is not there; take it from a clone of the repository" if self.weights else ""
        return super().missing(place) or without * gone

    def _lab_target(self, place: Place) -> Path:
        return LAB_PAIR / "target"

    def _program(self, place: Place) -> programs.Program:
        return place.vllm

    def verdicts(self, place: Place, server: engines.Server, n_tokens: int) -> list[str]:
        """Return for each of the lab's prompts how the server's counts are beside the lab's rounds. Both draft k tokens
        in the last round, too."""
        lab = place.lab
        rows = compared(server, lab.setup, list(lab.prompts), self.referee, self.k, n_tokens, lab.seed)
        return [row[-1] for row in rows]


@dataclass(frozen=True)
class Loop(Both):
    """Servers around the lab's own loop, for faults that no flag of a program makes. make: the draft. name: its name.

    served: what the server that speculates serves instead of the lab's setup. temperature, one_seed: how it samples,
    whatever a request asks for.
    """

    make: Callable[[Lab], Drafter]
    name: str
    rule: AcceptRule = field(default=accept_from_logits, kw_only=True)
    temperature: float | None = field(default=None, kw_only=True)
    served: Callable[[Setup], Setup] = field(default=lambda setup: setup, kw_only=True)
    one_seed: bool = field(default=False, kw_only=True)

    @contextlib.contextmanager
    def started(self, place: Place) -> Iterator[Found]:
        """Start both, and end them behind the block. They count as vLLM does, and are no vLLM."""
        setup = place.lab.setup
        speculates = LabServer(
            self.served(setup), self.make(place.lab), self.k, self.rule, self.temperature, self.one_seed
        )
        with speculates as one, LabServer(setup, None, 0) as other:
            servers = [engines.find(each.url, None) for each in (one, other)]
            for server in servers:
                server.engine, server.version = "the lab's loop", ""
            yield Found(servers[0], servers[1], f"{self.name}, k = {self.k}")


def lab_draft(place: Place) -> programs.Served:
    """Return the lab's draft model as a file."""
    return programs.weights(place.file("draft", "draft"))


def lookup(place: Place) -> programs.Served:
    """Return a lookup in the text so far."""
    return programs.lookup
