"""The loss of a critic's update, weighted token by token.

``Σ_t w_t ½ max((v_t − G_t)², (clip(v_t, v_old_t ± c) − G_t)²)``, with the same loss weights as the policy's. A train
backend calls it once per micro-batch of live tokens (``L``) and adds up both results over micro-batches and ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlcore.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore.plugins.interfaces import ValueLossSpec

_TOKENS, _LOSS = "tokens", "loss"
_MEANS = ("clip_fraction", "clip_binding_fraction", "value_mean", "return_mean")
_FLAT = 1e-12
"""Returns don't vary if their variance is at most this fraction of their mean square: that is float64's residue."""


class ValueObjective:
    """A ``ValueLossSpec`` made callable.

    The clip is that of OpenAI's baselines (``ppo2``, which Schulman et al. 2017, arXiv:1707.06347, was published with):
    around the *old* value. The worse of both errors counts, so a value that has moved by more than ``value_clip`` away
    from its return is still pulled back, and one that has moved by more towards it is left alone.
    """

    columns = frozenset({"loss_weights", "values", "returns"})
    """Token columns that a call reads; ``values`` are those from before the step's first update."""

    def __init__(self, spec: ValueLossSpec) -> None:
        self.spec = spec

    def __call__(self, values: Tensor, columns: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch, a scalar with gradient, and sums to add up and give to ``metrics``.

        ``values`` float32[L] carry gradient; ``columns`` are float32[L] by name, live tokens only. Raises
        ``BatchError`` on a missing column or one of another length.
        """
        self._check(values, columns)
        old, returns, clip = columns["values"], columns["returns"], self.spec.value_clip
        error = (values - returns).square()
        now = values.detach()
        means = {"value_mean": now, "return_mean": returns}
        if clip is not None:
            clipped = (values.clamp(old - clip, old + clip) - returns).square()
            # From the change as it is: that of the clipped value is never above the clip.
            means["clip_fraction"] = (now - old).abs() > clip
            means["clip_binding_fraction"] = (clipped > error).detach()
            error = torch.maximum(error, clipped)
        total = (columns["loss_weights"] * error).sum() / 2
        residual = returns.double() - old.double()
        sums = {name: value.sum(dtype=torch.float64) for name, value in means.items()}
        sums |= {
            _LOSS: total.detach().double(),
            _TOKENS: torch.tensor(float(len(values)), dtype=torch.float64, device=values.device),
            "return_square": returns.double().square().sum(),
            "residual": residual.sum(),
            "residual_square": residual.square().sum(),
        }
        return total, sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The sums of a whole update, over all its micro-batches and ranks, as metrics under ``critic/``.

        - ``loss``: weighted as the loss is; the others are over live tokens, each counted once.
        - ``clip_fraction``: share of values that have moved by more than ``value_clip``.
        - ``clip_binding_fraction``: share where the clipped error is the larger, so that the gradient is cut.
        - ``value_mean``, ``return_mean``: of the values now, and of what they are fitted to.
        - ``explained_variance``: 1 − Var(G − v_old) / Var(G): how well the critic foretold the returns before it was
          fitted to them; 1 is perfectly, 0 no better than a constant. 0 where the returns don't vary.
        """
        n = max(sums[_TOKENS], 1.0)
        means = {name: sums[name] / n for name in _MEANS if name in sums}
        square = sums["return_square"] / n
        variance = square - means["return_mean"] ** 2
        unexplained = sums["residual_square"] / n - (sums["residual"] / n) ** 2
        explained = 1 - unexplained / variance if variance > _FLAT * square else 0.0
        values = {_LOSS: sums[_LOSS], **means, "explained_variance": explained}
        return {f"critic/{name}": value for name, value in values.items()}

    def _check(self, values: Tensor, columns: Mapping[str, Tensor]) -> None:
        missing = self.columns - columns.keys()
        if missing:
            raise BatchError(
                f"a critic's update needs the token columns {', '.join(sorted(missing))}; "
                f"the batch has: {', '.join(sorted(columns)) or 'none'}"
            )
        for name, column in columns.items():
            if column.shape != values.shape:
                raise BatchError(f"column {name!r} has shape {[*column.shape]}, the values {[*values.shape]}")
