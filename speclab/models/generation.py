"""The generation settings of a checkpoint: what the lab takes from them, and what it names."""

from transformers import GenerationConfig

from speclab.system.errors import EnvironmentProblem

# Settings that change what `generate` writes and that the lab does not apply, with the values that change nothing.
UNAPPLIED = dict.fromkeys(["temperature", "top_p", "typical_p", "repetition_penalty", "num_beams", "guidance_scale"], 1)
UNAPPLIED |= dict.fromkeys(["encoder_repetition_penalty", "top_h"], 1)
UNAPPLIED |= dict.fromkeys(["top_k", "min_p", "no_repeat_ngram_size", "min_new_tokens", "bad_words_ids"], 0)
UNAPPLIED |= dict.fromkeys(["suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "sequence_bias"], 0)
UNAPPLIED |= dict.fromkeys(["begin_suppress_tokens", "min_length", "epsilon_cutoff", "eta_cutoff", "stop_strings"], 0)
UNAPPLIED |= dict.fromkeys(["encoder_no_repeat_ngram_size", "exponential_decay_length_penalty"], 0)


def eos_ids(settings: GenerationConfig) -> frozenset[int]:
    """Return the ids that end a text. Raises EnvironmentProblem where the checkpoint names something else than ids."""
    ids = settings.eos_token_id
    ids = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise EnvironmentProblem(
            f"eos_token_id in the model's generation_config.json is {settings.eos_token_id!r}, not an id or a list of "
            "ids; correct that file"
        )
    return frozenset(ids)


def unapplied_settings(settings: GenerationConfig) -> str:
    """Return the settings of a checkpoint that `generate` applies and the lab does not."""
    given = settings.to_diff_dict()
    return ", ".join(f"{name} {given[name]}" for name, none in UNAPPLIED.items() if given.get(name) not in (None, none))
