import json
from pathlib import Path

import numpy as np
import pytest
from rlcore.errors import RunFolderError
from rlcore.run.metrics import MetricsFile


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    return MetricsFile(tmp_path / "metrics.jsonl")


def test_one_strict_json_object_a_line(metrics: MetricsFile) -> None:
    metrics.append(0, {"eval/accuracy": 0.25})
    metrics.append(
        1, {"loss": float("nan"), "kl": float("inf"), "n": np.int64(3), "x": np.float32(0.5), "ok": np.bool_(True)}
    )
    text = metrics.path.read_text()
    assert text == (
        '{"step": 0, "eval/accuracy": 0.25}\n{"step": 1, "loss": null, "kl": null, "n": 3, "x": 0.5, "ok": true}\n'
    )
    assert metrics.read() == [json.loads(line) for line in text.splitlines()]


def test_each_line_is_readable_at_once(metrics: MetricsFile) -> None:
    for step in range(3):
        metrics.append(step, {"x": 0.1})
        assert len(metrics.path.read_text().splitlines()) == step + 1


def test_steps_past_the_checkpoint_are_set_aside_byte_for_byte(metrics: MetricsFile, tmp_path: Path) -> None:
    for step in range(5):
        metrics.append(step, {"x": 0.1 * step})
    lines = metrics.path.read_text().splitlines(keepends=True)
    assert metrics.set_aside_after(2) == tmp_path / "metrics.set_aside-1.jsonl"
    assert metrics.path.read_text() == "".join(lines[:3])
    assert (tmp_path / "metrics.set_aside-1.jsonl").read_text() == "".join(lines[3:])
    metrics.append(3, {"x": 9.0})
    assert metrics.set_aside_after(0) == tmp_path / "metrics.set_aside-2.jsonl"
    assert [row["step"] for row in metrics.read()] == [0]
    assert len(list(tmp_path.iterdir())) == 3


def test_nothing_to_set_aside(metrics: MetricsFile, tmp_path: Path) -> None:
    assert metrics.set_aside_after(5) is None
    metrics.append(5, {})
    assert metrics.set_aside_after(5) is None
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("cut", ['{"step": 2, "rew', '{"step": 2, "text": "\u00e9'.encode()[:-1].decode("latin1"), "{"])
def test_a_cut_last_line_is_no_error_and_never_joined_to_the_next(
    metrics: MetricsFile, tmp_path: Path, cut: str
) -> None:
    metrics.append(1, {"x": 1.0})
    with metrics.path.open("ab") as file:
        file.write(cut.encode("latin1"))
    assert metrics.read() == [{"step": 1, "x": 1.0}]
    assert metrics.set_aside_after(1) == tmp_path / "metrics.set_aside-1.jsonl"
    metrics.append(2, {"x": 2.0})
    assert metrics.read() == [{"step": 1, "x": 1.0}, {"step": 2, "x": 2.0}]


def test_a_broken_line_inside_is_an_error_that_names_it(metrics: MetricsFile) -> None:
    metrics.append(1, {})
    with metrics.path.open("a") as file:
        file.write("nonsense\n")
    metrics.append(2, {})
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl:2: not a line of metrics: 'nonsense'"):
        metrics.read()
