"""``rlcore check``: every mistake in a manifest, and what it would do, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlcore.cli.options import SetOption
from rlcore.errors import RlcoreError

if TYPE_CHECKING:
    from rlcore.manifest.load import LoadedManifest

app = typer.Typer()


@app.command()
def check(
    manifest: Annotated[Path, typer.Argument(help="The manifest to check.", show_default=False)],
    set_: SetOption = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print every value with where it came from, as a manifest.")
    ] = False,
    load: Annotated[
        bool, typer.Option("--load", help="Import plugins in local .py files too, to validate their options.")
    ] = False,
    data: Annotated[bool, typer.Option("--data", help="Read and judge every prompt; needs the tokenizer.")] = False,
) -> None:
    """Check a manifest: print every mistake with its place, or what the run would do."""
    try:
        _check(manifest, set_ or [], resolved=resolved, load=load, data=data)
    except RlcoreError as error:
        typer.echo(error, err=True)
        raise typer.Exit(error.exit_code) from None


def _check(manifest: Path, overrides: list[str], *, resolved: bool, load: bool, data: bool) -> None:
    from rlcore.manifest.load import load_manifest
    from rlcore.manifest.plan import plan_rows

    loaded = load_manifest(manifest, overrides, load_local=load)
    rows = plan_rows(loaded)
    if data:
        rows += [("data", report) for report in _judge_data(loaded)]
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for path, file in loaded.unloaded.items():
        where = loaded.source_of((*path, "use"))
        typer.echo(
            f"warning: {where}: {file} is not imported, its options are not validated; --load does both", err=True
        )
    if resolved:
        from rlcore.manifest.render import render_resolved

        typer.echo(render_resolved(loaded), nl=False)
        return
    typer.echo(f"OK: {manifest}")
    for name, text in rows:
        typer.echo(f"  {name:<11} {text}")


def _judge_data(loaded: LoadedManifest) -> list[str]:
    from rlcore.data.prompts import load_prompt_set
    from rlcore.torch.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(loaded.manifest.model)
    reports = [load_prompt_set(loaded.manifest, "train", tokenizer).report]
    if loaded.manifest.data.val:
        reports.append(load_prompt_set(loaded.manifest, "val", tokenizer).report)
    return [str(report) for report in reports]
