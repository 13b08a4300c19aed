"""The servers that are wrong on purpose: what is wrong with each, and which answer of the command would be right."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from speclab.core.accept import accept_from_logits
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptRule
from speclab.drafts.feature import FeatureDrafter
from speclab.extensions.servers.causes import (
    BUSY,
    DAMAGED,
    DEAR_DRAFT,
    DEAR_PASS,
    FEEDBACK,
    LENIENT,
    SAMPLES,
    SHORT,
    STATES,
    TOO_LONG,
    UNCACHED,
    WIDE_PASS,
)
from speclab.extensions.servers.curves import faults
from speclab.extensions.servers.curves.measuring import Lab
from speclab.extensions.servers.diagnosis import COST, LOAD, NOTHING, REJECTED, TEXT_WRONG
from speclab.extensions.servers.start import lab_gguf, starting
from speclab.extensions.servers.wrong.lab_server import LabServer
from speclab.lab.training import degraded_drafts
from speclab.models.loading import LAB_PAIR
from speclab.models.setup import Setup

FEATURE = "feature head, k = 4"
DROPPED = "has drafted nothing"  # no answer, but the one line with which the command ends
WORDS = "the words that name the fault were 'not explained'"
PORT = 18080  # of the server that speculates; the plain one has the next one
LOOP = "the lab's loop"
LAB_PAIR_NAME, SMOLLM2 = "the lab's pair", "SmolLM2-135M-Instruct, Q4_1"
LAYERS = "eagle_aux_hidden_state_layer_ids"  # after which layers of the target a head reads its states


@dataclass
class Place:
    """Where servers come from: llama-server and files for it, vLLM, or the lab's loop. smollm2: a GGUF file. vllm: the
    Python that has it; None: the one that `make vllm` makes."""

    lab: Lab
    program: str
    smollm2: Path
    folder: Path
    vllm: str | None = None
    _written: dict[str, Path] = field(default_factory=dict)

    def file(self, name: str, folder: str, altered: Callable[[Any], Any] = lambda model: model) -> Path:
        """Return a GGUF file of one of the lab's models, written once."""
        if name not in self._written:
            self._written[name] = lab_gguf.write(LAB_PAIR / folder, self.folder / f"{name}.gguf", altered)
        return self._written[name]

    def altered_head(self, name: str, **changes: Any) -> Path:
        """Return a copy of the lab's feature head whose config.json says something else."""
        folder = shutil.copytree(LAB_PAIR / "feature", self.folder / name, dirs_exist_ok=True)
        config = json.loads((folder / "config.json").read_bytes()) | changes
        (folder / "config.json").write_text(json.dumps(config))
        return folder


@dataclass(frozen=True)
class Urls:
    """Both servers. flags: what makes the first one speculate, in words. engine: a name for a server that counts as
    another engine does; empty where the server says its own."""

    url: str
    plain: str
    flags: str
    engine: str = ""


Start = Callable[[Place], contextlib.AbstractContextManager[Urls]]


@dataclass(frozen=True)
class Wrong:
    """One server. answer: what the command should say of its speed; TEXT_WRONG or DROPPED where none of those is right;
    empty where any answer about speed is, and the cause alone counts. cause: the true one, which must be among the two
    that are shown; empty where nothing is wrong. expected_changed: how answer or cause were changed when the server had
    been run. The list of causes is younger than the first two sets, whose causes stood there in other words.

    others: users who ask the server at the same time. lengths: every other prompt is cut short, and the rest are long.
    referee: the draft whose rounds on the lab's own loop the server's counts are held against; empty: none.
    """

    name: str
    half: Literal["before", "after", "third", "vllm"]
    model: str
    fault: str
    answer: str
    cause: str
    start: Start
    k: int = 4
    others: int = 0
    lengths: bool = False
    referee: str = ""
    expected_changed: str = ""


@contextlib.contextmanager
def both(plain: list[str], flags: list[str], *more: str) -> Iterator[Urls]:
    """Start a server with these flags, and one without them. more: what else is to be said of both."""
    with (
        starting.started([*plain, *flags, "--port", str(PORT)], PORT) as url,
        starting.started([*plain, "--port", str(PORT + 1)], PORT + 1) as other,
    ):
        yield Urls(url, other, " ".join([re.sub(r'[^\s"]*/', "", " ".join(flags)), *more]))  # names, and no folders


def llama(draft: Callable[[Place], Path], k: int = 4, slots: int = 1, smollm2: bool = False) -> Start:
    """Return what starts two llama-servers, with a draft from a file and without one."""

    def start(place: Place) -> contextlib.AbstractContextManager[Urls]:
        target = place.smollm2 if smollm2 else place.file("target", "target")
        flags = starting.drafted(draft(place), k)
        return both(starting.llama(place.program, target, slots), flags, "-np", str(slots))

    return start


def vllm(draft: Callable[[Place], Path], k: int = 4, smollm2: bool = False) -> Start:
    """Return what starts two servers of vLLM, with a draft and without one."""

    def start(place: Place) -> contextlib.AbstractContextManager[Urls]:
        target = place.smollm2 if smollm2 else LAB_PAIR / "target"
        return both(*starting.vllm(place.vllm, target, draft(place), k))

    return start


def loop(
    make: Callable[[Lab], Drafter],
    flags: str,
    k: int = 4,
    rule: AcceptRule = accept_from_logits,
    temperature: float | None = None,
    served: Callable[[Setup], Setup] = lambda setup: setup,
    one_seed: bool = False,
) -> Start:
    """Return what starts two servers around the lab's own loop. served: what the server that speculates serves instead
    of the lab's setup. temperature, one_seed: how it samples, whatever a request asks for."""

    @contextlib.contextmanager
    def start(place: Place) -> Iterator[Urls]:
        setup = place.lab.setup
        with (
            LabServer(served(setup), make(place.lab), k, rule, temperature, one_seed) as one,
            LabServer(setup, None, 0) as other,
        ):
            yield Urls(one.url, other.url, flags, LOOP)

    return start


def lab_draft(place: Place) -> Path:
    """Return the lab's draft model as a file."""
    return place.file("draft", "draft")


def lookup(place: Place) -> Path:
    """Return the word for a lookup in the text so far."""
    return Path(starting.LOOKUP)


def noisy_draft(place: Place) -> Path:
    """Return the lab's draft with noise of the spread of its weights."""
    return place.file("noisy", "draft", lambda model: degraded_drafts.noisy(model, 1.0, place.lab.seed))


def turned_draft(place: Place) -> Path:
    """Return the lab's draft with another rotary base than it was trained with."""

    def turned(model: Any) -> Any:
        model.config.rope_parameters["rope_theta"] *= 100
        return model

    return place.file("turned", "draft", turned)


BEFORE = (
    Wrong("as it is", "before", LAB_PAIR_NAME, "nothing in the draft: a pass over five tokens is dear on this engine",
          COST, DEAR_PASS, llama(lab_draft), referee="model", expected_changed=f"the answer was {NOTHING!r}"),
    Wrong("nothing wrong", "before", LAB_PAIR_NAME, "nothing: the lab's feature head", NOTHING, "",
          loop(lambda lab: lab.draft("feature"), FEATURE), expected_changed="the server was added"),
    Wrong("k = 12", "before", LAB_PAIR_NAME, "twelve drafted tokens a round", COST, TOO_LONG,
          llama(lab_draft, 12), k=12),
    Wrong("damaged draft", "before", LAB_PAIR_NAME, "noise of the weights' own spread in the draft", REJECTED,
          DAMAGED, llama(noisy_draft), expected_changed="the words that name the fault"),
    Wrong("another model's draft", "before", SMOLLM2, "the lab's draft, of another vocabulary: llama-server drops it",
          DROPPED, "of another vocabulary", llama(lab_draft, 4, 1, True),
          expected_changed=f"the answer was {REJECTED!r}"),
    Wrong("a draft as large as its target", "before", SMOLLM2, "the target as its own draft", COST, DEAR_DRAFT,
          llama(lambda place: place.smollm2, 4, 1, True)),
    Wrong("load", "before", LAB_PAIR_NAME, "seven users of others ask at the same time", LOAD, BUSY,
          llama(lab_draft, 4, 8), others=7),
    Wrong("weights not loaded", "before", LAB_PAIR_NAME, "random numbers in the head's output layer", REJECTED,
          DAMAGED, loop(lambda lab: lab.head(FeatureDrafter, overwritten=True), FEATURE)),
)  # fmt: skip
# By the first set the thresholds were changed. The second set was chosen after that, and tested them; what it showed
# led to the rules and causes of today.
AFTER = (
    Wrong("wrong layers", "after", LAB_PAIR_NAME, "the head reads the states after layers 0, 1 and 2", REJECTED,
          STATES, loop(lambda lab: lab.head(faults.WrongLayers), FEATURE)),
    Wrong("one off", "after", LAB_PAIR_NAME, "every state with the token at its own place", REJECTED,
          STATES, loop(lambda lab: lab.head(faults.OneOff), FEATURE)),
    Wrong("stale token", "after", LAB_PAIR_NAME, "every pass but the first reads the token before", REJECTED,
          FEEDBACK, loop(lambda lab: lab.head(faults.StaleToken), FEATURE)),
    Wrong("wide pass", "after", LAB_PAIR_NAME, "the target's rows behind the first are one off", REJECTED,
          WIDE_PASS, loop(lambda lab: lab.draft("feature"), FEATURE, rule=faults.one_row_off),
          expected_changed=WORDS),
    Wrong("sampler", "after", LAB_PAIR_NAME, "the server samples at T = 1 where it is asked greedily", REJECTED,
          SAMPLES, loop(lambda lab: lab.draft("feature"), FEATURE, temperature=1.0), expected_changed=WORDS),
    Wrong("nothing verified", "after", LAB_PAIR_NAME, "every drafted token is kept", TEXT_WRONG, LENIENT,
          loop(lambda lab: lab.draft("feature"), FEATURE, rule=faults.keeps_everything),
          expected_changed=f"the answer was {NOTHING!r}; {WORDS}"),
    Wrong("window", "after", LAB_PAIR_NAME, "behind position 240 the head reads states of the beginning", REJECTED,
          SHORT, loop(lambda lab: lab.head(faults.Window), FEATURE), lengths=True),
    Wrong("cached", "after", LAB_PAIR_NAME, "the states of a prompt that was asked before are missing", "",
          UNCACHED, loop(lambda lab: lab.head(faults.ForgetsCached), FEATURE),
          expected_changed=f"the answer was {NOTHING!r}"),
    Wrong("other positions", "after", LAB_PAIR_NAME, "the draft's rotary base is a hundred times too large", REJECTED,
          DAMAGED, llama(turned_draft)),
)  # fmt: skip
