"""The loss: the closed form by hand, a padded implementation written from the paper, and any split."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rlcore import Batch, LossSpec, TrainContext
from rlcore.data.loss_weights import loss_weights
from rlcore.data.sharding import shard
from rlcore.errors import BatchError, PluginError
from rlcore.manifest.schema import ModelSection, TrainerSection
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import AlgorithmContext
from rlcore.plugins.loading import build
from rlcore.testing.tiny import write_tiny_model
from rlcore.torch.losses import LossInputs

torch.set_num_threads(1)

# Two pairs of uneven length, interleaved: rows 0 and 3 of unit 0, rows 1 and 2 of unit 1. Better are 0 and 2.
SEGMENTS = [0, 0, 1, 2, 2, 2, 3, 3]
UNITS = [0, 0, 1, 1, 1, 1, 0, 0]
SIGNS = [1, 1, -1, 1, 1, 1, -1, -1]
RATIO = [0.5, 1.0, 0.25, -1.0, 0.0, 0.5, -0.5, 1.0]  # log π − log π_ref
MARGINS = [(0.5 + 1.0) - (-0.5 + 1.0), (-1.0 + 0.0 + 0.5) - 0.25]  # 1 and −0.75
LENGTHS = [2, 1, 3, 2]
WEIGHTS = [1 / (4 * LENGTHS[s]) for s in SEGMENTS]  # seq-mean-token-mean


def inputs_of(ratio=RATIO, units=UNITS, signs=SIGNS, dtype=torch.float64):
    reference = torch.linspace(-3, -1, len(ratio), dtype=dtype)
    logprobs = (reference + torch.tensor(ratio, dtype=dtype)).requires_grad_()
    return LossInputs(
        logprobs,
        logprobs.detach(),
        torch.tensor(signs, dtype=dtype),
        torch.tensor(WEIGHTS, dtype=dtype),
        torch.tensor(SEGMENTS),
        4,
        {"ref_logprobs": reference},
        torch.tensor(units),
    )


def run(inputs, **options):
    output = build(PluginRef("loss", "dpo", options))(inputs)
    total = (inputs.weights * output.loss).sum()
    total.backward()
    return total.item(), inputs.logprobs.grad.tolist(), output


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_value_and_gradient_are_the_papers(beta):
    """Eq. 7 and the gradient below it: −β σ(−β m) ∇(log π_c − log π_r), over the mean of two pairs."""
    value, gradient, output = run(inputs_of(), beta=beta)
    assert value == pytest.approx(np.mean([-math.log(sigmoid(beta * m)) for m in MARGINS]), rel=1e-12)
    force = [beta * sigmoid(-beta * m) / 2 for m in MARGINS]
    np.testing.assert_allclose(gradient, [-s * force[u] for s, u in zip(SIGNS, UNITS, strict=True)], rtol=1e-9)
    assert {name: values.tolist() for name, values in output.metrics.items()} == {
        "margin": pytest.approx([beta * MARGINS[u] for u in UNITS]),
        "pair_accuracy": [float(MARGINS[u] > 0) for u in UNITS],
        "chosen_reward": pytest.approx([beta * [1.5, -0.5][u] for u in UNITS]),
        "rejected_reward": pytest.approx([beta * [0.5, 0.25][u] for u in UNITS]),
    }
    assert not any(values.requires_grad for values in output.metrics.values())


def test_at_the_reference_the_loss_is_log_two():
    value, _, output = run(inputs_of(ratio=[0.0] * 8))
    assert value == pytest.approx(math.log(2), rel=1e-12)
    assert not output.metrics["pair_accuracy"].any()


def test_label_smoothing_by_hand():
    """−(1 − ε) log σ(βm) − ε log σ(−βm): its gradient in m is −β (σ(−βm) − ε)."""
    value, gradient, _ = run(inputs_of(), beta=0.5, label_smoothing=0.1)
    by_pair = [-0.9 * math.log(sigmoid(0.5 * m)) - 0.1 * math.log(sigmoid(-0.5 * m)) for m in MARGINS]
    assert value == pytest.approx(np.mean(by_pair), rel=1e-12)
    force = [0.5 * (sigmoid(-0.5 * m) - 0.1) / 2 for m in MARGINS]
    np.testing.assert_allclose(gradient, [-s * force[u] for s, u in zip(SIGNS, UNITS, strict=True)], rtol=1e-9)


def test_ipo_by_hand():
    """(m − 1/(2β))² with β = ¼ and means over tokens: m = .75 − .25 and −1/6 − .25; the gradient in m is 2 (m − 2)."""
    value, gradient, output = run(inputs_of(), beta=0.25, form="ipo")
    margins = [0.5, -1 / 6 - 0.25]
    assert value == pytest.approx(np.mean([(m - 2) ** 2 for m in margins]), rel=1e-12)
    want = [s * (margins[u] - 2) / LENGTHS[row] for s, u, row in zip(SIGNS, UNITS, SEGMENTS, strict=True)]
    np.testing.assert_allclose(gradient, want, rtol=1e-9)
    np.testing.assert_allclose(output.metrics["margin"], [0.25 * margins[u] for u in UNITS], rtol=1e-12)


@pytest.mark.parametrize("far", [-100.0, 100.0])
def test_far_from_the_reference_all_is_finite(far):
    value, gradient, _ = run(inputs_of(ratio=[far * s for s in SIGNS], dtype=torch.float32), beta=1.0)
    assert math.isfinite(value)
    assert np.isfinite(gradient).all()
    # 4 tokens a pair: m = 4 · far and 4 · far, where the loss is 0 or −m and its slope 0 or −1.
    assert value == pytest.approx(max(0.0, -4 * far))
    np.testing.assert_allclose(gradient, [-s * (far < 0) / 2 for s in SIGNS], atol=1e-7)


def test_a_unit_that_is_no_pair_is_refused():
    for wrong in (
        inputs_of(units=[0, 0, 1, 2, 2, 2, 0, 0]),  # two rows by themselves
        inputs_of(units=[0] * 8),
        inputs_of(signs=[1] * 8),
    ):
        with pytest.raises(BatchError, match=r"units of a micro-batch are not one better and one worse sample"):
            run(wrong)


def test_options_are_checked():
    with pytest.raises(PluginError, match="label_smoothing belongs to form: sigmoid"):
        build(PluginRef("loss", "dpo", {"form": "ipo", "label_smoothing": 0.1}))
    for options in ({"beta": 0.0}, {"beta": -1.0}, {"label_smoothing": 0.5}, {"form": "hinge"}):
        with pytest.raises(PluginError, match=f"option {next(iter(options))}"):
            build(PluginRef("loss", "dpo", options))


# --- through the trainer ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden_size=16, initializer_range=0.2)


def pairs(seed=0, aggregate="seq-mean-token-mean"):
    """Two samples a prompt, with a gap of observed tokens in one of them, and rewards that differ."""
    rng = np.random.default_rng(seed)
    lengths = [9, 14, 6, 8, 12, 5, 7, 11]
    batch = Batch.from_sequences([rng.integers(0, 256, n, np.int32) for n in lengths])
    place = np.arange(len(batch.tokens)) - batch.spread(batch.offsets[:-1])
    live = (place >= 3) & ~((batch.rows == 1) & (place >= 6) & (place < 9))
    batch = batch.with_tokens(
        loss_mask=live.astype(np.float32),
        ref_logprobs=(rng.normal(-5, 1, len(live)) * live).astype(np.float32),
    )
    batch = batch.with_samples(
        group=np.array([0, 1, 2, 3, 2, 0, 3, 1]),
        unit=np.arange(8),
        reward=np.float32([1, 0, 0, 1, 1, 0, 0, 1]),
    )
    batch = build(PluginRef("algorithm", "dpo"), AlgorithmContext(2, 11, 0))(batch)
    return batch.with_tokens(loss_weights=loss_weights(batch, aggregate, max_response_tokens=11))


def gradients(folder, batch, tokens_per_micro_batch, **options):
    context = TrainContext(
        role="policy",
        model=ModelSection(path=str(folder), dtype="float32"),
        train=TrainerSection(use="fsdp", tokens_per_micro_batch=tokens_per_micro_batch),
        temperature=1.0,
        total_updates=1,
        seed=0,
        device="cpu",
    )
    backend = build(PluginRef("trainer", "fsdp"), context)
    metrics = backend.forward_backward(batch, LossSpec(PluginRef("loss", "dpo", options)))
    named = {name: p.grad.full_tensor().clone() for name, p in backend.parameters.items() if p.grad is not None}
    return named, metrics


def padded(folder, batch, beta):
    """DPO as the paper has it: padded sequences, full logits, sums over the response, mean of −log σ."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = [slice(a, b) for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]

    def table(column, dtype):
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(column[r], dtype=dtype) for r in rows], batch_first=True)

    tokens, live = table(batch.tokens, torch.long), table(batch["loss_mask"], torch.float32)
    there = torch.nn.utils.rnn.pad_sequence([torch.ones(r.stop - r.start) for r in rows], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=there).logits[:, :-1]
    logprobs = logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    sums = ((logprobs - table(batch["ref_logprobs"], torch.float32)[:, 1:]) * live[:, 1:]).sum(1)
    losses = []
    for group in sorted(set(batch["group"].tolist())):
        one, other = np.flatnonzero(batch["group"] == group)
        chosen, rejected = (one, other) if batch["reward"][one] > batch["reward"][other] else (other, one)
        losses.append(-torch.nn.functional.logsigmoid(beta * (sums[chosen] - sums[rejected])))
    total = torch.stack(losses).mean()
    total.backward()
    return total.item(), {name: p.grad for name, p in model.named_parameters()}


def distance(got, want):
    assert got.keys() == want.keys()
    return max(float((got[n] - want[n]).norm() / want[n].norm()) for n in got if want[n].norm() > 1e-8)


def test_packed_is_padded(model_folder):
    batch = pairs()
    got, metrics = gradients(model_folder, batch, 200, beta=0.3)
    value, want = padded(model_folder, batch, 0.3)
    assert metrics["policy/loss"] == pytest.approx(value, rel=1e-5)
    assert distance(got, want) < 1e-4


@pytest.mark.parametrize("options", [{}, {"form": "ipo"}, {"label_smoothing": 0.2}])
def test_the_split_does_not_matter(model_folder, options):
    """25 tokens hold one pair at a time: rows 1 and 7, of 14 and 11."""
    batch = pairs()
    whole, metrics = gradients(model_folder, batch, 200, **options)
    split, split_metrics = gradients(model_folder, batch, 25, **options)
    shuffled, _ = gradients(model_folder, batch.select(np.array([5, 2, 7, 0, 3, 1, 6, 4])), 40, **options)
    assert distance(split, whole) < 1e-5
    assert distance(shuffled, whole) < 1e-5
    assert split_metrics == pytest.approx(metrics, rel=1e-5)


@pytest.mark.parametrize(
    "aggregate", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
)
def test_shares_of_two_ranks_add_up(model_folder, aggregate):
    """Every average: pairs stay whole on a rank, and gradients are summed over ranks."""
    batch = pairs(aggregate=aggregate)
    whole, metrics = gradients(model_folder, batch, 200)
    shares = [gradients(model_folder, batch.select(rows), 30) for rows in shard(batch, 2)]
    assert distance({name: sum(share[name] for share, _ in shares) for name in whole}, whole) < 1e-5
    assert sum(share["policy/loss"] for _, share in shares) == pytest.approx(metrics["policy/loss"], rel=1e-5)


def test_a_pair_that_does_not_fit_says_what_to_raise(model_folder):
    with pytest.raises(BatchError, match=r"train together and have 25 tokens, more than .*\(24\): raise it"):
        gradients(model_folder, pairs(), 24)
