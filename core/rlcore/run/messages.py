"""``messages.jsonl`` of a run: what it said to whoever watched, one JSON object a message."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MESSAGES_FILE = "messages.jsonl"


def append_message(path: Path, level: str, text: str) -> None:
    """Write one line with the time in UTC."""
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "level": level, "text": text}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def read_messages(path: Path) -> list[dict[str, Any]]:
    """All messages in order; a last line that was cut by a crash is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
