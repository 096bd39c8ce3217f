"""Whose weights the engine generates with: the trainer's module, borrowed, or an own copy that is streamed into."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from rlcore.errors import ModelError, WeightSyncError
from rlcore.torch.model import DTYPES, read_config
from torch import Tensor, nn

from rlcore_hf.cache import ATTENTION, PromptCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlcore.plugins.interfaces import RolloutContext, WeightReceiver

# Options with which models change logits after the head; the probe would miss those that small logits don't feel.
_UNSUPPORTED = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


class Weights:
    """The model, while there is one. ``version`` is None until weights have arrived whole."""

    def __init__(self, context: RolloutContext) -> None:
        self._context = context
        self._receiver: WeightReceiver | None = None
        self._lease: ExitStack | None = None
        self._model: Any = None
        self._probed = False
        self.version: int | None = None

    @property
    def model(self) -> Any:
        """The causal LM. Raises ``WeightSyncError`` where none is held."""
        if self.version is None:
            raise WeightSyncError("the hf engine holds no whole set of weights: call receive_weights() first")
        if self._model is None:
            raise WeightSyncError("the hf engine sleeps: call wake() first")
        return self._model

    def receive(self, receiver: WeightReceiver, version: int, *, awake: bool) -> None:
        """Take new weights; those of the trainer's own module are held only while ``awake``."""
        self.release()
        self._receiver, self.version = receiver, None
        if receiver.way == "stream":
            model = self._model if self._model is not None else new_model(self._context)
            load_stream(model, receiver.tensors())
            self._adopt(model)
        if awake:
            self.hold()
        self.version = version

    def hold(self) -> None:
        """Borrow the trainer's module, if that is the way and it isn't held."""
        if self._receiver is not None and self._receiver.way == "in_place" and self._lease is None:
            with ExitStack() as lease:
                self._adopt(lease.enter_context(self._receiver.module()))
                self._lease = lease.pop_all()

    def release(self) -> None:
        """Give a borrowed module back."""
        if self._lease is not None:
            lease, self._lease, self._model = self._lease, None, None
            lease.close()

    def close(self) -> None:
        """Give the module back or free the copy."""
        self.release()
        self._model = self._receiver = self.version = None

    def _adopt(self, model: Any) -> None:
        check_supported(model, self._context.max_tokens)
        if not self._probed:
            probe_head(model, torch.device(self._context.device))
            self._probed = True
        self._model = model


def check_supported(model: Any, max_tokens: int) -> None:
    """Refuse a model that this engine would compute wrongly. Raises ``ModelError``."""
    name = type(model).__name__
    if model.training:
        raise ModelError(f"{name} is in training mode; an engine must be given it in evaluation mode")
    config = model.config
    if odd := [option for option in _UNSUPPORTED if getattr(config, option, None) not in (None, 1, 1.0)]:
        raise ModelError(f"{name} has {', '.join(odd)}, which rollout 'hf' does not compute; use another engine")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None
    if window is not None and window < max_tokens:
        raise ModelError(
            f"{name} attends within a window of {window} tokens, which rollout 'hf' computes only for sequences "
            f"within it; prompt and response may have {max_tokens}"
        )
    positions = getattr(config, "max_position_embeddings", None)
    stretch = (getattr(config, "rope_parameters", None) or {}).get("factor") or 1
    if positions is not None and max_tokens > positions * stretch:
        raise ModelError(
            f"{name} knows {int(positions * stretch)} positions; prompt and response may have {max_tokens} tokens: "
            "lower data.max_prompt_tokens or the response's limit"
        )
    if other := kinds - {"full_attention", "sliding_attention"}:
        raise ModelError(f"{name} has layers of kind {', '.join(sorted(other))}, which rollout 'hf' does not compute")


@contextmanager
def cached_attention_in(model: Any) -> Iterator[None]:
    """Let the model attend through the cache inside the context; a trainer may use it with its own outside."""
    before = model.config._attn_implementation
    model.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def new_model(context: RolloutContext) -> Any:
    """A causal LM of the context's architecture, dtype and device, its weights still to come."""
    from transformers import AutoModelForCausalLM

    section = context.model
    with torch.device(context.device):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            read_config(section), dtype=DTYPES[section.dtype], trust_remote_code=section.trust_remote_code
        )
    return model.eval().requires_grad_(False)


@torch.no_grad()
def load_stream(model: nn.Module, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Copy the stream into the model. Raises ``WeightSyncError`` unless it is just the model's weights."""
    weights = {**dict(model.named_parameters(remove_duplicate=False)), **dict(_saved_buffers(model))}
    missing = set(weights)
    for name, tensor in tensors:
        own = weights.get(name)
        if own is None:
            raise WeightSyncError(f"the trainer sent {name!r}, which the engine's model does not have")
        if own.shape != tensor.shape:
            raise WeightSyncError(f"{name!r} came with shape {tuple(tensor.shape)}; the engine has {tuple(own.shape)}")
        own.copy_(tensor)
        missing.discard(name)
    if missing:
        names = sorted(missing)
        raise WeightSyncError(f"{len(names)} weights did not arrive: {', '.join(names[:5])}{' …' * (len(names) > 5)}")


def _saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that are part of a checkpoint."""
    saved = model.state_dict().keys()
    return ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


def probe_head(model: Any, device: torch.device) -> None:
    """Compare head(base(x)) with the model's own logits on one token. Raises ``ModelError`` where they differ."""
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
    with torch.no_grad(), cached_attention_in(model):
        arguments = {"input_ids": ids, "position_ids": ids, "use_cache": True}
        hidden = model.base_model(**arguments, past_key_values=PromptCache()).last_hidden_state
        mine = model.get_output_embeddings()(hidden)
        own = model(**arguments, past_key_values=PromptCache()).logits
    if not torch.allclose(mine.float(), own.float(), atol=1e-3, rtol=1e-2, equal_nan=True):
        raise ModelError(
            f"{type(model).__name__} computes its logits in a way of its own, which rollout 'hf' does not; "
            "use another engine"
        )
