"""The policy loss ``dpo``: direct preference optimization on pairs.

Rafailov et al. 2023, arXiv:2305.18290 eq. 7; IPO: Azar et al. 2023, arXiv:2310.12036 eq. 17; label smoothing
(conservative DPO): Mitchell 2023, https://ericmitchell.ai/cdpo.pdf eq. 3.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator
from rlcore import PluginConfig, hookimpl

if TYPE_CHECKING:
    from typing import Self

    import torch
    from rlcore.plugins.interfaces import PolicyLoss
    from rlcore.torch.losses import LossInputs, LossOutput

Form = Literal["sigmoid", "ipo"]


class Config(PluginConfig):
    """DPO: make the better sample of a pair likelier than the worse, measured from the reference model."""

    beta: Annotated[float, Field(gt=0)] = 0.1
    """How strongly the reference holds: the KL coefficient of the reward maximisation that DPO solves."""
    form: Form = "sigmoid"
    """DPO's logistic loss, or IPO's squared one, on means over tokens, which stops pushing at 1 / (2 beta)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Share of pairs that are taken to be labelled the wrong way round; sigmoid only."""

    @model_validator(mode="after")
    def _smoothed(self) -> Self:
        if self.label_smoothing and self.form == "ipo":
            raise ValueError("label_smoothing belongs to form: sigmoid; with ipo leave it at 0")
        return self

    def needs(self) -> frozenset[str]:
        """An estimator that makes pairs, and the reference model's log-probs."""
        return frozenset({"pairs", "batch:ref_logprobs"})


def dpo(inputs: LossInputs, *, beta: float, form: Form, label_smoothing: float) -> LossOutput:
    """The loss of its pair at each token, float32[L].

    The sign of a token's advantage says which sequence of its pair c (better) or r (worse) it belongs to. With sums
    over live tokens, and ε the label smoothing::

        m = Σ_c (log π − log π_ref) − Σ_r (log π − log π_ref)
        ℓ = −(1 − ε) log σ(β m) − ε log σ(−β m)      sigmoid
        ℓ = (m − 1 / (2β))²                          ipo, with means over the tokens of c and of r in place of sums

    Weighted by ``seq-mean-token-mean``, 1 / (2 P · len) at each token, the sum is the mean of ℓ over P pairs.

    Metrics, means over live tokens: ``margin``, β m; ``pair_accuracy``, pairs with m > 0; ``chosen_reward`` and
    ``rejected_reward``, β times what m has of the two. Raises ``BatchError`` for a unit that is no pair.
    """
    import torch
    from rlcore.torch.losses import LossOutput
    from torch.nn.functional import logsigmoid

    units = inputs.segments if inputs.units is None else inputs.units
    better = inputs.advantages > 0
    _check_pairs(inputs, units, better)
    ratio = inputs.logprobs - inputs.extras["ref_logprobs"]
    if form == "ipo":
        # As its results were published: with sums, the margin that is aimed at would not grow with the length.
        ones = torch.ones_like(ratio)
        ratio = ratio / ones.new_zeros(inputs.sequences).index_add(0, inputs.segments, ones)[inputs.segments]

    def of_pair(values: torch.Tensor) -> torch.Tensor:
        """Sum over the live tokens of each pair, at every token of it."""
        return values.new_zeros(inputs.sequences).index_add(0, units, values)[units]

    chosen, rejected = of_pair(ratio.where(better, 0)), of_pair(ratio.where(~better, 0))
    margin = chosen - rejected
    if form == "ipo":
        loss = (margin - 1 / (2 * beta)) ** 2
    else:
        right, wrong = logsigmoid(beta * margin), logsigmoid(-beta * margin)
        loss = -(1 - label_smoothing) * right - label_smoothing * wrong
    metrics = {
        "margin": beta * margin,
        "pair_accuracy": margin > 0,
        "chosen_reward": beta * chosen,
        "rejected_reward": beta * rejected,
    }
    return LossOutput(loss, {name: value.detach().to(loss.dtype) for name, value in metrics.items()})


def _check_pairs(inputs: LossInputs, units: torch.Tensor, better: torch.Tensor) -> None:
    """Each unit must hold one better and one worse sequence."""
    from rlcore.errors import BatchError

    nowhere = inputs.sequences  # for sequences without a live token
    unit_of = units.new_full((inputs.sequences,), nowhere).scatter(0, inputs.segments, units)
    is_better = units.new_zeros(inputs.sequences).scatter(0, inputs.segments, better.long())
    counts = units.new_zeros(nowhere + 1, 2)
    counts.index_put_((unit_of, is_better), units.new_ones(()), accumulate=True)
    counts = counts[:nowhere]
    wrong = int(((counts != 1).any(1) & (counts != 0).any(1)).sum())
    if wrong:
        raise BatchError(
            f"{wrong} units of a micro-batch are not one better and one worse sample (advantages above and below 0): "
            "the loss dpo needs an estimator that makes pairs, such as dpo"
        )


@hookimpl
def rlcore_policy_loss(config: Config) -> PolicyLoss:
    """DPO with these options."""
    return partial(dpo, beta=config.beta, form=config.form, label_smoothing=config.label_smoothing)
