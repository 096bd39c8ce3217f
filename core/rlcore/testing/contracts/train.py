"""What a train backend must do, on a tiny model and a CPU, with one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from rlcore.data.batch import Batch
from rlcore.manifest.schema import ModelSection, TrainerSection
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import LossSpec, Role, TrainBackend, TrainContext
from rlcore.plugins.kinds import Kind
from rlcore.plugins.loading import build
from rlcore.testing.contracts.models import load_eager, next_logprobs
from rlcore.testing.contracts.plugin import PluginContract
from rlcore.testing.tiny import write_tiny_model

_TEMPERATURE = 0.7
_ATOL = 1e-4  # float32: what another order of additions makes of a log-prob
_LOSS = LossSpec(PluginRef("loss", "clip"))


class TrainBackendContract(PluginContract):
    """Subclass with ``plugin``, or override ``make_backend``. Expected values are transformers' own."""

    kind: ClassVar[Kind] = "trainer"

    @classmethod
    def make_backend(cls, context: TrainContext) -> TrainBackend:
        """The backend under test."""
        backend: TrainBackend = build(cls.ref(), context)
        return backend

    @pytest.fixture(scope="class", params=[True, False], ids=["tied", "untied"])
    @classmethod
    def folder(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A tiny model, with its head tied to its embedding and not."""
        return write_tiny_model(tmp_path_factory.mktemp("model"), tied=request.param)

    def backend(self, folder: Path, role: Role = "policy", **train: Any) -> TrainBackend:
        """A backend that holds the folder's model; ``train`` are keys of the ``trainer`` section."""
        section = TrainerSection(use=self.plugin, options=dict(self.options), **{"lr": 1e-2, "eps": 1.0, **train})
        model = ModelSection(path=str(folder), dtype="float32")
        return self.make_backend(
            TrainContext(role, model, section, _TEMPERATURE, total_updates=10, seed=0, device="cpu")
        )

    def test_forward_is_the_model(self, folder: Path) -> None:
        """``logprobs`` and ``entropy`` float32[T], at temperature, 0 where the loss mask is; all else as it was."""
        batch = _batch()
        backend = self.backend(folder)
        out = backend.forward(batch, ["logprobs", "entropy"])
        logprobs, entropy = _expected(load_eager(folder), batch)
        for name, expected in (("logprobs", logprobs), ("entropy", entropy)):
            assert out[name].dtype == np.float32
            live = batch["loss_mask"] == 1
            np.testing.assert_allclose(out[name][live], expected[live], atol=_ATOL)
            assert not out[name][batch.offsets[:-1]].any(), f"{name} of first tokens, which nothing predicts"
        assert np.array_equal(out.tokens, batch.tokens)
        assert "entropy" not in backend.forward(batch, ["logprobs"])
        backend.close()

    def test_reference_is_the_model_too(self, folder: Path) -> None:
        """The same log-probs from a model that is never trained."""
        batch = _batch()
        reference = self.backend(folder, "reference")
        expected, _ = _expected(load_eager(folder), batch)
        live = batch["loss_mask"] == 1
        np.testing.assert_allclose(reference.forward(batch, ["logprobs"])["logprobs"][live], expected[live], atol=_ATOL)
        reference.close()

    def test_step_goes_the_right_way(self, folder: Path) -> None:
        """Log-probs rise where advantages are positive and fall where they are negative."""
        backend = self.backend(folder)
        batch = _with_old(backend, _batch())
        backend.forward_backward(batch, _LOSS)
        metrics = backend.optimizer_step()
        change = backend.forward(batch, ["logprobs"])["logprobs"] - batch["old_logprobs"]
        by_row = batch.sum_rows(change * batch["loss_mask"])
        good = batch.sum_rows(batch["advantages"]) > 0
        assert by_row[good].sum() > 0 > by_row[~good].sum()
        assert metrics["grad_norm"] > 0
        assert metrics["lr"] == pytest.approx(1e-2)
        backend.close()

    def test_masked_tokens_train_nothing(self, folder: Path) -> None:
        """A batch without weight leaves no gradient."""
        backend = self.backend(folder, weight_decay=0.0)
        batch = _with_old(backend, _batch())
        zero = batch.with_tokens(loss_weights=np.zeros_like(batch["loss_weights"]))
        backend.forward_backward(zero, _LOSS)
        assert backend.optimizer_step()["grad_norm"] == 0.0
        assert np.array_equal(backend.forward(batch, ["logprobs"])["logprobs"], batch["old_logprobs"])
        backend.close()

    def test_split_does_not_change_the_update(self, folder: Path) -> None:
        """Micro-batches of any size, or the update given in two calls, make the same gradient."""
        whole = self._update(folder, 10_000, parts=1)
        for tokens_per_micro_batch, parts in ((30, 1), (45, 1), (10_000, 2)):
            norm, logprobs = self._update(folder, tokens_per_micro_batch, parts)
            assert norm == pytest.approx(whole[0], rel=1e-5)
            np.testing.assert_allclose(logprobs, whole[1], atol=1e-5)

    def test_save_and_load(self, folder: Path, tmp_path: Path) -> None:
        """A loaded backend goes on bit for bit, optimizer and schedule included."""
        first = self.backend(folder, eps=1e-8, schedule="linear", warmup_updates=3)
        batch = _with_old(first, _batch())
        _step(first, batch)
        first.save(tmp_path / "saved")
        second = self.backend(folder, eps=1e-8, schedule="linear", warmup_updates=3)
        second.load(tmp_path / "saved")
        for _ in range(2):
            mine, theirs = (backend.forward(batch, ["logprobs"])["logprobs"] for backend in (first, second))
            assert np.array_equal(mine, theirs)
            assert _step(first, batch) == _step(second, batch)
        first.close()
        second.close()

    def test_weights_are_as_specified(self, folder: Path) -> None:
        """Full tensors in the order of the specs, under transformers' names, tied ones under both."""
        backend = self.backend(folder)
        expected = load_eager(folder).state_dict()
        specs = {spec.name: (spec.shape, spec.dtype) for spec in backend.weight_specs()}
        streamed = [(name, tensor.detach().clone()) for name, tensor in backend.weights()]
        assert [name for name, _ in streamed] == list(specs)
        assert specs.keys() == expected.keys()
        for name, tensor in streamed:
            assert (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) == specs[name], name
            assert tensor.equal(expected[name]), name
        backend.close()

    def test_generation_model_has_the_weights_as_they_are(self, folder: Path) -> None:
        """Before and after a step, the lent module computes what ``forward`` does."""
        backend = self.backend(folder)
        batch = _with_old(backend, _batch())
        live = batch["loss_mask"] == 1
        for _ in range(2):
            logprobs = backend.forward(batch, ["logprobs"])["logprobs"]
            with backend.generation_model() as module:
                expected, _ = _expected(module, batch)
            np.testing.assert_allclose(logprobs[live], expected[live], atol=_ATOL)
            _step(backend, batch)
        backend.close()

    def test_export_is_a_plain_folder(self, folder: Path, tmp_path: Path) -> None:
        """transformers loads it with its tokenizer, and it computes what the backend does."""
        from rlcore.torch.tokenizer import load_tokenizer

        backend = self.backend(folder)
        batch = _with_old(backend, _batch())
        _step(backend, batch)
        backend.export(tmp_path / "hf")
        expected, _ = _expected(load_eager(tmp_path / "hf"), batch)
        live = batch["loss_mask"] == 1
        logprobs = backend.forward(batch, ["logprobs"])["logprobs"]
        np.testing.assert_allclose(logprobs[live], expected[live], atol=_ATOL)
        assert load_tokenizer(ModelSection(path=str(tmp_path / "hf"))).has_chat_template
        backend.close()

    def test_offload_and_onload(self, folder: Path) -> None:
        """Nothing is lost on the way to host memory and back."""
        backend = self.backend(folder, offload={"params": True, "optimizer": True})
        batch = _with_old(backend, _batch())
        _step(backend, batch)
        before = backend.forward(batch, ["logprobs"])["logprobs"]
        backend.offload()
        backend.onload()
        assert np.array_equal(backend.forward(batch, ["logprobs"])["logprobs"], before)
        _step(backend, batch)
        backend.close()

    def _update(self, folder: Path, tokens_per_micro_batch: int, parts: int) -> tuple[float, NDArray[Any]]:
        backend = self.backend(folder, tokens_per_micro_batch=tokens_per_micro_batch, max_grad_norm=None)
        batch = _with_old(backend, _batch())
        for rows in np.array_split(np.arange(len(batch)), parts):
            backend.forward_backward(batch.select(rows), _LOSS)
        norm = backend.optimizer_step()["grad_norm"]
        logprobs = backend.forward(batch, ["logprobs"])["logprobs"]
        backend.close()
        return norm, logprobs


def _batch() -> Batch:
    """Rows of 2 to 30 tokens, the later half of each live; advantages +1 and −1, weights of the mean over tokens."""
    rng = np.random.default_rng(0)
    lengths = np.array([9, 30, 2, 17, 12, 5])
    batch = Batch.from_sequences([rng.integers(0, 256, n) for n in lengths])
    position = np.arange(len(batch.tokens)) - batch.spread(batch.offsets[:-1])
    live = (position >= batch.spread(lengths // 2)).astype(np.float32)
    sign = batch.spread(np.where(np.arange(len(lengths)) % 2 == 0, 1, -1).astype(np.float32))
    return batch.with_tokens(loss_mask=live, advantages=sign * live, loss_weights=live / live.sum()).with_samples(
        group=np.arange(len(lengths)) // 2, unit=np.arange(len(lengths))
    )


def _with_old(backend: TrainBackend, batch: Batch) -> Batch:
    return batch.with_tokens(old_logprobs=backend.forward(batch, ["logprobs"])["logprobs"])


def _step(backend: TrainBackend, batch: Batch) -> dict[str, float]:
    return dict(backend.forward_backward(batch, _LOSS)) | dict(backend.optimizer_step())


def _expected(model: Any, batch: Batch) -> tuple[NDArray[Any], NDArray[Any]]:
    """Log-probs and entropy of every token by a plain forward pass over each row alone; 0 at first tokens."""
    logprobs, entropy = np.zeros(len(batch.tokens)), np.zeros(len(batch.tokens))
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        row = batch.tokens[start:end]
        every = next_logprobs(model, row, _TEMPERATURE)[:-1]
        logprobs[start + 1 : end] = every[np.arange(len(row) - 1), row[1:]]
        entropy[start + 1 : end] = -(np.exp(every) * every).sum(-1)
    return logprobs, entropy
