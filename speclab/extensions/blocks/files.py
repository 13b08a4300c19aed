"""Heads that draft blocks, in folders and on the hub (speclab/drafts/heads/files.py).

Their embedding is always the target's. The layers of a causal head have a window as long as the context.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.heads import files
from speclab.drafts.heads.files import CONFIG, EMBEDDING, HEAD, UNUSED, SavedHead, entry
from speclab.engines.eager import decoder_layers
from speclab.extensions.blocks.head import BlockConfig, BlockHead
from speclab.models import loading
from speclab.system.errors import UsageProblem

MOST_SLOTS = 256
NAMES = {"dspark": "DSparkSpeculator", "dflash": "DFlashSpeculator"}
COMPUTED = {"markov_head_type": "vanilla", "projector_type": "dflash", "shift_label": False}


def read_block(name: str, target: PreTrainedModel) -> SavedHead:
    """Return the head of a folder or a hub name, for this target, on its device and in its number format.

    Raises EnvironmentProblem where it cannot be read, and UsageProblem where it belongs to another target.
    """
    found, weights = files.read_files(name)
    n_layers = len(decoder_layers(target))
    config = loading.loaded(name, f"its {CONFIG}", lambda: config_from(found, n_layers), files.CORRECT)
    draft, (table, output) = f"block:{loading.short_name(name)}", files.weights_of(target)
    files.check_width(draft, config.target_hidden, table.shape[1])
    if (config.block.vocab_size, config.block.hidden_size) != table.shape:
        raise UsageProblem(
            f"{draft} works with {config.block.vocab_size} embeddings of width {config.block.hidden_size} and the "
            f"target has {len(table)} of width {table.shape[1]}; give a head that was trained for this target"
        )

    def built() -> SavedHead:
        with torch.device("meta"):
            head = BlockHead(config, table, output)
        more = {HEAD: (config.draft_vocab, config.target_hidden)}
        tensors, ids = files.read_tensors(weights, head, target, config, more, (*UNUSED, EMBEDDING))
        own = tensors.pop(HEAD)
        head.output.weight = output if ids is None else own
        head.load_state_dict(tensors, assign=True)
        return SavedHead(head.eval().requires_grad_(False), ids)

    return loading.loaded(name, "its weights", built)


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
    # An entry of its own says whether it is causal, or the layers do: those with a window, which has to be as long as
    # the context here, are causal within a block.
    windows = {kind == "sliding_attention" for kind in block.layer_types}
    if windows != {False} and (len(windows) > 1 or (block.sliding_window or 0) < block.max_position_embeddings):
        raise ValueError("some of its layers attend to a window; the lab reads heads that attend to the whole text")
    usual = windows == {True} and not entry(found, "sliding_window_non_causal", bool, False)
    return BlockConfig(
        block=block,
        layers=files.layers_of(entry(found, "aux_hidden_state_layer_ids", list), n_layers),
        target_hidden=entry(found, "target_hidden_size", int, block.hidden_size),
        draft_vocab=entry(found, "draft_vocab_size", int),
        slots=slots,
        mask=mask,
        markov_rank=entry(found, "markov_rank", int, 256) if found["speculators_model_type"] == "dspark" else 0,
        causal=entry(found, "causal", bool, usual),
        from_anchor=from_anchor,
    )


def write_block(
    folder: Path, head: BlockHead, target: str, architectures: list[str], ids: Tensor | None = None
) -> None:
    """Write a head; an engine drafts its block. The rest: as `write_head` of speclab/drafts/heads/files.py."""
    config = head.config
    kind = "dspark" if config.markov_rank else "dflash"
    entries = {
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.layers],
        "block_size": config.slots,
        "mask_token_id": config.mask,
        "sample_from_anchor": config.from_anchor,
        "causal": config.causal,
    }
    if config.markov_rank:
        entries |= {"markov_rank": config.markov_rank, "markov_head_type": "vanilla", "enable_confidence_head": False}
    files.write_files(folder, head, (kind, NAMES[kind]), entries, target, architectures, config.longest, ids)
