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
    """Saves its inputs and the log-probs; the backward pass computes each chunk's logits again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk_tokens: int, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        entropies = torch.empty_like(logprobs) if entropy else None
        for rows in _chunks(len(hidden), chunk_tokens):
            # softmax converts as it reads: there is no float32 copy of bfloat16 logits.
            logp = torch.log_softmax(_logits(hidden[rows], weight, temperature), -1, dtype=dtype)
            logprobs[rows] = logp.gather(1, targets[rows, None])[:, 0]
            if entropies is not None:
                entropies[rows] = _entropy(logp, logp.exp())
        ctx.save_for_backward(hidden, weight, targets, logprobs)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)  # so that an unused entropy has the gradient None, not zeros
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, logprobs = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        if grad is None:
            grad = torch.zeros_like(logprobs)
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        # Summed in float32 over chunks: in bfloat16 the gradient would depend on their number.
        grad_weight = torch.zeros_like(weight, dtype=logprobs.dtype) if wants_weight else None
        for rows in _chunks(len(hidden), ctx.chunk_tokens):
            grad_logits = _grad_logits(
                hidden[rows],
                weight,
                targets[rows, None],
                logprobs[rows, None],
                grad[rows, None],
                None if grad_entropy is None else grad_entropy[rows, None],
                ctx.temperature,
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


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """[C, V]; in at least float32 where a temperature divides them."""
    logits = hidden @ weight.T
    return logits if temperature == 1 else logits.to(torch.promote_types(logits.dtype, torch.float32)).div_(temperature)


def _entropy(logp: Tensor, p: Tensor) -> Tensor:
    """−Σ_v p_v log p_v, [C]; a batched dot product, so that no [C, V] product exists."""
    negative: Tensor = torch.linalg.vecdot(p, logp)
    return negative.neg_()


def _grad_logits(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    logprobs: Tensor,
    grad: Tensor,
    grad_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """The gradient with respect to ``hidden @ weight.T``, [C, V]; from ``targets`` to ``grad_entropy`` all are [C, 1].

    With z these products divided by the temperature and y the target, d log p_y / d z_v = [v = y] − p_v and
    d H / d z_v = −p_v (log p_v + H).
    """
    dtype, grad = logprobs.dtype, grad / temperature
    if grad_entropy is None:
        p = torch.softmax(_logits(hidden, weight, temperature), -1, dtype=dtype)
        factor = -grad
        at_target = -grad * torch.expm1(logprobs)
    else:
        logp = torch.log_softmax(_logits(hidden, weight, temperature), -1, dtype=dtype)
        p = logp.exp()
        factor = logp.add_(_entropy(logp, p)[:, None]).mul_(-grad_entropy / temperature).sub_(grad)
        at_target = factor.gather(1, targets) * logprobs.exp() + grad
    out = p if p.dtype == hidden.dtype else torch.empty_like(p, dtype=hidden.dtype)
    torch.mul(p, factor, out=out)
    return out.scatter_(1, targets, at_target.to(out.dtype))
