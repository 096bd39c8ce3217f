"""Every rollout of a run as parquet, ``rollouts/step_000012.parquet``: a row per sample, to read or train on again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rlcore.data.sample import Group, Sample

_NAME = re.compile(r"step_(\d{6,})\.parquet")

SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        "group": pa.int64(),
        "sample": pa.int32(),
        "prompt_id": pa.string(),
        "source": pa.string(),
        "ground_truth": pa.string(),
        "prompt": pa.string(),
        "response": pa.string(),
        "finish": pa.string(),
        "reward": pa.float64(),
        "weight_version": pa.int64(),
        "prompt_tokens": pa.list_(pa.int32()),
        "response_tokens": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.bool_()),
        "logprobs": pa.list_(pa.float32()),
    }
)
"""Columns of every file; after them come ``reward/NAME`` and ``metric/NAME``, float64, null where a sample has none.

``ground_truth`` is JSON. ``loss_mask`` and ``logprobs`` belong to ``response_tokens``, which is all that follows the
prompt; ``logprobs`` is null where the engine gave none, and NaN at tokens that it did not generate. ``weight_version``
is the oldest of the weights that generated the sample.
"""


class RolloutStore:
    """The rollout files of one run; the ``keep`` newest stay, and 0 writes none."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def write(self, step: int, groups: Sequence[Group]) -> Path | None:
        """Write the samples of a step, replacing a file of that step, and delete files beyond ``keep``."""
        if not self.keep:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".step_*.tmp"):
            leftover.unlink()
        path = self.folder / f"step_{step:06d}.parquet"
        beside = path.with_name(f".{path.name}.tmp")
        pq.write_table(rollout_table(step, groups), beside, compression="zstd")
        beside.replace(path)
        found = (_NAME.fullmatch(file.name) for file in self.folder.iterdir())
        for old in sorted((match for match in found if match), key=lambda match: int(match[1]))[: -self.keep]:
            if old[0] != path.name:
                (self.folder / old[0]).unlink()
        return path


def rollout_table(step: int, groups: Sequence[Group]) -> pa.Table:
    """The samples of a step as an Arrow table of ``SCHEMA`` and a column for each reward and metric by name."""
    rows = [_row(step, group, sample) for group in groups for sample in group.samples]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    samples = [sample for group in groups for sample in group.samples]
    kinds: tuple[tuple[str, Callable[[Sample], Mapping[str, float]]], ...] = (
        ("reward", lambda sample: sample.rewards),
        ("metric", lambda sample: sample.metrics),
    )
    for kind, of in kinds:
        for name in dict.fromkeys(name for sample in samples for name in of(sample)):
            values = [of(sample).get(name) for sample in samples]
            column = pa.array([None if value is None else float(value) for value in values], pa.float64())
            table = table.append_column(f"{kind}/{name}", column)
    return table


def _row(step: int, group: Group, sample: Sample) -> dict[str, Any]:
    prompt = sample.prompt
    after = [segment for segment in sample.segments if segment.kind != "prompt"]
    generated = [segment for segment in after if segment.kind == "generated"]
    known = any(segment.logprobs is not None for segment in generated)
    return {
        "step": step,
        "group": group.id,
        "sample": sample.index,
        "prompt_id": prompt.id,
        "source": prompt.source,
        "ground_truth": json.dumps(prompt.ground_truth, ensure_ascii=False, default=_json_value),
        "prompt": prompt.text,
        "response": sample.response,
        "finish": sample.finish,
        "reward": float(sample.reward),
        "weight_version": min((segment.weight_version for segment in generated), default=-1),
        "prompt_tokens": prompt.tokens,
        "response_tokens": _join([segment.tokens for segment in after], np.int32),
        "loss_mask": _join([np.full(len(s.tokens), s.kind == "generated") for s in after], np.bool_),
        "logprobs": _join(
            [np.full(len(s.tokens), np.nan) if s.logprobs is None else s.logprobs for s in after], np.float32
        )
        if known
        else None,
    }


def _join(pieces: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate(pieces).astype(dtype) if pieces else np.zeros(0, dtype)


def _json_value(value: Any) -> Any:
    """What JSON doesn't know, for a record to read: numpy values as numbers, the rest (a date) as text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
