"""A checkpoint's model as a plain Hugging Face folder."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from rlcore.errors import CheckpointError, ManifestError, RunFolderError
from rlcore.run.checkpoints import MARKER, Checkpoint, CheckpointStore, read_checkpoint
from rlcore.run.folder import MANIFEST, read_manifest

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("bfloat16", "float32")
_MODEL_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt")
"""Of the files that an exported folder can hold; a folder with others is not deleted."""


def export_checkpoint(
    source: Path, out: Path, *, dtype: str | None = None, step: int | None = None, overwrite: bool = False
) -> Checkpoint:
    """Write the model of a run's newest whole checkpoint, or of the one that ``source`` or ``step`` names, to ``out``.

    ``dtype`` "bfloat16" or "float32"; left out, the run's own. ``out`` must be new or empty; ``overwrite`` replaces a
    model folder, and only that. It is written beside and renamed, so ``out`` is never half a model. Only safetensors
    and JSON are read. Returns the checkpoint that was exported.
    """
    _refuse_occupied(out, overwrite)
    checkpoint = find_checkpoint(source, step)
    model = checkpoint.path / "model"
    if not model.is_dir():
        raise CheckpointError(f"checkpoint {checkpoint.path} has no folder model/, so there is nothing to export")
    _refuse_overlap(out, checkpoint.path)
    from rlcore.torch.folder import convert_model_folder
    from rlcore.torch.model import DTYPES as TORCH_DTYPES

    chosen = TORCH_DTYPES[dtype or _run_dtype(checkpoint)]
    out = out.resolve()  # a link to an empty folder stays one
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{out} can't be made: {error.strerror}; name another folder with --out") from error
    beside = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    try:
        convert_model_folder(model, beside, chosen)
        _put_in_place(beside, out, overwrite)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return checkpoint


def find_checkpoint(source: Path, step: int | None = None) -> Checkpoint:
    """The checkpoint that ``source`` is, or the newest whole one, or that of ``step``, in the run folder it is."""
    if not source.is_dir():
        raise RunFolderError(f"there is no folder {source}; name a run's folder or one of its checkpoints")
    store = CheckpointStore(source / "checkpoints", keep=1)
    if (source / "checkpoints").is_dir():
        if step is not None:
            return store.named(str(step))
        if newest := store.latest():
            return newest
        raise CheckpointError(f"{source} has no whole checkpoint to take a model from")
    if (source / MANIFEST).is_file():
        raise CheckpointError(f"{source} has saved no checkpoint yet")
    if not (source / MARKER).is_file():
        raise CheckpointError(
            f"{source} is neither a run's folder (no {MANIFEST}) nor a whole checkpoint (no {MARKER}); "
            "name a run's folder such as runs/NAME, or runs/NAME/checkpoints/step_000100"
        )
    checkpoint = read_checkpoint(source.resolve())
    if step not in (None, checkpoint.step):
        raise CheckpointError(f"{source} is the checkpoint of step {checkpoint.step}, not of step {step}")
    return checkpoint


def _run_dtype(checkpoint: Checkpoint) -> str:
    """The dtype that the run computed in, by its recorded manifest."""
    folder = checkpoint.path.resolve().parent.parent
    if not (folder / MANIFEST).is_file():
        raise RunFolderError(f"{folder} has no {MANIFEST} that says which dtype the run used; give --dtype")
    model = read_manifest(folder).get("model")
    dtype = model.get("dtype") if isinstance(model, dict) else None
    if dtype not in DTYPES:
        raise ManifestError(f"{folder / MANIFEST}: model.dtype is {dtype!r}, not {' or '.join(DTYPES)}; give --dtype")
    return str(dtype)


def _refuse_occupied(out: Path, overwrite: bool) -> None:
    if (out.exists() or out.is_symlink()) and not out.is_dir():
        raise RunFolderError(f"{out} is no folder; name another one with --out")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not overwrite:
        raise RunFolderError(f"{out} holds something already; name a new folder with --out, or give --overwrite")
    if not (out / "config.json").is_file():
        raise RunFolderError(f"{out} holds something that is no model (no config.json); name a new folder with --out")
    if other := sorted(path.name for path in out.iterdir() if not (path.is_file() and path.suffix in _MODEL_SUFFIXES)):
        raise RunFolderError(f"{out} holds more than a model ({other[0]}); name a new folder with --out")


def _refuse_overlap(out: Path, checkpoint: Path) -> None:
    target, source = out.resolve(), checkpoint.resolve()
    if target == source or target in source.parents or source in target.parents:
        raise RunFolderError(
            f"{out} and the checkpoint {checkpoint} lie in one another; name another folder with --out"
        )


def _put_in_place(beside: Path, out: Path, overwrite: bool) -> None:
    replaced = out.with_name(f".{out.name}.old-{os.getpid()}")
    if overwrite and out.is_dir():
        out.rename(replaced)
    try:
        beside.rename(out)
    except OSError as error:
        raise RunFolderError(f"{out} was filled by something else meanwhile; nothing was overwritten") from error
    shutil.rmtree(replaced, ignore_errors=True)
