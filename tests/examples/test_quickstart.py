from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

QUICKSTART = Path(__file__).parents[2] / "examples/quickstart"


def test_commands_are_shown_as_a_shell_takes_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(QUICKSTART))
    spec = spec_from_file_location("quickstart", QUICKSTART / "__main__.py")
    assert spec is not None and spec.loader is not None
    quickstart: Any = module_from_spec(spec)
    spec.loader.exec_module(quickstart)
    ran: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    quickstart.rlcore("generate", "my folder/hf", "--prompt", "What is 1 + 2?")
    assert capsys.readouterr().out == "$ rlcore generate 'my folder/hf' --prompt 'What is 1 + 2?'\n"
    assert ran == [[sys.executable, "-m", "rlcore", "generate", "my folder/hf", "--prompt", "What is 1 + 2?"]]
