"""Which prompts a step trains on: seeded, and resumable at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlcore.errors import CheckpointError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class StepPrompts:
    """The prompts of one step: ``indices`` int64[n] into the prompt set, and the epoch (from 0) they belong to."""

    epoch: int
    indices: NDArray[np.int64]


class PromptSampler:
    """Goes over ``count`` prompts ``epochs`` times, ``prompts_per_step`` at a time.

    A step never spans two epochs; what is left at an epoch's end is dropped, or makes a short step. The order of an
    epoch depends on ``seed`` and its number alone, and the position is the number of steps taken: so a resumed run goes
    on exactly as the run that never stopped, also from the end of an epoch, and also with another number of epochs.

    Raises:
        DataError: there are fewer prompts than one step needs.
    """

    def __init__(
        self,
        count: int,
        *,
        prompts_per_step: int,
        epochs: int,
        seed: int,
        shuffle: bool,
        last_batch: Literal["drop", "short"],
    ) -> None:
        check_enough(count, prompts_per_step, last_batch)
        self._count = count
        self._size = prompts_per_step
        self._seed = seed
        self._shuffle = shuffle
        self._last_batch = last_batch
        self._steps_per_epoch = count // prompts_per_step if last_batch == "drop" else -(-count // prompts_per_step)
        self.total_steps = epochs * self._steps_per_epoch
        self._steps = 0
        self._epoch = -1
        self._order = np.zeros(0, np.int64)

    @property
    def done(self) -> bool:
        """Whether every epoch is over."""
        return self._steps >= self.total_steps

    def next(self) -> StepPrompts:
        """The prompts of the next step. Raises DataError when ``done``."""
        if self.done:
            raise DataError(f"all {self.total_steps} steps have been taken")
        epoch, step = divmod(self._steps, self._steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._epoch_order(epoch)
            self._order.flags.writeable = False
        self._steps += 1
        return StepPrompts(epoch, self._order[step * self._size : (step + 1) * self._size])

    def __iter__(self) -> Iterator[StepPrompts]:
        while not self.done:
            yield self.next()

    def state(self) -> dict[str, Any]:
        """The position, and what the order depends on, as JSON values."""
        return {"steps": self._steps, **self._identity()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the position of a ``state()``.

        Raises:
            CheckpointError: the state is not one of these prompts, this step size and this seed.
        """
        odd = [
            f"{name} was {state.get(name, 'missing')!r} and is {value!r}"
            for name, value in self._identity().items()
            if state.get(name) != value
        ]
        if odd:
            raise CheckpointError(f"the order of prompts can't be taken up again: {'; '.join(odd)}")
        steps = state.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise CheckpointError(f"the order of prompts can't be taken up again: steps is {steps!r}")
        self._steps = steps

    def _identity(self) -> dict[str, Any]:
        return {
            "prompts": self._count,
            "prompts_per_step": self._size,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "last_batch": self._last_batch,
        }

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if not self._shuffle:
            return np.arange(self._count)
        seeds = np.random.SeedSequence(self._seed % 2**64, spawn_key=(epoch,))
        # Sorting the raw stream: NumPy promises that it never changes, which it does not for Generator.permutation.
        raw = np.random.Philox(seeds).random_raw(self._count)
        return np.argsort(raw, kind="stable").astype(np.int64, copy=False)


def check_enough(count: int, prompts_per_step: int, last_batch: Literal["drop", "short"]) -> None:
    """Raise DataError where ``count`` prompts make no step."""
    if count < (prompts_per_step if last_batch == "drop" else 1):
        raise DataError(
            f"there are {count} prompts, fewer than the {prompts_per_step} that one step needs: "
            "lower data.prompts_per_step, or set data.last_batch to short"
        )
