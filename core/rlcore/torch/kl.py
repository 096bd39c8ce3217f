"""Estimates of KL(π ‖ π_ref) from the log-probs of sampled tokens, for the loss (torch) and for rewards (numpy).

With d = log π − log π_ref at a token drawn from π (John Schulman, "Approximating KL Divergence", 2020):

========  ================  ==========================================================================
``k1``    d                 unbiased, of either sign; as a loss its gradient is 0 on average
``abs``   |d|               biased, never negative
``k2``    d² / 2            biased, never negative; its gradient is that of KL on average (on-policy)
``k3``    e^(−d) + d − 1    unbiased, never negative; its gradient is that of KL(π_ref ‖ π) on average
``k3+``   e^(−d) + d − 1    the value of ``k3`` with the gradient of ``k2`` (straight-through)
========  ================  ==========================================================================

One table serves both: the functions that it calls are named alike in torch and numpy. Importing this needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlcore.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3", "k3+", "abs"]

MAX_LOG_RATIO = 20.0
"""Bound of a log-ratio before ``exp``: e^20 is 4.9e8, far past any ratio that training should follow, and its square
still fits float32. Beyond the bound the gradient is 0 and never NaN."""


def _k3(xp: Any, d: Any) -> Any:
    d = xp.clip(d, -MAX_LOG_RATIO, None)  # e^(−d) grows on this side only; the other is exact
    return xp.expm1(-d) + d  # expm1: k3 is d²/2 near 0, which e^(−d) − 1 would round away


_FORMULAS: Mapping[str, Callable[[Any, Any], Any]] = {
    "k1": lambda xp, d: d,
    "abs": lambda xp, d: xp.abs(d),
    "k2": lambda xp, d: d * d / 2,
    "k3": _k3,
    "k3+": _k3,
}


def kl(estimator: KlEstimator, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The estimate at each token, float32[L]; ``logprobs`` and ``ref_logprobs`` float32[L]. Differentiable."""
    import torch

    difference = logprobs - ref_logprobs
    value: Tensor = _formula(estimator)(torch, difference)
    if estimator != "k3+":
        return value
    carrier = difference * difference / 2
    return carrier + (value - carrier).detach()


def kl_numpy(
    estimator: KlEstimator, logprobs: NDArray[np.floating[Any]], ref_logprobs: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """The estimate at each token, of the inputs' dtype and shape ``[T]``."""
    return _formula(estimator)(np, logprobs - ref_logprobs)  # type: ignore[no-any-return]


def _formula(estimator: str) -> Callable[[Any, Any], Any]:
    if estimator not in _FORMULAS:
        raise ManifestError(f"unknown KL estimator {estimator!r}; there are: {', '.join(_FORMULAS)}")
    return _FORMULAS[estimator]
