from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from rlcore.plugins.capabilities import MEANING
from rlcore.plugins.config import PluginRef
from rlcore.plugins.contract import hook_signature
from rlcore.plugins.kinds import GROUPS, KINDS, Kind
from rlcore.plugins.loading import build, config_class

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("kind", KINDS)
def test_each_hook_has_a_section_with_its_exact_arguments(kind: Kind) -> None:
    text = (DOCS / "plugins.md").read_text()
    section = text.partition(f"\n### `{hook_signature(kind)}`\n")[2].partition("\n### ")[0]
    assert f"`{GROUPS[kind]}`" in section
    assert f"def {hook_signature(kind).partition('(')[0]}(" in section


def test_the_capabilities_of_the_core_are_those_of_the_page() -> None:
    rows = [
        line.split("|")[1:3] for line in (DOCS / "capabilities.md").read_text().splitlines() if line.startswith("| `")
    ]
    assert {name.strip().strip("`"): meaning.strip() for name, meaning in rows} == MEANING


def example(text: str) -> str:
    """The first Python block of a text."""
    return text.partition("```python\n")[2].partition("```")[0]


def test_the_first_example_of_the_page_is_a_plugin_that_works(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(example((DOCS / "plugins.md").read_text()))
    score = build(PluginRef("reward", str(path), {"max_words": 1}))
    assert [score(SimpleNamespace(response=text)) for text in ("yes", "well yes")] == [1.0, 0.0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_each_hook_keeps_the_contract(kind: Kind, tmp_path: Path) -> None:
    text = (DOCS / "plugins.md").read_text()
    path = tmp_path / f"{kind}.py"
    path.write_text(example(text.partition(f"\n### `{hook_signature(kind)}`\n")[2]))
    assert config_class(kind, str(path)).__doc__
