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
    """Prompts to sample: ``indices`` int64[n] into the prompt set, and the epoch (from 0) they belong to."""

    epoch: int
    indices: NDArray[np.int64]


class PromptSampler:
    """Goes over ``count`` prompts ``epochs`` times, ``prompts_per_step`` at a time.

    A step never spans two epochs; what is left at an epoch's end is dropped, or makes a short step. The order of an
    epoch depends on ``seed`` and its number alone, and the position is how many of its prompts were taken: so a resumed
    run goes on exactly as the run that never stopped, also from the end of an epoch, and also with another number of
    epochs.

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
        self._epochs = epochs
        self._seed = seed
        self._shuffle = shuffle
        self._last_batch = last_batch
        steps_per_epoch = count // prompts_per_step if last_batch == "drop" else -(-count // prompts_per_step)
        self.total_steps = epochs * steps_per_epoch
        self._epoch = self._taken = 0
        self._order: tuple[int, NDArray[np.int64]] | None = None

    @property
    def done(self) -> bool:
        """Whether every epoch is over."""
        return self._epoch >= self._epochs

    def next(self) -> StepPrompts:
        """The prompts of the next step. Raises DataError when ``done``."""
        return self.take(self._size)

    def take(self, most: int) -> StepPrompts:
        """The next prompts of this epoch, at most so many: those of a step, or others in place of dropped ones.

        An epoch is over when what is left of it makes no further step. Raises DataError when ``done``.
        """
        if self.done:
            raise DataError(f"all {self._epochs} epochs over {self._count} prompts are over")
        taken = StepPrompts(self._epoch, self._epoch_order()[self._taken : self._taken + most])
        self._taken += len(taken.indices)
        if self._count - self._taken < (self._size if self._last_batch == "drop" else 1):
            self._epoch, self._taken = self._epoch + 1, 0
        return taken

    def __iter__(self) -> Iterator[StepPrompts]:
        while not self.done:
            yield self.next()

    def state(self) -> dict[str, Any]:
        """The position, and what the order depends on, as JSON values."""
        return {"epoch": self._epoch, "taken": self._taken, **self._identity()}

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
        position = state.get("epoch"), state.get("taken")
        if not all(isinstance(value, int) and value >= 0 for value in position):
            odd.append(f"the position is {position}")
        if odd:
            raise CheckpointError(f"the order of prompts can't be taken up again: {'; '.join(odd)}")
        self._epoch, self._taken = state["epoch"], state["taken"]

    def _identity(self) -> dict[str, Any]:
        return {
            "prompts": self._count,
            "prompts_per_step": self._size,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "last_batch": self._last_batch,
        }

    def _epoch_order(self) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != self._epoch:
            order = np.arange(self._count)
            if self._shuffle:
                seeds = np.random.SeedSequence(self._seed % 2**64, spawn_key=(self._epoch,))
                # Sorting the raw stream: NumPy promises that it never changes, not so for Generator.permutation.
                order = np.argsort(np.random.Philox(seeds).random_raw(self._count), kind="stable")
            order = order.astype(np.int64, copy=False)
            order.flags.writeable = False
            self._order = self._epoch, order
        return self._order[1]


def check_enough(count: int, prompts_per_step: int, last_batch: Literal["drop", "short"]) -> None:
    """Raise DataError where ``count`` prompts make no step."""
    if count < (prompts_per_step if last_batch == "drop" else 1):
        raise DataError(
            f"there are {count} prompts, fewer than the {prompts_per_step} that one step needs: "
            "lower data.prompts_per_step, or set data.last_batch to short"
        )
