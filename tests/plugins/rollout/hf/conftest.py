"""A tiny model with an engine around it, and a real one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rlcore.data.sample import Completion, Request, Sampling
from rlcore.errors import ModelError
from rlcore.manifest.schema import ModelSection
from rlcore.plugins.interfaces import RolloutContext
from rlcore.testing.smollm2 import smollm2_folder
from rlcore.testing.tiny import write_tiny_model
from rlcore.torch.tokenizer import load_tokenizer
from rlcore_hf.engine import HfEngine
from rlcore_hf.plugin import Config
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

torch.set_num_threads(1)


@dataclass
class Lender:
    """Lends a module in place and counts how often."""

    model: Any
    way: str = "in_place"
    entered: int = 0
    left: int = 0

    @contextmanager
    def module(self) -> Iterator[Any]:
        self.entered += 1
        yield self.model
        self.left += 1


@dataclass
class Letters:
    """A tokenizer that decodes id ``i`` to a letter of the alphabet, and has the EOS ids it is told."""

    eos_ids: frozenset[int] = frozenset()
    has_chat_template: bool = False

    def decode(self, tokens: Any) -> str:
        return "".join(chr(ord("a") + int(t) % 26) for t in tokens)


@dataclass
class Bench:
    """A model, and engines over it."""

    folder: Path
    model: Any
    section: ModelSection

    def context(self, *, tokenizer: Any = None, max_tokens: int = 256, device: str = "cpu") -> RolloutContext:
        tokens: Any = tokenizer or Letters()
        return RolloutContext(self.section, tokens, max_tokens, device, seed=0)

    def engine(self, *, eos: Sequence[int] = (), max_tokens: int = 256, **config: int) -> HfEngine:
        """An engine that holds the model's weights as version 7."""
        tokenizer = Letters(frozenset(eos))
        engine = HfEngine(Config(**config), self.context(tokenizer=tokenizer, max_tokens=max_tokens))
        engine.receive_weights(Lender(self.model), 7)  # type: ignore[arg-type]
        return engine

    def logprobs(self, request: Request, completion: Completion) -> np.ndarray[Any, Any]:
        """log p of each generated token at the request's temperature, by one plain forward pass; float64[n, V]."""
        ids = torch.from_numpy(np.concatenate([request.tokens, completion.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            logits = self.model(ids).logits[0, len(request.tokens) - 1 : -1].double()
        logprobs: np.ndarray[Any, Any] = (logits / (request.sampling.temperature or 1.0)).log_softmax(-1).numpy()
        return logprobs


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The tiny Qwen3, with weights large enough for context to matter."""
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"), initializer_range=0.2)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    return Bench(folder, model.eval(), ModelSection(path=str(folder), dtype="float32"))


def make_request(name: str, tokens: Sequence[int], *, group: str = "", seed: int = 0, **sampling: Any) -> Request:
    """A request for log-probs too; 12 tokens unless said otherwise."""
    ask = Sampling(**{"max_tokens": 12, **sampling})
    return Request(name, group or name, np.array(tokens, np.int32), ask, seed, want_logprobs=True)


def run_all(engine: HfEngine, requests: Sequence[Request], timeout: float = 60.0) -> dict[str, Completion]:
    """Submit all and poll until all have come back."""
    engine.submit(requests)
    done: dict[str, Completion] = {}
    while len(done) < len(requests):
        done.update({c.request_id: c for c in engine.poll(timeout)})
    return done


@pytest.fixture(scope="session")
def request_of() -> Any:
    return make_request


@pytest.fixture(scope="session")
def run() -> Any:
    return run_all


@pytest.fixture(scope="session")
def lender() -> Any:
    return Lender


@pytest.fixture(scope="session")
def letters() -> Any:
    return Letters


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Prompts of 1 to 23 tokens, none like another."""
    rng = np.random.default_rng(3)
    return [rng.integers(0, 255, size=n).tolist() for n in (5, 1, 23, 9, 9, 2, 14)]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct; made on first use."""
    try:
        return smollm2_folder()
    except ModelError as error:
        pytest.skip(f"no SmolLM2 here: {error}")


@pytest.fixture(scope="session")
def load() -> Any:
    return load_tokenizer
