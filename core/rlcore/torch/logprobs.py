"""Log-probs and entropy of tokens without the logits of a whole sequence.

Logits are ``[L, V]``: for 16,384 tokens of a vocabulary of 151,936 they take 10 GB in float32. Here they exist for one
chunk of tokens at a time, in the forward pass and, computed anew, in the backward pass. What is kept in between is the
input alone. Axes: ``L`` tokens, ``D`` hidden size, ``V`` vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlcore.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterator


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, temperature: float, chunk_tokens: int, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of ``targets`` under ``softmax(hidden @ weight.T / temperature)``, and that distribution's entropy.

    ``hidden`` [L, D] and ``weight`` [V, D] are of one dtype, which the matrix products are computed in; the softmax is
    float32. ``targets`` int64[L]. Returns float32[L] log-probs and, if asked for, float32[L] entropies in nats (float64
    for float64 inputs). Both carry gradient; that of the entropy costs nothing unless it is used. Without gradients
    nothing is computed twice.

    At most ``chunk_tokens`` rows of logits exist at a time: it sets memory and speed, never the result.

    Raises ``BatchError`` on shapes that don't fit together or a value out of range.
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or targets.shape != hidden.shape[:1]:
        raise BatchError(
            "log-probs need hidden [L, D], weight [V, D] and targets [L], "
            f"not {[*hidden.shape]}, {[*weight.shape]} and {[*targets.shape]}"
        )
    if temperature <= 0:
        raise BatchError(f"log-probs need a temperature above 0, not {temperature}; greedy decoding has none")
    if chunk_tokens < 1:
        raise BatchError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
    apply = cast("Any", _TokenLogprobs.apply)
    logprobs, entropies = apply(hidden, weight, targets, temperature, chunk_tokens, entropy)
    return logprobs, entropies


class _TokenLogprobs(torch.autograd.Function):
    """Saves its inputs; the backward pass computes each chunk's logits again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk_tokens: int, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(hidden, weight, targets)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)  # so that an unused entropy has the gradient None, not zeros
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        entropies = torch.empty_like(logprobs) if entropy else None
        for rows in _chunks(len(hidden), chunk_tokens):
            logp = _log_softmax(hidden[rows], weight, temperature)
            logprobs[rows] = logp.gather(1, targets[rows, None])[:, 0]
            if entropies is not None:
                entropies[rows] = _entropy(logp, logp.exp())
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        # Summed in float32 over chunks: in bfloat16 the gradient would depend on their number.
        sum_dtype = torch.promote_types(weight.dtype, torch.float32)
        grad_hidden = torch.zeros_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=sum_dtype) if wants_weight else None
        for rows in _chunks(len(hidden), ctx.chunk_tokens):
            grad_logits = _grad_logits(
                _log_softmax(hidden[rows], weight, ctx.temperature),
                targets[rows, None],
                None if grad is None else grad[rows, None] / ctx.temperature,
                None if grad_entropy is None else grad_entropy[rows, None] / ctx.temperature,
                hidden.dtype,
            )
            if grad_hidden is not None:
                torch.mm(grad_logits, weight, out=grad_hidden[rows])
            if grad_weight is not None and grad_weight.dtype == grad_logits.dtype:
                grad_weight.addmm_(grad_logits.T, hidden[rows])
            elif grad_weight is not None:
                grad_weight += grad_logits.T @ hidden[rows]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None


def _chunks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, length, size))


def _log_softmax(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """[C, V] in at least float32."""
    logits = hidden @ weight.T
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if temperature != 1:
        logits = logits.to(dtype).div_(temperature)
    return torch.log_softmax(logits, -1, dtype=dtype)  # the cast is fused: no float32 copy of the logits


def _entropy(logp: Tensor, p: Tensor) -> Tensor:
    """−Σ_v p_v log p_v, [C]; a batched dot product, so that no [C, V] product exists."""
    return torch.linalg.vecdot(p, logp).neg_()


def _grad_logits(
    logp: Tensor, targets: Tensor, grad: Tensor | None, grad_entropy: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Gradient with respect to the logits, [C, V]; consumes ``logp``. All others [C, 1], divided by the temperature.

    d log p_y / d z_v = [v = y] − p_v, and d H / d z_v = −p_v (log p_v + H).
    """
    out = logp if logp.dtype == dtype else torch.empty_like(logp, dtype=dtype)
    if grad_entropy is None:
        if grad is None:
            return out.zero_()
        at_target = logp.gather(1, targets).expm1_().mul_(-grad)
        torch.mul(logp.exp_(), -grad, out=out)
    else:
        p = logp.exp()
        entropy = _entropy(logp, p)[:, None]
        grad = torch.zeros_like(grad_entropy) if grad is None else grad
        factor = logp.add_(entropy).mul_(grad_entropy).add_(grad).neg_()
        grads = factor.mul_(p)
        at_target = grads.gather(1, targets) + grad
        out.copy_(grads)
    return out.scatter_(1, targets, at_target.to(dtype))
