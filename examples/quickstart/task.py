"""The quickstart's task: two-digit additions, asked and answered in GSM8K's form, as parquet in verl's schema."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HELD_OUT = 512


def additions(seed: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """All pairs of two-digit numbers in a random order: those to train on, and those held out."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(seed).shuffle(pairs)
    return pairs[HELD_OUT:], pairs[:HELD_OUT]


def question(a: int, b: int) -> str:
    """The problem in words."""
    return f"What is {a} + {b}?"


def answer(a: int, b: int) -> str:
    """The right answer, marked as GSM8K marks it."""
    return f"#### {a + b}"


def write(folder: Path, seed: int) -> None:
    """Write ``train.parquet`` and ``val.parquet`` into the folder."""
    for split, pairs in zip(("train", "val"), additions(seed), strict=True):
        rows = [
            {
                "data_source": "additions",
                "prompt": [{"role": "user", "content": question(a, b)}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"split": split, "index": i},
            }
            for i, (a, b) in enumerate(pairs)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
