import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rlcore.data.sample import Group, Prompt, Sample, Segment
from rlcore.run.rollouts import SCHEMA, RolloutStore


def tokens(*ids: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(ids, np.int32)


def group(number: int, ground_truth: Any = "4", samples: int = 2) -> Group:
    prompt = Prompt(f"p{number}", "2+2?", tokens(7, 8), ground_truth=ground_truth, source="sums")
    return Group(number, prompt, [sample(prompt, i) for i in range(samples)])


def sample(prompt: Prompt, index: int) -> Sample:
    generated = Segment("generated", tokens(1, 2), np.array([-0.5, -0.25], np.float32), weight_version=3)
    made = Sample(prompt, index, (Segment("prompt", prompt.tokens), generated), f"answer {index}", "stop")
    return made.scored(1.5, {"correct": 1.0, "short": 0.5}, {})


def test_every_sample_is_a_row(tmp_path: Path) -> None:
    path = RolloutStore(tmp_path / "rollouts", keep=5).write(12, [group(40), group(41, samples=1)])
    assert path == tmp_path / "rollouts" / "step_000012.parquet"
    rows = pq.read_table(path).to_pylist()
    assert [(row["group"], row["sample"], row["prompt_id"]) for row in rows] == [
        (40, 0, "p40"),
        (40, 1, "p40"),
        (41, 0, "p41"),
    ]
    assert rows[1] == {
        "step": 12,
        "group": 40,
        "sample": 1,
        "prompt_id": "p40",
        "source": "sums",
        "ground_truth": '"4"',
        "prompt": "2+2?",
        "response": "answer 1",
        "finish": "stop",
        "reward": 1.5,
        "weight_version": 3,
        "prompt_tokens": [7, 8],
        "response_tokens": [1, 2],
        "loss_mask": [True, True],
        "logprobs": [-0.5, -0.25],
        "reward/correct": 1.0,
        "reward/short": 0.5,
    }


def test_observed_tokens_are_masked_and_the_oldest_version_counts(tmp_path: Path) -> None:
    prompt = Prompt("p", "?", tokens(9))
    turns = (
        Segment("prompt", tokens(9)),
        Segment("generated", tokens(1), np.array([-1.0], np.float32), 5),
        Segment("observed", tokens(2, 3)),
        Segment("generated", tokens(4), np.array([-2.0], np.float32), 4),
    )
    path = RolloutStore(tmp_path, keep=1).write(1, [Group(0, prompt, [Sample(prompt, 0, turns, "r", "length")])])
    assert path is not None
    (row,) = pq.read_table(path).to_pylist()
    assert (row["response_tokens"], row["loss_mask"]) == ([1, 2, 3, 4], [True, False, False, True])
    assert (row["logprobs"][0], row["logprobs"][3]) == (-1.0, -2.0)
    assert all(math.isnan(x) for x in row["logprobs"][1:3])
    assert row["weight_version"] == 4
    assert math.isnan(row["reward"])


def test_empty_answers_and_missing_logprobs(tmp_path: Path) -> None:
    prompt = Prompt("p", "?", tokens(9))
    empty = Sample(prompt, 0, (Segment("prompt", tokens(9)), Segment("generated", tokens())), "", "abort")
    path = RolloutStore(tmp_path, keep=1).write(1, [Group(0, prompt, [empty])])
    assert path is not None
    (row,) = pq.read_table(path).to_pylist()
    assert (row["response_tokens"], row["loss_mask"], row["logprobs"]) == ([], [], None)


def test_metrics_that_only_some_samples_have_are_null_elsewhere(tmp_path: Path) -> None:
    prompt = Prompt("p", "?", tokens(9))
    plain = sample(prompt, 0)
    scores: list[dict[str, Any]] = [{"ok": np.bool_(True)}, {}, {"n": np.int64(3)}]
    samples = [plain.scored(0.0, {"r": 0.0}, metrics) for metrics in scores]
    path = RolloutStore(tmp_path, keep=1).write(1, [Group(0, prompt, samples)])
    assert path is not None
    table = pq.read_table(path)
    assert table["metric/ok"].to_pylist() == [1.0, None, None]
    assert table["metric/n"].to_pylist() == [None, None, 3.0]


@pytest.mark.parametrize("truth", ["18", 18, 18.5, ["18", 2], {"a": None}, None])
def test_ground_truth_of_any_type_is_json(tmp_path: Path, truth: Any) -> None:
    path = RolloutStore(tmp_path, keep=1).write(1, [group(0, truth), group(1, np.int64(3)), group(2, np.array([1, 2]))])
    assert path is not None
    values = [json.loads(text) for text in pq.read_table(path)["ground_truth"].to_pylist()[::2]]
    assert values == [truth, 3, [1, 2]]


def test_the_newest_stay_and_a_repeated_step_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".step_000001.parquet.tmp").touch()  # of a killed process
    for step in (1, 2, 3, 3):
        RolloutStore(tmp_path, keep=2).write(step, [group(step)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002.parquet", "step_000003.parquet"]
    RolloutStore(tmp_path, keep=2).write(1, [group(1)])  # resumed further back
    assert (tmp_path / "step_000001.parquet").exists()


def test_keep_0_writes_none(tmp_path: Path) -> None:
    assert RolloutStore(tmp_path / "rollouts", keep=0).write(1, [group(1)]) is None
    assert not (tmp_path / "rollouts").exists()


def test_every_column_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "run-folder.md").read_text()
    assert [name for name in SCHEMA.names if f"`{name}`" not in text] == []
