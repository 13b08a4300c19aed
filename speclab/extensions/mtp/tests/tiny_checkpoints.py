"""Tiny random checkpoints with an MTP head, in the three ways in which published ones name its tensors.

The head's layer is the third one of a model with three layers of the family: `Shape.layer` is the library's own layer
with these weights, and what the head should say is computed with it from the whole text, without a cache.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig, Qwen2Config, Qwen3NextConfig

VOCAB, HIDDEN, N_LAYERS = 48, 32, 2
BASE: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 48, "num_attention_heads": 4}
BASE |= {"num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False}
BASE |= {"initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
LINEAR = {f"linear_{name}": 8 for name in ("key_head_dim", "value_head_dim")}
LINEAR |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4}
KINDS = ["linear_attention", "full_attention", "full_attention"]
LAST = f"model.layers.{N_LAYERS}."
APPENDED = tuple(LAST + name for name in ("eh_proj", "enorm", "hnorm", "shared_head.norm"))
OF_QWEN = tuple(f"mtp.{name}" for name in ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"))
OF_MIMO = "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"
PARTS_OF_MIMO = tuple(f"model.mtp_layers.0.{name}" for name in OF_MIMO)


@dataclass(frozen=True)
class Shape:
    """A published shape. kind, more: its config's class and entries. names: of projection, norm of the embedding, norm
    of the state, last norm. layer: what stands before the layer's own names. state_first: the order of the projection's
    input. logits: what the target makes of the output layer's logits."""

    kind: Any
    more: dict[str, Any]
    names: tuple[str, ...] = APPENDED
    layer: str = LAST
    state_first: bool = False

    def config(self, n_layers: int) -> Any:
        entries = {**BASE, "num_hidden_layers": n_layers, **self.more}
        if "layer_types" in entries:
            entries["layer_types"] = entries["layer_types"][:n_layers]
        return self.kind(**entries)


OF_NEXT = {"shared_expert_intermediate_size": 16, "num_experts": 4, "head_dim": 8, "layer_types": KINDS}
SHAPES = {
    "glm": Shape(Glm4MoeConfig, {**ROUTED, "topk_group": 1, "head_dim": 8}),
    "deepseek": Shape(DeepseekV3Config, {**ROUTED, **LATENT, "topk_group": 1, "num_key_value_heads": 4}),
    "qwen3-next": Shape(Qwen3NextConfig, {**EXPERTS, **LINEAR, **OF_NEXT}, OF_QWEN, "mtp.layers.0."),
    "mimo": Shape(Qwen2Config, {}, PARTS_OF_MIMO, "model.mtp_layers.0.", state_first=True),
}


@dataclass
class Checkpoint:
    """A checkpoint in a folder, and what its head should say. extra: the tensors of the head beside its layer."""

    folder: Path
    whole: Any  # a model of three layers
    shape: Shape
    extra: dict[str, Tensor]

    @torch.no_grad()
    def last(self, text: list[int], states: Tensor) -> Tensor:
        """The last state that the head gives, (hidden,): all pairs of the text go through the layer at once."""
        base, shape = self.whole.model, self.shape
        projection, of_token, of_state, last = (self.extra[name + ".weight"] for name in shape.names)
        norm = type(base.norm)(HIDDEN, eps=base.config.rms_norm_eps).to(states.dtype)

        def normed(x: Tensor, weight: Tensor) -> Tensor:
            norm.weight.data = weight.to(states.dtype)
            return norm(x)

        tokens = torch.tensor(text[1:])
        parts = [normed(base.embed_tokens(tokens), of_token), normed(states, of_state)]
        x = torch.cat(parts[::-1] if shape.state_first else parts, dim=-1) @ projection.to(states.dtype).T
        n = len(tokens)
        mask = torch.full((n, n), float("-inf"), dtype=states.dtype).triu(1)[None, None]
        rotation = base.rotary_emb(x[None], position_ids=torch.arange(n)[None])
        given = base.layers[N_LAYERS](
            x[None], position_embeddings=rotation, attention_mask=mask, position_ids=torch.arange(n)[None]
        )
        return normed(given[0, -1], last)

    @torch.no_grad()
    def following(self, text: list[int], drafted: list[int]) -> Tensor:
        """The logits of each of these drafted tokens after a text, (drafted, vocabulary)."""
        states, ids, rows = self.whole.model.norm(self.target_states(text[:-1])), list(text), []
        for token in drafted:
            state = self.last(ids, states)
            rows.append(state @ self.whole.lm_head.weight.T)
            ids.append(token)
            states = torch.cat([states, state[None]])
        return torch.stack(rows)

    @torch.no_grad()
    def target_states(self, text: list[int]) -> Tensor:
        """What the target's last layer gives for each token, (n, hidden), in one pass."""
        found: list[Tensor] = []
        hook = self.whole.model.layers[N_LAYERS - 1].register_forward_hook(lambda m, a, out: found.append(out))
        self.whole(torch.tensor([text]))
        hook.remove()
        out = found[0]
        return (out[0] if isinstance(out, tuple) else out)[0]


def write(folder: Path, kind: str, seed: int = 0) -> Checkpoint:
    """Write a tiny checkpoint of this shape."""
    shape = SHAPES[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        whole: Any = AutoModelForCausalLM.from_config(shape.config(N_LAYERS + 1)).eval()
        for name, weight in whole.named_parameters():
            if "norm" in name:
                weight.data.add_(0.2 * torch.randn(weight.shape))
        sizes = [(HIDDEN, 2 * HIDDEN), (HIDDEN,), (HIDDEN,), (HIDDEN,)]
        extra = {name + ".weight": torch.randn(size) * 0.3 for name, size in zip(shape.names, sizes, strict=True)}
        extra = {name: weight + 1 if weight.ndim == 1 else weight for name, weight in extra.items()}
    whole.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    named = {name.replace(LAST, shape.layer, 1): weight for name, weight in weights.items()}
    save_file(named | extra, folder / "model.safetensors", {"format": "pt"})
    config = json.loads(shape.config(N_LAYERS).to_json_string(use_diff=False))
    config["architectures"] = [type(whole).__name__]
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return Checkpoint(folder, whole, shape, extra)
