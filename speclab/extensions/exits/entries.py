"""The config.json of an adapter may have these entries, declared as in speclab/drafts/heads/schema.py."""

from typing import Literal

from pydantic import model_validator

from speclab.drafts.heads.schema import Declared, Layer, Size


class AdapterEntries(Declared):
    """An adapter of early exit has these."""

    format: Literal["speculative-decoding-lab early exit 1"]
    exit_layer: Size
    target_layers: Size
    transformer_layer_config: Layer

    @model_validator(mode="after")
    def _is_one_layer(self) -> "AdapterEntries":
        own = self.transformer_layer_config.num_hidden_layers
        if self.exit_layer >= self.target_layers or own != 1:
            raise ValueError(
                f"it exits after layer {self.exit_layer} of {self.target_layers}, with layers of its own: {own}; "
                "the lab reads adapters of one layer, behind a layer that is not the last"
            )
        if self.transformer_layer_config.model_type == "qwen3":
            raise ValueError("its decoder is not one layer of llama")
        return self
