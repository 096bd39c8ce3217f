"""The ragged batch: what the controller, the estimators and the trainers exchange.

Axes: ``T`` tokens of all sequences one after the other, ``N`` sequences. Sequence ``i`` is
``tokens[offsets[i]:offsets[i + 1]]``, prompt and response together. Nothing is ever padded here.

A token column belongs to the token at its position: ``logprobs[t]`` is log p(tokens[t] | the tokens before it), and
is 0 at the first token of each sequence, which nothing predicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rlcore.errors import BatchError

Array = NDArray[Any]

TOKEN_COLUMNS: Mapping[str, str] = {
    "loss_mask": "1 where the token was generated and trains, else 0",
    "rollout_logprobs": "log-probs of the engine that sampled",
    "old_logprobs": "log-probs of the policy before this step's first update",
    "ref_logprobs": "log-probs of the reference model",
    "logprobs": "log-probs of the policy as it is now",
    "entropy": "entropy of the distribution that the token was drawn from, in nats",
    "values": "the critic's value before the token",
    "token_rewards": "rewards given at single tokens (KL in the reward, a turn's reward)",
    "advantages": "what the policy loss weighs the token with",
    "returns": "what the critic is fitted to",
    "loss_weights": "the weight of the token's loss in the update's sum",
}
"""The token columns the core knows, all float32[T]; an estimator or loss may add its own."""


@dataclass(frozen=True, eq=False)
class Batch:
    """An immutable set of ragged sequences with columns per token and per sequence.

    ``tokens`` int32[T], ``offsets`` int64[N + 1]; ``token_columns`` have length T, ``sample_columns`` length N.
    Sample columns that the loop provides: ``group`` int64 (which samples share a prompt), ``unit`` int64 (rows of one
    unit are never parted over ranks), ``reward`` float32, ``truncated`` bool, ``weight_version`` int64.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    token_columns: Mapping[str, Array] = field(default_factory=dict)
    sample_columns: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.offsets.ndim != 1 or not len(self.offsets) or self.offsets[0] != 0:
            raise BatchError("offsets must be int64[N + 1] and start at 0")
        if (np.diff(self.offsets) < 0).any() or self.offsets[-1] != len(self.tokens):
            raise BatchError(f"offsets must rise to the number of tokens ({len(self.tokens)}), not {self.offsets[-1]}")
        for columns, length, axis in (
            (self.token_columns, len(self.tokens), "token"),
            (self.sample_columns, len(self), "sample"),
        ):
            for name, column in columns.items():
                if column.shape != (length,):
                    raise BatchError(f"{axis} column {name!r} has shape {column.shape}, not ({length},)")
        for array in (self.tokens, self.offsets, *self.token_columns.values(), *self.sample_columns.values()):
            array.flags.writeable = False

    @classmethod
    def from_sequences(cls, sequences: Sequence[Sequence[int] | NDArray[np.int32]]) -> Batch:
        """A batch of these token sequences, without columns."""
        lengths = np.fromiter((len(s) for s in sequences), np.int64, len(sequences))
        flat = [np.asarray(s, np.int32) for s in sequences]
        return cls(np.concatenate(flat) if flat else np.zeros(0, np.int32), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, column: str) -> Array:
        for columns in (self.token_columns, self.sample_columns):
            if column in columns:
                return columns[column]
        have = ", ".join(sorted([*self.token_columns, *self.sample_columns])) or "none"
        raise BatchError(f"the batch has no column {column!r}; it has: {have}")

    def __contains__(self, column: str) -> bool:
        return column in self.token_columns or column in self.sample_columns

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence, int64[N]."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The sequence that each token belongs to, int64[T]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def with_tokens(self, **columns: Array) -> Batch:
        """A batch with these token columns (length T) added or replaced."""
        return Batch(self.tokens, self.offsets, {**self.token_columns, **columns}, self.sample_columns)

    def with_samples(self, **columns: Array) -> Batch:
        """A batch with these sample columns (length N) added or replaced."""
        return Batch(self.tokens, self.offsets, self.token_columns, {**self.sample_columns, **columns})

    def sum_rows(self, column: Array) -> NDArray[np.float64]:
        """Sum of a token column over each sequence, float64[N]."""
        return np.bincount(self.rows, weights=column, minlength=len(self))

    def spread(self, column: Array) -> Array:
        """A sample column repeated over the tokens of each sequence, [T]."""
        return np.repeat(column, self.lengths)

    def select(self, rows: Array) -> Batch:
        """The sequences at these indices (or where this mask is true), in that order."""
        rows = np.asarray(rows)
        index = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        lengths = self.lengths[index]
        offsets = offsets_of(lengths)
        take = np.arange(offsets[-1]) + np.repeat(self.offsets[index] - offsets[:-1], lengths)
        return Batch(
            self.tokens[take],
            offsets,
            {name: column[take] for name, column in self.token_columns.items()},
            {name: column[index] for name, column in self.sample_columns.items()},
        )

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """The sequences of all batches, in order. All must have the same columns."""
        if not batches:
            raise BatchError("nothing to concatenate")
        first = batches[0]
        for other in batches[1:]:
            odd = (first.token_columns.keys() ^ other.token_columns.keys()) | (
                first.sample_columns.keys() ^ other.sample_columns.keys()
            )
            if odd:
                raise BatchError(f"batches to concatenate differ in columns: {', '.join(sorted(odd))}")
        return Batch(
            np.concatenate([b.tokens for b in batches]),
            offsets_of(np.concatenate([b.lengths for b in batches])),
            {n: np.concatenate([b.token_columns[n] for b in batches]) for n in first.token_columns},
            {n: np.concatenate([b.sample_columns[n] for b in batches]) for n in first.sample_columns},
        )

    def split(self, parts: Sequence[Array]) -> Iterator[Batch]:
        """One batch for each array of row indices."""
        return (self.select(rows) for rows in parts)

    def to_arrow(self) -> pa.Table:
        """One row per sequence; tokens and token columns become lists."""
        offsets = pa.array(self.offsets, pa.int64())

        def ragged(column: Array) -> pa.Array:
            return pa.LargeListArray.from_arrays(offsets, pa.array(column))

        return pa.table(
            {"tokens": ragged(self.tokens)}
            | {name: ragged(column) for name, column in self.token_columns.items()}
            | {name: pa.array(column) for name, column in self.sample_columns.items()}
        )

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Batch:
        """The inverse of ``to_arrow``: same values, same dtypes, same order."""
        table = table.combine_chunks()
        token_columns, sample_columns = {}, {}
        offsets = np.zeros(1, np.int64)
        for name in table.column_names:
            column = table.column(name)
            array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            if pa.types.is_large_list(column.type) or pa.types.is_list(column.type):
                starts = array.offsets.to_numpy().astype(np.int64)
                offsets = starts - starts[0] if len(starts) else offsets
                token_columns[name] = array.flatten().to_numpy(zero_copy_only=False).copy()
            else:
                sample_columns[name] = array.to_numpy(zero_copy_only=False).copy()
        if "tokens" not in token_columns:
            raise BatchError(f"no list column 'tokens' among: {', '.join(table.column_names)}")
        return cls(token_columns.pop("tokens"), offsets, token_columns, sample_columns)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[N + 1] of where ragged rows of these lengths start and end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
