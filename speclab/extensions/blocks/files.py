"""Heads that draft blocks, in folders and on the hub (speclab/drafts/heads/files.py).

Their embedding and their output layer are always the target's.
"""

from typing import Any

from transformers import PreTrainedModel

from speclab.drafts.heads import files
from speclab.drafts.heads.files import CONFIG, SavedHead, entry
from speclab.engines.eager import decoder_layers
from speclab.extensions.blocks.head import BlockConfig, BlockHead
from speclab.models import loading
from speclab.system.errors import UsageProblem

MOST_SLOTS = 256
COMPUTED = {"markov_head_type": "vanilla", "projector_type": "dflash", "shift_label": False}


def read_block(name: str, target: PreTrainedModel) -> SavedHead:
    """Return the head of a folder or a hub name, for this target, on its device and in its number format.

    Raises EnvironmentProblem where it cannot be read, and UsageProblem where it belongs to another target.
    """
    found, weights = files.read_files(name)
    n_layers = len(decoder_layers(target))
    config = loading.loaded(name, f"its {CONFIG}", lambda: config_from(found, n_layers), files.CORRECT)
    draft, (table, output) = f"block:{loading.short_name(name)}", files.weights_of(target)
    if (config.block.vocab_size, config.block.hidden_size, config.target_hidden) != (*table.shape, table.shape[1]):
        raise UsageProblem(
            f"{draft} works with {config.block.vocab_size} embeddings of width {config.block.hidden_size} and the "
            f"target has {len(table)} of width {table.shape[1]}; give a head that was trained for this target"
        )

    unused = (*files.UNUSED, files.EMBEDDING, files.HEAD)
    saved = files.read_weights(name, weights, lambda: BlockHead(config, table, output), target, unused)
    if saved.ids is not None:
        saved.head.output = output[saved.ids]
    return saved


def config_from(found: dict[str, Any], n_layers: int) -> BlockConfig:
    """Return what config.json says. Raises ValueError where it is no head of this kind. n_layers: the target's."""
    files.check_format(found, "block", ("dflash", "dspark"))
    for name, value in COMPUTED.items():
        if found.get(name) not in (None, value):
            raise ValueError(f"{name} is {found[name]!r:.60}; it should be {value!r}")
    slots, mask = entry(found, "block_size", int), entry(found, "mask_token_id", int)
    from_anchor = entry(found, "sample_from_anchor", bool, False)  # as engines take what is not said
    if not 1 + (not from_anchor) <= slots <= MOST_SLOTS:
        raise ValueError(f"block_size is {slots}, and it should propose 1 to {MOST_SLOTS} tokens")
    layer = entry(found, "transformer_layer_config", dict)
    if layer.get("model_type") not in (None, "qwen3") or layer.get("num_hidden_layers") is None:
        raise ValueError("its model_type or num_hidden_layers says that its decoder is not layers of qwen3")
    block = files.decoder_of(found, "qwen3")
    if mask >= block.vocab_size:
        raise ValueError(f"mask_token_id is {mask}, and there are {block.vocab_size} ids")
    if found.get("causal") or "sliding_attention" in block.layer_types:
        raise ValueError("its slots do not attend to all of the text and of the block; the lab reads no such head")
    return BlockConfig(
        block=block,
        layers=files.layers_of(entry(found, "aux_hidden_state_layer_ids", list), n_layers),
        target_hidden=entry(found, "target_hidden_size", int, block.hidden_size),
        draft_vocab=entry(found, "draft_vocab_size", int),
        slots=slots,
        mask=mask,
        markov_rank=entry(found, "markov_rank", int, 256) if found["speculators_model_type"] == "dspark" else 0,
        from_anchor=from_anchor,
    )
