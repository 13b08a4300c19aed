"""The generation settings of a checkpoint: what the lab takes from them, and what it names."""

from transformers import GenerationConfig

from speclab.system.errors import EnvironmentProblem

# Entries of a generation config that say nothing about which tokens come next, or that the lab has flags for.
NOT_ABOUT_TOKENS = ("_", "bos_", "eos_", "pad_", "decoder_start_", "max_", "output_", "return_", "use_", "cache_")
NOT_SETTINGS = ("transformers_version", "do_sample", "num_return_sequences", "early_stopping", "assistant", "prefill_")
# `generate` applies these and the lab does not. The values change nothing; where there are none, any value counts.
NEUTRAL_AT_1 = (
    "temperature top_p typical_p repetition_penalty encoder_repetition_penalty length_penalty num_beams "
    "num_beam_groups guidance_scale"
)
NEUTRAL_AT_0 = (
    "top_k min_p diversity_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size min_length min_new_tokens "
    "epsilon_cutoff eta_cutoff"
)
NEUTRAL = dict.fromkeys(NEUTRAL_AT_1.split(), 1) | dict.fromkeys(NEUTRAL_AT_0.split(), 0)


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
    """Return the settings of a checkpoint that `generate` applies and the lab does not, without neutral values."""
    known = vars(GenerationConfig())
    return ", ".join(
        f"{key} {value}"
        for key, value in settings.to_diff_dict().items()
        if key in known and not key.startswith((*NOT_ABOUT_TOKENS, *NOT_SETTINGS))
        if value is True or (value is not None and value is not False and value != NEUTRAL.get(key))
    )
