"""wandb for real, in offline mode; in a process of its own, because wandb starts a service and hooks into the exit."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rlcore.trackers.wandb import Config

pytest.importorskip("wandb")

RUN = """
import json, sys
from pathlib import Path
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import TrackerContext
from rlcore.plugins.loading import build

folder, options, state, steps = Path(sys.argv[1]), *map(json.loads, sys.argv[2:5])
context = TrackerContext("my-run", folder, {"trainer": {"lr": 1e-6}}, state, 10)
tracker = build(PluginRef("tracker", "wandb", options), context)
for step in steps:
    tracker.log(step, {"reward/mean": step / 4})
print(json.dumps(tracker.state()))
tracker.close()
"""


def run(
    folder: Path, options: dict[str, Any], state: dict[str, Any], steps: list[int]
) -> subprocess.CompletedProcess[str]:
    arguments = [str(folder), *map(json.dumps, (options, state, steps))]
    hidden = {
        "WANDB_API_KEY": "",
        "HOME": str(folder),
        "NETRC": str(folder / "netrc"),
        "WANDB_ERROR_REPORTING": "false",
    }
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | hidden,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


def payloads(data: bytes) -> Iterator[bytes]:
    """Records of wandb's file: a header of 7 bytes, then LevelDB's log format (blocks of 32 KiB, records in pieces)."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, piece = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if piece in (1, 4):  # full, last
            yield whole
            whole = b""


def records(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run record and logged rows of the newest offline run, read from wandb's own file."""
    from wandb.proto import wandb_internal_pb2

    record_type: Any = vars(wandb_internal_pb2)["Record"]
    (file,) = sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=lambda p: p.stat().st_mtime)[-1:]
    about: dict[str, Any] = {}
    rows = []
    for data in payloads(file.read_bytes()):
        record = record_type.FromString(data)
        if record.HasField("run"):
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            about = {
                "id": record.run.run_id,
                "project": record.run.project,
                "name": record.run.display_name,
                "config": config,
            }
        if record.HasField("history"):
            rows.append({".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
    return about, rows


def test_offline_record_and_resume_under_the_same_id(tmp_path: Path) -> None:
    first = run(tmp_path, {"mode": "offline", "project": "sums"}, {}, [1, 2])
    assert first.returncode == 0, first.stderr
    state = json.loads(first.stdout)
    about, rows = records(tmp_path)
    assert (about["id"], about["project"], about["name"]) == (state["id"], "sums", "my-run")
    assert about["config"]["trainer"] == {"lr": 1e-6}
    assert [(row["step"], row["reward/mean"]) for row in rows] == [(1, 0.25), (2, 0.5)]

    second = run(tmp_path, {"mode": "offline", "name": "other"}, state, [2, 3])
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout) == state
    about, rows = records(tmp_path)
    assert (about["id"], about["name"]) == (state["id"], "other")
    assert [row["step"] for row in rows] == [2, 3]


def test_online_without_a_key_says_what_to_do(tmp_path: Path) -> None:
    failed = run(tmp_path, {"mode": "online"}, {}, [])
    assert failed.returncode != 0
    assert "tracker/wandb can't start" in failed.stderr
    assert "Run `wandb login`, set WANDB_API_KEY, or use mode: offline" in failed.stderr


def test_no_option_takes_a_key() -> None:
    assert set(Config.model_fields) == {"project", "entity", "name", "mode"}
