"""What your functions of exercise 18 say of a draft of the lab's target, beside rounds that were counted.

    python -m exercises.distilled build/draft
    python -m exercises.distilled build/draft models/lab-pair/draft --impl solutions

What comes out, of each draft: the loss on texts that the target draws at temperature 1 after the lab's prompts, what it
promises, and the agreement there; then, of the target's greedy texts, how often both models have the same first choice,
the tokens of a round that follow from it, and those of rounds that are replayed. No clock is read.
"""

import importlib
import sys
from types import ModuleType

import torch
from torch import Tensor
from transformers import PreTrainedModel

from exercises.guard import PACKAGES
from exercises.transcript import guarded
from speclab.cli import parsing
from speclab.models import loading, prompts
from speclab.present import tables
from speclab.system.errors import reports_problems
from speclab.system.terminal import note, say
from training.pair import DraftModel
from training.scoring import Known, greedy_texts, score
from training.texts import written_after

K, NEW = 4, 64  # drafted tokens of a round; tokens of a text that is drawn
HEADERS = ["draft", "loss", "entropy", "at least", "agreement", "same choice", f"promised, k = {K}", "replayed"]


@torch.inference_mode()
def drawn(target: PreTrainedModel, tokenizer: object) -> list[tuple[Tensor, Tensor]]:
    """Let the target write after each of the lab's prompts at temperature 1.

    -> of each text its ids (1, length), and the target's logits at the places that it wrote
    """
    given = [prompt.id_list for prompt in prompts.encode(prompts.standard(), tokenizer)]
    draws = torch.Generator().manual_seed(0)
    answers = written_after(target, given, (1.0,) * len(given), NEW, frozenset(), draws)
    texts = [torch.tensor([[*ids, *answer]]) for ids, answer in zip(given, answers, strict=True)]
    return [(ids, logits_of(target, ids, len(prompt))) for ids, prompt in zip(texts, given, strict=True)]


@torch.inference_mode()
def logits_of(model: PreTrainedModel, ids: Tensor, start: int) -> Tensor:
    """Return what the model says of each token from `start` on, (length - start, vocab), of (1, length) ids."""
    return model(input_ids=ids, use_cache=False).logits[0, start - 1 : -1].float()


def cells(learner: ModuleType, name: str, sampled: list[tuple[Tensor, Tensor]], greedy: list[Known]) -> list[str]:
    """Return the line of one draft. sampled: what `drawn` gives. greedy: the target's own greedy texts."""
    draft = loading.load_model(name, torch.device("cpu"), torch.float32, "draft")
    theirs = torch.cat([logits for _, logits in sampled])
    own = torch.cat([logits_of(draft, ids, ids.shape[1] - len(logits)) for ids, logits in sampled])
    found = score(DraftModel(draft, loading.load_tokenizer(name)), greedy, K)
    choice, replayed = found["by_position"][0], found["tokens_per_round"][K]
    with guarded(18):
        p = theirs.softmax(-1)
        cross_entropy, entropy = learner.loss(p, own), learner.loss(p, theirs)
        least, kept = learner.least_agreement(cross_entropy, entropy), learner.agreement(p, own.softmax(-1)).mean()
    promised = sum(choice**i for i in range(K + 1))  # chapter 5
    numbers = (cross_entropy, entropy, least, float(kept), choice, promised, replayed)
    return [name, *(f"{number:.2f}" for number in numbers)]


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Print a line for each draft.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("drafts", nargs="+", metavar="DRAFT", help="folders of draft models")
    parser.add_argument("--impl", choices=PACKAGES, default="exercises", help="whose functions")
    args = parser.parse_args(argv)
    with guarded(18):
        learner, one = importlib.import_module(f"{args.impl}.ex18_train_a_draft"), torch.ones(1, 1)
        learner.least_agreement(learner.loss(one, one), 0.0)  # raises Todo before the minutes of work
        learner.agreement(one, one)
    tokenizer = loading.load_tokenizer(loading.LAB_TARGET)
    for name in args.drafts:
        loading.check_same_tokenizer(tokenizer, loading.load_tokenizer(name), loading.LAB_TARGET, name)
    note("the target writes its texts ...")
    target = loading.load_model(loading.LAB_TARGET, torch.device("cpu"), torch.float32, "target")
    sampled = drawn(target, tokenizer)
    greedy = [text for texts in greedy_texts(target, tokenizer, (0,)).values() for text in texts]
    say(tables.table([cells(learner, name, sampled, greedy) for name in args.drafts], HEADERS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
