"""``rlcore data``: make the files that a manifest's ``data:`` names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def data() -> None:
    """Make data files from their original form."""


@app.command()
def gsm8k(
    source: Annotated[
        str,
        typer.Option("--from", help="Folder with train.jsonl and test.jsonl, or one such file, or hub to download."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write into; made if need be.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
) -> None:
    """Write GSM8K as train.parquet and test.parquet in verl's schema."""
    from rlcore.data.gsm8k import convert

    for path, rows in convert(source, out, overwrite=overwrite).items():
        print(f"{path}: {rows:,} rows")
