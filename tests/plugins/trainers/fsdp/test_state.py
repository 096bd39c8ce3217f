from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from rlcore.errors import CheckpointError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlcore import Batch, LossSpec
    from rlcore_fsdp.backend import FsdpBackend

    New = Callable[..., FsdpBackend]

SCHEDULE = {"warmup_updates": 4, "schedule": "cosine", "tokens_per_micro_batch": 40}


def train(backend: FsdpBackend, batch: Batch, spec: LossSpec, updates: int) -> list[dict[str, float]]:
    records = []
    for _ in range(updates):
        metrics = dict(backend.forward_backward(batch, spec))
        records.append(metrics | dict(backend.optimizer_step()))
    return records


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_five_and_five_is_ten(new_backend: New, batch: Batch, spec: LossSpec, tmp_path: Path, dtype: str) -> None:
    straight, first, second = (new_backend(dtype=dtype, **SCHEDULE) for _ in range(3))
    want = train(straight, batch, spec, 10)
    got = train(first, batch, spec, 5)
    first.save(tmp_path / "five")
    train(second, batch, spec, 1)  # state that loading must replace
    second.load(tmp_path / "five")
    got += train(second, batch, spec, 5)
    assert got == want, "bit for bit: no tolerance"
    assert len({m["lr"] for m in want}) > 6, "the schedule must be on the move"
    ours, theirs = dict(second.parameters), dict(straight.parameters)
    for name in theirs:
        assert torch.equal(ours[name].full_tensor(), theirs[name].full_tensor())  # type: ignore[attr-defined]


def test_loading_without_an_update_behind_it(new_backend: New, batch: Batch, spec: LossSpec, tmp_path: Path) -> None:
    new_backend(**SCHEDULE).save(tmp_path / "zero")
    backend = new_backend(**SCHEDULE)
    train(backend, batch, spec, 2)
    backend.load(tmp_path / "zero")
    assert train(backend, batch, spec, 2) == train(new_backend(**SCHEDULE), batch, spec, 2)


def test_the_model_is_saved_in_master_precision_with_all_that_belongs_to_it(
    new_backend: New, batch: Batch, spec: LossSpec, tmp_path: Path
) -> None:
    backend = new_backend(dtype="bfloat16")
    train(backend, batch, spec, 1)
    backend.save(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model" / "model.safetensors")
    assert "lm_head.weight" not in saved, "tied, so written once"
    assert saved.keys() == backend.parameters.keys()
    for name, parameter in backend.parameters.items():
        assert torch.equal(saved[name], parameter.full_tensor())  # type: ignore[attr-defined]
    config = json.loads((tmp_path / "saved" / "model" / "config.json").read_text())
    assert (config["dtype"], config["tie_word_embeddings"]) == ("float32", True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved" / "model")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(backend.context.model.path).chat_template


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_is_the_model_in_compute_dtype(
    new_backend: New, batch: Batch, spec: LossSpec, model_folder: Path, untied_folder: Path, tmp_path: Path, tied: bool
) -> None:
    backend = new_backend(model_folder if tied else untied_folder, dtype="bfloat16")
    train(backend, batch, spec, 1)
    backend.export(tmp_path / "out")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert exported.dtype == torch.bfloat16
    assert (exported.lm_head.weight is exported.model.embed_tokens.weight) is tied
    tokens = torch.arange(20)[None]
    with backend.generation_model() as model, torch.no_grad():
        assert torch.equal(exported(tokens).logits, model(tokens).logits)


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(new_backend: New, batch: Batch, spec: LossSpec, tmp_path: Path) -> Path:
    backend = new_backend()
    train(backend, batch, spec, 1)
    backend.save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model/model.safetensors", r"weights are missing: .*saved/model/model\.safetensors"),
        ("optimizer/schedule.json", r"saved/optimizer/schedule\.json is missing"),
        ("optimizer/.metadata", r"saved/optimizer/\.metadata is missing"),
        ("optimizer/__0_0.distcp", r"saved/optimizer can't be read: (.|\n)*__0_0\.distcp"),
    ],
)
def test_missing_state_is_named(new_backend: New, saved: Path, name: str, message: str) -> None:
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=message):
        new_backend().load(saved)


def test_a_cut_model_is_named_before_anything_changes(new_backend: New, saved: Path) -> None:
    file = saved / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    backend = new_backend()
    before = {name: tensor.clone() for name, tensor in backend.weights()}
    with pytest.raises(CheckpointError, match=r"model\.safetensors is no whole safetensors file"):
        backend.load(saved)
    assert all(torch.equal(before[name], tensor) for name, tensor in backend.weights())


def test_another_model_is_refused_with_the_first_difference(
    new_backend: New, untied_folder: Path, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"another model: lm_head\.weight is missing there and \(261, 32\) here"):
        new_backend(untied_folder).load(saved)


def test_a_folder_that_can_not_be_written_is_an_error(new_backend: New, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(CheckpointError, match=r"can't write .*out"):
        new_backend().export(tmp_path / "out")
