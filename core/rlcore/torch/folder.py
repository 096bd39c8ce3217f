"""Hugging Face model folders: found, read and written tensor by tensor, safetensors only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rlcore.errors import ModelError, RunFolderError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import torch
    from torch import Tensor

    from rlcore.manifest.schema import ModelSection

SHARD_BYTES = 2 * 1000**3
"""Largest safetensors file; also what writing a folder holds in host memory."""

INDEX = "model.safetensors.index.json"

# What belongs to a model besides weights: config, generation config, tokenizer, chat template, its own code.
_COPIED = (".json", ".txt", ".model", ".jinja", ".py", ".tiktoken")


def is_folder(path: str) -> bool:
    """Whether a model path means a folder of this machine and not a Hugging Face id."""
    return path.startswith((".", "/", "~")) or Path(path).is_dir()


def model_folder(section: ModelSection, *, weights: bool = False) -> Path:
    """The folder of a model: the one that its path names, or the hub's cache with everything but weights in it, or with
    ``weights`` those too.

    Raises ModelError for a folder that is missing or has no config.json, and an id that can't be fetched.
    """
    if is_folder(section.path):
        folder = Path(section.path).expanduser()
        if not folder.is_dir():
            raise ModelError(f"model.path: the folder {folder} does not exist")
    else:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            patterns = [f"*{suffix}" for suffix in (*_COPIED, *([".safetensors"] if weights else []))]
            folder = Path(snapshot_download(section.path, revision=section.revision, allow_patterns=patterns))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            raise ModelError(f"model.path: {section.path!r} is no folder here and can't be fetched: {error}") from error
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.path: the folder {folder} has no config.json, so it holds no Hugging Face model")
    return folder


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, by its index where it has one.

    Raises ModelError naming what is missing.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} can't be read: {error!r}") from error
        files = [folder / name for name in names]
    else:
        files = [folder / "model.safetensors"]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise ModelError(f"weights are missing: {', '.join(missing)}")
    return files


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model folder, from the headers. Raises ModelError for files cut there."""
    shapes = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, "pt") as weights:
                shapes.update({name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()})  # noqa: SIM118
        except SafetensorError as error:
            raise ModelError(f"{file} is no whole safetensors file: {error}") from error
    return shapes


def read_weights(folder: Path, names: Collection[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a model folder (or those of these names) by name, one at a time, on the CPU.

    Raises ModelError for files that are cut.
    """
    for file in weight_files(folder):
        try:
            with safe_open(file, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - no mapping
                    if names is None or name in names:
                        yield name, weights.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{file} is no whole safetensors file: {error}") from error


def write_model_folder(
    folder: Path,
    weights: Iterable[tuple[str, Tensor]],
    *,
    source: Path,
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write a Hugging Face folder: ``weights`` in ``dtype``, all else (config, tokenizer, template) as in ``source``.

    ``config`` holds keys of config.json that are set to something else. Tied weights must come once. Holds one file's
    tensors in memory. Raises RunFolderError for a folder that holds something.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(f"{folder} holds something already; name an empty or new folder")
    folder.mkdir(parents=True, exist_ok=True)
    _copy_rest(source, folder, dtype, config or {})
    files: list[dict[str, int]] = []
    shard: dict[str, Tensor] = {}

    def flush() -> None:
        save_file(shard, folder / f"{len(files)}.part", metadata={"format": "pt"})
        files.append({name: tensor.nbytes for name, tensor in shard.items()})
        shard.clear()

    for name, tensor in weights:
        cast = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype).contiguous()
        if shard and sum(t.nbytes for t in shard.values()) + cast.nbytes > shard_bytes:
            flush()
        shard[name] = cast
    flush()
    _name_files(folder, files)


def convert_model_folder(source: Path, out: Path, dtype: torch.dtype) -> None:
    """Write the model of one folder into another in ``dtype``, tensor by tensor; reads safetensors and JSON only."""
    if not (source / "config.json").is_file():
        raise ModelError(f"{source} has no config.json, so it holds no Hugging Face model")
    weight_files(source)
    write_model_folder(out, read_weights(source), source=source, dtype=dtype)


def _name_files(folder: Path, files: list[dict[str, int]]) -> None:
    """Give the parts their final names, known only now that their number is, and write the index."""
    if len(files) == 1:
        (folder / "0.part").rename(folder / "model.safetensors")
        return
    weight_map = {}
    for number, names in enumerate(files):
        final = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        (folder / f"{number}.part").rename(folder / final)
        weight_map.update(dict.fromkeys(names, final))
    index = {"metadata": {"total_size": sum(sum(f.values()) for f in files)}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _copy_rest(source: Path, folder: Path, dtype: torch.dtype, changes: Mapping[str, Any]) -> None:
    """Copy what is no weight, with the dtype in config.json set to that of the weights, and what else changes there."""
    for file in sorted(source.iterdir()):
        if file.is_file() and file.suffix in _COPIED and not file.name.endswith(".index.json"):
            shutil.copyfile(file, folder / file.name)
    if (source / "additional_chat_templates").is_dir():
        shutil.copytree(source / "additional_chat_templates", folder / "additional_chat_templates")
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)  # the name that transformers 4 gave it
    config |= {"dtype": str(dtype).removeprefix("torch."), **changes}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
