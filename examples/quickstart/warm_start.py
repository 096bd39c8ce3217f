"""Make a tiny Qwen3 and teach it by example until it is right about a third of the time.

The supervised steps go through the same train backend, loss weights and rollout engine that the manifest names for
reinforcement learning.
"""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rlcore.data.batch import Batch
from rlcore.data.loss_weights import loss_weights
from rlcore.data.prompts import load_prompt_set
from rlcore.data.sample import Prompt
from rlcore.data.tokenizer import Tokenizer
from rlcore.engine.evaluate import Evaluation
from rlcore.engine.prepare import StepPlan
from rlcore.engine.scoring import Scorer
from rlcore.engine.source import LiveSource
from rlcore.manifest.load import load_manifest
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import LossSpec
from rlcore.runtime.local import start_workers
from rlcore.testing.tiny import END, write_tiny_model
from rlcore.torch.tokenizer import load_tokenizer

ROWS_PER_UPDATE = 128
MOST_UPDATES = 2000
LOOK_EVERY = 20
GOOD_ENOUGH = 0.30
SETTINGS = ("trainer.lr=2e-3", "trainer.schedule=constant", "trainer.warmup_updates=50", "trainer.betas=[0.9, 0.95]")


def warm_start(manifest_file: Path, out: Path, seed: int) -> None:
    """Make the model that the manifest will train, in the folder ``out``."""
    with TemporaryDirectory() as untrained:
        write_tiny_model(Path(untrained), hidden_size=128, layers=3, heads=4, intermediate_size=256, seed=seed)
        teach(manifest_file, Path(untrained), out, seed)


def teach(manifest_file: Path, untrained: Path, out: Path, seed: int) -> None:
    """Train the model in ``untrained`` by examples and write it to ``out``."""
    settings = [f"model.path={untrained}", *SETTINGS]
    manifest = load_manifest(manifest_file, settings).manifest
    tokenizer = load_tokenizer(manifest.model)
    train = load_prompt_set(manifest, "train", tokenizer).prompts
    val = load_prompt_set(manifest, "val", tokenizer).prompts
    workers = start_workers(manifest, StepPlan.of(manifest), tokenizer, "cpu", MOST_UPDATES)
    evaluation = Evaluation(manifest, val, LiveSource(workers.engines, Scorer(manifest.rewards), tokenizer, seed))
    examples = [example(prompt, tokenizer) for prompt in train]
    loss = LossSpec(PluginRef("loss", "sft"))
    draw = random.Random(seed)
    for update in range(1, MOST_UPDATES + 1):
        batch = Batch.concat(draw.sample(examples, ROWS_PER_UPDATE))
        weights = loss_weights(batch, "token-mean", max_response_tokens=manifest.data.max_response_tokens)
        metrics = workers.policy.forward_backward(batch.with_tokens(loss_weights=weights), loss)
        workers.policy.optimizer_step()
        if update % LOOK_EVERY:
            continue
        workers.sync(update)
        workers.engines.wake()
        accuracy = evaluation.run(lambda done, total: None)["eval/accuracy"]
        workers.engines.sleep()
        print(f"  update {update:4}  loss {metrics['policy/loss']:.3f}  held-out accuracy {accuracy:.1%}", flush=True)
        if accuracy >= GOOD_ENOUGH:
            break
    workers.policy.export(out)
    workers.close()


def example(prompt: Prompt, tokenizer: Tokenizer) -> Batch:
    """A prompt with its right answer, of which only the answer trains."""
    right = tokenizer.encode_text(f"#### {prompt.ground_truth}{END}")
    mask = np.concatenate([np.zeros(len(prompt.tokens)), np.ones(len(right))]).astype(np.float32)
    return Batch.from_sequences([np.concatenate([prompt.tokens, right])]).with_tokens(
        loss_mask=mask, advantages=np.zeros_like(mask)
    )
