"""Tiny models of several architectures, with weights large enough for attention to matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch.set_num_threads(1)

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """``write_model("Qwen3", tie_word_embeddings=True)`` writes a random model of that architecture."""

    def write(architecture: str, **changes: Any) -> Path:
        sizes: dict[str, Any] = GPT2 | {"bos_token_id": 1, "eos_token_id": 1} if architecture == "GPT2" else COMMON
        if architecture in ("Qwen3", "Mistral", "Gemma2"):
            sizes = sizes | {"head_dim": 8}
        config = getattr(transformers, f"{architecture}Config")(**(sizes | changes))
        name = "GPT2LMHeadModel" if architecture == "GPT2" else f"{architecture}ForCausalLM"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, name)(config)
        folder = tmp_path / f"{architecture}-{len(list(tmp_path.iterdir()))}"
        model.save_pretrained(folder)
        return folder

    return write
