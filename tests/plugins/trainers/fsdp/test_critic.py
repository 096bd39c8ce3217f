"""The critic: values before each token, one gradient for every split, folders that transformers reads."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rlcore import Batch, LossSpec
from rlcore.data.loss_weights import loss_weights
from rlcore.data.sharding import shard
from rlcore.errors import ModelError, PluginError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import ValueLossSpec
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlcore_fsdp.backend import FsdpBackend

    New = Callable[..., FsdpBackend]

SPEC = ValueLossSpec(0.3)
LONGEST = 30


def with_head(new_backend: New, source: Path | None, folder: Path) -> Path:
    """A saved critic with a head that has an opinion."""
    new_backend(source, role="critic").save(folder)
    file = folder / "model" / "model.safetensors"
    weights = load_file(file)
    weights["score.weight"] = torch.randn(1, 32, generator=torch.Generator().manual_seed(3)) / 5
    weights["score.bias"] = torch.tensor([0.25])
    save_file(weights, file, metadata={"format": "pt"})
    return folder / "model"


@pytest.fixture
def critic_folder(new_backend: New, tmp_path: Path) -> Path:
    return with_head(new_backend, None, tmp_path / "critic")


@pytest.fixture
def update(new_backend: New, critic_folder: Path, batch: Batch) -> Batch:
    """A batch with old values 0.4 of noise away from the critic's and returns; nothing but NaN where it is masked."""
    rng, live = np.random.default_rng(2), batch["loss_mask"] == 1
    values = new_backend(critic_folder, role="critic").forward(batch, ["values"])["values"]
    old, returns = (np.where(live, values + s * rng.normal(size=len(values)), np.nan) for s in (0.4, 1.0))
    return batch.with_tokens(values=old, returns=returns)


def own_values(model: Any, batch: Batch, row: int) -> torch.Tensor:
    """transformers' own output before each token of a sequence but the first."""
    tokens = torch.from_numpy(batch.tokens[batch.offsets[row] : batch.offsets[row + 1]].astype(np.int64))
    return model(tokens[None]).logits[0, :-1, 0]  # type: ignore[no-any-return]


def grads(backend: FsdpBackend) -> dict[str, torch.Tensor]:
    found = {n: p.grad.full_tensor().clone() for n, p in backend.parameters.items()}  # type: ignore[union-attr]
    assert backend.optimizer is not None
    backend.optimizer.zero_grad()
    return found


def agree(got: tuple[Any, Any], want: tuple[Any, Any]) -> None:
    assert got[0] == pytest.approx(want[0], rel=1e-5, abs=1e-6)
    assert got[1].keys() == want[1].keys()
    for name, tensor in want[1].items():
        assert (got[1][name] - tensor).norm() <= 1e-5 * tensor.norm(), name


# --- values --------------------------------------------------------------------------------------------------------


def test_a_new_critic_says_zero_and_learns_with_its_head_first(new_backend: New, batch: Batch) -> None:
    critic = new_backend(role="critic")
    batch = critic.forward(batch, ["values"])
    assert not batch["values"].any()
    batch = batch.with_tokens(returns=np.ones(len(batch.tokens)))
    norms = []
    for _ in range(2):
        metrics = critic.forward_backward(batch, SPEC)
        norms.append({name: p.grad.norm().item() for name, p in critic.parameters.items()})  # type: ignore[union-attr]
        critic.optimizer_step()
    assert metrics["critic/value_mean"] > 0
    assert {name for name, norm in norms[0].items() if norm} == {"score.weight", "score.bias"}
    assert all(norms[1].values())


def test_values_are_those_that_transformers_gives(new_backend: New, critic_folder: Path, batch: Batch) -> None:
    """Before token t: the output at t − 1; 0 where the mask is."""
    critic = new_backend(critic_folder, role="critic", tokens_per_micro_batch=40)
    got = critic.forward(batch, ["values"])["values"]
    model = AutoModelForTokenClassification.from_pretrained(critic_folder, attn_implementation="eager")
    for row in range(len(batch)):
        place = slice(int(batch.offsets[row]) + 1, int(batch.offsets[row + 1]))
        want = own_values(model, batch, row).detach().numpy() * batch["loss_mask"][place]
        np.testing.assert_allclose(got[place], want, atol=1e-5)
        assert got[batch.offsets[row]] == 0
    assert got.dtype == np.float32
    assert got.std() > 0.3, "the critic should have an opinion"


def test_the_head_computes_in_float32(new_backend: New, critic_folder: Path, batch: Batch) -> None:
    half, full = (new_backend(critic_folder, role="critic", dtype=dtype) for dtype in ("bfloat16", "float32"))
    seen: dict[str, Any] = {}

    def watch(module: Any, args: Any, output: Any) -> None:
        seen.update(weight=module.weight.dtype, input=args[0].dtype, output=output.dtype)

    half.root.model.score.register_forward_hook(watch)
    ours, theirs = (critic.forward(batch, ["values"])["values"] for critic in (half, full))
    assert set(seen.values()) == {torch.float32}
    assert 0 < np.abs(ours - theirs).max() < 0.2
    half.forward_backward(batch.with_tokens(values=ours, returns=ours + 1), SPEC)
    assert all(p.grad.dtype == torch.float32 for p in half.parameters.values())  # type: ignore[union-attr]


# --- gradients -----------------------------------------------------------------------------------------------------


def test_gradient_is_that_of_plain_autograd(new_backend: New, critic_folder: Path, update: Batch) -> None:
    critic = new_backend(critic_folder, role="critic", tokens_per_micro_batch=40)
    metrics = critic.forward_backward(update, SPEC)
    model = AutoModelForTokenClassification.from_pretrained(critic_folder, attn_implementation="eager")
    loss = torch.zeros(())
    past = binds = 0
    for row in range(len(update)):
        place = slice(int(update.offsets[row]) + 1, int(update.offsets[row + 1]))
        live = torch.tensor(update["loss_mask"][place]) == 1
        v = own_values(model, update, row)[live]
        w, old, goal = (torch.tensor(update[n][place])[live] for n in ("loss_weights", "values", "returns"))
        plain, clipped = (v - goal) ** 2, (torch.clamp(v, old - 0.3, old + 0.3) - goal) ** 2
        loss = loss + (w * 0.5 * torch.maximum(plain, clipped)).sum()
        past, binds = past + int(((v - old).abs() > 0.3).sum()), binds + int((clipped > plain).sum())
    torch.autograd.backward(loss)
    want = {n: p.grad for n, p in model.named_parameters()}
    agree(({"loss": metrics["critic/loss"]}, grads(critic)), ({"loss": loss.item()}, want))
    tokens = update["loss_mask"].sum()
    assert metrics["critic/clip_fraction"] == pytest.approx(past / tokens)
    assert metrics["critic/clip_binding_fraction"] == pytest.approx(binds / tokens)
    assert past > binds > 0


AGGREGATES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
CASES = list(product(AGGREGATES, (SPEC, ValueLossSpec(None))))


@pytest.mark.parametrize(("aggregate", "spec"), CASES)
def test_one_gradient_for_every_split_and_order(
    new_backend: New, critic_folder: Path, update: Batch, aggregate: str, spec: ValueLossSpec
) -> None:
    """Field case L02."""
    whole, tight, loose = (
        new_backend(critic_folder, role="critic", tokens_per_micro_batch=n) for n in (4096, LONGEST, 53)
    )
    update = update.with_tokens(loss_weights=loss_weights(update, aggregate, max_response_tokens=20))  # type: ignore[arg-type]
    want = dict(whole.forward_backward(update, spec)), grads(whole)
    assert all(tensor.isfinite().all() and tensor.any() for tensor in want[1].values())
    for backend, order in ((tight, [3, 0, 5, 1, 4, 2]), (loose, [5, 4, 3, 2, 1, 0])):
        agree((dict(backend.forward_backward(update.select(np.array(order)), spec)), grads(backend)), want)


def test_one_gradient_on_one_rank_and_on_two(
    new_backend: New, critic_folder: Path, update: Batch, on_two_ranks: Any
) -> None:
    """Also with all rows on one of them."""
    one = new_backend(critic_folder, role="critic")
    update = update.with_samples(unit=np.arange(len(update)))
    divisions = [shard(update, 2), [np.zeros(0, np.int64), np.arange(len(update))]]
    cases = []
    for number, (aggregate, spec) in enumerate(CASES):
        weights = loss_weights(update, aggregate, max_response_tokens=20)  # type: ignore[arg-type]
        cases.append((update.with_tokens(loss_weights=weights), divisions[number % 2], spec))
    seen = on_two_ranks(one, cases, tokens_per_micro_batch=53)
    for (batch, _, spec), *ranks in zip(cases, *seen, strict=True):
        want = dict(one.forward_backward(batch, spec)), grads(one)
        for got in ranks:
            agree(got, want)


def test_a_batch_without_live_tokens_moves_nothing(new_backend: New, update: Batch) -> None:
    critic = new_backend(role="critic")
    zero = np.zeros(len(update.tokens), np.float32)
    before = {name: tensor.clone() for name, tensor in critic.weights()}
    assert critic.forward_backward(update.with_tokens(loss_mask=zero, loss_weights=zero), SPEC) == {}
    assert critic.optimizer_step()["grad_norm"] == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in critic.weights())


# --- folders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_five_and_five_is_ten(new_backend: New, update: Batch, critic_folder: Path, tmp_path: Path, dtype: str) -> None:
    def new() -> FsdpBackend:
        options = {"schedule": "cosine", "warmup_updates": 4, "tokens_per_micro_batch": 40}
        return new_backend(critic_folder, role="critic", dtype=dtype, **options)

    def train(critic: FsdpBackend, updates: int) -> list[dict[str, float]]:
        return [{**critic.forward_backward(update, SPEC), **critic.optimizer_step()} for _ in range(updates)]

    straight, first, second = new(), new(), new()
    want = train(straight, 10)
    got = train(first, 5)
    first.save(tmp_path / "five")
    train(second, 1)  # state that loading must replace
    second.load(tmp_path / "five")
    assert got + train(second, 5) == want, "bit for bit: no tolerance"
    for (name, tensor), (other, same) in zip(second.weights(), straight.weights(), strict=True):
        assert name == other
        assert torch.equal(tensor, same)


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_is_a_token_classifier_of_one_label(
    new_backend: New, batch: Batch, model_folder: Path, untied_folder: Path, tmp_path: Path, tied: bool
) -> None:
    source = with_head(new_backend, model_folder if tied else untied_folder, tmp_path / "critic")
    critic = new_backend(source, role="critic", dtype="bfloat16")
    critic.export(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForTokenClassification"]
    model, info = AutoModelForTokenClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert model.config.num_labels == 1
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    got = critic.forward(batch, ["values"])["values"]
    live = batch["loss_mask"][1 : batch.offsets[1]] == 1
    want = own_values(model, batch, 0).detach().float().numpy()
    np.testing.assert_allclose(got[1 : batch.offsets[1]][live], want[live], atol=0.1)


def test_weights_have_the_value_head_and_no_output_head(new_backend: New, untied_folder: Path) -> None:
    critic = new_backend(untied_folder, role="critic", dtype="bfloat16")
    own = AutoModelForCausalLM.from_pretrained(untied_folder, dtype=torch.bfloat16).state_dict()
    specs = {spec.name: (spec.shape, spec.dtype) for spec in critic.weight_specs()}
    assert specs.keys() == (own.keys() - {"lm_head.weight"}) | {"score.weight", "score.bias"}
    assert specs["score.weight"] == ((1, 32), "bfloat16")
    weights = dict(critic.weights())
    assert list(weights) == list(specs)
    assert all(torch.equal(weights[name], own[name]) for name in own.keys() & weights.keys())


@pytest.mark.parametrize("tied", [True, False])
def test_what_a_critic_may_start_from(
    new_backend: New, batch: Batch, model_folder: Path, untied_folder: Path, tmp_path: Path, tied: bool
) -> None:
    """A saved critic goes on; a reward model's head is taken over, its bias is 0."""
    source = with_head(new_backend, model_folder if tied else untied_folder, tmp_path / "critic")
    first = new_backend(source, role="critic").forward(batch, ["values"])["values"]
    new_backend(source, role="critic").save(tmp_path / "again")
    again = new_backend(tmp_path / "again" / "model", role="critic").forward(batch, ["values"])["values"]
    np.testing.assert_array_equal(first, again)

    reward = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
    reward.save_pretrained(tmp_path / "reward")
    values = new_backend(tmp_path / "reward", role="critic").forward(batch, ["values"])["values"]
    np.testing.assert_allclose(values, np.where(batch["loss_mask"] == 1, first - 0.25, 0), atol=1e-6)


# --- refusals ------------------------------------------------------------------------------------------------------


def test_a_head_of_several_labels_is_refused(new_backend: New, model_folder: Path, tmp_path: Path) -> None:
    AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=3).save_pretrained(tmp_path / "three")
    with pytest.raises(ModelError, match=r"has a score\.weight of shape \[3, 32\]; a critic's has \[1, 32\]"):
        new_backend(tmp_path / "three", role="critic")


def test_weights_that_would_stay_random_are_refused(new_backend: New, critic_folder: Path) -> None:
    file = critic_folder / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if k != "model.norm.weight"}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"has no weights for: model\.norm\.weight$"):
        new_backend(critic_folder, role="critic")


@pytest.mark.parametrize("role", ["policy", "reference"])
def test_a_critic_is_no_language_model(new_backend: New, critic_folder: Path, role: str) -> None:
    with pytest.raises(ModelError, match=r"is a critic or reward model: it has score\.weight and no output head"):
        new_backend(critic_folder, role=role)


def test_each_role_does_its_own(new_backend: New, update: Batch) -> None:
    critic, policy = new_backend(role="critic"), new_backend()
    with pytest.raises(PluginError, match="fsdp as critic computes values, not logprobs"):
        critic.forward(update, ["values", "logprobs"])
    with pytest.raises(PluginError, match="fsdp holds this model as critic: it has no LossSpec"):
        critic.forward_backward(update, LossSpec(PluginRef("loss", "clip")))
    with pytest.raises(PluginError, match="fsdp holds this model as policy: it has no ValueLossSpec"):
        policy.forward_backward(update, SPEC)
    with pytest.raises(PluginError, match="it has no output head, so nothing generates with it"):
        critic.generation_model().__enter__()
