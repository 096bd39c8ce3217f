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


@pytest.mark.parametrize("module", ["torch", "transformers.utils", "jinja2"])
def test_a_library_that_is_not_installed_is_a_sentence_with_the_command(command, monkeypatch, capsys, module) -> None:
    monkeypatch.delenv("RLCORE_DEBUG", raising=False)
    command(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert run_main("schema", monkeypatch=monkeypatch) == 2
    told = f'error: {module} is not installed; in the checkout of rlcore, run: pip install -e ".[torch]"\n'
    assert capsys.readouterr() == ("", told)


def test_any_other_module_that_is_missing_is_a_defect(command, monkeypatch) -> None:
    command(ModuleNotFoundError("No module named 'rlcore.tpyo'", name="rlcore.tpyo"))
    monkeypatch.setattr(sys, "argv", ["rlcore", "schema"])
    with pytest.raises(ModuleNotFoundError):
        cli.main()


@pytest.mark.parametrize("arguments", [["-h"], ["run", "-h"], ["plugins", "-h"], ["plugins", "show", "-h"]])
def test_h_is_help_everywhere(arguments, monkeypatch, capsys) -> None:
    assert run_main(*arguments, monkeypatch=monkeypatch) == 0
    short = capsys.readouterr().out
    assert "Usage:" in short
    assert run_main(*arguments[:-1], "--help", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == short


def test_set_says_how_a_reward_is_added_and_removed(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("run", "check", "eval"):
        assert run_main(name, "--help", monkeypatch=monkeypatch) == 0
        told = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "'rewards={short: {use: NAME}}', merges with the one that is there" in told
        assert "rewards.NAME=null removes a reward" in told
