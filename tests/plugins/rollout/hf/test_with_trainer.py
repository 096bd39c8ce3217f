"""The engine's log-probs are the trainer's, on the same weights: the base of every importance ratio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rlcore.data.batch import Batch
from rlcore.data.sample import Request, Sampling
from rlcore.manifest.schema import ModelSection, TrainerSection
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import RolloutContext, TrainContext
from rlcore.plugins.loading import build
from rlcore.torch.weights import open_channel

if TYPE_CHECKING:
    from collections.abc import Sequence

GSM8K = Path(__file__).parents[5] / "shared" / "data" / "gsm8k" / "test.jsonl"


def both(section: ModelSection, tokenizer: Any, temperature: float, way: Any) -> tuple[Any, Any]:
    """A trainer and an engine that has its weights as version 2."""
    context = TrainContext("policy", section, TrainerSection(use="fsdp"), temperature, 1, seed=0, device="cpu")
    trainer = build(PluginRef("trainer", "fsdp", {}), context)
    engine = build(PluginRef("rollout", "hf", {}), RolloutContext(section, tokenizer, 1024, "cpu", seed=0))
    engine.receive_weights(open_channel(trainer, way), 2)
    return trainer, engine


def largest_difference(trainer: Any, requests: Sequence[Request], done: dict[str, Any]) -> float:
    """Between the engine's log-probs and the trainer's, over all generated tokens."""
    batch = Batch.from_sequences([np.concatenate([r.tokens, done[r.id].tokens]) for r in requests])
    mask = np.concatenate(
        [np.repeat(np.array([0, 1], np.float32), [len(r.tokens), len(done[r.id].tokens)]) for r in requests]
    )
    scored = trainer.forward(batch.with_tokens(loss_mask=mask), {"logprobs"})
    theirs = scored["logprobs"][mask == 1]
    ours = np.concatenate([done[r.id].logprobs for r in requests])
    assert len(ours) == len(theirs) > 0
    return float(np.abs(ours - theirs).max())


@pytest.mark.parametrize("way", ["in_place", "stream"])
def test_tiny_model(way: str, bench: Any, load: Any, prompts: Any, request_of: Any, run: Any) -> None:
    trainer, engine = both(bench.section, load(bench.section), 0.8, way)
    requests = [
        request_of(f"{i}/{s}", p, seed=s, temperature=0.8, top_p=0.9, max_tokens=40)
        for i, p in enumerate(prompts)
        for s in range(3)
    ]
    done = run(engine, requests)
    engine.sleep()
    assert largest_difference(trainer, requests, done) < 1e-5


def test_smollm2_on_gsm8k(smollm2: Path, load: Any, run: Any) -> None:
    """A real model on real text, float32: under 1e-4."""
    if not GSM8K.is_file():
        pytest.skip(f"no GSM8K at {GSM8K}")
    section = ModelSection(path=str(smollm2), dtype="float32")
    tokenizer = load(section)
    trainer, engine = both(section, tokenizer, 1.0, "in_place")
    with GSM8K.open(encoding="utf-8") as file:
        questions = [json.loads(next(file))["question"] for _ in range(3)]
    ask = Sampling(max_tokens=32)
    requests = [
        Request(f"{i}/{s}", str(i), tokenizer.encode_chat([{"role": "user", "content": q}], {}), ask, 10 * i + s, True)
        for i, q in enumerate(questions)
        for s in range(2)
    ]
    done = run(engine, requests)
    engine.sleep()
    assert all(tokenizer.decode(c.tokens).strip() for c in done.values())
    assert largest_difference(trainer, requests, done) < 1e-4
