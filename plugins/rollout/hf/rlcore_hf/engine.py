"""The rollout engine ``hf``: continuous batching over a Hugging Face causal LM in this process."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rlcore.errors import DataError, ModelError, WeightSyncError
from rlcore.plugins.interfaces import RolloutContext, RolloutEngine, WeightReceiver
from torch import Tensor

from rlcore_hf.cache import PromptCache, RowCache
from rlcore_hf.requests import check_request, ends_with_stop
from rlcore_hf.rows import Rows
from rlcore_hf.sampling import sample
from rlcore_hf.weights import Weights, cached_attention_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray
    from rlcore.data.sample import Completion, Finish, Request

    from rlcore_hf.plugin import Config

_REFILL_SHARE = 16
"""Waiting requests are let in when a 16th of the rows is free: a prefill pass for each single row would cost more."""


class HfEngine(RolloutEngine):
    """Generates with the trainer's own module, or with a copy that weights are streamed into.

    A step of ``poll`` lets waiting requests in (equal prompts are read once), then makes one token for every row. Rows
    that end leave at once. It begins awake; until ``receive_weights`` requests are refused.
    """

    def __init__(self, config: Config, context: RolloutContext) -> None:
        self._config = config
        self._context = context
        self._device = torch.device(context.device)
        self._eos = np.array(sorted(context.tokenizer.eos_ids), np.int64)
        self._weights = Weights(context)
        self._awake = True
        self._waiting: deque[Request] = deque()
        self._rows = Rows(config.max_rows, self._device)
        self._cache = RowCache(config.max_rows, context.max_tokens)
        self._done: list[Completion] = []
        self._ids: set[str] = set()

    # --- weights and sleep -------------------------------------------------------------------------------------------

    def receive_weights(self, receiver: WeightReceiver, version: int) -> None:
        """Take the trainer's weights, in place or as a stream. Raises ``WeightSyncError`` if requests are in flight."""
        self._idle("receive_weights")
        self._weights.receive(receiver, version, awake=self._awake)

    def sleep(self) -> None:
        """Free the cache and give a borrowed module back."""
        self._idle("sleep")
        self._awake = False
        self._weights.release()
        self._cache = RowCache(self._config.max_rows, self._context.max_tokens)

    def wake(self, *, weights: bool = True, cache: bool = True) -> None:
        """Borrow the module again; the cache is made as it is needed."""
        if weights:
            self._awake = True
            self._weights.hold()

    def close(self) -> None:
        """Drop what is in flight, give the module back, free all."""
        self.abort(set(self._ids))
        self.sleep()
        self._weights.close()

    def _idle(self, verb: str) -> None:
        if in_flight := len(self._waiting) + len(self._rows):
            raise WeightSyncError(f"{verb} with {in_flight} requests in flight; poll until they are done or abort them")

    # --- requests ----------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises ``WeightSyncError`` without weights, ``DataError`` for a request that can't be run."""
        if not self._awake:
            raise WeightSyncError("submit while the hf engine sleeps: call wake() first")
        _ = self._weights.model  # raises where none is held
        ids = set(self._ids)
        for request in requests:
            check_request(request, self._context.max_tokens)
            if request.id in ids:
                raise DataError(f"request {request.id!r} is in flight already; ids must be unique")
            ids.add(request.id)
        self._ids = ids
        self._waiting.extend(requests)

    def abort(self, ids: Collection[str]) -> None:
        """Drop these requests wherever they are; unknown ids are ignored."""
        drop = self._ids.intersection(ids)
        if not drop:
            return
        self._ids -= drop
        self._waiting = deque(r for r in self._waiting if r.id not in drop)
        self._done = [c for c in self._done if c.request_id not in drop]
        self._remove([row for row, request in enumerate(self._rows.requests) if request.id in drop])

    def poll(self, timeout_seconds: float) -> list[Completion]:
        """Generate until something has finished, at least one token a row and at most so long; then all that has."""
        deadline = monotonic() + timeout_seconds
        if not self._done and (self._waiting or self._rows):
            try:
                with torch.no_grad(), cached_attention_in(self._weights.model):
                    self._step()
                    while not self._done and (self._waiting or self._rows) and monotonic() < deadline:
                        self._step()
            except torch.OutOfMemoryError as error:
                raise ModelError(
                    f"out of memory with {len(self._rows)} rows and {self._cache.nbytes / 2**30:.1f} GiB of cache; "
                    f"lower rollout.max_rows ({self._config.max_rows}) or prefill_tokens: {error}"
                ) from error
        done, self._done = self._done, []
        self._ids.difference_update(c.request_id for c in done)
        return done

    # --- one step ----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        for requests, source, prompts in self._admitted():
            logits, cache = self._prefill(prompts)
            start = len(self._rows)
            self._cache.store(cache, source, start)
            self._rows.add(requests)
            self._draw(start, logits[torch.from_numpy(source).to(self._device)])
        if self._rows:
            self._draw(0, self._decode())

    def _admitted(self) -> Iterator[tuple[list[Request], NDArray[np.int64], list[NDArray[np.int32]]]]:
        """Waiting requests that there is room for, in passes: requests, the prompt of each, the distinct prompts."""
        room = min(self._rows.free, len(self._waiting))
        if not room or (self._rows and room < min(len(self._waiting), self._config.max_rows // _REFILL_SHARE)):
            return
        by_prompt: dict[bytes, list[Request]] = {}
        for request in (self._waiting.popleft() for _ in range(room)):
            by_prompt.setdefault(request.tokens.tobytes(), []).append(request)
        groups = sorted(by_prompt.values(), key=lambda group: len(group[0].tokens))
        while groups:
            size = 1  # lengths rise, so the last one of a pass is its width
            while size < len(groups) and (size + 1) * len(groups[size][0].tokens) <= self._config.prefill_tokens:
                size += 1
            now, groups = groups[:size], groups[size:]
            source = np.repeat(np.arange(size), [len(group) for group in now])
            yield [r for group in now for r in group], source, [group[0].tokens for group in now]

    def _prefill(self, prompts: Sequence[NDArray[np.int32]]) -> tuple[Tensor, PromptCache]:
        """Read prompts: logits after the last token of each [P, V], and their keys and values.

        Shorter prompts are padded on the right, where causal attention never looks.
        """
        lengths = np.array([len(p) for p in prompts])
        ids = np.zeros((len(prompts), lengths.max()), np.int64)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        vocab = self._weights.model.get_input_embeddings().num_embeddings
        if ids.min() < 0 or ids.max() >= vocab:
            raise DataError(f"a prompt holds token {ids.max()} but the model's vocabulary ends at {vocab - 1}")
        cache = PromptCache()
        hidden = self._forward(ids, np.broadcast_to(np.arange(ids.shape[1]), ids.shape), cache, None)
        last = torch.from_numpy(lengths - 1).to(self._device)
        return self._logits(hidden[torch.arange(len(prompts), device=self._device), last]), cache

    def _decode(self) -> Tensor:
        """Put the newest token of each row through the model: logits [R, V]."""
        state = self._rows.state()
        positions = state["cached"].copy()
        mask = self._cache.begin(positions)
        hidden = self._forward(state["last"][:, None], positions[:, None], self._cache, mask)
        state["cached"] += 1
        return self._logits(hidden[:, -1])

    def _forward(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        cache: PromptCache | RowCache,
        mask: Tensor | None,
    ) -> Tensor:
        both = torch.from_numpy(np.stack((ids, positions))).to(self._device)
        output = self._weights.model.base_model(
            input_ids=both[0], position_ids=both[1], attention_mask=mask, past_key_values=cache, use_cache=True
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        head: Any = self._weights.model.get_output_embeddings()
        logits: Tensor = head(hidden)
        return logits

    def _draw(self, start: int, logits: Tensor) -> None:
        """Draw a token for each row from ``start`` on, and let go of the rows that it ends."""
        rows = self._rows
        eos = torch.from_numpy(self._eos[self._eos < logits.shape[-1]]).to(self._device)
        tokens, logprobs = sample(logits, rows.draws(start), rows.uniforms(start), eos, rows.held(start))
        drawn = torch.stack((tokens.double(), logprobs)).cpu().numpy()  # the step's one wait for the device
        ids = drawn[0].astype(np.int64)
        if (ids < 0).any():
            bad = rows.requests[start + int((ids < 0).argmax())]
            raise ModelError(
                f"the model's logits are not finite (request {bad.id!r}, weight version {self._weights.version}); "
                "its weights have diverged"
            )
        rows.record(start, ids, drawn[1])
        self._finish(start, ids)

    def _finish(self, start: int, ids: NDArray[np.int64]) -> None:
        state = self._rows.state(start)
        stopped = state["ends"] & np.isin(ids, self._eos)
        may_stop = state["stops"] & (state["made"] > state["min_tokens"]) & ~stopped
        for i in np.flatnonzero(may_stop):
            row = start + int(i)
            stopped[i] = ends_with_stop(
                self._rows.tokens(row), self._rows.requests[row].sampling.stop, self._context.tokenizer
            )
        over = np.flatnonzero(stopped | (state["made"] >= state["max_tokens"]))
        version = self._weights.version
        assert version is not None
        for i in over:
            finish: Finish = "stop" if stopped[i] else "length"
            self._done.append(self._rows.completion(start + int(i), finish, version))
        self._remove(start + over)

    def _remove(self, rows: Sequence[int] | NDArray[np.int64]) -> None:
        if len(rows):
            source, target = self._rows.remove(np.asarray(rows, np.int64))
            if len(source):
                self._cache.move(source, target, int(self._rows.state()["cached"].max()))
