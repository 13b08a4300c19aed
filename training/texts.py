"""The texts that a draft learns from: answers that its target has written, and rows of them.

A target with a chat template is asked questions that it has written itself: what a person says inside the template is
text like any other, and a chat model continues its beginning with a question. Every target also continues pieces of the
sources of Python's standard library. No text that the lab measures with is among the prompts, and the first answers are
held out: acceptance is measured on them.
"""

import functools
import random
import re
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase, StaticCache

from speclab.models import prompts
from speclab.models.loading import eos_ids
from speclab.models.prompts import LAB_TEXTS
from training.corpus import Document, prose
from training.recipes import sizes_like
from training.steps import at_once

ENCODED_AT_ONCE = 512  # texts
GREEDY = 1e-4  # a temperature as good as 0
TEMPERATURES = (GREEDY, 0.8, GREEDY, 1.0)  # of answers, in turn: the draft will be asked to guess in all of them
ROWS = {256: 0.65, 512: 0.25, 1024: 0.10}  # tokens of a row: the share of all tokens that is in such rows
MARGIN = 8  # tokens at the end of a row from which no chain starts, where chains are no longer
QUESTION, SHORTEST_QUESTION, QUESTION_TEMPERATURE = 64, 4, 0.9  # tokens of a question
ANSWER = 192  # tokens of an answer at most
PIECES = (16, 48, 128)  # tokens of a piece of text that the target continues
FEW_TEXTS, MANY_TEXTS = 32, 2048  # written side by side: on a CPU, and at most on a GPU
PARTS_OF_CHOICE = 5  # numbers for each id of a text while a token is drawn: logits, probabilities, noise
ENOUGH = 7 / 8  # of the texts side by side have ended: the others are left as they are
HELD_OUT = 24  # answers to be scored
OF_QUESTIONS = 0.8  # share of the prompts that the target has asked itself, where it has a chat template
PLAIN, PLAIN_OF_CHATS = 0.5, 0.1  # share of the rows that are training text, without and with a chat template
RUN_OF_WORDS = 13  # so many words in a row in common make a text one that is measured


class Text(NamedTuple):
    """What the target has written after a prompt, in ids."""

    prompt: list[int]
    answer: list[int]

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.answer


def encode(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> Tensor:
    """All texts in one stream of ids, each ended by the tokenizer's end token if it has one.  -> (tokens,) int32

    Texts are encoded many at once, on all cores.
    """
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    parts = []
    for start in range(0, len(texts), ENCODED_AT_ONCE):
        for ids in tokenizer(texts[start : start + ENCODED_AT_ONCE]).input_ids:
            parts.append(np.array([*ids, *end], dtype=np.int32))
    return torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.int32)


# --- what is measured, and must not be trained on ---------------------------------------------------------------------


def measured_texts() -> list[str]:
    """Return every text of the lab that is measured: all standard prompts, and all messages of the lab's own texts."""
    own = [message["content"] for name in LAB_TEXTS for _, messages in prompts.read_texts(name) for message in messages]
    return [*(text for _, text in prompts.standard()), *own]


def is_measured(text: str) -> bool:
    """Tell whether a text has 13 words in a row in common with one that is measured, or is a shorter one of them."""
    return not _runs(text).isdisjoint(_measured_runs())


@functools.cache
def _measured_runs() -> frozenset[str]:
    return frozenset(run for text in measured_texts() for run in _runs(text))


def _runs(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    parts = [words[i : i + RUN_OF_WORDS] for i in range(len(words) - RUN_OF_WORDS + 1)]
    return {" ".join(part) for part in (*parts, words)}


# --- writing ----------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def written_after(
    target: PreTrainedModel,
    given: list[list[int]],
    temperatures: tuple[float, ...],
    most: int,
    ends: frozenset[int],
    draws: torch.Generator,
) -> list[list[int]]:
    """Let the target write at most `most` tokens after each of these ids, side by side.

    temperatures: one for each. ends: a text ends with one of these ids. When ENOUGH of the texts have ended, the others
    are left as they are. draws: gives the randomness, on the target's device.
    """
    target.eval()
    device, length = target.device, max(map(len, given))
    pad = [length - len(ids) for ids in given]
    feed = torch.tensor([[0] * n + ids for n, ids in zip(pad, given, strict=True)], device=device)  # (rows, length)
    before = torch.tensor(pad, device=device)[:, None]
    # A StaticCache is allocated once, while a DynamicCache copies all keys and values for every new token; but models
    # that the library cannot compile may count on the shapes of a DynamicCache.
    cache: Cache = DynamicCache(config=target.config)
    if target._can_compile_fullgraph:
        cache = StaticCache(config=target.config, max_cache_len=length + most)
    divisors = torch.tensor(temperatures, device=device)[:, None]
    stops = torch.tensor(sorted(ends), device=device, dtype=torch.long)
    ended = torch.zeros(len(given), dtype=torch.bool, device=device)
    columns: list[Tensor] = []
    for n in range(length, length + most):
        how: dict[str, Any] = {}
        if any(pad):  # texts of one length need neither, and some models know no positions
            places = torch.arange(n, device=device).expand(len(given), -1)
            how = {"attention_mask": (places >= before).long()}
            how["position_ids"] = (places[:, -feed.shape[1] :] - before).clamp(min=0)
        logits = target(input_ids=feed, past_key_values=cache, use_cache=True, logits_to_keep=1, **how).logits[:, -1]
        feed = (logits.float() / divisors).softmax(-1).multinomial(1, generator=draws)  # (rows, 1)
        columns.append(feed[:, 0])
        ended |= (feed == stops).any(-1)
        if ended.sum() >= ENOUGH * len(given):
            break
    rows = torch.stack(columns, dim=1).tolist()
    return [row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))] for row in rows]


class Prompts:
    """Gives prompts without end: questions that the target has asked itself, and pieces of text.

    before, after: what a chat template writes before and after what a person says, in ids; both are empty where there
    is no template, or none that can be taken apart.
    """

    def __init__(self, tokenizer: Any, writer: PreTrainedModel, documents: list[Document], seed: int):
        self.tokenizer, self.writer, self.picks = tokenizer, writer, random.Random(seed)
        used = [d.text for d in documents if not d.held_out]
        self.pieces = [text for source in used for text in prose(source)], used
        self.before, self.after = self._frame()
        self.longest = max(len(self.before) + QUESTION + len(self.after), *PIECES)  # tokens of a prompt

    def _frame(self) -> tuple[list[int], list[int]]:
        if not self.tokenizer.chat_template:
            return [], []
        chats: list[Any] = [[{"role": "user", "content": word}] for word in ("Seven", "Why")]
        one, other = (ids[0].tolist() for chat in chats for ids in prompts.chats_ids([chat], self.tokenizer))
        n, m = (
            next((i for i, (a, b) in enumerate(zip(one[::way], other[::way], strict=False)) if a != b), 0)
            for way in (1, -1)
        )
        return (one[:n], one[len(one) - m :]) if n and m else ([], [])

    def some(self, n: int, draws: torch.Generator) -> list[list[int]]:
        """About n prompts, at least one, none of which is measured."""
        n_asked = round(OF_QUESTIONS * n) if self.before else 0
        questions = self._questions(n_asked, draws) if n_asked else []
        found = [[*self.before, *ids, *self.after] for ids in questions if self._is_new(ids)]
        found += [ids for ids in (self._piece() for _ in range(n - n_asked)) if self._is_new(ids)]
        return found or self.some(n, draws)

    def _is_new(self, ids: list[int]) -> bool:
        return not is_measured(self.tokenizer.decode(ids))

    def _questions(self, n: int, draws: torch.Generator) -> list[list[int]]:
        """What the target says in the place of a person, where it comes to an end."""
        end, special, at = self.after[0], set(self.tokenizer.all_special_ids), (QUESTION_TEMPERATURE,) * n
        asked = written_after(self.writer, [self.before] * n, at, QUESTION, frozenset([end]), draws)
        whole = [ids[:-1] for ids in asked if ids[-1] == end]
        return [ids for ids in whole if len(ids) >= SHORTEST_QUESTION and special.isdisjoint(ids)]

    def _piece(self) -> list[int]:
        """The beginning of a docstring, or a piece from inside a source."""
        kind = self.picks.choice([part for part in self.pieces if part])
        text, n = self.picks.choice(kind), self.picks.choice(PIECES)
        start = self.picks.randrange(max(1, len(text) - 8 * n)) if kind is self.pieces[1] else 0
        return self.tokenizer(text[start : start + 16 * n]).input_ids[:n] or self._piece()


def written(
    target: PreTrainedModel, tokenizer: Any, documents: list[Document], lengths: list[int], seconds: float, seed: int
) -> tuple[list[Text], list[Text]]:
    """Let the target write for `seconds`, at least as much as a row takes.  -> the answers that are held out, which are
    the target's greedy ones, and those to learn from. lengths: of rows."""
    ends = frozenset({*eos_ids(target.generation_config), tokenizer.eos_token_id} - {None})
    start, draws = time.monotonic(), torch.Generator(target.device).manual_seed(seed)
    prompts = Prompts(tokenizer, target, documents, seed)
    sizes = sizes_like(target, target.config.get_text_config().num_hidden_layers, 0)
    # A text takes its keys and values, and the numbers of one choice.
    n_numbers = 2 * sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * sizes["head_dim"]
    size = 4 * (n_numbers * (prompts.longest + ANSWER) + PARTS_OF_CHOICE * sizes["vocab_size"])
    n_texts, answers = at_once(target.device, FEW_TEXTS, MANY_TEXTS, size), list[Text]()

    def write(n: int, temperatures: tuple[float, ...]) -> list[Text]:
        given = prompts.some(n, draws)
        at = tuple(temperatures[i % len(temperatures)] for i in range(len(given)))
        return list(map(Text, given, written_after(target, given, at, ANSWER, ends, draws)))

    held_out = write(HELD_OUT, (GREEDY,))
    kept_out = [text.prompt for text in held_out]
    while time.monotonic() < start + seconds or not packed(answers, lengths):
        answers += [text for text in write(n_texts, TEMPERATURES) if text.prompt not in kept_out]
    return held_out, answers


# --- rows -------------------------------------------------------------------------------------------------------------


def packed(texts: list[Text], lengths: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Rows of one or several texts, each beginning with a text: length -> ids (rows, length), and which of them the
    target has written.

    The tokens of all rows of a length have the shares of ROWS. Each text is in rows of one length, so that the target
    reads it once. What is longer than a row, or does not fill one at the end, is left out.
    """
    rows: dict[int, tuple[list[Tensor], list[Tensor]]] = {length: ([], []) for length in lengths}
    left = iter(texts)
    while True:
        length = min(lengths, key=lambda n: (len(rows[n][0]) * n / ROWS[n], n))
        ids: list[int] = []
        written: list[bool] = []
        while len(ids) < length and (text := next(left, None)):
            ids += text.ids
            written += [False] * len(text.prompt) + [True] * len(text.answer)
        if len(ids) < length:
            return {length: (torch.stack(a).int(), torch.stack(b)) for length, (a, b) in rows.items() if a}
        rows[length][0].append(torch.tensor(ids[:length]))
        rows[length][1].append(torch.tensor(written[:length]))


def batch(
    stream: Tensor,
    rows: dict[int, tuple[Tensor, Tensor]],
    plain: float,
    chains: float,
    step: int,
    seed: int,
    tokens: int,
    margin: int = MARGIN,
) -> tuple[Tensor, Tensor]:
    """Rows of one length, (rows, length) ids, and positions in them, (rows, chains), always the same for the same
    arguments. The token two places on is the first that a chain drafts: where there are enough, one of an answer.

    stream: training text. plain: the share of the rows that is cut from it. chains: the number of positions as a share
    of the length. tokens: of all rows together, at most, but at least one row. margin: tokens at the end of a row from
    which no chain starts, at least as many as it drafts.
    """
    generator = torch.Generator().manual_seed((seed + 3) * 1_000_003 + step)
    shares = torch.tensor([float(ids.numel()) for ids, _ in rows.values()])
    length = list(rows)[int(torch.multinomial(shares, 1, generator=generator))]
    n_rows = max(1, tokens // length)
    pieces = len(stream) // length  # side by side: each comes again, and the target's pass may be kept
    n_plain = int(plain * n_rows + torch.rand((), generator=generator).item()) if pieces else 0
    ids, written = rows[length]
    picks = torch.randint(0, len(ids), (n_rows - n_plain,), generator=generator)
    starts = length * torch.randint(0, max(1, pieces), (n_plain,), generator=generator)
    cut = stream[starts[:, None] + torch.arange(length)] if n_plain else ids[:0]
    wanted = torch.cat([written[picks], torch.ones(cut.shape, dtype=torch.bool)])[:, 2 : length - margin + 2]
    order = torch.rand(wanted.shape, generator=generator) + wanted
    n_chains = max(1, round(chains * length))
    positions = order.topk(min(n_chains, order.shape[1]), dim=1).indices.sort(dim=1).values
    return torch.cat([ids[picks], cut]).long(), positions


def frequent_ids(texts: list[Text], vocab: int, n: int) -> Tensor:
    """The ids that the target emits most often, (n,) in order; among equally frequent ones the lowest, which most
    tokenizers have learned first."""
    emitted = torch.tensor([token for text in texts for token in text.answer])
    counts = torch.bincount(emitted, minlength=vocab)
    return counts.sort(descending=True, stable=True).indices[:n].sort().values
