from __future__ import annotations

import re
from pathlib import Path

import pytest
from rlcore import environment


@pytest.mark.parametrize(
    ("value", "blocked"),
    [("", set()), ("reward/x", {"reward/x"}), (" reward/x , loss/y,,", {"reward/x", "loss/y"})],
)
def test_blocked_plugins_are_a_list_with_commas(monkeypatch, value: str, blocked: set[str]) -> None:
    monkeypatch.setenv("RLCORE_BLOCK", value)
    assert environment.blocked_plugins() == blocked


@pytest.mark.parametrize(("value", "debug"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_debug_is_on_unless_empty_or_0(monkeypatch, value: str | None, debug: bool) -> None:
    monkeypatch.delenv("RLCORE_DEBUG", raising=False)
    if value is not None:
        monkeypatch.setenv("RLCORE_DEBUG", value)
    assert environment.debug() is debug


def test_no_other_module_of_the_core_reads_the_environment() -> None:
    core = Path(environment.__file__).parent
    readers = {
        file.relative_to(core).as_posix()
        for file in core.rglob("*.py")
        if re.search(r"os\.environ\b|getenv", file.read_text())
    }
    # What rlcore.testing reads is for tests alone.
    assert {reader for reader in readers if not reader.startswith("testing/")} == {"environment.py"}
