from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rlcore.data.batch import Batch, offsets_of
from rlcore.errors import BatchError
from rlcore.torch.packing import Packing, live_tokens, pack


def small() -> Batch:
    batch = Batch.from_sequences([[10, 11, 12], [20], [30, 31, 32, 33]])
    return batch.with_tokens(
        loss_mask=np.array([0, 1, 1, 0, 0, 0, 1, 1], np.float32), advantages=np.arange(8, dtype=np.float32)
    )


def test_positions_start_again_in_every_sequence() -> None:
    packing = Packing.of(np.array([0, 3, 3, 7]), "cpu")
    assert packing.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert packing.cu_seqlens.tolist() == [0, 3, 3, 7]
    assert packing.cu_seqlens.dtype == torch.int32
    assert packing.max_length == 4


@given(st.lists(st.integers(0, 200), min_size=1, max_size=20))
def test_buckets_hold_every_token_once_with_little_padding(lengths: list[int]) -> None:
    offsets = offsets_of(np.array(lengths))
    buckets, inverse = Packing.of(offsets, "cpu").buckets
    flat = torch.cat([b.flatten() for b in buckets] or [inverse])
    assert flat[inverse].tolist() == list(range(sum(lengths)))
    assert len(set(inverse.tolist())) == sum(lengths)
    for bucket in buckets:
        for row in bucket:  # a row is one sequence in order; what pads it repeats its last token
            real = row.unique_consecutive()
            assert real.tolist() == list(range(real[0], real[0] + len(real)))
            assert bucket.shape[1] - len(real) <= max(17, bucket.shape[1] // 4)


def test_pack_takes_live_tokens_and_what_predicts_them() -> None:
    micro = pack(small(), np.array([2, 0]), ("advantages",), "cpu")
    assert micro.tokens.tolist() == [30, 31, 32, 33, 10, 11, 12]
    assert micro.targets.tolist() == [32, 33, 11, 12]
    assert micro.predict.tolist() == [1, 2, 4, 5]
    assert micro.segments.tolist() == [0, 0, 1, 1]
    assert micro.sequences == 2
    assert micro.columns["advantages"].tolist() == [6, 7, 1, 2]
    assert micro.live.tolist() == [6, 7, 1, 2]


def test_without_a_mask_all_tokens_but_the_first_are_live() -> None:
    assert live_tokens(Batch.from_sequences([[1, 2, 3], [], [4], [5, 6]])).tolist() == [0, 1, 1, 0, 0, 1]


def test_a_mask_over_a_first_token_is_refused() -> None:
    batch = Batch.from_sequences([[1, 2], [3, 4]]).with_tokens(loss_mask=np.array([0, 1, 1, 1], np.float32))
    with pytest.raises(BatchError, match="loss_mask is 1 at the first token of sequence 1"):
        live_tokens(batch)


def test_units_are_counted_within_the_micro_batch() -> None:
    batch = Batch.from_sequences([[1, 2], [1, 2, 3], [1, 2], [1, 2]]).with_samples(unit=np.array([90, 7, 90, 5]))
    assert pack(batch, np.array([0, 1, 2]), (), "cpu").units.tolist() == [1, 0, 0, 1]
    assert pack(batch, np.array([1, 3]), (), "cpu").units.tolist() == [1, 1, 0]
    assert pack(Batch.from_sequences([[1, 2], [1, 2]]), np.array([0, 1]), (), "cpu").units.tolist() == [0, 1]
