"""Sharded weights and optimizer state to folders and back, on any number of ranks. Every function is collective."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from rlcore.errors import CheckpointError, ModelError, RunFolderError
from rlcore.torch.folder import read_shapes, read_weights, write_model_folder
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rlcore_fsdp.ranks import Ranks

SCHEDULE = "schedule.json"


def full_tensors(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Each tensor gathered and, where it is floating-point, in ``dtype``; one at a time."""
    for name, tensor in tensors.items():
        local = tensor.detach()
        if local.is_floating_point():
            local = local.to(dtype)  # before gathering: half precision is half the traffic
        yield name, local.full_tensor() if isinstance(local, DTensor) else local


def untied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights under the first of their names only, as safetensors wants them."""
    seen: set[int] = set()
    return {name: t for name, t in tensors.items() if not (id(t) in seen or seen.add(id(t)))}  # type: ignore[func-returns-value]


def save_model(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    source: Path,
    dtype: torch.dtype,
    ranks: Ranks,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write a Hugging Face folder from rank 0; ``config`` holds keys of config.json that differ from the source's.

    Raises on every rank if that fails.
    """
    stream = full_tensors(untied(tensors), dtype)
    failure = None
    if ranks.rank == 0:
        try:
            write_model_folder(folder, stream, source=source, dtype=dtype, config=config)
        except OSError as error:
            failure = error
    for _ in stream:  # gathering is collective: other ranks take part, and rank 0 after a failure too
        pass
    first = ranks.gather(failure)[0]
    if first is not None:
        raise (
            first if isinstance(first, RunFolderError) else CheckpointError(f"can't write {folder}: {first}")
        ) from first


def load_model(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Put the weights of a folder that ``save_model`` wrote into ``tensors``.

    Raises CheckpointError for missing or cut files and for another model, naming the first difference, before anything
    is changed.
    """
    wanted = untied(tensors)
    try:
        found = read_shapes(folder)
        ours = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
        for name in [*ours, *(found.keys() - ours.keys())]:
            if found.get(name) != ours.get(name):
                raise CheckpointError(
                    f"{folder} is of another model: {name} is {found.get(name, 'missing')} there and "
                    f"{ours.get(name, 'missing')} here"
                )
        with torch.no_grad():
            for name, full in read_weights(folder):
                _assign(wanted[name], full)
    except ModelError as error:
        raise CheckpointError(f"checkpoint: {error}") from error


def _assign(tensor: Tensor, full: Tensor) -> None:
    if isinstance(tensor, DTensor):
        full = distribute_tensor(full.to(tensor.device, tensor.dtype), tensor.device_mesh, tensor.placements)
    tensor.copy_(full)


def save_optimizer(
    folder: Path, optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], updates: int, ranks: Ranks
) -> None:
    """Write the optimizer's state, sharded, and how far the schedule is."""
    state = {
        f"{name}:{key}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    if state:
        save(state, checkpoint_id=folder)
    if ranks.rank == 0:
        (folder / SCHEDULE).write_text(json.dumps({"updates": updates, "tensors": sorted(state)}) + "\n")
    ranks.gather(None)  # nobody goes on before the file is there


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> int:
    """Restore what ``save_optimizer`` wrote; returns the updates done. Raises CheckpointError for what is missing."""
    schedule = folder / SCHEDULE
    try:
        saved = json.loads(schedule.read_text())
        updates, names = int(saved["updates"]), list(saved["tensors"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{schedule} is missing or can't be read: {error!r}") from error
    optimizer.state.clear()
    if not names:
        return updates
    if not (folder / ".metadata").is_file():
        raise CheckpointError(f"{folder / '.metadata'} is missing, so the optimizer's state can't be read")
    reader = FileSystemReader(folder)
    shapes = reader.read_metadata().state_dict_metadata
    state = {}
    for full_name in names:
        name, key = full_name.rsplit(":", 1)
        meta = shapes.get(full_name)
        if name not in parameters or not isinstance(meta, TensorStorageMetadata):
            raise CheckpointError(f"{folder} is of another model: {full_name} is not in both")
        parameter = parameters[name]
        if meta.size and tuple(meta.size) != tuple(parameter.shape):
            raise CheckpointError(f"{folder} is of another model: {full_name} has shape {tuple(meta.size)}")
        value = _like(parameter, meta)
        state[full_name] = value
        optimizer.state[parameter][key] = value
    try:
        load(state, storage_reader=reader)
    except CheckpointException as error:
        raise CheckpointError(f"{folder} can't be read: {error}") from error
    return updates


def _like(parameter: nn.Parameter, meta: TensorStorageMetadata) -> Any:
    """An empty tensor to load a state into: sharded as its parameter, or a scalar where the optimizer keeps it."""
    dtype = meta.properties.dtype
    if meta.size:
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    return torch.zeros((), dtype=dtype, device=parameter.device)
