"""A server around the lab's own loop, for tests of what the command counts: it speaks as the simulated vLLM does."""

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.accept import accept_from_logits
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.extensions.servers.tests.simulated import Simulated


class Word(str):
    """The text of a token; half a character waits for its rest."""

    id: int


class LabServer(Simulated):
    """One server, greedy, for one request at a time. drafter: None for plain decoding. rule: another one makes a server
    that is wrong. Like an engine, it drafts k tokens near the end of a text, too."""

    def __init__(self, setup, drafter, k, rule=accept_from_logits):
        super().__init__(rates=(0.0,) * k if drafter else ())
        self.setup, self.drafter, self.k, self.rule = setup, drafter, k, rule
        self.text_of, self.id_of = self.decoded, lambda word: word.id

    def decoded(self, text, n_tokens):
        """Decode a prompt: its words, and the rounds that are counted for them."""
        ids, target = self.setup.tokenizer(text, return_tensors="pt").input_ids, self.setup.target.with_own_cache()
        settings = DecodeSettings(n_tokens + 2 * self.k)
        if self.drafter:
            rounds = list(speculative_decode(target, self.drafter, ids, self.k, settings, self.rule))
        else:
            rounds = list(autoregressive_decode(target, ids, settings))
        self.drawn = iter([(one.n_drafted, one.n_accepted) for one in rounds if not one.prefill])
        tokens, words, done = tokens_of(rounds)[:n_tokens], [], ""
        for place, token in enumerate(tokens):
            whole = str(self.setup.tokenizer.decode(tokens[: place + 1]))
            words.append(Word("" if whole.endswith("\ufffd") else whole[len(done) :]))
            words[-1].id = token
            done += words[-1]
        return words
