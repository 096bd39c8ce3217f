"""The order of prompts, and taking it up again at every step."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rlcore.data.sampler import PromptSampler
from rlcore.errors import CheckpointError, DataError


def sampler(count=10, step=3, epochs=3, seed=0, shuffle=True, last_batch="drop"):
    return PromptSampler(count, prompts_per_step=step, epochs=epochs, seed=seed, shuffle=shuffle, last_batch=last_batch)


def steps_of(sampler):
    return [(step.epoch, step.indices.tolist()) for step in sampler]


def epoch_of(steps, epoch):
    return [index for at, indices in steps if at == epoch for index in indices]


def test_without_shuffling_prompts_come_in_order_and_the_rest_is_dropped():
    steps = steps_of(sampler(5, 2, 2, shuffle=False))
    assert steps == [(0, [0, 1]), (0, [2, 3]), (1, [0, 1]), (1, [2, 3])]


def test_short_last_step():
    steps = steps_of(sampler(5, 2, 2, shuffle=False, last_batch="short"))
    assert steps == [(0, [0, 1]), (0, [2, 3]), (0, [4]), (1, [0, 1]), (1, [2, 3]), (1, [4])]


@pytest.mark.parametrize("last_batch", ["drop", "short"])
def test_total_steps_is_the_number_of_steps(last_batch):
    each = sampler(last_batch=last_batch)
    assert each.total_steps == len(steps_of(each)) == {"drop": 9, "short": 12}[last_batch]


def test_every_prompt_comes_once_in_an_epoch_and_epochs_differ():
    steps = steps_of(sampler(100, 7, 2, last_batch="short"))
    first, second = epoch_of(steps, 0), epoch_of(steps, 1)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first != list(range(100))


def test_order_depends_on_the_seed_and_negative_seeds_will_do():
    orders = [steps_of(sampler(seed=seed)) for seed in (0, 1, -1, 2**40)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert steps_of(sampler(seed=0)) == orders[0]


def test_order_of_an_epoch_does_not_depend_on_step_size_or_epochs():
    whole = epoch_of(steps_of(sampler(12, 12, 5)), 1)
    assert epoch_of(steps_of(sampler(12, 4, 2)), 1) == whole


def test_order_is_held_still():
    # The definition, spelt out: ranks of the raw Philox stream, which NumPy promises never to change.
    raw = np.random.Philox(np.random.SeedSequence(3, spawn_key=(1,))).random_raw(6)
    expected = sorted(range(6), key=lambda i: raw[i])
    assert epoch_of(steps_of(sampler(6, 2, 2, seed=3)), 1) == expected


@pytest.mark.parametrize("last_batch", ["drop", "short"])
@pytest.mark.parametrize(("count", "step"), [(10, 3), (8, 4), (7, 7), (5, 1)])
def test_resumed_at_every_step_the_order_is_that_of_the_run_that_never_stopped(count, step, last_batch):
    straight = steps_of(sampler(count, step, last_batch=last_batch))
    for stop in range(len(straight) + 1):
        first = sampler(count, step, last_batch=last_batch)
        before = [first.next() for _ in range(stop)]
        saved = json.loads(json.dumps(first.state()))
        second = sampler(count, step, last_batch=last_batch)
        second.restore(saved)
        assert second.done == (stop == len(straight))
        assert [(s.epoch, s.indices.tolist()) for s in before] + steps_of(second) == straight


def test_saved_at_the_end_of_an_epoch_a_resumed_run_goes_on_with_the_next():
    first = sampler(8, 4, epochs=1)
    steps_of(first)
    second = sampler(8, 4, epochs=2)
    second.restore(first.state())
    assert not second.done
    assert steps_of(second) == steps_of(sampler(8, 4, epochs=2))[2:]


def test_restoring_goes_back_too():
    each = sampler()
    start = each.state()
    steps = steps_of(each)
    each.restore(start)
    assert steps_of(each) == steps


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": 11}, "prompts was 10 and is 11"),
        ({"step": 4}, "prompts_per_step was 3 and is 4"),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"shuffle": False}, "shuffle was True and is False"),
        ({"last_batch": "short"}, "last_batch was 'drop' and is 'short'"),
    ],
)
def test_a_state_of_another_order_is_refused(changed, message):
    with pytest.raises(CheckpointError, match=message):
        sampler(**changed).restore(sampler().state())


@pytest.mark.parametrize("state", [{}, {**sampler().state(), "taken": -1}, {**sampler().state(), "epoch": None}])
def test_a_damaged_state_is_refused(state):
    with pytest.raises(CheckpointError, match="can't be taken up again"):
        sampler().restore(state)


def test_too_few_prompts():
    with pytest.raises(DataError, match="there are 2 prompts, fewer than the 3 that one step needs") as caught:
        sampler(2, 3)
    assert "data.last_batch to short" in str(caught.value)
    assert steps_of(sampler(2, 3, epochs=1, shuffle=False, last_batch="short")) == [(0, [0, 1])]
    with pytest.raises(DataError, match="there are 0 prompts"):
        sampler(0, 3, last_batch="short")


def test_past_the_end():
    each = sampler(epochs=1)
    steps_of(each)
    with pytest.raises(DataError, match="all 1 epochs over 10 prompts are over"):
        each.next()


def test_what_is_handed_out_can_not_change_the_order():
    with pytest.raises(ValueError, match="read-only"):
        sampler().next().indices[0] = 5
