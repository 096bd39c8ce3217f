"""The HTML of a run, parsed back."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rlcore.data.sample import Group
from rlcore.errors import RunFolderError
from rlcore.run.charts import line_chart, short, stacked_chart
from rlcore.run.messages import append_message, read_messages
from rlcore.run.metrics import MetricsFile
from rlcore.run.report import write_report
from rlcore.run.rollouts import RolloutStore
from rlcore.testing.samples import make_sample


class Reader(HTMLParser):
    """Texts, and tags that are still open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "manifest.yaml").write_text("name: my <run>\n")
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append(0, {"eval/accuracy": 0.25})
    for step in (1, 2):
        metrics.append(step, {"reward/mean": step / 4, "time/generate_seconds": 1.0, "odd/metric": float("nan")})
    append_message(tmp_path / "messages.jsonl", "warning", "reward is flat & low")
    samples = [make_sample(f"answer <b>{i}</b>", "7", index=i).scored(float(i), {}, {}) for i in range(3)]
    RolloutStore(tmp_path / "rollouts", 5).write(2, [Group(0, samples[0].prompt, samples)])
    return tmp_path


def test_report_holds_what_the_run_holds_and_escapes_it(run: Path) -> None:
    write_report(run, run / "report.html")
    reader = Reader()
    reader.feed((run / "report.html").read_text())
    text = " ".join(reader.texts)
    assert reader.open == []
    assert "script" not in reader.tags
    assert "b" in reader.tags  # its own; those of the samples are text
    for expected in (
        "my <run>",
        "2 steps · reward 0.25 → 0.5",
        "reward is flat & low",
        "answer <b>2</b>",
        "answer <b>0</b>",
        "generate",
        "odd/metric",
        "no value",
    ):
        assert expected in text, expected


def test_a_prompt_is_shown_once_as_best_and_once_as_worst(run: Path) -> None:
    write_report(run, run / "report.html")
    assert (run / "report.html").read_text().count("answer &lt;b&gt;") == 2


def test_no_run_and_no_metrics_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is no run folder"):
        write_report(tmp_path, tmp_path / "report.html")
    (tmp_path / "manifest.yaml").write_text("name: x\n")
    with pytest.raises(RunFolderError, match="has no metrics"):
        write_report(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_cut_last_message_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "messages.jsonl"
    append_message(path, "info", "whole")
    path.write_text(path.read_text() + json.dumps({"level": "info"})[:9])
    assert [message["text"] for message in read_messages(path)] == ["whole"]


def test_a_curve_is_the_data() -> None:
    chart = line_chart([(0, 0.0), (5, 1.0), (10, 0.5)])
    # x from 44 to 314, y from 102 (low) up to 8 (high)
    assert 'points="44.0,102.0 179.0,8.0 314.0,55.0"' in chart


def test_bars_stand_on_each_other() -> None:
    chart, key = stacked_chart([1], {"a": [1.0], "b": [3.0]})
    # 94 units for a total of 4: a takes the lowest 23.5, b the 70.5 above
    assert 'y="78.5"' in chart and 'height="23.5"' in chart
    assert 'y="8.0"' in chart and 'height="70.5"' in chart
    assert key.count("<span") == 2


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (4090, "4.09k"), (-2e6, "-2M"), (3.5e9, "3.5G"), (0, "0")]
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text
