"""The command line: one file per command, imported when that command is chosen and not before.

``rlcore --help`` and ``rlcore plugins`` stay instant whatever the other commands import.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rlcore import __version__, environment
from rlcore.errors import RlcoreError

COMMANDS = {
    "plugins": "List what is installed, what is missing, what is broken.",
    "check": "Find every mistake in a manifest before anything is loaded.",
    "schema": "Print the JSON Schema of manifests, for editors.",
    "data": "Prepare a data set as parquet.",
    "run": "Train as a manifest says.",
    "report": "Write a run's curves and samples into one HTML file.",
    "export": "Write a run's model as a plain Hugging Face folder.",
    "generate": "Answer a prompt with a model.",
    "eval": "Answer the validation prompts and score the answers.",
}
"""Each command ``x`` is ``rlcore.cli.x.app``, a Typer; here is the line that ``rlcore --help`` shows for it."""

TORCH_EXTRA = ("torch", "transformers", "tokenizers", "safetensors", "jinja2")
"""Packages that rlcore itself imports, and that the extra ``torch`` installs."""


class LazyGroup(TyperGroup):
    """Lists the commands from their table and imports the one that is chosen."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, line in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """The chosen command, now imported."""
        name, stub, rest = super().resolve_command(ctx, args)
        if name is None or stub is None:
            return name, stub, rest
        command = typer.main.get_command(import_module(f"rlcore.cli.{name}").app)
        command.name = name
        # Typer gives every app that stands alone options to install shell completion; a command is no such app.
        command.params = [param for param in command.params if not (param.name or "").endswith("_completion")]
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors that rlcore raises on purpose end it with their message and exit code."""
        debug = ctx.params.get("debug") or environment.debug()
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of the output has gone, which click ends quietly
            raise
        except (RlcoreError, OSError) as error:  # OSError: a full disk, a folder that may not be written
            if debug:
                traceback.print_exc()
            else:
                print(f"error: {error}", file=sys.stderr)
            raise SystemExit(error.exit_code if isinstance(error, RlcoreError) else 1) from error
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in TORCH_EXTRA or debug:
                raise
            print(
                f'error: {error.name} is not installed; in the checkout of rlcore, run: pip install -e ".[torch]"',
                file=sys.stderr,
            )
            raise SystemExit(2) from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None  # 128 + SIGINT, as shells count


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # every command's context takes it over
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rlcore {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors (or set RLCORE_DEBUG=1).")] = False,
) -> None:
    """Post-train language models by reinforcement learning; every part is a plugin."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``rlcore`` command; ``arguments`` left out are those of the process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model's answer, or "×", on a terminal that knows ASCII only
    app(arguments)
