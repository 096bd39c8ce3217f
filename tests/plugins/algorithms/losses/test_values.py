"""Value, gradient and metrics of each loss, by hand in float64 from the formula of its paper.

Ratios are 1/4, 1/2, 2, 4 …, so that logarithms and geometric means come out even.
"""

from __future__ import annotations

import math
from math import exp, log

import pytest
import torch
from rlcore.errors import PluginError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build
from rlcore.torch.losses import LossInputs

ALL = ("gspo", "cispo", "gmpo", "sapo", "reinforce", "clip-cov", "kl-cov")
LN2 = log(2)
NONE_SELECTED = {"clip-cov", "kl-cov"}


def extras(name, tokens, selected=0.0):
    return {"cov_selected": [selected] * tokens} if name in NONE_SELECTED else None


def close(values):
    return pytest.approx(values, rel=1e-12, abs=1e-300)


# --- gspo ----------------------------------------------------------------------------------------------------------


def test_gspo_has_one_ratio_for_a_sequence(evaluate) -> None:
    """Sequences of 2, 1 and 3 tokens. s = (4 · 1)^½ = 2, ½, and (2 · 2 · 2)^⅓ = 2."""
    got = evaluate(
        "gspo",
        [2 * LN2, 0, -LN2, LN2, LN2, LN2],
        [3, 3, 5, -7, -7, -7],
        lengths=[2, 1, 3],
        clip_low=0.25,
        clip_high=0.5,
    )
    # A > 0, s = 2: clipped at 1.5, no gradient. A > 0, s = ½: −A s. A < 0, s = 2: −A s, there is no dual clip.
    assert got.loss == close([-4.5, -4.5, -2.5, 14, 14, 14])
    assert got.gradient == close([0, 0, -2.5, 14, 14, 14])
    assert got.metrics["ratio"] == close([2, 2, 0.5, 2, 2, 2])
    assert got.metrics["clip_fraction"] == [1, 1, 0, 0, 0, 0]


def test_gspo_negative_advantage_is_clipped_below(evaluate) -> None:
    got = evaluate("gspo", [-LN2, -LN2], [-3, -3], clip_low=0.25, clip_high=0.5)
    assert got.loss == close([2.25, 2.25])  # max(3 · ½, 3 · ¾)
    assert got.gradient == [0, 0]
    assert got.metrics["clip_fraction"] == [1, 1]


def test_gspo_with_its_own_average_is_the_paper_s_sequence_loss_and_gradient(evaluate) -> None:
    """Field case L17: −(1/G) Σ_i s_i A_i and its gradient −(1/G) Σ_i s_i A_i (1/|y_i|) ∇ log π, not times |y_i|."""
    lengths, log_ratios, advantages = [1, 3], [0.1, 0.3, -0.6, 0.9], [2, -1, -1, -1]
    weights = [1 / 2, 1 / 6, 1 / 6, 1 / 6]  # seq-mean-token-mean
    got = evaluate("gspo", log_ratios, advantages, lengths=lengths, weights=weights, clip_low=1, clip_high=1)
    s = [exp(0.1), exp(0.2)]
    assert sum(w * x for w, x in zip(weights, got.loss, strict=True)) == close(-(2 * s[0] - 1 * s[1]) / 2)
    assert got.gradient == close([-2 * s[0] / 2, s[1] / 2 / 3, s[1] / 2 / 3, s[1] / 2 / 3])


def test_gspo_default_range_is_the_paper_s(evaluate) -> None:
    up, down = evaluate("gspo", [0.00039], [1]), evaluate("gspo", [-0.00029], [-1])
    assert up.metrics["clip_fraction"] == down.metrics["clip_fraction"] == [0]
    up, down = evaluate("gspo", [0.00041], [1]), evaluate("gspo", [-0.00031], [-1])
    assert up.metrics["clip_fraction"] == down.metrics["clip_fraction"] == [1]


def test_gspo_one_far_token_does_not_saturate_the_mean(evaluate) -> None:
    """The bound of ±20 is on the mean, where exp is: 100 at one of 50 tokens is a mean of 2."""
    got = evaluate("gspo", [100.0] + [0.0] * 49, [-1] * 50)
    assert got.loss == close([exp(2)] * 50)
    assert got.gradient == close([exp(2)] * 50)


# --- cispo ---------------------------------------------------------------------------------------------------------


def test_cispo_clips_the_weight_and_keeps_the_gradient(evaluate) -> None:
    """log π = −1 and −2; weights ½ (clipped to ¾), 2 (clipped to 1.5), 1; none is lost, whatever the sign of A."""
    got = evaluate(
        "cispo",
        [-LN2, LN2, 0, -LN2, LN2],
        [3, 3, 3, -3, -3],
        logprobs=[-1, -2, -1, -1, -1],
        clip_low=0.25,
        clip_high=0.5,
    )
    assert got.loss == close([2.25, 9, 3, -2.25, -4.5])
    assert got.gradient == close([-2.25, -4.5, -3, 2.25, 4.5])
    assert got.metrics["ratio"] == close([0.5, 2, 1, 0.5, 2])
    assert got.metrics["clip_fraction"] == [1, 1, 0, 1, 1]


def test_cispo_has_no_lower_bound_unless_asked(evaluate) -> None:
    got = evaluate("cispo", [log(1e-6), log(4.9), log(6)], [1, 1, 1])
    assert got.gradient == close([-1e-6, -4.9, -5])
    assert got.metrics["clip_fraction"] == [0, 0, 1]


# --- gmpo ----------------------------------------------------------------------------------------------------------


def test_gmpo_is_the_geometric_mean_of_pessimistically_clipped_ratios(evaluate) -> None:
    """Range [½, 2] in ratios. A > 0: (4, 1, 1) becomes (2, 1, 1), (¼, 1, 1) stays. A < 0: the other way about."""
    got = evaluate(
        "gmpo",
        [2 * LN2, 0, 0, -2 * LN2, 0, 0, 2 * LN2, 0, -2 * LN2, 0],
        [3, 3, 3, 3, 3, 3, -3, -3, -3, -3],
        lengths=[3, 3, 2, 2],
        clip_low=LN2,
        clip_high=LN2,
    )
    g = [2 ** (1 / 3), 0.25 ** (1 / 3), 2, 0.5**0.5]
    assert got.loss == close([-3 * g[0]] * 3 + [-3 * g[1]] * 3 + [3 * g[2]] * 2 + [3 * g[3]] * 2)
    # Clipped tokens, and they alone, have none.
    assert got.gradient == close([0, *[-3 * g[0]] * 2, *[-3 * g[1]] * 3, *[3 * g[2]] * 2, 0, 3 * g[3]])
    assert got.metrics["ratio"] == close([g[0]] * 3 + [g[1]] * 3 + [g[2]] * 2 + [g[3]] * 2)
    assert got.metrics["clip_fraction"] == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0]


def test_gmpo_with_its_own_average_is_the_paper_s(evaluate) -> None:
    """Against autograd through the formula as it is written: a product of |min(ρA, clip(ρ)A)|, to the power 1/|o|."""
    lengths, advantages = [3, 1, 2], [2.0, 2.0, 2.0, -1.5, -0.5, -0.5]
    d = torch.tensor([0.9, -0.2, 0.1, -0.7, 0.6, -0.45], dtype=torch.float64, requires_grad=True)
    a, weights, total, start = torch.tensor(advantages, dtype=torch.float64), [], 0.0, 0
    for n in lengths:
        rho, adv = d[start : start + n].exp(), a[start : start + n]
        product = torch.minimum(rho * adv, rho.clamp(exp(-0.4), exp(0.4)) * adv).abs().prod()
        total = total - product ** (1 / n) * adv[0].sign() / len(lengths)
        weights += [1 / (len(lengths) * n)] * n
        start += n
    total.backward()
    got = evaluate("gmpo", d.tolist(), advantages, lengths=lengths, weights=weights)
    assert sum(w * x for w, x in zip(weights, got.loss, strict=True)) == close(total.item())
    assert got.gradient == close(d.grad.tolist())


# --- sapo ----------------------------------------------------------------------------------------------------------


def test_sapo_is_a_gate_with_a_temperature_for_each_sign(evaluate) -> None:
    """τ = 2 above and ln 3 below; at ρ = 2: σ(2) and σ(ln 3) = ¾; at ρ = 1: ½."""
    got = evaluate("sapo", [LN2, 0, LN2, 0], [3, 3, -3, -3], temperature_positive=2, temperature_negative=log(3))
    p = 1 / (1 + exp(-2))
    assert got.loss == close([-3 * 2 * p, -3, 3 * 4 / log(3) * 0.75, 3 * 4 / log(3) * 0.5])
    # −A ρ 4 p (1 − p): the plain policy gradient at ρ = 1
    assert got.gradient == close([-3 * 2 * 4 * p * (1 - p), -3, 3 * 2 * 4 * 0.75 * 0.25, 3])
    assert got.metrics["gate"] == close([4 * p * (1 - p), 1, 0.75, 1])
    assert got.metrics["ratio"] == close([2, 1, 2, 1])


def test_sapo_default_temperatures_are_the_paper_s(evaluate) -> None:
    got = evaluate("sapo", [0, 0], [1, -1])
    assert got.loss == close([-2, 2 / 1.05])


# --- reinforce -----------------------------------------------------------------------------------------------------


def test_reinforce_knows_no_old_policy(evaluate) -> None:
    got = evaluate("reinforce", [0.5, -3, 100], [2, -1, 0], logprobs=[-1, -2, -4])
    assert got.loss == close([2, -2, 0])
    assert got.gradient == close([-2, 1, 0])
    assert got.metrics == {}


# --- clip-cov and kl-cov, with the choice of tokens given ----------------------------------------------------------


def test_clip_cov_leaves_chosen_tokens_out(evaluate) -> None:
    got = evaluate(
        "clip-cov", [LN2, LN2, -LN2, 2 * LN2], [3, 3, 3, -3], extras={"cov_selected": [1, 0, 0, 1]},
        clip_low=0.25, clip_high=0.5,
    )  # fmt: skip
    assert got.loss == close([0, -4.5, -1.5, 0])
    assert got.gradient == close([0, 0, -1.5, 0])
    assert got.metrics["selected_fraction"] == [1, 0, 0, 1]
    assert got.metrics["clip_fraction"] == [1, 1, 0, 0]
    assert got.metrics["ratio"] == close([2, 2, 0.5, 4])


def test_clip_cov_clips_above_twice_the_probability_only_by_default(evaluate) -> None:
    got = evaluate("clip-cov", [log(1.9), log(2.1), log(0.01)], [1, 1, -1], extras={"cov_selected": [0, 0, 0]})
    assert got.gradient == close([-1.9, 0, 0.01])


def test_kl_cov_holds_chosen_tokens_to_the_policy_before(evaluate) -> None:
    """−Aρ + coef |d|, and its gradient −Aρ + coef sign(d): towards the old policy from both sides; none at d = 0."""
    got = evaluate("kl-cov", [LN2, -LN2, 0, LN2], [3, 3, 3, -3], extras={"cov_selected": [1, 1, 1, 0]}, coef=0.5)
    assert got.loss == close([-6 + 0.5 * LN2, -1.5 + 0.5 * LN2, -3, 6])
    assert got.gradient == close([-6 + 0.5, -1.5 - 0.5, -3, 6])
    assert got.metrics["selected_fraction"] == [1, 1, 1, 0]
    assert got.metrics["ratio"] == close([2, 0.5, 1, 2])


# --- all -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_without_a_step_the_gradient_is_the_plain_policy_gradient(evaluate, name: str) -> None:
    got = evaluate(name, [0.0] * 4, [2, 2, 2, -3], lengths=[3, 1], extras=extras(name, 4))
    assert got.gradient == close([-2, -2, -2, 3])


@pytest.mark.parametrize("name", ALL)
def test_zero_advantage_has_no_loss_and_no_gradient(evaluate, name: str) -> None:
    got = evaluate(name, [0.5, -0.5, 100, -100], [0] * 4, lengths=[2, 2], extras=extras(name, 4))
    assert got.loss == got.gradient == [0, 0, 0, 0]
    assert got.metrics.get("clip_fraction", [0] * 4)[0] == 0 or name == "cispo"


@pytest.mark.parametrize(
    ("name", "up", "down"),
    # Gradient at A = 1 with d = 100 and with d = −100, then at A = −1. Beyond e^±20 there is none, where ρ carries it.
    [
        ("gspo", [0, 0], [0, 0]),
        ("gmpo", [0, 0], [0, 0]),
        ("sapo", [0, 0], [0, 0]),
        ("cispo", [-5, -exp(-20)], [5, exp(-20)]),
        ("reinforce", [-1, -1], [1, 1]),
        ("clip-cov", [0, 0], [0, 0]),
        ("kl-cov", [1, -1], [1, -1]),  # the penalty alone, of a chosen token
    ],
)
def test_log_ratios_of_100(evaluate, name: str, up: list[float], down: list[float]) -> None:
    """Field case L11 for these losses; sequences of one token."""
    given = extras(name, 2, selected=float(name == "kl-cov"))
    for advantages, want in (([1, 1], up), ([-1, -1], down)):
        got = evaluate(name, [100.0, -100.0], advantages, lengths=[1, 1], extras=given)
        assert got.gradient == close(want)
        for values in (got.loss, *got.metrics.values()):
            assert all(map(math.isfinite, values))


@pytest.mark.parametrize("name", ALL)
def test_float32_stays_finite_at_log_ratios_of_100(name: str) -> None:
    logprobs = torch.tensor([-100.0, 0.0, -100.0, 0.0], requires_grad=True)
    old = torch.tensor([0.0, -100.0, 0.0, -100.0])
    given = {"cov_selected": torch.tensor([0.0, 1.0, 1.0, 0.0])} if name in NONE_SELECTED else {}
    a = torch.tensor([1.0, 1.0, -1.0, -1.0])
    inputs = LossInputs(logprobs, old, a, torch.ones(4), torch.arange(4), 4, given)
    output = build(PluginRef("loss", name))(inputs)
    output.loss.sum().backward()
    assert output.loss.dtype == torch.float32
    assert output.loss.isfinite().all()
    assert logprobs.grad.isfinite().all()
    assert all(metric.isfinite().all() and metric.dtype == torch.float32 for metric in output.metrics.values())


@pytest.mark.parametrize("name", ALL)
def test_no_live_tokens(name: str) -> None:
    nothing = torch.zeros(0, requires_grad=True)
    empty = torch.zeros(0)
    inputs = LossInputs(nothing, empty, empty, empty, torch.zeros(0, dtype=torch.int64), 0, {"cov_selected": empty})
    output = build(PluginRef("loss", name))(inputs)
    output.loss.sum().backward()
    assert output.loss.shape == (0,)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gspo", {"clip_low": -0.1}, "option clip_low: .*greater than or equal to 0, got -0.1"),
        ("gspo", {"clip_high": -0.1}, "option clip_high: .*greater than or equal to 0"),
        ("gspo", {"dual_clip": 3.0}, "unknown option 'dual_clip'"),
        ("cispo", {"clip_low": 10}, "option clip_low: .*less than or equal to 1"),
        ("cispo", {"clip_high": -1}, "option clip_high: .*greater than or equal to 0"),
        ("gmpo", {"clip_low": -0.4}, "option clip_low: .*greater than or equal to 0"),
        ("sapo", {"temperature_negative": 0}, "option temperature_negative: .*greater than 0"),
        ("clip-cov", {"fraction": 0}, "option fraction: .*greater than 0"),
        ("clip-cov", {"cov_low": 5, "cov_high": 1}, "cov_low must be below cov_high, got 5.0 and 1.0"),
        ("kl-cov", {"fraction": 2}, "option fraction: .*less than or equal to 1"),
        ("kl-cov", {"coef": -1}, "option coef: .*greater than or equal to 0"),
        ("reinforce", {"clip_low": 0.1}, "unknown option 'clip_low'"),
    ],
)
def test_bad_options(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build(PluginRef("loss", name, options))
