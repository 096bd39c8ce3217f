from pathlib import Path

import pytest
from rlcore.run.environment import versions


def test_broken_installations_are_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, metadata in (("a-1.0", "Name: An_Odd.one\nVersion: 1.0\n"), ("b", "Name: bare\n"), ("c", None)):
        info = tmp_path / f"{folder}.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text("[rlcore.rewards]\nx = nowhere\n")
        if metadata is not None:
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{metadata}")
    before = versions()["plugins"]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert versions()["plugins"] == before | {"an-odd-one": "1.0", "bare": ""}
