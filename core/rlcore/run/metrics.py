"""The file of a run's metrics: one JSON object a line, ``{"step": 3, "reward/mean": 0.5}``."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from rlcore.errors import RunFolderError
from rlcore.run.files import plain, replace_synced, write_synced

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

METRICS_FILE = "metrics.jsonl"
"""Name of the file in a run's folder."""


class MetricsFile:
    """``metrics.jsonl`` of a run.

    Strict JSON: NaN and infinities, which JSON doesn't know, are written as ``null``. A last line that was cut by a
    crash is no error anywhere.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one line; it is handed to the system before this returns, so a killed process loses none."""
        line = json.dumps({"step": step, **_finite(plain(metrics, "metrics"))}, allow_nan=False, ensure_ascii=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines as mappings, in order. A line that is no metrics, other than a cut last one, is an error."""
        return [row for _, row in self._lines() if row is not None]

    def set_aside_after(self, step: int) -> Path | None:
        """Move lines past ``step``, and a cut last line, to ``metrics.set_aside-N.jsonl``; returns that path, if any.

        For a resumed run, which writes those steps again.
        """
        kept: list[str] = []
        late: list[str] = []
        for line, row in self._lines():
            (late if row is None or row["step"] > step else kept).append(line)
        if not late:
            return None
        number = 1
        while (aside := self.path.with_name(f"{self.path.stem}.set_aside-{number}{self.path.suffix}")).exists():
            number += 1
        write_synced(aside, "".join(f"{line}\n" for line in late))
        replace_synced(self.path, "".join(f"{line}\n" for line in kept))
        return aside

    def _lines(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Each line with its mapping, None for a cut last line."""
        if not self.path.exists():
            return
        text = self.path.read_bytes().decode("utf-8", errors="replace")
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                row = json.loads(line)
                _ = row["step"] + 0
            except (ValueError, KeyError, TypeError) as error:
                if number < len(lines):
                    raise RunFolderError(f"{self.path}:{number}: not a line of metrics: {line[:80]!r}") from error
                row = None
            yield line, row


def _finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
