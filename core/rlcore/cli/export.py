"""``rlcore export``: a plain Hugging Face folder from a run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


class Dtype(StrEnum):
    """Number formats that a model can be written in."""

    bfloat16 = "bfloat16"
    float32 = "float32"


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run's folder, or one of its checkpoints.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write: new or empty.")],
    dtype: Annotated[Dtype | None, typer.Option(help="Format of the weights; left out, the run's own.")] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Step whose checkpoint to take; left out, the newest.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is in the way.")] = False,
) -> None:
    """Write a run's model as a plain Hugging Face folder: safetensors, config, tokenizer."""
    from rlcore.run.export import export_checkpoint

    checkpoint = export_checkpoint(source, out, dtype=dtype.value if dtype else None, step=step, overwrite=overwrite)
    print(f"{out}: the model of step {checkpoint.step}")
