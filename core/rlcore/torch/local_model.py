"""A model folder as the sender of weights, for generation without a trainer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, cast

from rlcore.torch.folder import model_folder, weight_files
from rlcore.torch.model import DTYPES, load_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from rlcore.manifest.schema import ModelSection


class LocalModel:
    """A ``WeightReceiver`` whose module is loaded from safetensors and stays in memory."""

    way: Literal["in_place", "stream"] = "in_place"

    def __init__(self, section: ModelSection, device: str) -> None:
        weight_files(model_folder(section))  # transformers would fall back to pickles where there are none
        model: Any = load_model(section, dtype=DTYPES[section.dtype], device=device)
        model.set_attn_implementation("sdpa")
        self._model = cast("torch.nn.Module", model.requires_grad_(False))

    def module(self) -> AbstractContextManager[torch.nn.Module]:
        """The Hugging Face module with transformers' own attention."""
        return nullcontext(self._model)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight by its Hugging Face name, tied ones under both."""
        yield from self._model.state_dict().items()
