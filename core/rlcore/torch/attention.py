"""Exact block-diagonal causal attention over packed sequences, as an attention function of transformers.

A model loaded with ``attn_implementation=PACKED`` and called with ``packing=…`` attends within each sequence only, with
no ``[T, T]`` mask anywhere. On CUDA in half precision it is PyTorch's varlen kernel; otherwise sequences of similar
length are gathered into buckets for ``scaled_dot_product_attention``.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rlcore.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlcore.torch.packing import Packing

try:
    from torch.nn.attention import varlen
except ImportError:  # before torch 2.10
    varlen_attn = None
else:
    varlen_attn = cast("Callable[..., Tensor]", varlen.varlen_attn)

PACKED = "rlcore_packed"
"""Name of the attention implementation in transformers' registry."""

# Newer torch refuses grouped key-value heads unless told of them; older takes them and lacks the argument.
_GQA = {"enable_gqa": True} if varlen_attn and "enable_gqa" in signature(varlen_attn).parameters else {}

# Arguments with which models change what attention computes; dropping one would change the model.
_UNSUPPORTED = ("softcap", "s_aux", "sinks", "position_bias", "indices")


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer: query [1, H, T, D], key and value [1, H_kv, T, D]; returns [1, T, H, D].

    Raises ModelError for what it does not compute: a mask, dropout, soft caps, sinks, position biases, and sequences
    longer than the sliding window.
    """
    refused = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if attention_mask is not None or dropout or not causal:
        refused.append("a mask, dropout or attention that is not causal")
    if refused:
        raise ModelError(
            f"{type(module).__name__} asks for {', '.join(refused)}, which packed attention does not compute"
        )
    if packing is None:
        raise ModelError("packed attention was called without packing=…; use rlcore.torch.model.PackedModel")
    if sliding_window is not None and packing.max_length > sliding_window:
        raise ModelError(
            f"a sequence of {packing.max_length} tokens is longer than the model's sliding window ({sliding_window}), "
            "which packed attention does not compute; keep prompt and response within the window"
        )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, D]
    if varlen_attn is not None and query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        cu, longest = packing.cu_seqlens, packing.max_length
        out = varlen_attn(q, k, v, cu, cu, longest, longest, scale=scaling, window_size=(-1, 0), **_GQA)
    else:
        out = _bucketed(q, k, v, packing, scaling)
    return out[None], None


def _bucketed(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None) -> Tensor:
    """Attention in padded buckets: [T, heads, D] in and out.

    Padding is on the right, so no real token attends to it; its own output is never read and gets no gradient.
    """
    buckets, inverse = packing.buckets
    grouped = query.shape[1] != key.shape[1]
    outs = []
    for index in buckets:
        q, k, v = (x[index].transpose(1, 2) for x in (query, key, value))  # [B, heads, length, D]
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped)
        outs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outs)[inverse]


AttentionInterface.register(PACKED, packed_attention)
