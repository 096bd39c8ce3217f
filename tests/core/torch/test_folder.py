from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from rlcore.errors import ModelError, RunFolderError
from rlcore.manifest.schema import ModelSection
from rlcore.testing.tiny import write_tiny_model
from rlcore.torch.folder import (
    convert_model_folder,
    model_folder,
    read_shapes,
    read_weights,
    weight_files,
    write_model_folder,
)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "source")


def test_convert_changes_dtype_and_nothing_else(source: Path, tmp_path: Path) -> None:
    convert_model_folder(source, tmp_path / "out", torch.bfloat16)
    written = load_file(tmp_path / "out" / "model.safetensors")
    original = load_file(source / "model.safetensors")
    assert written.keys() == original.keys()
    assert "lm_head.weight" not in written, "tied, so written once"
    assert all(torch.equal(written[name], original[name].bfloat16()) for name in original)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    theirs, mine = (AutoTokenizer.from_pretrained(folder) for folder in (source, tmp_path / "out"))
    assert mine.chat_template == theirs.chat_template
    assert mine("1 + 2").input_ids == theirs("1 + 2").input_ids
    assert (tmp_path / "out" / "generation_config.json").read_bytes() == (
        source / "generation_config.json"
    ).read_bytes()


def test_large_models_are_cut_into_files_with_an_index(source: Path, tmp_path: Path) -> None:
    tensors = dict(read_weights(source))
    out = tmp_path / "out"
    write_model_folder(out, tensors.items(), source=source, dtype=torch.float32, shard_bytes=20_000)
    files = weight_files(out)
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    # A file is larger than the limit only where it holds a single tensor that is.
    assert all(file.stat().st_size < 25_000 or len(load_file(file)) == 1 for file in files)
    assert not list(out.glob("*.part"))
    again = dict(read_weights(out))
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert read_shapes(out) == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    loaded = AutoModelForCausalLM.from_pretrained(out).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_the_index_of_a_sharded_source_is_not_copied(source: Path, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "a", read_weights(source), source=source, dtype=torch.float32, shard_bytes=20_000)
    convert_model_folder(tmp_path / "a", tmp_path / "b", torch.float32)
    assert [file.name for file in weight_files(tmp_path / "b")] == ["model.safetensors"]


def test_whole_numbers_keep_their_dtype(source: Path, tmp_path: Path) -> None:
    weights = {"steps": torch.tensor(3), "scale": torch.tensor(1.5)}
    write_model_folder(tmp_path / "out", weights.items(), source=source, dtype=torch.bfloat16)
    written = dict(read_weights(tmp_path / "out"))
    assert (written["steps"].dtype, written["scale"].dtype) == (torch.int64, torch.bfloat16)
    assert written["steps"].shape == ()


def test_a_folder_that_holds_something_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="out holds something already"):
        convert_model_folder(source, tmp_path / "out", torch.float32)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_a_cut_file_is_named(source: Path) -> None:
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors is no whole safetensors file"):
        list(read_weights(source))
    with pytest.raises(ModelError, match=r"model\.safetensors is no whole safetensors file"):
        read_shapes(source)


def test_missing_files_are_named(source: Path, tmp_path: Path) -> None:
    (source / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"weights are missing: .*source/model\.safetensors"):
        convert_model_folder(source, tmp_path / "out", torch.float32)
    (source / "config.json").unlink()
    with pytest.raises(ModelError, match=r"source has no config\.json"):
        convert_model_folder(source, tmp_path / "out", torch.float32)
    assert not (tmp_path / "out").exists()


def test_a_file_of_the_index_that_is_missing_is_named(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_model_folder(out, read_weights(source), source=source, dtype=torch.float32, shard_bytes=20_000)
    gone = weight_files(out)[1]
    gone.unlink()
    with pytest.raises(ModelError, match=f"weights are missing: {gone}$"):
        weight_files(out)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}'])
def test_an_index_that_is_none(source: Path, text: str) -> None:
    (source / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json can't be read"):
        weight_files(source)


def test_a_hub_id_without_network_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="'nobody/nothing' is no folder here and can't be fetched"):
        model_folder(ModelSection(path="nobody/nothing"))
    with pytest.raises(ModelError, match="can't be fetched"):
        model_folder(ModelSection(path="no such: name"))
