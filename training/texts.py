"""The texts that a draft learns from: answers that its target has written, and rows of them.

A target with a chat template is asked questions that it has written itself: what a person says inside the template is
text like any other, and a chat model continues its beginning with a question. Every target also continues pieces of the
sources of Python's standard library, and answers or continues the texts of --texts. No prompt that the lab measures
with is among them, and the first ones are held out: acceptance is measured on their answers.
"""

import copy
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel, PreTrainedTokenizerBase, StaticCache

from speclab.models import prompts
from speclab.system.terminal import note
from training.corpus import Document
from training.documents import prose
from training.measured import is_measured, measured_texts
from training.recipes import sizes_like
from training.room import Room
from training.steps import product_dtype

ENCODED_AT_ONCE = 512  # texts
PROMPT, CONTINUED = 48, 256  # tokens of text that a continuation starts from, and tokens of both together
LOWEST = 1e-4  # as good as greedy
TEMPERATURES = (LOWEST, 0.8, LOWEST, 1.0)  # of answers, in turn: the draft will be asked to guess in all of them
ROWS = {256: 0.65, 512: 0.25, 1024: 0.10}  # tokens of a row: the share of all tokens that is in such rows
MARGIN = 8  # tokens at the end of a row from which no chain starts: the longest chain has fewer
QUESTION, SHORTEST_QUESTION, QUESTION_TEMPERATURE = 64, 4, 0.9  # tokens of a question
ANSWER = 192  # tokens of an answer at most
PIECES = (16, 48, 128)  # tokens of a piece of text that the target continues
FIRST_AT_ONCE, OWN_AT_ONCE = 16, 128  # texts written side by side: few at first, to know how long it takes
FIRST_WIDE, OWN_WIDE = 512, 4096  # the same on a GPU, where memory has room for them
PARTS_OF_CHOICE = 5  # numbers of float32 for each id of a text while a token is drawn: logits, probabilities, noise
ENOUGH = 7 / 8  # of the texts side by side have ended: the others are left as they are
HELD_OUT, HELD_OUT_WIDE = 24, 48  # answers to be scored; the second on a GPU
OF_QUESTIONS = 0.8  # share of the prompts that the target has asked itself, where it has a chat template
PLAIN, PLAIN_OF_CHATS = 0.5, 0.1  # share of the rows that are training text, without and with a chat template


@dataclass(frozen=True)
class Text:
    """What the target has written after a prompt, in ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and answer."""
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


def streams(tokenizer: PreTrainedTokenizerBase, documents: list[Document]) -> tuple[Tensor, Tensor]:
    """The ids of the documents to train on, and of those that are held out."""
    stream = encode(tokenizer, [d.text for d in documents if not d.held_out])
    held_out = encode(tokenizer, [d.text for d in documents if d.held_out])
    note(f"{len(stream):,} tokens to train on, {len(held_out):,} held out")
    return stream, held_out


# --- writing ----------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def continuations(
    target: PreTrainedModel,
    pieces: Tensor,
    seconds: float,
    seed: int,
    rows: int = 64,
    length: int = CONTINUED,
    temperatures: tuple[float, ...] = (1e-4, 0.8, 1.0),
) -> Tensor:
    """Let the target continue pieces of text for `seconds`, at least once.  -> (n, length) ids, pieces included

    pieces: (n, prompt) ids, of which `rows` are drawn at a time. seed: the seed for drawing pieces and tokens.
    temperatures: those of the rows in turn; the lowest is as good as greedy.
    """
    generator = torch.Generator().manual_seed(seed)
    written: list[list[int]] = []
    draws = torch.Generator(target.device).manual_seed(seed)
    at = (temperatures * rows)[:rows]
    end = time.monotonic() + seconds
    while not written or time.monotonic() < end:
        some = pieces[torch.randint(0, len(pieces), (rows,), generator=generator)].tolist()
        answers = written_after(target, some, at, length - len(some[0]), frozenset(), draws)
        written += [[*piece, *answer] for piece, answer in zip(some, answers, strict=True)]
    return torch.tensor(written)


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

    temperatures: one for each; the lowest is as good as greedy. ends: a text ends with one of these ids. When ENOUGH of
    the texts have ended, the others are left as they are. draws: gives the randomness, on the target's device.
    """
    target.eval()
    device, length = target.device, max(map(len, given))
    pad = [length - len(ids) for ids in given]
    feed = torch.tensor([[0] * n + ids for n, ids in zip(pad, given, strict=True)], device=device)  # (rows, length)
    before = torch.tensor(pad, device=device)[:, None]
    cache = _cache(target, length + most)
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
    return [_until(row, ends) for row in torch.stack(columns, dim=1).tolist()]


def _until(ids: list[int], ends: frozenset[int]) -> list[int]:
    """The ids up to the first end, which is the last of them."""
    return ids[: next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))]


def _cache(target: PreTrainedModel, length: int) -> Cache:
    """A cache for texts of this length. A StaticCache is allocated once, while a DynamicCache copies all keys and
    values for every new token; but models that the library cannot compile may count on the shapes of a DynamicCache."""
    if target._can_compile_fullgraph:
        return StaticCache(config=target.config, max_cache_len=length)
    return DynamicCache(config=target.config)


def in_fast_precision(target: PreTrainedModel) -> PreTrainedModel:
    """A copy whose weights have the precision that is faster here. Its buffers, the rotary frequencies among them, stay
    as they are: in bfloat16 distant positions would be others."""
    writer = copy.deepcopy(target)
    for weight in writer.parameters():
        weight.data = weight.data.to(product_dtype(target.device))
    return writer


def side_by_side(room: Room, target: PreTrainedModel, prompt: int) -> int:
    """Return how many texts the target may write at once, at least one: on a GPU as many as a third of its memory
    holds.

    prompt: the tokens of the longest prompt. A text takes its keys and values in bfloat16, the numbers of one choice,
    and states of one layer while its prompt is read.
    """
    if not room.is_wide:
        return OWN_AT_ONCE
    config = target.config.get_text_config()
    sizes = sizes_like(target, config.num_hidden_layers, getattr(config, "intermediate_size", 4 * config.hidden_size))
    n_numbers = 2 * sizes["num_key_value_heads"] * sizes["head_dim"]  # keys and values of a token in one layer
    cache = sizes["num_hidden_layers"] * n_numbers * (prompt + ANSWER) * 2
    choice = PARTS_OF_CHOICE * sizes["vocab_size"] * 4
    reading = prompt * (8 * sizes["hidden_size"] + 4 * sizes["intermediate_size"]) * 2
    return room.fitting(OWN_WIDE, cache + choice + reading)


def next_at_once(room: Room, now: int, most: int, took: float, usual: float) -> int:
    """Return how many texts are written side by side next. took: the seconds of those `now`. usual: what it may take.

    On a GPU these are at once as many as there may be: a step takes about as long for few.
    """
    if room.is_wide:
        return most
    return 2 * now if 2 * took < usual and now < most else now


def ends_of(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that end an answer."""
    settings: Any = getattr(target, "generation_config", None)
    found = getattr(settings, "eos_token_id", None)
    several = found if isinstance(found, list) else [found]
    return frozenset(token for token in (*several, tokenizer.eos_token_id) if token is not None)


# --- prompts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """What a chat template writes before and after what a person says, in ids."""

    before: list[int]
    after: list[int]


def frame_of(tokenizer: PreTrainedTokenizerBase) -> Frame | None:
    """The frame of a question; None where there is no template, or none that can be taken apart."""
    if not tokenizer.chat_template:
        return None
    parts = []
    for word in ("Seven", "Why"):
        (ids,) = prompts.chats_ids([[{"role": "user", "content": word}]], tokenizer)
        parts.append(ids[0].tolist())
    one, other = parts
    n = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    m = next((i for i, (a, b) in enumerate(zip(one[::-1], other[::-1], strict=False)) if a != b), 0)
    return Frame(one[:n], one[len(one) - m :]) if n and m else None


class Prompts:
    """Gives prompts without end: questions of the target itself, pieces of text, and those of --texts."""

    def __init__(self, tokenizer: Any, writer: PreTrainedModel, documents: list[Document], given: list[str], seed: int):
        self.tokenizer, self.writer, self.frame = tokenizer, writer, frame_of(tokenizer)
        self.picks = random.Random(seed)
        self.given = self._encoded([text for text in given if not is_measured(text)], bool(self.frame))
        self.picks.shuffle(self.given)
        used = [d.text for d in documents if not d.held_out]
        self.pieces = [text for source in used for text in prose(source)], used
        asked = len(self.frame.before) + QUESTION + len(self.frame.after) if self.frame else 0
        self.longest = max(asked, *PIECES, *map(len, self.given))  # tokens of a prompt
        measured = measured_texts()
        ways = {False, bool(self.frame)}  # as they are, and in the template where there is one
        self.measured = {tuple(ids) for chat in ways for ids in self._encoded(measured, chat)}

    def some(self, n: int, draws: torch.Generator) -> list[list[int]]:
        """About n prompts, at least one."""
        found = [self.given.pop() for _ in range(min(len(self.given), (n + 1) // 2))]
        left = n - len(found)
        n_asked = round(OF_QUESTIONS * left) if self.frame else 0
        found += self._questions(n_asked, draws) if n_asked else []
        while not found or left > n_asked:
            found, left = [*found, self._piece()], left - 1
        return [ids for ids in found if tuple(ids) not in self.measured]

    def _questions(self, n: int, draws: torch.Generator) -> list[list[int]]:
        assert self.frame is not None
        before, after = self.frame.before, self.frame.after
        at = (QUESTION_TEMPERATURE,) * n
        special = set(self.tokenizer.all_special_ids)
        asked = written_after(self.writer, [before] * n, at, QUESTION, frozenset(after[:1]), draws)
        whole = [ids[:-1] for ids in asked if ids[-1] == after[0]]
        return [[*before, *ids, *after] for ids in whole if len(ids) >= SHORTEST_QUESTION and special.isdisjoint(ids)]

    def _piece(self) -> list[int]:
        """The beginning of a comment or docstring, or a piece from inside a source."""
        kind = self.picks.choice([part for part in self.pieces if part])
        text, n = self.picks.choice(kind), self.picks.choice(PIECES)
        start = self.picks.randrange(max(1, len(text) - 8 * n)) if kind is self.pieces[1] else 0
        return self.tokenizer(text[start : start + 16 * n]).input_ids[:n] or self._piece()

    def _encoded(self, texts: list[str], chat: bool) -> list[list[int]]:
        """Return the ids of these texts. chat: in the template, which runs in one process for all of them."""
        found = prompts.encode([("texts", text) for text in texts], self.tokenizer, chat) if texts else []
        return [prompt.id_list for prompt in found]


class Texts:
    """The answers of a target: those that are held out, and those that are learned from."""

    def __init__(
        self,
        target: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        make: Callable[[PreTrainedModel], Prompts],
        seed: int,
        room: Room = Room(),
    ):
        """make: gives prompts for a target in a fast precision. room: on the target's device."""
        self.target, self.ends, self.seed, self.room = target, ends_of(target, tokenizer), seed, room
        self.writer = in_fast_precision(target)
        self.prompts = make(self.writer)
        self.most = side_by_side(room, target, self.prompts.longest)
        self.at_once = min(self.most, FIRST_WIDE if room.is_wide else FIRST_AT_ONCE)
        self.held_out: list[Text] = []
        self.answers: list[Text] = []

    def prepare(self, lengths: list[int]) -> None:
        """Write what is held out, and answers for one row. lengths: of rows."""
        n = min(self.most, HELD_OUT_WIDE if self.room.is_wide else HELD_OUT)
        self.held_out = self._written(self.target, self._draws(1), n, (LOWEST,))
        while not packed(self.answers, lengths):
            self.write_more(0.0)

    def write_more(self, usual: float) -> float:
        """Write answers to some more prompts.  -> the seconds that this took. usual: those that it should take."""
        start, offset = time.monotonic(), len(self.answers) % len(TEMPERATURES)
        kept_out = {text.prompt for text in self.held_out}
        turns = TEMPERATURES[offset:] + TEMPERATURES[:offset]
        made = self._written(self.writer, self._draws(3 + len(self.answers)), self.at_once, turns)
        self.answers += [text for text in made if text.prompt not in kept_out]
        torch.cuda.empty_cache()  # the keys and values of these texts; without a GPU it does nothing
        took = time.monotonic() - start
        self.at_once = next_at_once(self.room, self.at_once, self.most, took, usual)
        return took

    def _written(
        self, writer: PreTrainedModel, draws: torch.Generator, n: int, temperatures: tuple[float, ...]
    ) -> list[Text]:
        given = self.prompts.some(n, draws)
        at = tuple(temperatures[i % len(temperatures)] for i in range(len(given)))
        answers = written_after(writer, given, at, ANSWER, self.ends, draws)
        return [Text(tuple(a), tuple(b)) for a, b in zip(given, answers, strict=True)]

    def _draws(self, number: int) -> torch.Generator:
        return torch.Generator(self.target.device).manual_seed(self.seed * 1_000_003 + number)


# --- rows -------------------------------------------------------------------------------------------------------------


def row_lengths(room: int | None) -> list[int]:
    """The lengths of rows that a target of this context has room for."""
    return [length for length in ROWS if room is None or length <= room]


def packed(texts: list[Text], lengths: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Rows of one or several texts, each beginning with a text: length -> ids (rows, length), and which of them the
    target has written.

    More texts behind these change no row. Each text is in rows of one length, so that the target reads it once. What is
    longer than a row, or does not fill one at the end, is left out.
    """
    rows: dict[int, tuple[list[Tensor], list[Tensor]]] = {length: ([], []) for length in lengths}
    left = iter(texts)
    for length in _in_turn(lengths):
        ids: list[int] = []
        written: list[bool] = []
        while len(ids) < length and (text := next(left, None)):
            ids += text.ids
            written += [False] * len(text.prompt) + [True] * len(text.answer)
        if len(ids) < length:
            break
        rows[length][0].append(torch.tensor(ids[:length]))
        rows[length][1].append(torch.tensor(written[:length]))
    return {length: (torch.stack(a).int(), torch.stack(b)) for length, (a, b) in rows.items() if a}


def _in_turn(lengths: list[int]) -> Iterator[int]:
    """Lengths without end, whose tokens have the shares of ROWS."""
    made = dict.fromkeys(lengths, 0)
    while True:
        length = min(lengths, key=lambda n: (made[n] / ROWS[n], n))
        made[length] += length
        yield length


def batch(
    stream: Tensor,
    rows: dict[int, tuple[Tensor, Tensor]],
    plain: float,
    chains: float,
    step: int,
    seed: int,
    tokens: int,
) -> tuple[Tensor, Tensor]:
    """Rows of one length, (rows, length) ids, and positions in them, (rows, chains), always the same for the same
    arguments. The token two places on is the first that a chain drafts: where there are enough, one of an answer.

    stream: training text. plain: the share of the rows that is cut from it. chains: the number of positions as a share
    of the length. tokens: of all rows together, at most, but at least one row.
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
    wanted = torch.cat([written[picks], torch.ones(cut.shape, dtype=torch.bool)])[:, 2 : length - MARGIN + 2]
    order = torch.rand(wanted.shape, generator=generator) + wanted
    n_chains = max(1, round(chains * length))
    positions = order.topk(min(n_chains, order.shape[1]), dim=1).indices.sort(dim=1).values
    return torch.cat([ids[picks], cut]).long(), positions


def frequent_ids(texts: list[Text], vocab: int, n: int) -> Tensor:
    """The ids that the target emits most often, (n,) in order; among equally frequent ones the lowest, which most
    tokenizers have learned first."""
    counts = torch.zeros(vocab, dtype=torch.long)
    for text in texts:
        counts += torch.bincount(torch.tensor(text.answer), minlength=vocab)
    return counts.sort(descending=True, stable=True).indices[:n].sort().values


def covered(texts: list[Text], ids: Tensor) -> float:
    """The share of all ids of the answers that are among these."""
    emitted = torch.tensor([token for text in texts for token in text.answer])
    return torch.isin(emitted, ids.cpu()).float().mean().item()
