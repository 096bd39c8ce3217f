"""A tiny Qwen3 with random weights and a tokenizer of its own, made on the spot: no network, well under a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ROLES = ("system", "user", "assistant")
END = "<|end|>"
PAD = "<|pad|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(
    folder: Path,
    *,
    hidden_size: int = 32,
    layers: int = 2,
    heads: int = 4,
    intermediate_size: int = 64,
    tied: bool = True,
    seed: int = 0,
    dtype: str = "float32",
    initializer_range: float = 0.02,
) -> Path:
    """Write a Hugging Face folder with a Qwen3 of these sizes and a tokenizer that takes each byte for a token.

    The vocabulary is 256 bytes and a token each for padding, the end of a turn, and the three roles. Weights are normal
    with deviation ``initializer_range``: at 0.02 the model is good to train and its output next to uniform; from 0.2 on
    attention and context matter to it, as a test of either wants. Returns ``folder``.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = write_byte_tokenizer(folder)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (END, PAD)}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=hidden_size // heads,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        initializer_range=initializer_range,
        bos_token_id=None,
        eos_token_id=ids[END],
        pad_token_id=ids[PAD],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).to(getattr(torch, dtype))  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return folder


def write_byte_tokenizer(folder: Path) -> Any:
    """Write the byte tokenizer with its chat template into ``folder`` and return it, a transformers tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[f"<|{role}|>" for role in ROLES],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return fast
