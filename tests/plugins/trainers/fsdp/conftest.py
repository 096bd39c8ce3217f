"""A tiny model with an opinion, a batch to train it on, and a factory of backends."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rlcore import Batch, LossSpec, TrainContext
from rlcore.manifest.schema import ModelSection, TrainerSection
from rlcore.plugins.config import PluginRef
from rlcore.testing.tiny import write_tiny_model
from rlcore_fsdp.backend import FsdpBackend
from rlcore_fsdp.plugin import Config
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

torch.set_num_threads(1)


def write_model(folder: Path, **sizes: Any) -> Path:
    """A tiny Qwen3 whose weights are scaled up, so that attention matters and entropy is not maximal."""
    write_tiny_model(folder, **sizes)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(10)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tied")


@pytest.fixture(scope="session")
def untied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "untied", tied=False, seed=1)


@pytest.fixture
def new_backend(model_folder: Path) -> Callable[..., FsdpBackend]:
    """``new_backend(lr=…, dtype=…, role=…)``: options go to the trainer section, the model section or the context."""

    def new(
        folder: Path | None = None,
        *,
        dtype: str = "float32",
        role: Any = "policy",
        temperature: float = 1.0,
        **train: Any,
    ) -> FsdpBackend:
        context = TrainContext(
            role=role,
            model=ModelSection(path=str(folder or model_folder), dtype=dtype),
            train=TrainerSection(use="fsdp", **({"lr": 1e-3} | train)),
            temperature=temperature,
            total_updates=20,
            seed=0,
            device="cpu",
        )
        return FsdpBackend(Config(), context)

    return new


def make_batch(lengths: tuple[int, ...] = (9, 30, 5, 17, 24, 12), seed: int = 0) -> Batch:
    """Random tokens, responses that start in the middle, weights that sum to 1."""
    rng = np.random.default_rng(seed)
    batch = Batch.from_sequences([rng.integers(0, 256, n, np.int32) for n in lengths])
    place = np.arange(len(batch.tokens)) - np.repeat(batch.offsets[:-1], batch.lengths)
    mask = (place >= np.repeat(batch.lengths // 2, batch.lengths)).astype(np.float32)
    noise = rng.normal(size=(2, len(batch.tokens))).astype(np.float32)
    return batch.with_tokens(
        loss_mask=mask, loss_weights=mask / mask.sum(), advantages=noise[0] * mask, ref_logprobs=noise[1] - 5
    )


@pytest.fixture
def batch() -> Batch:
    return make_batch()


@pytest.fixture
def spec() -> LossSpec:
    """Clipped policy loss, KL to a reference, entropy bonus: every term there is."""
    return LossSpec(PluginRef("loss", "clip"), kl_coef=0.1, kl_estimator="k3", entropy_coef=0.01)


@pytest.fixture
def gradients() -> Callable[[FsdpBackend], dict[str, torch.Tensor]]:
    """The full gradient of each parameter by name."""
    return lambda backend: {n: p.grad.full_tensor().clone() for n, p in backend.parameters.items()}  # type: ignore[union-attr]


@pytest.fixture
def on_two_ranks(tmp_path: Path) -> Callable[..., tuple[Any, Any]]:
    """What each of two processes sees of these cases (batch, rows of each rank, loss): metrics and whole gradients.

    Both have the context of a backend in this process, with other keys of the trainer section.
    """

    def run(one: FsdpBackend, cases: Sequence[Any], **train: Any) -> tuple[Any, Any]:
        context = vars(replace(one.context, train=one.context.train.model_copy(update=train)))
        context = {key: value for key, value in context.items() if key not in ("rank", "world_size")}
        torch.save({"context": context, "cases": cases}, tmp_path / "given.pt")
        script = Path(__file__).with_name("two_ranks_gradients.py")
        command = [sys.executable, "-W", "error", str(script), str(tmp_path)]
        ranks = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in (0, 1)
        ]
        try:
            texts = [rank.communicate(timeout=120)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(texts)
        first, second = (torch.load(tmp_path / f"seen-{rank}.pt", weights_only=False) for rank in (0, 1))
        return first, second

    return run
