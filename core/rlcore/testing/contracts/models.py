"""A tiny model as the contracts of engines and train backends use it, and transformers' own word on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


def load_eager(folder: Path) -> Any:
    """The folder's model by transformers alone: float32, no cache, plain attention."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def next_logprobs(model: Any, tokens: NDArray[Any], temperature: float = 1.0) -> NDArray[np.float64]:
    """Row t has log p(· | tokens[:t + 1]), float64[len(tokens), vocabulary], in one plain forward pass."""
    import torch

    with torch.no_grad():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    scaled = torch.log_softmax(logits.double() / temperature, dim=-1)
    result: NDArray[np.float64] = scaled.numpy()
    return result


@dataclass
class FolderReceiver:
    """The engine's end of a weight channel whose other end is a model in a folder."""

    folder: Path
    way: Literal["in_place", "stream"]

    @contextmanager
    def module(self) -> Iterator[torch.nn.Module]:
        """The model itself."""
        yield load_eager(self.folder)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight in turn, tied ones under both names."""
        yield from load_eager(self.folder).state_dict().items()
