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
                if file.parent != ROOT:
                    assert f"pip install -e {file.parent.relative_to(ROOT)})" in install_hint(key)


@pytest.mark.parametrize("key", KNOWN)
def test_every_known_plugin_has_a_kind_a_hint_and_a_sentence(key: str) -> None:
    assert key.partition("/")[0] in KINDS
    assert KNOWN[key].distribution in install_hint(key)
    assert KNOWN[key].summary[0].isupper()
    assert not KNOWN[key].summary.endswith(".")
