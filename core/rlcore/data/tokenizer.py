"""What the core needs of a tokenizer. ``rlcore.torch.tokenizer`` makes one from a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlcore.data.sample import Tokens


class Tokenizer(Protocol):
    """Text to token ids for prompts, token ids to text for people and rewards."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a generation, from the generation config, the model config and the tokenizer."""

    @property
    def has_chat_template(self) -> bool:
        """Whether ``encode_chat`` works."""

    def encode_text(self, text: str) -> Tokens:
        """Ids of a plain prompt, with the special tokens that the tokenizer adds (a BOS)."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]) -> Tokens:
        """Ids of a conversation by the chat template, ready for the assistant's turn, with the template's BOS only."""

    def decode(self, tokens: Tokens) -> str:
        """Text of generated ids, special tokens left out."""
