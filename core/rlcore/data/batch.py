"""The ragged batch: what the controller, the estimators and the trainers exchange.

Axes: ``T`` tokens of all sequences one after the other, ``N`` sequences. Sequence ``i`` is
``tokens[offsets[i]:offsets[i + 1]]``, prompt and response together. Nothing is ever padded here.

A token column belongs to the token at its position: ``logprobs[t]`` is log p(tokens[t] | the tokens before it), and
is 0 at the first token of each sequence, which nothing predicts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rlcore.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    "correction": "the importance weight that the token's policy loss is multiplied by",
}
"""The token columns the core knows, all float32[T]; an estimator or loss may add its own."""


@dataclass(frozen=True, eq=False)
class Batch:
    """An immutable set of ragged sequences with columns per token and per sequence.

    ``tokens`` int32[T], ``offsets`` int64[N + 1]; ``token_columns`` have length T, ``sample_columns`` length N, and are
    numbers or booleans. The token columns that the core knows (``TOKEN_COLUMNS``) are kept as float32, whatever they
    come as. Sample columns that the loop provides: ``group`` int64 (which samples share a prompt), ``unit`` int64 (rows
    of one unit are never parted over ranks), ``reward`` float32, ``truncated`` bool, ``response_tokens`` int64 (tokens
    that were generated, whatever ``loss_mask`` says), ``weight_version`` int64.

    A batch takes over the arrays it is made of: they become read-only. One that shares its memory with another array or
    a tensor is copied.

    Raises:
        BatchError: the columns don't fit together, or one of them is no column.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    token_columns: Mapping[str, Array] = field(default_factory=dict)
    sample_columns: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array, dtype in (("tokens", self.tokens, np.int32), ("offsets", self.offsets, np.int64)):
            if array.ndim != 1 or array.dtype != dtype:
                raise BatchError(f"{name} must be {np.dtype(dtype)}[n], not {array.dtype} of shape {array.shape}")
        if not len(self.offsets) or self.offsets[0] != 0:
            raise BatchError("offsets must be int64[N + 1] and start at 0")
        if (np.diff(self.offsets) < 0).any() or self.offsets[-1] != len(self.tokens):
            raise BatchError(f"offsets must rise to the number of tokens ({len(self.tokens)}), not {self.offsets[-1]}")
        names = ["tokens", *self.token_columns, *self.sample_columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BatchError(f"the name {twice[0]!r} is given to two columns")
        fields = {
            "tokens": _taken_over(self.tokens),
            "offsets": _taken_over(self.offsets),
            "token_columns": _checked("token", self.token_columns, len(self.tokens)),
            "sample_columns": _checked("sample", self.sample_columns, len(self)),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[Batch], tuple[Any, ...]]:
        # Through the constructor, since a pickled array comes back writeable.
        return Batch, (self.tokens, self.offsets, dict(self.token_columns), dict(self.sample_columns))

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
        if column.shape != self.tokens.shape:
            raise BatchError(f"a token column has shape {self.tokens.shape}, not {column.shape}")
        sums = np.zeros(len(self))
        # reduceat gives an empty row its neighbour's value.
        filled = self.lengths > 0
        if filled.any():
            sums[filled] = np.add.reduceat(column, self.offsets[:-1][filled], dtype=np.float64)
        return sums

    def spread(self, column: Array) -> Array:
        """A sample column repeated over the tokens of each sequence, [T]."""
        return np.repeat(column, self.lengths)

    def select(self, rows: Array) -> Batch:
        """The sequences at these indices (or where this mask is true), in that order; repeats are allowed."""
        index = self._row_indices(rows)
        starts, ends = self.offsets[index], self.offsets[index + 1]
        # Rows that follow one another are copied in one piece; a single piece is shared, since nothing can change it.
        heads = np.flatnonzero(np.diff(index, prepend=-2) != 1)
        tails = np.append(heads[1:], len(index)) - 1
        pieces = list(zip(starts[heads].tolist(), ends[tails].tolist(), strict=True)) if len(index) else [(0, 0)]

        def take(column: Array) -> Array:
            parts = [column[start:end] for start, end in pieces]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return Batch(
            take(self.tokens),
            offsets_of(ends - starts),
            {name: take(column) for name, column in self.token_columns.items()},
            {name: column[index] for name, column in self.sample_columns.items()},
        )

    def _row_indices(self, rows: Array) -> NDArray[np.int64]:
        rows = np.asarray(rows)
        if rows.dtype == bool and rows.shape == (len(self),):
            return np.flatnonzero(rows)
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
            raise BatchError(
                f"rows are indices [n] or a mask bool[{len(self)}], not {rows.dtype} of shape {rows.shape}"
            )
        index = rows.astype(np.int64)
        if index.size and (index.min() < 0 or index.max() >= len(self)):
            raise BatchError(f"rows {index.min()} to {index.max()} of a batch of {len(self)}; they count from 0")
        return index

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """The sequences of all batches, in order. All must have the same columns, of the same dtypes."""
        if not batches:
            raise BatchError("nothing to concatenate")
        first, *others = (b._dtypes() for b in batches)
        for other in others:
            if odd := sorted({name for name, _ in first.items() ^ other.items()}):
                both = ", ".join(f"{n} ({first.get(n, 'absent')} and {other.get(n, 'absent')})" for n in odd)
                raise BatchError(f"batches to concatenate differ in columns: {both}")
        return Batch(
            np.concatenate([b.tokens for b in batches]),
            offsets_of(np.concatenate([b.lengths for b in batches])),
            {n: np.concatenate([b.token_columns[n] for b in batches]) for n in batches[0].token_columns},
            {n: np.concatenate([b.sample_columns[n] for b in batches]) for n in batches[0].sample_columns},
        )

    def _dtypes(self) -> dict[str, str]:
        return {f"token column {name}": str(column.dtype) for name, column in self.token_columns.items()} | {
            f"sample column {name}": str(column.dtype) for name, column in self.sample_columns.items()
        }

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
        """The inverse of ``to_arrow``: same values, same dtypes, same order. Columns share the table's memory."""
        if "tokens" not in table.column_names:
            raise BatchError(f"no list column 'tokens' among: {', '.join(table.column_names) or 'none'}")
        token_columns, sample_columns = {}, {}
        offsets: dict[str, NDArray[np.int64]] = {}
        for name in table.column_names:
            column = table.column(name)
            # Combining copies, also a single chunk.
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            if pa.types.is_large_list(array.type) or pa.types.is_list(array.type):
                starts = array.offsets.to_numpy().astype(np.int64)
                offsets[name] = starts - starts[0] if len(starts) else np.zeros(1, np.int64)
                token_columns[name] = _to_numpy(name, array, array.flatten())
            else:
                sample_columns[name] = _to_numpy(name, array, array)
        if "tokens" not in offsets:
            raise BatchError(f"column 'tokens' has type {table.column('tokens').type}, not a list of ids in each row")
        for name, own in offsets.items():
            if not np.array_equal(own, offsets["tokens"]):
                raise BatchError(f"the lists of column {name!r} differ in length from those of 'tokens'")
        return cls(token_columns.pop("tokens"), offsets["tokens"], token_columns, sample_columns)


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[N + 1] of where ragged rows of these lengths start and end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _checked(axis: str, columns: Mapping[str, Array], length: int) -> Mapping[str, Array]:
    checked = {}
    for name, column in columns.items():
        if column.shape != (length,):
            raise BatchError(f"{axis} column {name!r} has shape {column.shape}, not ({length},)")
        if column.dtype.kind not in "biuf":
            raise BatchError(
                f"{axis} column {name!r} has dtype {column.dtype}; a batch holds numbers and booleans only"
            )
        if axis == "token" and name in TOKEN_COLUMNS:
            column = column.astype(np.float32, copy=False)
        checked[name] = _taken_over(column)
    return MappingProxyType(checked)


def _taken_over(array: Array) -> Array:
    """The array, or a copy if someone else could still write to its memory; read-only from now on."""
    if array.flags.writeable:
        array = array if array.base is None else array.copy()
        array.flags.writeable = False
    return array


def _to_numpy(name: str, column: pa.Array, values: pa.Array) -> Array:
    # Arrow would turn integers beside a null into floats.
    if column.null_count or values.null_count:
        raise BatchError(f"column {name!r} has nulls; a batch has none")
    array: Array = values.to_numpy(zero_copy_only=False)
    return array
