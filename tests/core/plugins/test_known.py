from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from rlcore.plugins.kinds import GROUPS, KINDS
from rlcore.plugins.known import KNOWN, install_hint

ROOT = Path(__file__).parents[3]


def test_the_table_agrees_with_the_distributions_of_this_repository() -> None:
    kind_of = {group: kind for kind, group in GROUPS.items()}
    for file in [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/*/pyproject.toml")]:
        project = tomllib.loads(file.read_text())["project"]
        for group, points in project.get("entry-points", {}).items():
            for name in points:
                key = f"{kind_of[group]}/{name}"
                assert key in KNOWN, f"{file} has {key}, which rlcore.plugins.known lacks"
                assert KNOWN[key].distribution == project["name"]
                assert not KNOWN[key].planned, f"{key} is there: take planned=True off"
                if file.parent != ROOT:
                    told = f"pip install --no-deps -e {file.parent.relative_to(ROOT)}"
                    assert install_hint(key).endswith(told)


@pytest.mark.parametrize("key", KNOWN)
def test_every_known_plugin_has_a_kind_a_hint_and_a_sentence(key: str) -> None:
    assert key.partition("/")[0] in KINDS
    if not KNOWN[key].planned:
        assert KNOWN[key].distribution in install_hint(key)
    assert KNOWN[key].summary[0].isupper()
    assert not KNOWN[key].summary.endswith(".")


def test_what_is_not_in_the_repository_is_planned_and_no_command_is_advised() -> None:
    built = {tomllib.loads(file.read_text())["project"]["name"] for file in ROOT.glob("plugins/*/*/pyproject.toml")}
    for key, known in KNOWN.items():
        assert known.planned == (known.distribution not in built | {"rlcore"}), key
        if known.planned:
            assert install_hint(key) == "planned, not available yet"
