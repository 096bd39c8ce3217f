"""Parameters of a dense model from its config.json, and a rough account of the memory that training it takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlcore.manifest.schema import TrainerSection

_DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3"})


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense decoder with gated MLP and grouped key-value heads."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @property
    def parameters(self) -> int:
        """Weights, biases and norms; a tied head counts once."""
        h, i = self.hidden, self.intermediate
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = h * (q + 2 * kv) + q * h + (q + 2 * kv) * self.qkv_bias + h * self.output_bias
        mlp = 3 * h * i + (2 * i + h) * self.mlp_bias
        norms = 2 * h + 2 * self.head_dim * self.qk_norm
        return self.vocab * h * (1 if self.tied else 2) + self.layers * (attention + mlp + norms) + h

    @property
    def critic_parameters(self) -> int:
        """The same with a value head, weights and a bias, in place of the output head."""
        return self.parameters - (0 if self.tied else self.vocab * self.hidden) + self.hidden + 1

    @property
    def activations(self) -> int:
        """Values that one layer keeps per token for its backward pass, roughly: norms, q, k, v, context, gated MLP."""
        return 6 * self.hidden + 2 * self.head_dim * (self.heads + self.kv_heads) + 4 * self.intermediate


def read_shape(folder: Path) -> Shape | None:
    """The shape of the model in a Hugging Face folder; None for architectures whose formula isn't known here."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _shape(config) if config.get("model_type") in _DENSE else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError, ZeroDivisionError):
        return None


def context_tokens(folder: Path) -> int | None:
    """The longest sequence that the model in a folder was made for; None where its config doesn't say."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = config.get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) else None


def _shape(config: Mapping[str, Any]) -> Shape:
    kind, heads, bias = config["model_type"], int(config["num_attention_heads"]), bool(config.get("attention_bias"))
    return Shape(
        vocab=int(config["vocab_size"]),
        hidden=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        intermediate=int(config["intermediate_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bias,
        output_bias=kind != "qwen2" and bias,
        mlp_bias=kind == "llama" and bool(config.get("mlp_bias")),
        qk_norm=kind == "qwen3",
    )


def training_bytes(
    shape: Shape,
    dtype: str,
    trainer: TrainerSection,
    *,
    reference: bool,
    critic: tuple[Shape, TrainerSection] | None = None,
) -> dict[str, int]:
    """Bytes on one device while models are updated, by what takes them; an estimate.

    Weights, gradients and AdamW's two moments are float32; a bfloat16 model adds a copy to compute in. Logits exist for
    one chunk at a time, with their gradient. Activations are those of one micro-batch. Critic and policy learn one
    after the other, so gradients and activations are the larger of the two.
    """
    n, size = shape.parameters, 2 if dtype == "bfloat16" else 4
    held = 4 + (2 if dtype == "bfloat16" else 0)
    parts = {
        "weights": held * n,
        "gradients": 4 * n,
        "optimizer": 8 * n,
        "activations": _activation_bytes(shape, trainer, size),
        "logits": 2 * 4 * min(trainer.logprob_chunk_tokens, trainer.tokens_per_micro_batch) * shape.vocab,
    }
    if critic is not None:
        critic_shape, section = critic
        m = critic_shape.critic_parameters
        parts["gradients"] = max(parts["gradients"], 4 * m)
        parts["activations"] = max(parts["activations"], _activation_bytes(critic_shape, section, size))
        parts["critic"] = held * m + 8 * m
    return {**parts, "reference": n * size} if reference else parts


def _activation_bytes(shape: Shape, trainer: TrainerSection, size: int) -> int:
    kept = shape.layers * shape.activations
    if trainer.gradient_checkpointing:
        kept = shape.layers * shape.hidden + shape.activations
    return trainer.tokens_per_micro_batch * kept * size
