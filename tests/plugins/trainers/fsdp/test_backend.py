from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlcore import Batch, LossSpec
from rlcore.errors import BatchError, PluginError, WeightSyncError
from rlcore.plugins.config import PluginRef
from rlcore.torch.weights import open_channel
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlcore_fsdp.backend import FsdpBackend

    New = Callable[..., FsdpBackend]
    Gradients = Callable[[FsdpBackend], dict[str, torch.Tensor]]

POLICY = LossSpec(PluginRef("loss", "clip"))


def close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], relative: float) -> None:
    """Every tensor within ``relative`` of the norm of the wanted one."""
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        difference = (got[name] - tensor).norm() / tensor.norm()
        assert difference < relative, f"{name}: {difference}"


def logits_of(model: Any, batch: Batch, row: int) -> tuple[Any, torch.Tensor, slice]:
    """transformers' own logits of a sequence alone, its tokens, and the place of all but its first."""
    place = slice(int(batch.offsets[row]), int(batch.offsets[row + 1]))
    tokens = torch.from_numpy(batch.tokens[place].astype(np.int64))
    return model(tokens[None]).logits[0, :-1], tokens[1:], slice(place.start + 1, place.stop)


# --- forward -------------------------------------------------------------------------------------------------------


def test_forward_gives_live_tokens_their_logprobs_and_the_rest_zero(new_backend: New, batch: Batch) -> None:
    out = new_backend(temperature=0.8, tokens_per_micro_batch=40).forward(batch, ["logprobs", "entropy"])
    model = AutoModelForCausalLM.from_pretrained(new_backend().context.model.path, attn_implementation="eager")
    for row in range(len(batch)):
        logits, targets, place = logits_of(model, batch, row)
        logp = (logits / 0.8).log_softmax(-1)
        mask = batch["loss_mask"][place]
        want = logp.gather(-1, targets[:, None])[:, 0].detach().numpy() * mask
        np.testing.assert_allclose(out["logprobs"][place], want, atol=1e-5)
        entropy = -(logp.exp() * logp).sum(-1).detach().numpy() * mask
        np.testing.assert_allclose(out["entropy"][place], entropy, atol=1e-5)
    assert not out["logprobs"][batch.offsets[:-1]].any()
    assert out["logprobs"].dtype == np.float32


def test_forward_without_a_mask_gives_all_but_first_tokens(new_backend: New, batch: Batch) -> None:
    bare = Batch(batch.tokens, batch.offsets)
    out = new_backend().forward(bare, ["logprobs"])
    assert "entropy" not in out
    assert np.flatnonzero(out["logprobs"] == 0).tolist() == batch.offsets[:-1].tolist()


def test_a_reference_answers_and_is_not_trained(new_backend: New, batch: Batch) -> None:
    reference = new_backend(role="reference", dtype="bfloat16")
    policy = new_backend(dtype="bfloat16")
    # Compared in bits: both run the same weights in the same dtype.
    got, want = (b.forward(batch, ["logprobs"])["logprobs"] for b in (reference, policy))
    np.testing.assert_array_equal(got, want)
    assert all(p.dtype == torch.bfloat16 and not p.requires_grad for p in reference.parameters.values())
    with pytest.raises(PluginError, match="fsdp holds this model as reference: it is not trained"):
        reference.forward_backward(batch, POLICY)
    with pytest.raises(PluginError, match="not trained"):
        reference.optimizer_step()


def test_what_it_does_not_compute_is_refused(new_backend: New, batch: Batch) -> None:
    with pytest.raises(PluginError, match="fsdp as policy computes logprobs and entropy, not values"):
        new_backend().forward(batch, ["values"])
    with pytest.raises(BatchError, match=r"30 tokens, more than .*tokens_per_micro_batch \(29\)"):
        new_backend(tokens_per_micro_batch=29).forward(batch, ["logprobs"])


# --- gradients -----------------------------------------------------------------------------------------------------


def test_gradient_is_that_of_plain_autograd(new_backend: New, batch: Batch, gradients: Gradients) -> None:
    """At a ratio of 1 the policy loss has the gradient of −A log p.

    So of Σ w (−A log p + 0.1 (e^d − d − 1) − 0.01 H) with d = ref − log p.
    """
    spec = LossSpec(POLICY.policy, kl_coef=0.1, kl_estimator="k3", entropy_coef=0.01)
    backend = new_backend(tokens_per_micro_batch=40)
    backend.forward_backward(batch, spec)
    model = AutoModelForCausalLM.from_pretrained(backend.context.model.path, attn_implementation="eager")
    loss = torch.zeros(())
    for row in range(len(batch)):
        logits, targets, place = logits_of(model, batch, row)
        logp = logits.log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        logp = logp.gather(-1, targets[:, None])[:, 0]
        w, a, ref = (torch.tensor(batch[n][place]) for n in ("loss_weights", "advantages", "ref_logprobs"))
        distance = ref - logp
        loss = loss + (w * (-a * logp + 0.1 * (distance.exp() - distance - 1) - 0.01 * entropy)).sum()
    torch.autograd.backward(loss)
    close(gradients(backend), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, 1e-5)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)), budget=st.integers(30, 120))
def test_gradient_depends_on_no_split_and_no_order(
    order: list[int], budget: int, new_backend: New, batch: Batch, spec: LossSpec, gradients: Gradients
) -> None:
    whole, split = new_backend(), new_backend(tokens_per_micro_batch=budget)
    metrics = whole.forward_backward(batch, spec)
    got = split.forward_backward(batch.select(np.array(order)), spec)
    close(gradients(split), gradients(whole), 1e-5)
    assert got.keys() == metrics.keys()
    assert got == pytest.approx(dict(metrics), rel=1e-5, abs=1e-6)


def test_two_passes_add_up(new_backend: New, batch: Batch, spec: LossSpec, gradients: Gradients) -> None:
    once, twice = new_backend(), new_backend()
    once.forward_backward(batch, spec)
    twice.forward_backward(batch.select(np.array([0, 1])), spec)
    twice.forward(batch, ["logprobs"])
    twice.forward_backward(batch.select(np.array([2, 3, 4, 5])), spec)
    close(gradients(twice), gradients(once), 1e-5)


def test_checkpointing_changes_no_gradient(
    new_backend: New, batch: Batch, spec: LossSpec, gradients: Gradients
) -> None:
    plain, checkpointed = new_backend(), new_backend(gradient_checkpointing=True)
    calls = {"plain": 0, "checkpointed": 0}

    def count(backend: FsdpBackend, name: str) -> None:
        def hook(*_: Any) -> None:
            calls[name] += 1

        backend.root.model.model.layers[0].mlp.register_forward_pre_hook(hook)  # type: ignore[index,union-attr]

    count(plain, "plain")
    count(checkpointed, "checkpointed")
    for backend in (plain, checkpointed):
        backend.forward_backward(batch, spec)
    assert calls == {"plain": 1, "checkpointed": 2}
    close(gradients(checkpointed), gradients(plain), 1e-6)


def test_bf16_is_near_float32(new_backend: New, batch: Batch, spec: LossSpec, gradients: Gradients) -> None:
    full, half = new_backend(), new_backend(dtype="bfloat16", tokens_per_micro_batch=40)
    ours, theirs = (b.forward(batch, ["logprobs"])["logprobs"] for b in (half, full))
    assert 0 < np.abs(ours - theirs).max() < 0.15
    for backend in (full, half):
        backend.forward_backward(batch, spec)
    close(gradients(half), gradients(full), 0.1)
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in half.parameters.values())  # type: ignore[union-attr]
    half.optimizer_step()


def test_rows_without_live_tokens_change_nothing(
    new_backend: New, batch: Batch, spec: LossSpec, gradients: Gradients
) -> None:
    dead = batch.select(np.array([1, 3]))
    zero = np.zeros(len(dead.tokens), np.float32)
    dead = dead.with_tokens(loss_mask=zero, loss_weights=zero, ref_logprobs=zero, advantages=zero)
    with_dead, without = new_backend(), new_backend()
    got = with_dead.forward_backward(Batch.concat([dead, batch]), spec)
    want = without.forward_backward(batch, spec)
    assert got == pytest.approx(dict(want))
    close(gradients(with_dead), gradients(without), 1e-6)


def test_a_batch_without_live_tokens_moves_nothing(new_backend: New, batch: Batch, spec: LossSpec) -> None:
    zero = np.zeros(len(batch.tokens), np.float32)
    dead = batch.with_tokens(loss_mask=zero, loss_weights=zero)
    backend = new_backend()
    before = {name: tensor.clone() for name, tensor in backend.weights()}
    assert backend.forward_backward(dead, spec) == {}
    assert backend.optimizer_step() == {"grad_norm": 0.0, "lr": 1e-3, "skipped_updates": 0.0}
    assert all(torch.equal(before[name], tensor) for name, tensor in backend.weights())
    assert not backend.forward(dead, ["logprobs"])["logprobs"].any()


# --- step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 0.05])
def test_the_step_is_clipped_adamw(new_backend: New, batch: Batch, gradients: Gradients, limit: float | None) -> None:
    backend = new_backend(max_grad_norm=limit, weight_decay=0.1)
    backend.forward_backward(batch, POLICY)
    grads = gradients(backend)
    norm = torch.cat([g.flatten() for g in grads.values()]).norm()
    assert norm > 0.05, "the limit must bite"
    scale = 1.0 if limit is None else limit / norm
    before = {n: p.full_tensor().clone() for n, p in backend.parameters.items()}  # type: ignore[attr-defined]
    metrics = backend.optimizer_step()
    assert metrics == {"grad_norm": pytest.approx(norm.item()), "lr": 1e-3, "skipped_updates": 0.0}
    for name, parameter in backend.parameters.items():
        g = grads[name] * scale  # AdamW's first step: m̂ = g, v̂ = g²
        want = before[name] * (1 - 1e-3 * 0.1) - 1e-3 * g / (g.abs() + 1e-8)
        torch.testing.assert_close(parameter.full_tensor(), want, atol=2e-6, rtol=1e-4)  # type: ignore[attr-defined]
        assert parameter.grad is None


def test_a_gradient_that_is_not_finite_is_thrown_away(new_backend: New, batch: Batch) -> None:
    backend = new_backend(warmup_updates=4)
    backend.forward_backward(batch, POLICY)
    backend.optimizer_step()
    before = {name: tensor.clone() for name, tensor in backend.weights()}
    backend.forward_backward(batch.with_tokens(advantages=np.full(len(batch.tokens), np.inf, np.float32)), POLICY)
    metrics = backend.optimizer_step()
    assert metrics["skipped_updates"] == 1
    assert not np.isfinite(metrics["grad_norm"])
    assert all(torch.equal(before[name], tensor) for name, tensor in backend.weights())
    backend.forward_backward(batch, POLICY)
    metrics = backend.optimizer_step()
    assert metrics["lr"] == pytest.approx(1e-3 * 3 / 4), "the schedule went on"
    assert np.isfinite(metrics["grad_norm"])


# --- weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_lent_module_is_the_trained_one(new_backend: New, batch: Batch, dtype: str) -> None:
    backend = new_backend(dtype=dtype)
    for _ in range(2):  # before and after an update
        with backend.generation_model() as model, torch.no_grad():
            assert not any(p.requires_grad for p in model.parameters())
            assert {str(p.dtype) for p in model.parameters()} == {f"torch.{dtype}"}
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
            logits, targets, place = logits_of(model, batch, 1)
            got = logits.float().log_softmax(-1).gather(-1, targets[:, None])[:, 0].numpy()
        live = batch["loss_mask"][place] > 0
        want = backend.forward(batch, ["logprobs"])["logprobs"][place]
        np.testing.assert_allclose(got[live], want[live], atol=1e-5 if dtype == "float32" else 0.1)
        plain = {name: tensor.clone() for name, tensor in backend.weights()}
        with backend.generation_model() as model:
            assert all(torch.equal(plain[name], tensor) for name, tensor in model.state_dict().items())
        backend.forward_backward(batch, POLICY)
        backend.optimizer_step()


def test_nothing_runs_while_the_module_is_lent(new_backend: New, batch: Batch, tmp_path: Path) -> None:
    backend = new_backend()
    message = "the model is lent to a rollout engine; put the engine to sleep"
    with backend.generation_model() as model:
        for verb in (
            lambda: backend.forward(batch, ["logprobs"]),
            lambda: backend.forward_backward(batch, POLICY),
            backend.optimizer_step,
            lambda: backend.load(tmp_path),
            lambda: backend.generation_model().__enter__(),
        ):
            with pytest.raises(PluginError, match=message):
                verb()
    assert all(p.is_meta for p in model.parameters())
    backend.forward(batch, ["logprobs"])


def test_weights_come_under_both_names_of_a_tied_one(new_backend: New, untied_folder: Path) -> None:
    for backend, tied in ((new_backend(dtype="bfloat16"), True), (new_backend(untied_folder, dtype="bfloat16"), False)):
        weights = dict(backend.weights())
        own = AutoModelForCausalLM.from_pretrained(backend.context.model.path, dtype=torch.bfloat16).state_dict()
        assert weights.keys() == own.keys()
        assert all(torch.equal(weights[name], own[name]) for name in own)
        assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]) is tied
        assert [(s.name, s.shape, s.dtype) for s in backend.weight_specs()] == [
            (name, tuple(tensor.shape), "bfloat16") for name, tensor in weights.items()
        ]


def test_the_channel_lends_or_streams(new_backend: New, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = new_backend()
    in_place, stream = open_channel(backend), open_channel(backend, "stream")
    assert (in_place.way, stream.way) == ("in_place", "stream")
    streamed = dict(stream.tensors())
    with in_place.module() as model:
        assert all(torch.equal(streamed[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(WeightSyncError, match="opened to stream weights"):
        stream.module()
    with pytest.raises(WeightSyncError, match="opened to lend"):
        next(in_place.tensors())
    specs = backend.weight_specs()
    monkeypatch.setattr(type(backend), "weight_specs", lambda _: [*specs[1:], specs[0]])
    with pytest.raises(WeightSyncError, match="the trainer promised WeightSpec"):
        dict(stream.tensors())
