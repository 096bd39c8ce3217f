"""The loss of an update: any policy loss, a KL term and an entropy bonus, weighted token by token.

``Σ_t w_t (policy_t + kl_coef · KL_t − entropy_coef · H_t)``, where ``w`` are the update's loss weights. A train
backend calls it once per micro-batch of live tokens (``L``) and adds up both results over micro-batches and ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlcore.errors import BatchError, BrokenPluginError
from rlcore.plugins.blame import blame
from rlcore.plugins.capabilities import batch_columns
from rlcore.plugins.loading import build, config_of
from rlcore.torch.kl import kl
from rlcore.torch.losses import LossInputs, LossOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlcore.plugins.interfaces import LossSpec, PolicyLoss

_TOTAL, _SURROGATE, _TOKENS = "loss", "surrogate_loss", "tokens"
_WEIGHTED = frozenset({_TOTAL, _SURROGATE})
"""Sums that hold the loss weights already, so that they are no means over tokens."""
_OPTIONAL = frozenset({"old_logprobs", "correction"})
"""Columns that a batch has only where they make a difference: the ratio is 1, or the weight is, without them."""
_RESERVED = _WEIGHTED | {_TOKENS, "kl_to_old", "kl_to_reference", "entropy"}
"""Names of the core's own sums, which a policy loss can't report under."""


class Objective:
    """A ``LossSpec`` made callable. ``policy`` is the loss that its plugin built."""

    def __init__(self, spec: LossSpec) -> None:
        self.spec = spec
        self.policy: PolicyLoss = build(spec.policy)
        self._extras = batch_columns(config_of(spec.policy).needs())
        self._needs_advantages = not getattr(self.policy, "ignores_advantages", False)

    @property
    def columns(self) -> frozenset[str]:
        """Token columns that a call reads. Without ``old_logprobs`` the ratio is 1; ``correction`` is optional too."""
        always = {"loss_weights", *_OPTIONAL}
        advantages = {"advantages"} if self._needs_advantages else set()
        reference = {"ref_logprobs"} if self.spec.kl_coef else set()
        return frozenset(always | advantages | reference | self._extras)

    @property
    def wants_entropy(self) -> bool:
        """Whether a call needs the entropy of each token."""
        return self.spec.entropy or self.spec.entropy_coef != 0

    def __call__(
        self,
        logprobs: Tensor,
        entropy: Tensor | None,
        columns: Mapping[str, Tensor],
        segments: Tensor,
        sequences: int,
        units: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch, a scalar with gradient, and sums to add up and give to ``metrics``.

        ``logprobs`` and ``entropy`` float32[L] carry gradient; ``columns`` are float32[L] by name, live tokens only,
        without ``old_logprobs`` on the first update of a rollout (the ratio is then 1). ``segments`` int64[L] is the
        sequence of each token, 0 … ``sequences`` − 1, ``units`` int64[L] the unit of that sequence. Raises
        ``BatchError`` on a missing column, and ``BrokenPluginError`` where the policy loss returns something that is no
        value per token.
        """
        self._check(logprobs, entropy, columns)
        spec, weights = self.spec, columns["loss_weights"]
        old_logprobs = columns.get("old_logprobs", logprobs.detach())
        advantages = columns["advantages"] if self._needs_advantages else torch.zeros_like(weights)
        extras = {name: columns[name] for name in self._extras}
        inputs = LossInputs(logprobs, old_logprobs, advantages, weights, segments, sequences, extras, units)
        with blame(self.spec.policy):
            output = self.policy(inputs)
        self._check_output(output, logprobs)

        loss = surrogate = output.loss if "correction" not in columns else output.loss * columns["correction"]
        means = {"kl_to_old": old_logprobs - logprobs, **output.metrics}
        if spec.kl_coef:
            means["kl_to_reference"] = kl(spec.kl_estimator, logprobs, columns["ref_logprobs"])
            loss = loss + spec.kl_coef * means["kl_to_reference"]
        if entropy is not None:
            means["entropy"] = entropy
        if entropy is not None and spec.entropy_coef:
            loss = loss - spec.entropy_coef * entropy
        total = (weights * loss).sum()

        sums = {name: _sum(value) for name, value in means.items()}
        sums[_TOTAL] = total.detach().double()
        sums[_SURROGATE] = _sum(weights * surrogate)
        sums[_TOKENS] = _sum(torch.ones_like(weights))
        return total, sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The sums of a whole update, over all its micro-batches and ranks, as metrics under ``policy/``.

        ``policy/loss`` and ``policy/surrogate_loss`` (without KL and entropy) are weighted as the loss is; all others
        are means over live tokens, and 0 where there are none.
        """
        tokens = max(sums[_TOKENS], 1.0)
        return {
            f"policy/{name}": value if name in _WEIGHTED else value / tokens
            for name, value in sums.items()
            if name != _TOKENS
        }

    def _check(self, logprobs: Tensor, entropy: Tensor | None, columns: Mapping[str, Tensor]) -> None:
        missing = self.columns - columns.keys() - (_OPTIONAL - self._extras)
        if missing:
            raise BatchError(
                f"{self.spec.policy} needs the token columns {', '.join(sorted(missing))}; "
                f"the micro-batch has: {', '.join(sorted(columns)) or 'none'}"
            )
        if self.wants_entropy and entropy is None:
            raise BatchError("the loss needs the entropy of each token (wants_entropy), and got None")
        for name, column in columns.items():
            if column.shape != logprobs.shape:
                raise BatchError(f"column {name!r} has shape {[*column.shape]}, the log-probs {[*logprobs.shape]}")

    def _check_output(self, output: LossOutput, logprobs: Tensor) -> None:
        if not isinstance(output, LossOutput):
            raise BrokenPluginError(f"{self.spec.policy} must return a LossOutput, not {type(output).__name__}")
        if logprobs.requires_grad and not output.loss.requires_grad:
            raise BrokenPluginError(f"{self.spec.policy} returned a loss that does not depend on the log-probs")
        taken = _RESERVED & output.metrics.keys()
        if taken:
            raise BrokenPluginError(
                f"{self.spec.policy} reports metrics under the core's own names, {', '.join(sorted(taken))}: rename"
            )
        # A loss of shape [] or [S] would broadcast against the weights and train on something else, in silence.
        for name, value in (("loss", output.loss), *output.metrics.items()):
            if value.shape != logprobs.shape:
                raise BrokenPluginError(
                    f"{self.spec.policy} returned {name!r} of shape {[*value.shape]}; "
                    f"it must be one value per live token, {[*logprobs.shape]}"
                )


def _sum(value: Tensor) -> Tensor:
    """In float64, so that metrics don't depend on the split into micro-batches either."""
    return value.detach().sum(dtype=torch.float64)
