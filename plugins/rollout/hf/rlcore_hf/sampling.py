"""Drawing tokens. Axes: ``B`` rows, ``V`` vocabulary.

The draw of token ``t`` of a request depends on its seed, on ``t`` and on its logits alone: one uniform number, the hash
of (seed, t), is looked up in the cumulative distribution. So a sample does not depend on what is generated beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1024


@dataclass(frozen=True)
class Draws:
    """How each row draws. Tensors of B; the flags say what no row needs, so that it isn't computed.

    ``temperature`` float32, 1 for greedy rows; ``greedy`` bool; ``top_k`` int64, 0 for all; ``top_p`` float64.
    """

    temperature: Tensor
    greedy: Tensor
    top_k: Tensor
    top_p: Tensor
    any_greedy: bool
    all_greedy: bool
    filtered: bool


def uniforms(seeds: NDArray[np.uint64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in the open interval (0, 1) for each (seed, step): 52 bits of splitmix64, float64[B].

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), with the constants of its
    ``mix64``; a request's stream starts at the hash of its seed.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        state = _mix64(seeds + golden) + (steps.astype(np.uint64) + np.uint64(1)) * golden
    # 52 bits and a half: with 53 the largest would round to 1.
    return ((_mix64(state) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mix64(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def sample(
    logits: Tensor, draws: Draws, u: Tensor, eos_ids: Tensor, held: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a token for each row of ``logits`` [B, V] with the uniform numbers ``u`` float64[B].

    Rows that are ``held`` bool[B] may not draw one of ``eos_ids`` int64[E]. Returns the tokens int64[B], −1 where
    logits are not finite, and their log-probs float64[B]: ``log_softmax(logits / temperature)`` before anything is
    held back or filtered, which is what a trainer computes.
    """
    x = logits.float() / draws.temperature[:, None]
    top = x.amax(-1, keepdim=True)
    weights = (x - top).exp_()
    total = weights.sum(-1, dtype=torch.float64)
    if held is not None:
        x[:, eos_ids] = x[:, eos_ids].masked_fill_(held[:, None], -torch.inf)
        weights = (x - x.amax(-1, keepdim=True)).exp_()
    if draws.all_greedy:
        token = x.argmax(-1)
    else:
        if draws.filtered:
            weights = keep_likeliest(weights, draws.top_k, draws.top_p)
        token = pick(weights, u)
        if draws.any_greedy:
            token = torch.where(draws.greedy, x.argmax(-1), token)
    logprob = (x.gather(1, token[:, None]) - top)[:, 0].double() - total.log()
    return torch.where(total.isfinite(), token, -1), logprob


def keep_likeliest(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """``weights`` [B, V] with 0 for all but the ``top_k`` largest and, of these, the fewest that hold ``top_p``.

    Of equal weights the lower id counts as larger. The share of ``top_p`` is of what ``top_k`` has left.
    """
    ranked, order = weights.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(weights.shape[-1], device=weights.device)
    ranked = ranked.masked_fill((ranks >= top_k[:, None]) & (top_k[:, None] > 0), 0.0)
    before = ranked.cumsum(-1, dtype=torch.float64)
    share = top_p[:, None] * before[:, -1:]
    # Kept while what comes before is less than the share. A row that keeps all must not lose a tail to rounding.
    cut = (before - ranked >= share) & (top_p[:, None] < 1)
    return torch.zeros_like(weights).scatter_(-1, order, ranked.masked_fill_(cut, 0.0))


def pick(weights: Tensor, u: Tensor) -> Tensor:
    """Index with probability ``weights / sum`` by the inverse of the cumulative distribution at ``u``, int64[B].

    ``weights`` [B, V] are not negative, with a positive one in each row; an index of weight 0 is never returned. Rows
    with NaN give some index. Sums are taken over blocks first, then within the block that is hit: in float64, and
    without a copy of [B, V] in it.
    """
    vocab = weights.shape[-1]
    block = min(vocab, _BLOCK)
    blocks = pad(weights, (0, -vocab % block)).reshape(len(weights), -1, block)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = _below(u * sums[:, -1], sums[:, -1])
    hit = torch.searchsorted(sums, target[:, None], right=True).clamp(max=sums.shape[1] - 1)  # NaN is past the end
    start = torch.where(hit > 0, sums.gather(1, (hit - 1).clamp(min=0)), 0.0)
    inner = blocks.gather(1, hit[:, :, None].expand(-1, -1, block))[:, 0].cumsum(-1, dtype=torch.float64)
    rest = _below(target - start[:, 0], inner[:, -1])
    return (hit * block + torch.searchsorted(inner, rest[:, None], right=True).clamp(max=block - 1))[:, 0]


def _below(x: Tensor, end: Tensor) -> Tensor:
    """``x`` within [0, end), whatever rounding did."""
    return torch.minimum(x.clamp(min=0.0), torch.nextafter(end, torch.zeros_like(end)))
