from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rlcore import __version__, cli
from rlcore.errors import DataError, RlcoreError


def run_main(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of ``rlcore ARGUMENTS``, in this process."""
    monkeypatch.setattr(sys, "argv", ["rlcore", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int | None)
    return end.value.code or 0


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Make ``rlcore schema`` raise this."""

    def make(error: BaseException) -> None:
        app = typer.Typer()

        @app.command()
        def schema() -> None:
            raise error

        module = type(sys)("rlcore.cli.schema")
        module.app = app
        monkeypatch.setitem(sys.modules, "rlcore.cli.schema", module)

    return make


@pytest.mark.parametrize(
    ("error", "code"), [(RlcoreError("it went wrong"), 1), (DataError("it went wrong"), 2)], ids=lambda v: str(v)
)
def test_an_error_of_ours_is_a_line_and_its_exit_code(command, monkeypatch, capsys, error, code) -> None:
    monkeypatch.delenv("RLCORE_DEBUG", raising=False)
    command(error)
    assert run_main("schema", monkeypatch=monkeypatch) == code
    assert capsys.readouterr() == ("", "error: it went wrong\n")


@pytest.mark.parametrize("how", ["option", "variable"])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(command, monkeypatch, capsys, how: str) -> None:
    command(DataError("it went wrong"))
    if how == "variable":
        monkeypatch.setenv("RLCORE_DEBUG", "1")
    arguments = ["--debug", "schema"] if how == "option" else ["schema"]
    assert run_main(*arguments, monkeypatch=monkeypatch) == 2
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith("rlcore.errors.DataError: it went wrong\n")


def test_an_error_of_the_system_is_a_line(command, monkeypatch, capsys) -> None:
    monkeypatch.delenv("RLCORE_DEBUG", raising=False)
    command(OSError(28, "No space left on device", "runs/a"))
    assert run_main("schema", monkeypatch=monkeypatch) == 1
    assert capsys.readouterr() == ("", "error: [Errno 28] No space left on device: 'runs/a'\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_the_terminal_does_not_know_is_replaced(encoding: str) -> None:
    code = "from rlcore.cli import main\ntry: main(['--version'])\nfinally: print('a × b → c')"
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith({"ascii": b"a ? b ? c\n", "latin-1": b"a \xd7 b ? c\n"}[encoding])


def test_ctrl_c_is_130(command, monkeypatch) -> None:
    command(KeyboardInterrupt())
    assert run_main("schema", monkeypatch=monkeypatch) == 130


def test_a_defect_is_not_hidden(command, monkeypatch) -> None:
    command(ZeroDivisionError("a defect"))
    monkeypatch.setattr(sys, "argv", ["rlcore", "schema"])
    with pytest.raises(ZeroDivisionError, match="a defect"):
        cli.main()


def test_version(monkeypatch, capsys) -> None:
    assert run_main("--version", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"rlcore {__version__}\n"


def test_an_unknown_command_is_a_usage_error_with_a_suggestion(monkeypatch, capsys) -> None:
    assert run_main("plugin", monkeypatch=monkeypatch) == 2
    assert "Did you mean 'plugins'?" in capsys.readouterr().err


def test_help_lists_every_command_and_imports_none() -> None:
    code = (
        "import sys; sys.argv = ['rlcore', '--help']; from rlcore.cli import main\n"
        "try: main()\nexcept SystemExit: print('loaded', [m for m in sys.modules if m.startswith('rlcore.cli.')])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name, line in cli.COMMANDS.items():
        assert re.search(rf"{name} +{re.escape(line)}", told)
    assert told.splitlines()[-1] == "loaded []"


def test_help_of_a_command_shows_its_own_options_only(monkeypatch, capsys) -> None:
    assert run_main("plugins", "--help", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    assert "--kind" in told
    assert "completion" not in told


def test_the_commands_are_the_modules() -> None:
    folder = Path(cli.__file__).parent
    commands = {f.stem for f in folder.glob("*.py") if "\napp = typer.Typer(" in f.read_text() and f.stem != "__init__"}
    assert commands == set(cli.COMMANDS)
