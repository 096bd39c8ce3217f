"""Manifests in docs and examples are right, and the reference says what the schema says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rlcore.errors import ManifestError
from rlcore.manifest.load import load_manifest
from rlcore.manifest.reference import with_reference

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("examples/**/*.yml")])
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("plugins/*/*/README.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
    if block.startswith("rlcore: 1")
]


def complaints(path: Path) -> list[str]:
    """Problems of a manifest but for files that are not there."""
    try:
        load_manifest(path)
    except ManifestError as error:
        return [
            line for line in str(error).splitlines() if "no such file: " not in line and "no such folder: " not in line
        ]
    return []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples(path) -> None:
    assert complaints(path) == []


@pytest.mark.parametrize("block", BLOCKS)
def test_manifests_in_docs(block, tmp_path) -> None:
    path = tmp_path / "block.yaml"
    path.write_text(block)
    assert complaints(path) == []


def test_there_are_some() -> None:
    assert EXAMPLES
    assert BLOCKS


def test_the_reference_is_current() -> None:
    page = ROOT / "docs/manifest.md"
    text = page.read_text(encoding="utf-8")
    assert with_reference(text) == text, "run: python -m rlcore.manifest.reference docs/manifest.md"


def test_a_page_without_marks() -> None:
    with pytest.raises(ValueError, match="keys: begin"):
        with_reference("nothing")
