"""Ids and seeds that are the same on every machine and in every run: BLAKE2b of what they stand for."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def stable_prompt_id(source: str, prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """16 hexadecimal digits from the name of the data set and the prompt as the data has it.

    System prompt, template and tokenizer have no part in it, nor has the row's place in the file.
    """
    return _digest([source, prompt]).hex()


def sample_seed(run_seed: int, prompt_id: str, visit: int, sample: int, attempt: int) -> int:
    """Seed of one generation, in [0, 2^63).

    ``visit`` counts how often the run has come to the prompt (its epoch), ``sample`` the answers to it, ``attempt`` the
    tries at that answer. The seed depends on nothing else: not on order, batch, engine or number of ranks.
    """
    return int.from_bytes(_digest([run_seed, prompt_id, visit, sample, attempt])) >> 1


def _digest(parts: list[Any]) -> bytes:
    # JSON keeps the parts apart: ("ab", "c") and ("a", "bc") differ. `default` is for dates and the like in messages.
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return blake2b(text.encode(), digest_size=8).digest()
