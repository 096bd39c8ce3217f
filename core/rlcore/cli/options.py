"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value: trainer.lr=5e-7. A mapping, as in 'rewards={short: {use: NAME}}', merges with the one "
        "that is there; rewards.NAME=null removes a reward.",
    ),
]
