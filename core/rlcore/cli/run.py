"""``rlcore run``: train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def run(
    manifest: Annotated[Path, typer.Argument(help="The manifest to run.", show_default=False)],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value: trainer.lr=5e-7.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last whole checkpoint.")] = False,
    resume_from: Annotated[
        str | None,
        typer.Option("--resume-from", metavar="STEP", help="Go on from this checkpoint: step_000100, or 100."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete a run of the same name first.")] = False,
) -> None:
    """Train as the manifest says, and print the run's folder."""
    from rlcore.engine.stopping import StopRequested
    from rlcore.manifest.load import load_manifest
    from rlcore.runtime.launch import launch

    if resume_from == "":
        raise typer.BadParameter("--resume-from names no step; --resume takes the last whole checkpoint")
    if (resume or resume_from) and overwrite:
        raise typer.BadParameter("--resume goes on with a run and --overwrite deletes it: choose one")
    try:
        folder = launch(load_manifest(manifest, set_ or []), resume=resume_from or resume, overwrite=overwrite)
    except StopRequested as stop:
        typer.echo(f"{stop}; go on with --resume", err=True)
        raise typer.Exit(stop.exit_code) from None
    typer.echo(folder)
