"""``rlcore report``: a run in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="The folder of a run, finished or not.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; left out, report.html in the run's folder.")
    ] = None,
) -> None:
    """Write curves, where the time went, messages and samples of a run into one HTML file."""
    from rlcore.run.report import write_report

    target = out or run / "report.html"
    write_report(run, target)
    print(target)
