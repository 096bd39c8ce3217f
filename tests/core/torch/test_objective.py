import math
import textwrap

import numpy as np
import pytest
import torch
from rlcore.data.batch import Batch
from rlcore.data.loss_weights import loss_weights
from rlcore.errors import BatchError, BrokenPluginError, PluginError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import LossSpec
from rlcore.torch.logprobs import token_logprobs
from rlcore.torch.objective import Objective

torch.set_num_threads(1)

CLIP, SFT = PluginRef("loss", "clip"), PluginRef("loss", "sft")
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def call(objective, logprobs, entropy=None, sequences=1, **columns):
    """The objective on one micro-batch of ``sequences`` sequences, all tokens in the first."""
    columns = {"loss_weights": torch.ones_like(logprobs), **columns}
    return objective(logprobs, entropy, columns, torch.zeros(len(logprobs), dtype=torch.int64), sequences)


def local_loss(tmp_path, body):
    """A reference to a loss of the user's own."""
    path = tmp_path / "my_loss.py"
    path.write_text("from rlcore import PluginConfig, hookimpl\n" + textwrap.dedent(body))
    return PluginRef("loss", str(path))


def test_loss_is_the_weighted_sum_of_all_terms():
    spec = LossSpec(CLIP, kl_coef=0.5, kl_estimator="k2", entropy_coef=0.25)
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    columns = {
        "loss_weights": torch.tensor([0.1, 3.0]),
        "advantages": torch.tensor([2.0, -1.0]),
        "ref_logprobs": torch.tensor([-2.0, -4.0]),
    }
    entropy = torch.tensor([0.5, 0.75], requires_grad=True)
    objective = Objective(spec)
    loss, sums = objective(logprobs, entropy, columns, torch.zeros(2, dtype=torch.int64), 1)
    # Ratio 1: policy −2 and 1; k2 is d²/2: ½ and 2; entropy ½ and ¾.
    want = 0.1 * (-2 + 0.5 * 0.5 - 0.25 * 0.5) + 3 * (1 + 0.5 * 2 - 0.25 * 0.75)
    assert loss.item() == pytest.approx(want)
    loss.backward()
    # −A, plus coef · d: d is 1 and 2
    assert logprobs.grad.tolist() == pytest.approx([0.1 * (-2 + 0.5 * 1), 3 * (1 + 0.5 * 2)])
    assert entropy.grad.tolist() == pytest.approx([-0.1 * 0.25, -3 * 0.25])
    metrics = objective.metrics({name: value.item() for name, value in sums.items()})
    assert metrics == pytest.approx(
        {
            "policy/loss": want,
            "policy/surrogate_loss": 0.1 * -2 + 3 * 1,
            "policy/kl_to_reference": (0.5 + 2) / 2,
            "policy/entropy": (0.5 + 0.75) / 2,
            "policy/kl_to_old": 0,
            "policy/ratio": 1,
            "policy/clip_fraction": 0,
            "policy/clip_fraction_lower": 0,
        }
    )


def test_kl_pulls_towards_the_reference():
    """Field case L13: descent lowers a log-prob that is above the reference's, and raises one below."""
    logprobs = torch.tensor([-1.0, -3.0], requires_grad=True)
    for estimator in ("abs", "k2", "k3"):
        objective = Objective(LossSpec(CLIP, kl_coef=0.1, kl_estimator=estimator))
        loss, _ = call(objective, logprobs, advantages=torch.zeros(2), ref_logprobs=torch.full((2,), -2.0))
        assert torch.autograd.grad(loss, logprobs)[0].sign().tolist() == [1, -1]


VERL_MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]], np.float32)
VERL_PI = [0.5, 0.4, 0.3, 0.2, 0.6, 0.7, 0.7, 0.1, 0.5, 0.3]
VERL_OLD = [0.4, 0.5, 0.3, 0.5, 0.6, 0.1, 0.7, 0.4, 0.5, 0.6]


def test_golden_values_of_verl():
    """verl 0.9.1's vanilla loss with these inputs: .405, pg_clipfrac .2, pg_clipfrac_lower .1, ppo_kl .104982."""
    batch = Batch.from_sequences([range(4)] * 4).with_tokens(loss_mask=VERL_MASK.ravel())
    mask = VERL_MASK.ravel() != 0
    columns = {
        "loss_weights": loss_weights(batch, "token-mean", max_response_tokens=4),
        "advantages": np.repeat(np.float32([1, -1, -1, 1]), 4),
    }
    live = {name: torch.from_numpy(column[mask]) for name, column in columns.items()}
    objective = Objective(LossSpec(PluginRef("loss", "clip", {"clip_high": 0.28})))
    live["old_logprobs"] = torch.tensor(VERL_OLD).log()
    loss, sums = objective(torch.tensor(VERL_PI).log(), None, live, torch.from_numpy(batch.rows[mask]), 4)
    metrics = objective.metrics({name: value.item() for name, value in sums.items()})
    assert loss.item() == pytest.approx(0.405, abs=1e-6)
    assert metrics["policy/loss"] == pytest.approx(0.405, abs=1e-6)
    assert metrics["policy/clip_fraction"] == pytest.approx(0.2)
    assert metrics["policy/clip_fraction_lower"] == pytest.approx(0.1)
    assert metrics["policy/kl_to_old"] == pytest.approx(0.104982, abs=1e-6)


class Setting:
    """A head over fixed hidden states, so that an update's gradient can be taken in any split."""

    def __init__(self, lengths=(4, 1, 2, 3), vocabulary=11, width=5):
        rng = np.random.default_rng(0)
        total = sum(lengths)
        mask = np.ones(total, np.float32)
        mask[[1, 6]] = 0
        tokens = rng.integers(vocabulary, size=total)
        batch = Batch.from_sequences(np.split(tokens, np.cumsum(lengths)[:-1]))
        self.batch = batch.with_tokens(
            loss_mask=mask,
            advantages=rng.normal(size=total).astype(np.float32),
            old_logprobs=rng.normal(-2.4, 0.5, size=total).astype(np.float32),
            ref_logprobs=rng.normal(-2.4, 0.5, size=total).astype(np.float32),
            hidden=np.arange(total),
        )
        self.hidden = torch.from_numpy(rng.normal(size=(total, width)).astype(np.float32))
        self.weight = torch.from_numpy(rng.normal(size=(vocabulary, width)).astype(np.float32)).requires_grad_()

    def update(self, spec, batch, split):
        """Gradient and metrics of one update over ``batch``, in micro-batches of these rows."""
        objective = Objective(spec)
        self.weight.grad, summed = None, {}
        for micro in batch.split(split):
            mask = micro["loss_mask"] != 0
            logprobs, entropy = token_logprobs(
                self.hidden[micro["hidden"][mask]],
                self.weight,
                torch.from_numpy(micro.tokens[mask].astype(np.int64)),
                temperature=1.0,
                chunk_tokens=3,
                entropy=objective.wants_entropy,
            )
            columns = {
                name: torch.from_numpy(micro[name][mask]) for name in objective.columns & micro.token_columns.keys()
            }
            loss, sums = objective(logprobs, entropy, columns, torch.from_numpy(micro.rows[mask]), len(micro))
            loss.backward()
            for name, value in sums.items():
                summed[name] = summed.get(name, 0.0) + value.item()
        return self.weight.grad, objective.metrics(summed)


SPECS = {
    "policy": LossSpec(CLIP),
    "kl": LossSpec(CLIP, kl_coef=0.3),
    "entropy": LossSpec(CLIP, entropy_coef=0.2),
    "all": LossSpec(CLIP, kl_coef=0.3, kl_estimator="abs", entropy_coef=0.2),
    "sft": LossSpec(SFT),
}


@pytest.mark.parametrize("aggregate", MODES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_gradient_and_metrics_are_the_same_for_every_split(spec, aggregate):
    """Field cases L01 and L02."""
    setting = Setting()
    batch = setting.batch.with_tokens(loss_weights=loss_weights(setting.batch, aggregate, max_response_tokens=8))
    want, want_metrics = setting.update(spec, batch, [np.arange(4)])
    for split in ([[0], [1], [2], [3]], [[0, 1], [2, 3]], [[0, 1, 2], [3]], [[3, 0], [2], [1]]):
        got, metrics = setting.update(spec, batch, split)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert metrics == pytest.approx(want_metrics, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -math.inf])
def test_what_is_under_the_mask_never_matters(rubbish):
    setting = Setting()
    batch = setting.batch.with_tokens(loss_weights=loss_weights(setting.batch, "token-mean", max_response_tokens=8))
    dead = batch["loss_mask"] == 0
    names = ("advantages", "old_logprobs", "ref_logprobs")
    spoilt = batch.with_tokens(**{name: np.where(dead, np.float32(rubbish), batch[name]) for name in names})
    want, got = (setting.update(SPECS["all"], b, [[0, 1], [2, 3]]) for b in (batch, spoilt))
    assert torch.equal(got[0], want[0])
    assert got[1] == want[1]


@pytest.mark.parametrize("difference", [-100.0, 100.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_log_ratios_of_100_leave_everything_finite(difference, advantage):
    """Field case L11."""
    logprobs = torch.tensor([difference - 200.0], requires_grad=True)
    objective = Objective(LossSpec(PluginRef("loss", "clip", {"dual_clip": None}), kl_coef=1.0))
    far = torch.tensor([-200.0])
    loss, sums = call(objective, logprobs, advantages=torch.tensor([advantage]), old_logprobs=far, ref_logprobs=far)
    loss.backward()
    assert logprobs.grad.isfinite().all()
    for value in (loss, *sums.values()):
        assert value.isfinite().all()


def test_no_live_tokens_give_a_loss_with_gradient_and_finite_metrics():
    """Field case L04."""
    logprobs = torch.zeros(0, requires_grad=True)
    objective = Objective(LossSpec(CLIP, entropy=True))
    loss, sums = call(objective, logprobs, torch.zeros(0), sequences=0, advantages=torch.zeros(0))
    loss.backward()
    assert loss.item() == 0
    assert all(value == 0 for value in objective.metrics({name: v.item() for name, v in sums.items()}).values())


@pytest.mark.parametrize(
    ("spec", "columns", "entropy"),
    [
        (LossSpec(CLIP), {"advantages"}, False),
        (LossSpec(CLIP, kl_coef=0.1), {"advantages", "ref_logprobs"}, False),
        (LossSpec(CLIP, entropy_coef=-0.1), {"advantages"}, True),
        (LossSpec(SFT, entropy=True), set(), True),
    ],
)
def test_only_what_is_read_is_asked_for(spec, columns, entropy):
    objective = Objective(spec)
    assert objective.columns == {"loss_weights", "old_logprobs", "correction"} | columns
    assert objective.wants_entropy == entropy


def test_sft_needs_no_advantages_and_clip_says_that_it_does():
    logprobs = torch.tensor([-1.0, -3.0], requires_grad=True)
    loss, _ = call(Objective(LossSpec(SFT)), logprobs)
    loss.backward()
    assert loss.item() == 4
    assert logprobs.grad.tolist() == [-1, -1]
    with pytest.raises(BatchError, match="loss/clip needs the token columns advantages; the micro-batch has: loss_w"):
        call(Objective(LossSpec(CLIP)), logprobs)


def test_bad_input():
    logprobs = torch.zeros(2)
    with pytest.raises(BatchError, match="entropy of each token"):
        call(Objective(LossSpec(CLIP, entropy_coef=0.1)), logprobs, advantages=torch.zeros(2))
    with pytest.raises(BatchError, match=r"column 'advantages' has shape \[3\], the log-probs \[2\]"):
        call(Objective(LossSpec(CLIP)), logprobs, advantages=torch.zeros(3))


def test_loss_of_a_plugin_gets_the_columns_it_names_and_prepares(tmp_path):
    ref = local_loss(
        tmp_path,
        """
        import numpy as np
        from rlcore.torch.losses import LossOutput

        class Config(PluginConfig):
            factor: float = 1.0

            def needs(self):
                return frozenset({"batch:keep", "batch:old_logprobs", "groups"})

            def provides(self):
                return frozenset({"batch:keep"})

        class Loss:
            def __init__(self, factor):
                self.factor = factor

            def prepare(self, batch):
                return batch.with_tokens(keep=np.float32(batch["advantages"] > 0))

            def __call__(self, inputs):
                loss = -self.factor * inputs.extras["keep"] * inputs.logprobs
                return LossOutput(loss, {"kept": inputs.extras["keep"], "mean": inputs.seq_mean(inputs.logprobs)})

        @hookimpl
        def rlcore_policy_loss(config: Config):
            return Loss(config.factor)
        """,
    )
    objective = Objective(LossSpec(PluginRef("loss", ref.name, {"factor": 2.0})))
    assert objective.columns == {"loss_weights", "old_logprobs", "correction", "advantages", "keep"}
    batch = Batch.from_sequences([[1, 2, 3]]).with_tokens(advantages=np.float32([1, -1, 2]))
    keep = torch.tensor(objective.policy.prepare(batch)["keep"])
    logprobs = torch.tensor([-1.0, -2.0, -4.0])
    given = {"advantages": torch.zeros(3), "keep": keep, "old_logprobs": torch.zeros(3)}
    segments = torch.tensor([0, 1, 1])
    loss, sums = objective(logprobs, None, {"loss_weights": torch.ones(3), **given}, segments, 2)
    assert loss.item() == 2 * (1 + 4)
    metrics = objective.metrics({name: value.item() for name, value in sums.items()})
    assert metrics["policy/kept"] == pytest.approx(2 / 3)
    assert metrics["policy/mean"] == pytest.approx((-1 - 3 - 3) / 3)
    with pytest.raises(BatchError, match="needs the token columns old_logprobs"):
        call(objective, logprobs, advantages=torch.zeros(3), keep=keep)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("LossOutput(inputs.logprobs.mean())", r"returned 'loss' of shape \[\]; it must be one value per live token"),
        ("LossOutput(inputs.logprobs, {'x': inputs.logprobs.sum()})", r"returned 'x' of shape \[\].*\[2\]"),
        ("LossOutput(inputs.logprobs, {'entropy': inputs.logprobs})", "the core's own names, entropy: rename"),
    ],
)
def test_loss_that_is_no_loss_per_token_is_refused(tmp_path, returned, message):
    ref = local_loss(
        tmp_path,
        f"""
        from rlcore.torch.losses import LossOutput

        @hookimpl
        def rlcore_policy_loss():
            return lambda inputs: {returned}
        """,
    )
    with pytest.raises(BrokenPluginError, match=message) as error:
        call(Objective(LossSpec(ref)), torch.zeros(2), advantages=torch.zeros(2))
    assert "my_loss.py" in str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('entropy')", r"loss .*wrong\.py failed with KeyError: 'entropy' \(at .*wrong\.py:\d+\)"),
        ("return inputs.logprobs", r"wrong\.py must return a LossOutput, not Tensor"),
        ("return LossOutput(inputs.advantages)", r"wrong\.py returned a loss that does not depend on the log-probs"),
    ],
)
def test_a_loss_that_is_wrong_is_named(tmp_path, body, message):
    file = tmp_path / "wrong.py"
    file.write_text(
        "from rlcore import hookimpl\nfrom rlcore.torch.losses import LossOutput\n\n"
        "@hookimpl\ndef rlcore_policy_loss():\n"
        f"    def loss(inputs):\n        {body}\n    return loss\n"
    )
    objective = Objective(LossSpec(PluginRef("loss", str(file))))
    logprobs = torch.full((2,), -1.0, requires_grad=True)
    columns = {name: torch.ones(2) for name in ("advantages", "loss_weights")}
    with pytest.raises(PluginError, match=message):
        objective(logprobs, None, columns, torch.zeros(2, dtype=torch.int64), 1)
