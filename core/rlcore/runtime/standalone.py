"""A rollout engine on a model folder, without a trainer: for generation and evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlcore.data.tokenizer import Tokenizer
from rlcore.errors import ModelError
from rlcore.manifest.schema import ModelSection
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import RolloutContext, RolloutEngine
from rlcore.plugins.loading import build


def model_section(folder: Path) -> ModelSection:
    """The model in a Hugging Face folder, in the dtype that its config names, or bfloat16 if that is another."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder} has no config.json, so it holds no model; name a folder that `rlcore export` wrote"
        ) from None
    except ValueError as error:
        raise ModelError(f"{folder / 'config.json'} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} is no mapping")
    dtype = config.get("dtype", config.get("torch_dtype"))
    return ModelSection(path=str(folder.resolve()), dtype=dtype if dtype in ("bfloat16", "float32") else "bfloat16")


@contextmanager
def standalone_engine(
    model: ModelSection, tokenizer: Tokenizer, engine: PluginRef, *, max_tokens: int, seed: int, device: str
) -> Iterator[RolloutEngine]:
    """The engine with the folder's weights, awake; closed at the end."""
    from rlcore.torch.local_model import LocalModel

    rollout: RolloutEngine = build(engine, RolloutContext(model, tokenizer, max_tokens, device, seed))
    try:
        rollout.receive_weights(LocalModel(model, device), version=0)
        rollout.wake()
        yield rollout
    finally:
        rollout.close()
