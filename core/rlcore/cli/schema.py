"""``rlcore schema``: the JSON Schema of a manifest, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def schema(
    out: Annotated[Path | None, typer.Option(help="File to write; left out, the schema is printed.")] = None,
) -> None:
    """Print the JSON Schema of a manifest with the options of installed plugins.

    An editor with the YAML language server reads it from the manifest's first line:
    # yaml-language-server: $schema=rlcore.schema.json
    """
    from rlcore.manifest.editor import manifest_schema

    values, broken = manifest_schema()
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
    for problem in broken:
        typer.echo(f"warning: left out: {problem}", err=True)
