"""Throw-away distributions, made as pip would leave them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

MakeDistribution = Callable[..., Path]


@pytest.fixture
def make_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDistribution]:
    """``make(name, {"rlcore.rewards": {"x": "x_plugin"}}, {"x_plugin": source})`` installs for this test only.

    Each distribution has a folder of its own, first on ``sys.path`` here and in processes that the test starts.
    """

    def make(
        name: str,
        entry_points: Mapping[str, Mapping[str, str]],
        modules: Mapping[str, str] | None = None,
        *,
        version: str = "1.0",
        summary: str = "A plugin for a test",
        metadata: Sequence[str] = (),
        folder: str | None = None,
    ) -> Path:
        site = tmp_path / "sites" / (folder or name)
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}", *metadata]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{point} = {value}\n" for point, value in points.items())
                for group, points in entry_points.items()
            )
        )
        for module, source in (modules or {}).items():
            (site / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        return site

    yield make
    for module_name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[module_name]
