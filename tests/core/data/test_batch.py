"""Batch against plain Python lists of rows as the oracle."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlcore.data.batch import Batch, offsets_of
from rlcore.errors import BatchError

TOKEN_DTYPES = {"loss_mask": np.float32, "turn": np.int16, "seen": np.bool_, "own": np.float64}
SAMPLE_DTYPES = {"group": np.int64, "reward": np.float32, "truncated": np.bool_}


def batch_of(lengths: list[int], shift: int = 0) -> Batch:
    """A batch with a column of every kind, each value another one."""
    offsets = offsets_of(np.asarray(lengths, np.int64))
    t, n = np.arange(offsets[-1]) + shift, np.arange(len(lengths)) + shift
    return Batch(
        t.astype(np.int32),
        offsets,
        {name: (t % 3 if dtype == np.bool_ else t * 2).astype(dtype) for name, dtype in TOKEN_DTYPES.items()},
        {name: (n % 3 if dtype == np.bool_ else n * 5).astype(dtype) for name, dtype in SAMPLE_DTYPES.items()},
    )


def rows_of(batch: Batch) -> list[dict[str, object]]:
    """The batch as a list of dicts of lists: what every operation is judged by."""
    bounds = list(zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True))
    return [
        {"tokens": batch.tokens[start:end].tolist()}
        | {name: column[start:end].tolist() for name, column in batch.token_columns.items()}
        | {name: column[row].item() for name, column in batch.sample_columns.items()}
        for row, (start, end) in enumerate(bounds)
    ]


def dtypes_of(batch: Batch) -> dict[str, np.dtype]:
    columns = {**batch.token_columns, **batch.sample_columns, "tokens": batch.tokens, "offsets": batch.offsets}
    return {name: column.dtype for name, column in columns.items()}


lengths = st.lists(st.integers(0, 5), max_size=12)


@given(lengths, st.data())
def test_select_takes_rows_in_the_order_asked_for(lengths, data):
    batch = batch_of(lengths)
    index = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=20) if lengths else st.just([]))
    chosen = batch.select(np.asarray(index, np.int64))
    rows = rows_of(batch)
    assert rows_of(chosen) == [rows[i] for i in index]
    assert dtypes_of(chosen) == dtypes_of(batch)


@given(lengths, st.data())
def test_select_by_mask_keeps_the_true_rows(lengths, data):
    batch = batch_of(lengths)
    mask = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    kept = batch.select(np.asarray(mask, bool))
    assert rows_of(kept) == [row for row, keep in zip(rows_of(batch), mask, strict=True) if keep]


@given(st.lists(lengths, min_size=1, max_size=4))
def test_concat_joins_rows_in_order(many):
    batches = [batch_of(lengths, shift) for shift, lengths in enumerate(many)]
    joined = Batch.concat(batches)
    assert rows_of(joined) == [row for batch in batches for row in rows_of(batch)]
    assert dtypes_of(joined) == dtypes_of(batches[0])


@given(lengths)
def test_arrow_gives_back_the_same_batch(lengths):
    batch = batch_of(lengths)
    back = Batch.from_arrow(batch.to_arrow())
    assert rows_of(back) == rows_of(batch)
    assert dtypes_of(back) == dtypes_of(batch)


@given(lengths, st.integers(0, 12), st.integers(0, 12), st.integers(1, 3))
def test_arrow_tables_that_were_sliced_and_joined(lengths, start, count, pieces):
    batch = batch_of(lengths)
    table = pa.concat_tables([batch.to_arrow().slice(start, count)] * pieces)
    assert rows_of(Batch.from_arrow(table)) == rows_of(batch)[start : start + count] * pieces


@given(lengths)
def test_sums_over_rows(lengths):
    batch = batch_of(lengths)
    assert batch.sum_rows(batch["own"]).tolist() == [sum(row["own"]) for row in rows_of(batch)]
    assert batch.spread(batch["group"]).tolist() == [row["group"] for row in rows_of(batch) for _ in row["tokens"]]
    assert batch.rows.tolist() == [i for i, length in enumerate(lengths) for _ in range(length)]


def test_parquet_gives_back_the_same_batch(tmp_path):
    batch = batch_of([3, 0, 2, 4])
    pq.write_table(batch.to_arrow(), tmp_path / "b.parquet", row_group_size=2)
    back = Batch.from_arrow(pq.read_table(tmp_path / "b.parquet"))
    assert rows_of(back) == rows_of(batch)
    assert dtypes_of(back) == dtypes_of(batch)


def test_from_sequences():
    batch = Batch.from_sequences([[5, 6], [], np.asarray([7])])
    assert rows_of(batch) == [{"tokens": [5, 6]}, {"tokens": []}, {"tokens": [7]}]
    assert len(Batch.from_sequences([])) == 0


def test_split_gives_a_batch_for_each_part():
    batch = batch_of([1, 2, 3])
    first, second = batch.split([np.asarray([2, 0]), np.asarray([1])])
    assert first.lengths.tolist() == [3, 1]
    assert second.lengths.tolist() == [2]


def test_pickle_keeps_values_and_immutability():
    back = pickle.loads(pickle.dumps(batch_of([2, 1])))
    assert rows_of(back) == rows_of(batch_of([2, 1]))
    with pytest.raises(ValueError, match="read-only"):
        back["own"][0] = 1


class TestImmutability:
    @pytest.mark.parametrize("name", ["tokens", "offsets", "own", "group"])
    @pytest.mark.parametrize("how", ["new", "select", "one piece", "concat", "arrow"])
    def test_no_array_can_be_written(self, how, name):
        batch = batch_of([2, 1, 3])
        if how == "select":
            batch = batch.select(np.asarray([2, 0]))
        elif how == "one piece":
            batch = batch.select(np.asarray([1, 2]))
        elif how == "concat":
            batch = Batch.concat([batch, batch])
        elif how == "arrow":
            batch = Batch.from_arrow(batch.to_arrow())
        array = getattr(batch, name) if name in ("tokens", "offsets") else batch[name]
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1

    def test_columns_can_not_be_put_in_or_taken_out(self):
        batch = batch_of([2])
        with pytest.raises(TypeError):
            batch.token_columns["x"] = np.zeros(2)
        with pytest.raises(TypeError):
            del batch.sample_columns["group"]

    def test_a_given_array_is_taken_over(self):
        column = np.zeros(2)
        Batch.from_sequences([[1, 2]]).with_tokens(own=column)
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1

    def test_a_view_is_copied_so_that_its_owner_can_go_on_writing(self):
        buffer = np.zeros(4)
        batch = Batch.from_sequences([[1, 2]]).with_tokens(own=buffer[:2])
        buffer[:] = 7
        assert batch["own"].tolist() == [0, 0]

    def test_the_given_mapping_is_not_kept(self):
        columns = {"own": np.zeros(2)}
        batch = Batch(np.zeros(2, np.int32), np.asarray([0, 2]), columns)
        columns.clear()
        assert "own" in batch

    def test_adding_columns_leaves_the_batch_alone_and_shares_memory(self):
        batch = batch_of([2])
        more = batch.with_tokens(new=np.zeros(2)).with_samples(own_sample=np.zeros(1))
        assert "new" in more and "own_sample" in more
        assert "new" not in batch and "own_sample" not in batch
        assert np.shares_memory(more.tokens, batch.tokens)


def test_known_token_columns_are_float32_whatever_they_come_as():
    batch = Batch.from_sequences([[1, 2]]).with_tokens(
        loss_mask=np.asarray([True, False]), advantages=np.asarray([0.5, 2.0]), own=np.asarray([0.5, 2.0])
    )
    assert (batch["loss_mask"].dtype, batch["advantages"].dtype) == (np.float32, np.float32)
    assert batch["loss_mask"].tolist() == [1, 0]
    assert batch["own"].dtype == np.float64


def message_of(make) -> str:
    with pytest.raises(BatchError) as caught:
        make()
    return str(caught.value)


class TestErrors:
    zeros = np.zeros(2, np.int32)

    def test_offsets(self):
        assert "start at 0" in message_of(lambda: Batch(self.zeros, np.asarray([1, 2])))
        assert "start at 0" in message_of(lambda: Batch(self.zeros, np.zeros(0, np.int64)))
        assert "rise to the number of tokens (2), not 3" in message_of(lambda: Batch(self.zeros, np.asarray([0, 3])))
        assert "rise" in message_of(lambda: Batch(self.zeros, np.asarray([0, 3, 2])))
        assert "offsets must be int64[n], not float64" in message_of(lambda: Batch(self.zeros, np.asarray([0.0, 2.0])))

    def test_tokens(self):
        wrong = np.zeros(2, np.int64)
        assert "tokens must be int32[n], not int64" in message_of(lambda: Batch(wrong, np.asarray([0, 2])))

    def test_columns(self):
        batch = batch_of([1, 1, 1])
        assert "token column 'x' has shape (2,), not (3,)" in message_of(lambda: batch.with_tokens(x=np.zeros(2)))
        assert "sample column 'x' has shape (3, 1), not (3,)" in message_of(
            lambda: batch.with_samples(x=np.zeros((3, 1)))
        )
        assert "'x' has dtype <U1; a batch holds numbers" in message_of(
            lambda: batch.with_samples(x=np.asarray(list("abc")))
        )
        assert "'group' is given to two columns" in message_of(lambda: batch.with_tokens(group=np.zeros(3)))
        assert "'tokens' is given to two columns" in message_of(lambda: batch.with_tokens(tokens=np.zeros(3)))
        assert message_of(lambda: batch["values"]) == (
            "the batch has no column 'values'; it has: group, loss_mask, own, reward, seen, truncated, turn"
        )
        assert "shape (3,), not (2,)" in message_of(lambda: batch.sum_rows(np.zeros(2)))

    @pytest.mark.parametrize("index", [[-1], [3], [0, 5]])
    def test_rows_that_do_not_exist(self, index):
        assert "of a batch of 3" in message_of(lambda: batch_of([1, 1, 1]).select(np.asarray(index)))

    @pytest.mark.parametrize("index", [[True], [0.5], [[0]]])
    def test_what_is_no_choice_of_rows(self, index):
        assert "a mask bool[3]" in message_of(lambda: batch_of([1, 1, 1]).select(np.asarray(index)))

    def test_concat(self):
        batch = batch_of([1])
        assert "nothing to concatenate" in message_of(lambda: Batch.concat([]))
        assert "token column x (absent and float64)" in message_of(
            lambda: Batch.concat([batch, batch.with_tokens(x=np.zeros(1))])
        )
        assert "sample column group (int64 and int32)" in message_of(
            lambda: Batch.concat([batch, batch.with_samples(group=np.zeros(1, np.int32))])
        )

    def test_arrow(self):
        lists = pa.array([[1], [2, 3]], pa.list_(pa.int32()))
        assert "no list column 'tokens' among: x" in message_of(lambda: Batch.from_arrow(pa.table({"x": lists})))
        assert "'tokens' has type int64" in message_of(lambda: Batch.from_arrow(pa.table({"tokens": [1, 2]})))
        other = pa.array([[1.0, 2.0], [3.0]])
        assert "lists of column 'x' differ" in message_of(
            lambda: Batch.from_arrow(pa.table({"tokens": lists, "x": other}))
        )
        nulls = pa.table({"tokens": lists, "group": pa.array([1, None])})
        assert "column 'group' has nulls" in message_of(lambda: Batch.from_arrow(nulls))
        assert "column 'tokens' has nulls" in message_of(
            lambda: Batch.from_arrow(pa.table({"tokens": pa.array([[1], None], pa.list_(pa.int32()))}))
        )
