"""The servers that are wrong on purpose: what is wrong with each, and which answer of the command would be right."""

from dataclasses import dataclass
from typing import Any

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
from speclab.extensions.servers.diagnosis import COST, LOAD, NOTHING, REJECTED, TEXT_WRONG
from speclab.extensions.servers.start.programs import Served, weights
from speclab.extensions.servers.wrong.makers import Both, Llama, Loop, Place, lab_draft
from speclab.lab.training import degraded_drafts

DROPPED = "has drafted nothing"  # no answer, but the one line with which the command ends
WORDS = "the words that name the fault were 'not explained'"


@dataclass(frozen=True)
class Wrong:
    """One server. answer: what the command should say of its speed; TEXT_WRONG or DROPPED where none of those is right;
    empty where any answer about speed is, and the cause alone counts. cause: the true one, which must be among the two
    that are shown; empty where nothing is wrong. expected_changed: how answer or cause were changed when the server had
    been run. The list of causes is younger than the first two sets, whose causes stood there in other words.

    others: users who ask the server at the same time. lengths: every other prompt is cut short, and the rest are long.
    """

    name: str
    fault: str
    answer: str
    cause: str
    servers: Both
    others: int = 0
    lengths: bool = False
    expected_changed: str = ""


def itself(place: Place) -> Served:
    """Return SmolLM2, the target, as its own draft."""
    assert place.smollm2  # nothing is started without it
    return weights(place.smollm2)


def noisy_draft(place: Place) -> Served:
    """Return the lab's draft with noise of the spread of its weights."""
    return weights(place.file("noisy", "draft", lambda model: degraded_drafts.noisy(model, 1.0, place.lab.seed)))


def turned_draft(place: Place) -> Served:
    """Return the lab's draft with another rotary base than it was trained with."""

    def turned(model: Any) -> Any:
        model.config.rope_parameters["rope_theta"] *= 100
        return model

    return weights(place.file("turned", "draft", turned))


BEFORE = (
    Wrong("as it is", "nothing in the draft: a pass over five tokens is dear on this engine",
          COST, DEAR_PASS, Llama(lab_draft, referee="model"), expected_changed=f"the answer was {NOTHING!r}"),
    Wrong("nothing wrong", "nothing: the lab's feature head", NOTHING, "",
          Loop(lambda lab: lab.draft("feature"), "feature head"), expected_changed="the server was added"),
    Wrong("k = 12", "twelve drafted tokens a round", COST, TOO_LONG,
          Llama(lab_draft, k=12)),
    Wrong("damaged draft", "noise of the weights' own spread in the draft", REJECTED,
          DAMAGED, Llama(noisy_draft), expected_changed="the words that name the fault"),
    Wrong("another model's draft", "the lab's draft, of another vocabulary: llama-server drops it",
          DROPPED, "of another vocabulary", Llama(lab_draft, smollm2=True),
          expected_changed=f"the answer was {REJECTED!r}"),
    Wrong("a draft as large as its target", "the target as its own draft", COST, DEAR_DRAFT,
          Llama(itself, smollm2=True, writes=False)),
    Wrong("load", "seven users of others ask at the same time", LOAD, BUSY,
          Llama(lab_draft, slots=8), others=7),
    Wrong("weights not loaded", "random numbers in the head's output layer", REJECTED,
          DAMAGED, Loop(lambda lab: lab.head(FeatureDrafter, overwritten=True), "feature head")),
)  # fmt: skip
# By the first set the thresholds were changed. The second set was chosen after that, and tested them; what it showed
# led to the rules and causes of today.
AFTER = (
    Wrong("wrong layers", "the head reads the states after layers 0, 1 and 2", REJECTED,
          STATES, Loop(lambda lab: lab.head(faults.WrongLayers), "feature head")),
    Wrong("one off", "every state with the token at its own place", REJECTED,
          STATES, Loop(lambda lab: lab.head(faults.OneOff), "feature head")),
    Wrong("stale token", "every pass but the first reads the token before", REJECTED,
          FEEDBACK, Loop(lambda lab: lab.head(faults.StaleToken), "feature head")),
    Wrong("wide pass", "the target's rows behind the first are one off", REJECTED,
          WIDE_PASS, Loop(lambda lab: lab.draft("feature"), "feature head", rule=faults.one_row_off),
          expected_changed=WORDS),
    Wrong("sampler", "the server samples at T = 1 where it is asked greedily", REJECTED,
          SAMPLES, Loop(lambda lab: lab.draft("feature"), "feature head", temperature=1.0), expected_changed=WORDS),
    Wrong("nothing verified", "every drafted token is kept", TEXT_WRONG, LENIENT,
          Loop(lambda lab: lab.draft("feature"), "feature head", rule=faults.keeps_everything),
          expected_changed=f"the answer was {NOTHING!r}; {WORDS}"),
    Wrong("window", "behind position 240 the head reads states of the beginning", REJECTED,
          SHORT, Loop(lambda lab: lab.head(faults.Window), "feature head"), lengths=True),
    Wrong("cached", "the states of a prompt that was asked before are missing", "",
          UNCACHED, Loop(lambda lab: lab.head(faults.ForgetsCached), "feature head"),
          expected_changed=f"the answer was {NOTHING!r}"),
    Wrong("other positions", "the draft's rotary base is a hundred times too large", REJECTED,
          DAMAGED, Llama(turned_draft)),
)  # fmt: skip
