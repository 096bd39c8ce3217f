"""The key-value cache, and attention over it.

Axes: ``R`` rows (requests), ``K`` slots, ``H`` heads, ``D`` head dimension. Slot ``j`` of a row holds its token ``j``,
so rows of unequal length need no padding before them, positions are slots, and a row may come or go at any time. What
lies past a row's own length is masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rlcore.errors import ModelError
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

if TYPE_CHECKING:
    from numpy.typing import NDArray

ATTENTION = "rlcore_hf_cached"
"""Name of the attention over the cache in transformers' registry."""

_SLOT_STEP = 64
_GPU_WIDTH_STEP = 16  # divides _SLOT_STEP

# Arguments with which models change what attention computes; dropping one would change the model.
_UNSUPPORTED = ("softcap", "s_aux", "sinks", "position_bias", "indices")


class PromptCache:
    """Takes the keys and values of one prefill pass: for each layer [R, H_kv, K, D]."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Called by each layer in turn; attention then reads what came in."""
        self.keys.append(key)
        self.values.append(value)
        return key, value

    def get_seq_length(self, layer: int = 0) -> int:
        """Tokens before this pass."""
        return 0


class RowCache:
    """Keys and values of the running rows, in buffers [capacity, H_kv, K, D] per layer that grow by doubling.

    Rows are dense: ``count`` of them from 0 on. A decoding step is ``begin``, the model's forward pass with this object
    as ``past_key_values``, and nothing after.
    """

    def __init__(self, max_rows: int, max_slots: int) -> None:
        self._max_rows = max_rows
        self._max_slots = max_slots
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows = self._slots = 0
        self._count = self._width = 0
        self._write = torch.zeros(0, dtype=torch.int64)  # row · H_kv · K + head · K + slot, for each row and head

    @property
    def nbytes(self) -> int:
        """Memory of the buffers."""
        return sum(t.nbytes for t in (*self._keys, *self._values))

    def store(self, prompts: PromptCache, source: NDArray[np.int64], first_row: int) -> None:
        """Copy prompt ``source[i]`` of a prefill pass into row ``first_row + i``."""
        length = prompts.keys[0].shape[2]
        if not self._keys:
            self._keys = [key[:0, :, :0] for key in prompts.keys]
            self._values = [value[:0, :, :0] for value in prompts.values]
        self._reserve(first_row + len(source), length + 1)
        index = torch.from_numpy(source).to(prompts.keys[0].device)
        rows = slice(first_row, first_row + len(source))
        for buffers, new in ((self._keys, prompts.keys), (self._values, prompts.values)):
            for buffer, prompt in zip(buffers, new, strict=True):
                buffer[rows, :, :length] = prompt[index]

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64], width: int) -> None:
        """Copy rows ``source`` over rows ``target``, the first ``width`` slots of them."""
        device = self._keys[0].device
        src, dst = (torch.from_numpy(rows).to(device) for rows in (source, target))
        for buffer in (*self._keys, *self._values):
            buffer[dst, :, :width] = buffer[src, :, :width]

    def begin(self, lengths: NDArray[np.int64]) -> Tensor | None:
        """Make ready for one token more in each row, whose ``lengths`` int64[R] so far are given.

        Returns what is added to attention scores, [R, 1, 1, K]: 0 for slots that a row may attend to, else −∞; None
        where every row may attend to all.
        """
        self._count, longest = len(lengths), int(lengths.max()) + 1
        self._reserve(self._count, longest)
        buffer = self._keys[0]
        heads = np.arange(self._count * buffer.shape[1]).reshape(self._count, -1)
        self._write = torch.from_numpy((heads * self._slots + lengths[:, None]).ravel()).to(buffer.device)
        if buffer.is_cpu and int(lengths.min()) + 1 == longest:
            self._width = longest
            return None
        # Kernels on a GPU want a mask of aligned width, and copy one that isn't, in every layer.
        self._width = longest if buffer.is_cpu else -(-longest // _GPU_WIDTH_STEP) * _GPU_WIDTH_STEP
        past = torch.arange(self._width, device=buffer.device) > torch.from_numpy(lengths).to(buffer.device)[:, None]
        return buffer.new_zeros(past.shape).masked_fill_(past, -torch.inf)[:, None, None]

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the token's key and value, [R, H_kv, 1, D], and return all that it may attend to, [R, H_kv, K, D]."""
        keys, values = self._keys[layer], self._values[layer]
        for buffer, new in ((keys, key), (values, value)):
            buffer.view(-1, buffer.shape[-1]).index_copy_(0, self._write, new.reshape(-1, buffer.shape[-1]))
        return keys[: self._count, :, : self._width], values[: self._count, :, : self._width]

    def get_seq_length(self, layer: int = 0) -> int:
        """Tokens before this pass, of the longest row."""
        return self._width - 1

    def _reserve(self, rows: int, slots: int) -> None:
        if rows <= self._rows and slots <= self._slots:
            return
        if rows > self._rows:
            self._rows = max(rows, min(2 * self._rows, self._max_rows))
        if slots > self._slots:
            wanted = max(slots, min(2 * self._slots, self._max_slots))
            self._slots = -(-wanted // _SLOT_STEP) * _SLOT_STEP
        for buffers in (self._keys, self._values):
            for layer, old in enumerate(buffers):
                # Zeros, for a masked slot still takes part in 0 · value, which is NaN for what memory may hold.
                new = old.new_zeros(self._rows, old.shape[1], self._slots, old.shape[3])
                new[: old.shape[0], :, : old.shape[2]] = old
                buffers[layer] = new


def cached_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer in the form of transformers' ``AttentionInterface``; returns [R, Q, H, D].

    With one query a row (decoding), heads that share a key-value head are handed over as that head's queries, so that
    the cache is never repeated. With more (prefill), attention is causal; padding on the right is seen by none.
    Raises ModelError for what it does not compute: soft caps, sinks, position biases.
    """
    if odd := [name for name in _UNSUPPORTED if kwargs.get(name) is not None]:
        raise ModelError(f"{type(module).__name__} asks for {', '.join(odd)}, which rollout 'hf' does not compute")
    rows, heads, queries, dim = query.shape
    if queries > 1:
        grouped = heads != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
        return out.transpose(1, 2), None
    query = query.reshape(rows, key.shape[1], -1, dim)
    if query.is_cpu and query.dtype == torch.float32:
        # Half the time of the fused kernel here: many small problems with little to fuse.
        scores = torch.matmul(query * (dim**-0.5 if scaling is None else scaling), key.transpose(2, 3))
        if attention_mask is not None:
            scores += attention_mask
        out = torch.matmul(scores.softmax(-1), value)
    else:
        out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(rows, 1, heads, dim), None


AttentionInterface.register(ATTENTION, cached_attention)
