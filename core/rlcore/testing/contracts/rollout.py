"""What a rollout engine must do, on a tiny model and a CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from rlcore.data.sample import Completion, Request, Sampling, Tokens
from rlcore.data.tokenizer import Tokenizer
from rlcore.manifest.schema import ModelSection
from rlcore.plugins.interfaces import RolloutContext, RolloutEngine
from rlcore.plugins.kinds import Kind
from rlcore.plugins.loading import build
from rlcore.testing.contracts.models import FolderReceiver, load_eager, next_logprobs
from rlcore.testing.contracts.plugin import PluginContract
from rlcore.testing.tiny import write_tiny_model

_GREEDY = Sampling(max_tokens=12, temperature=0.0)
_SAMPLED = Sampling(max_tokens=48, temperature=1.3)
_LOGPROB_ATOL = 1e-4  # float32: what another order of additions makes of a log-prob


class RolloutContract(PluginContract):
    """Subclass with ``plugin``, or override ``make_engine``. Expected tokens and log-probs are transformers' own."""

    kind: ClassVar[Kind] = "rollout"
    way: ClassVar[Literal["in_place", "stream"]] = "stream"
    """How weights come to the engine."""
    tied: ClassVar[bool] = True
    """Whether the model's head is its embedding. Untied, a random model's greedy answers say more."""
    timeout_seconds: ClassVar[float] = 120.0
    """How long a handful of tiny requests may take."""

    @classmethod
    def make_engine(cls, context: RolloutContext) -> RolloutEngine:
        """The engine under test, without weights."""
        engine: RolloutEngine = build(cls.ref(), context)
        return engine

    @pytest.fixture(scope="class")
    @classmethod
    def folders(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
        """Two models that differ in their weights."""
        return (
            write_tiny_model(tmp_path_factory.mktemp("first"), tied=cls.tied, seed=0),
            write_tiny_model(tmp_path_factory.mktemp("second"), tied=cls.tied, seed=1),
        )

    @pytest.fixture(scope="class")
    @classmethod
    def tokenizer(cls, folders: tuple[Path, Path]) -> Tokenizer:
        """The tokenizer of both models."""
        from rlcore.torch.tokenizer import load_tokenizer

        return load_tokenizer(ModelSection(path=str(folders[0]), dtype="float32"))

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, folders: tuple[Path, Path], tokenizer: Tokenizer) -> Iterator[RolloutEngine]:
        """The engine with the first model's weights."""
        model = ModelSection(path=str(folders[0]), dtype="float32")
        engine = cls.make_engine(RolloutContext(model, tokenizer, max_tokens=128, device="cpu", seed=0))
        engine.receive_weights(FolderReceiver(folders[0], cls.way), version=0)
        yield engine
        engine.close()

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls, tokenizer: Tokenizer) -> list[Tokens]:
        """Prompts of different lengths, one of a single token."""
        return [tokenizer.encode_text(text) for text in ("What is 1 + 1?", "x", "The capital of France is called")]

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, folders: tuple[Path, Path]) -> Any:
        """The first model, run by transformers."""
        return load_eager(folders[0])

    def generate(self, engine: RolloutEngine, requests: Sequence[Request]) -> list[Completion]:
        """All completions in the order of the requests; none may be missing or come twice."""
        engine.submit(requests)
        done: dict[str, Completion] = {}
        deadline = time.monotonic() + self.timeout_seconds
        while len(done) < len(requests):
            assert time.monotonic() < deadline, f"only {len(done)} of {len(requests)} requests finished in time"
            for completion in engine.poll(1.0):
                assert completion.request_id not in done, f"request {completion.request_id} came back twice"
                done[completion.request_id] = completion
        assert done.keys() == {request.id for request in requests}
        return [done[request.id] for request in requests]

    def test_greedy_takes_the_likeliest_token(self, engine: RolloutEngine, model: Any, prompts: list[Tokens]) -> None:
        """As transformers says it without a cache; the same alone, together and again."""
        requests = _requests(prompts, _GREEDY)
        together = self.generate(engine, requests)
        for prompt, completion in zip(prompts, together, strict=True):
            logprobs = next_logprobs(model, np.concatenate([prompt, completion.tokens]))[len(prompt) - 1 : -1]
            taken = logprobs[np.arange(len(completion.tokens)), completion.tokens]
            np.testing.assert_allclose(taken, logprobs.max(-1), atol=_LOGPROB_ATOL)
        for request, completion in zip(requests, together, strict=True):
            (alone,) = self.generate(engine, [request])
            assert np.array_equal(alone.tokens, completion.tokens)

    def test_tokens_and_finish(self, engine: RolloutEngine, tokenizer: Tokenizer, prompts: list[Tokens]) -> None:
        """int32 ids; an EOS id ends a completion, is its last token, and makes it "stop"; else the limit ends it."""
        completions = self.generate(engine, _requests(prompts * 24, _SAMPLED))
        for completion in completions:
            assert completion.tokens.dtype == np.int32
            assert 0 < len(completion.tokens) <= _SAMPLED.max_tokens
            is_eos = np.isin(completion.tokens, list(tokenizer.eos_ids))
            assert not is_eos[:-1].any()
            assert completion.finish == ("stop" if is_eos[-1] else "length")
            assert completion.finish == "stop" or len(completion.tokens) == _SAMPLED.max_tokens
        assert {completion.finish for completion in completions} == {"stop", "length"}

    def test_eos_at_the_limit_is_a_stop(self, engine: RolloutEngine, prompts: list[Tokens]) -> None:
        """An answer that ends exactly at the limit is not truncated."""
        requests = _requests(prompts * 24, _SAMPLED)
        ended = [
            (request, len(completion.tokens))
            for request, completion in zip(requests, self.generate(engine, requests), strict=True)
            if completion.finish == "stop"
        ]
        exact = [replace(request, sampling=replace(_SAMPLED, max_tokens=length)) for request, length in ended]
        again = self.generate(engine, exact)
        assert [(c.finish, len(c.tokens)) for c in again] == [("stop", length) for _, length in ended]

    def test_eos_can_be_held_off(self, engine: RolloutEngine, tokenizer: Tokenizer, prompts: list[Tokens]) -> None:
        """``ignore_eos`` fills the limit; ``min_tokens`` allows an EOS only after so many."""
        filled = self.generate(engine, _requests(prompts * 24, replace(_SAMPLED, ignore_eos=True)))
        assert {(c.finish, len(c.tokens)) for c in filled} == {("length", _SAMPLED.max_tokens)}
        held = self.generate(engine, _requests(prompts * 24, replace(_SAMPLED, min_tokens=20)))
        assert min(len(c.tokens) for c in held) >= 20
        eos = list(tokenizer.eos_ids)
        assert not any(np.isin(c.tokens[:20], eos).any() for c in held if len(c.tokens) > 20)

    def test_seeds(self, engine: RolloutEngine, prompts: list[Tokens]) -> None:
        """One seed, one completion; another seed, another."""
        requests = _requests([prompts[0]] * 8, _SAMPLED)
        first, again = self.generate(engine, requests), self.generate(engine, requests)
        assert [c.tokens.tolist() for c in first] == [c.tokens.tolist() for c in again]
        assert len({tuple(c.tokens.tolist()) for c in first}) == 8

    def test_top_k_of_one_is_greedy(self, engine: RolloutEngine, prompts: list[Tokens]) -> None:
        """So is a top-p that holds the likeliest token alone."""
        greedy = [c.tokens.tolist() for c in self.generate(engine, _requests(prompts, _GREEDY))]
        for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
            narrowed = self.generate(engine, _requests(prompts, replace(_GREEDY, temperature=1.0, **narrow)))
            assert [c.tokens.tolist() for c in narrowed] == greedy, narrow

    def test_logprobs_if_asked(self, engine: RolloutEngine, model: Any, prompts: list[Tokens]) -> None:
        """Those of the distribution sampled from, temperature included; none if nobody reads them."""
        self._check_logprobs(engine, model, prompts)
        assert all(c.logprobs is None for c in self.generate(engine, _requests(prompts, _SAMPLED)))

    def test_stop_string(self, engine: RolloutEngine, tokenizer: Tokenizer, prompts: list[Tokens]) -> None:
        """Ends the completion at the token that completes it."""
        base = replace(_SAMPLED, max_tokens=24, ignore_eos=True)
        for request, free in zip(r := _requests(prompts * 4, base), self.generate(engine, r), strict=True):
            text = tokenizer.decode(free.tokens)
            stop = next((text[i : i + 2] for i in range(4, len(text) - 2) if text[i : i + 2].isascii()), None)
            if stop is None:
                continue
            (stopped,) = self.generate(engine, [replace(request, sampling=replace(base, stop=(stop,)))])
            assert stopped.finish == "stop"
            assert np.array_equal(stopped.tokens, free.tokens[: len(stopped.tokens)])
            assert stop in tokenizer.decode(stopped.tokens)
            assert stop not in tokenizer.decode(stopped.tokens[:-1])
            return
        pytest.fail("no completion had two ASCII characters in a row to stop at")

    def test_aborted_requests_do_not_come_back(self, engine: RolloutEngine, prompts: list[Tokens]) -> None:
        """The others do; unknown ids are ignored, and an aborted id can be asked again."""
        requests = _requests(prompts, _GREEDY)
        engine.submit(requests[:1])
        engine.abort([requests[0].id, "never heard of"])
        self.generate(engine, requests[1:])
        assert engine.poll(0.0) == []
        self.generate(engine, requests[:1])

    def test_new_weights_and_sleep(
        self, engine: RolloutEngine, folders: tuple[Path, Path], prompts: list[Tokens]
    ) -> None:
        """Completions come from the weights received last, and carry their version; also after sleep."""
        for folder, version in ((folders[1], 5), (folders[0], 6)):
            engine.sleep()
            engine.wake()
            engine.receive_weights(FolderReceiver(folder, self.way), version)
            completions = self._check_logprobs(engine, load_eager(folder), prompts)
            assert {c.weight_version for c in completions} == {version}

    def _check_logprobs(self, engine: RolloutEngine, model: Any, prompts: list[Tokens]) -> list[Completion]:
        asked = [replace(request, want_logprobs=True) for request in _requests(prompts * 2, _SAMPLED)]
        completions = self.generate(engine, asked)
        for request, completion in zip(asked, completions, strict=True):
            every = next_logprobs(model, np.concatenate([request.tokens, completion.tokens]), _SAMPLED.temperature)
            expected = every[np.arange(len(request.tokens) - 1, len(every) - 1), completion.tokens]
            assert completion.logprobs is not None
            assert completion.logprobs.dtype == np.float32
            np.testing.assert_allclose(completion.logprobs, expected, atol=_LOGPROB_ATOL)
        return completions


def _requests(prompts: Sequence[Tokens], sampling: Sampling) -> list[Request]:
    return [Request(f"r{i}", f"g{i}", tokens, sampling, seed=1000 + i) for i, tokens in enumerate(prompts)]
