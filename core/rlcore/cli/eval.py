"""``rlcore eval``: a model's accuracy on a manifest's validation prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlcore.cli.options import SetOption

app = typer.Typer()


@app.command(name="eval")
def evaluate(
    manifest: Annotated[
        Path, typer.Argument(help="The manifest whose val, eval and rewards count.", show_default=False)
    ],
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A Hugging Face folder; left out, the manifest's own model.")
    ] = None,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Answer the validation prompts as the eval section says, and print what the rewards make of the answers."""
    from rlcore.cli.table import print_table
    from rlcore.manifest.load import load_manifest
    from rlcore.runtime.evaluate import evaluate_model

    metrics = evaluate_model(load_manifest(manifest, set_ or []).manifest, model)
    if as_json:
        print(json.dumps(metrics, indent=1))
    else:
        print_table(
            ["METRIC", "VALUE"], [[name.removeprefix("eval/"), f"{value:.4g}"] for name, value in metrics.items()]
        )
