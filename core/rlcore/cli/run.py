"""``rlcore run``: train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlcore.cli.options import SetOption

app = typer.Typer()


@app.command()
def run(
    manifest: Annotated[Path, typer.Argument(help="The manifest to run.", show_default=False)],
    set_: SetOption = None,
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
    from rlcore.run.checkpoints import CheckpointStore
    from rlcore.runtime.launch import launch

    if resume_from == "":
        raise typer.BadParameter("--resume-from names no step; --resume takes the last whole checkpoint")
    if (resume or resume_from) and overwrite:
        raise typer.BadParameter("--resume goes on with a run and --overwrite deletes it: choose one")
    loaded = load_manifest(manifest, set_ or [])
    try:
        folder = launch(
            loaded, resume=resume_from or resume, overwrite=overwrite, say=lambda text: typer.echo(text, err=True)
        )
    except StopRequested as stop:
        saved = CheckpointStore(loaded.manifest.run_folder / "checkpoints", 1).steps()
        typer.echo(f"{stop}; {'go on with --resume' if saved else 'nothing is saved yet'}", err=True)
        raise typer.Exit(stop.exit_code) from None
    typer.echo(folder)
