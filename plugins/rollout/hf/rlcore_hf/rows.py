"""The requests that are being generated, one row each: what the host knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from rlcore.data.sample import Completion, Finish, Request

from rlcore_hf.sampling import Draws, uniforms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_STATE = np.dtype(
    [
        ("seed", np.uint64),
        ("cached", np.int64),  # tokens whose keys and values are in the cache
        ("made", np.int64),  # tokens generated
        ("last", np.int64),  # the newest of them, not yet in the cache
        ("max_tokens", np.int64),
        ("min_tokens", np.int64),
        ("temperature", np.float32),
        ("top_p", np.float64),
        ("top_k", np.int64),
        ("ends", np.bool_),  # whether EOS ends it
        ("stops", np.bool_),  # whether it has stop strings
    ]
)


class Rows:
    """Dense rows 0 … count − 1. A row that ends is replaced by the last one, so rows change places."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.requests: list[Request] = []
        self._state = np.zeros(max_rows, _STATE)
        self._tokens = np.zeros((max_rows, 0), np.int32)
        self._logprobs = np.zeros((max_rows, 0), np.float32)
        self._device = device
        self._draws: tuple[int, Draws] | None = None

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def free(self) -> int:
        """Rows that are not taken."""
        return len(self._state) - len(self)

    def state(self, start: int = 0) -> NDArray[np.void]:
        """The records of the rows from ``start`` on, a view."""
        return self._state[start : len(self)]

    def add(self, requests: Sequence[Request]) -> None:
        """Append rows whose prompts are in the cache."""
        start = len(self)
        self.requests.extend(requests)
        for row, request in enumerate(requests, start):
            ask = request.sampling
            self._state[row] = (
                request.seed & 0xFFFF_FFFF_FFFF_FFFF,
                *(len(request.tokens), 0, -1),
                *(ask.max_tokens, ask.min_tokens, ask.temperature, ask.top_p, ask.top_k),
                *(not ask.ignore_eos, bool(ask.stop)),
            )
        self._draws = None

    def remove(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Take these rows out; returns (source, target) of the rows that filled the gaps."""
        gone = np.zeros(len(self), bool)
        gone[rows] = True
        kept = len(self) - int(gone.sum())
        target = np.flatnonzero(gone[:kept])
        source = kept + np.flatnonzero(~gone[kept:])
        for array in (self._state, self._tokens, self._logprobs):
            array[target] = array[source]
        for old, new in zip(source, target, strict=True):
            self.requests[new] = self.requests[old]
        del self.requests[kept:]
        self._draws = None
        return source, target

    def draws(self, start: int) -> Draws:
        """How the rows from ``start`` on draw, on the device."""
        if self._draws is None or self._draws[0] != start:
            state = self.state(start)
            greedy = state["temperature"] == 0

            def put(column: NDArray[np.generic]) -> torch.Tensor:
                return torch.from_numpy(column.copy()).to(self._device)

            draws = Draws(
                temperature=put(np.where(greedy, np.float32(1), state["temperature"])),
                greedy=put(greedy),
                top_k=put(state["top_k"]),
                top_p=put(state["top_p"]),
                any_greedy=bool(greedy.any()),
                all_greedy=bool(greedy.all()),
                filtered=bool(((state["top_k"] > 0) | (state["top_p"] < 1)).any()),
            )
            self._draws = start, draws
        return self._draws[1]

    def uniforms(self, start: int) -> torch.Tensor:
        """The uniform number of each row's next draw, float64."""
        state = self.state(start)
        return torch.from_numpy(uniforms(state["seed"], state["made"])).to(self._device)

    def held(self, start: int) -> torch.Tensor | None:
        """The rows that may not end yet, bool; None where there is none."""
        state = self.state(start)
        held = state["made"] < state["min_tokens"]
        return torch.from_numpy(held).to(self._device) if held.any() else None

    def record(self, start: int, tokens: NDArray[np.int64], logprobs: NDArray[np.float64]) -> None:
        """Write down a token drawn for each row from ``start`` on."""
        state = self.state(start)
        longest = int(state["made"].max()) + 1
        if longest > self._tokens.shape[1]:
            grow = ((0, 0), (0, max(16, longest)))
            self._tokens, self._logprobs = np.pad(self._tokens, grow), np.pad(self._logprobs, grow)
        rows = np.arange(start, len(self))
        self._tokens[rows, state["made"]] = tokens
        self._logprobs[rows, state["made"]] = logprobs
        state["made"] += 1
        state["last"] = tokens

    def tokens(self, row: int) -> NDArray[np.int32]:
        """What the row has generated so far, a view."""
        return self._tokens[row, : self._state["made"][row]]

    def completion(self, row: int, finish: Finish, version: int) -> Completion:
        """The row as it is returned."""
        request, made = self.requests[row], self._state["made"][row]
        logprobs = self._logprobs[row, :made].copy() if request.want_logprobs else None
        return Completion(request.id, self._tokens[row, :made].copy(), finish, version, logprobs)
