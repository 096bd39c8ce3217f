"""Tokens per second of rollout ``hf`` and of transformers' ``generate`` on the same batch: medians of five runs each.

    python benchmarks/rollout_hf.py [--model FOLDER] [--prompts 64] [--samples 8] [--tokens 12] [--device cpu]

Without ``--model``, a random Qwen3 of 0.43M parameters. EOS is ignored, so that both generate the same number of
tokens, and no log-probs are returned; ``generate`` gets each prompt once a sample, padded on the left.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from rlcore.data.sample import Request, Sampling
from rlcore.manifest.schema import ModelSection
from rlcore.plugins.interfaces import RolloutContext
from rlcore.testing.tiny import write_tiny_model
from rlcore.torch.tokenizer import load_tokenizer
from rlcore_hf.engine import HfEngine
from rlcore_hf.plugin import Config
from transformers import AutoModelForCausalLM

RUNS = 5


class Lender:
    """Lends the benchmark's own model."""

    way: Literal["in_place", "stream"] = "in_place"

    def __init__(self, model: Any) -> None:
        self.model = model

    @contextmanager
    def module(self) -> Iterator[Any]:
        yield self.model

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        raise AssertionError("this benchmark lends its model")


def seconds(work: Callable[[], Any], device: str) -> float:
    work()  # warm up
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(perf_counter() - start)
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model or write_tiny_model(Path(scratch), hidden_size=96, layers=4, intermediate_size=256)
        dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(args.device).eval()
        section = ModelSection(path=str(folder), dtype="bfloat16" if args.device == "cuda" else "float32")
        tokenizer = load_tokenizer(section)

    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 250, size=n).astype(np.int32) for n in rng.integers(15, 25, size=args.prompts)]
    rows = args.prompts * args.samples
    context = RolloutContext(section, tokenizer, 25 + args.tokens, args.device, seed=0)
    engine = HfEngine(Config(max_rows=rows), context)
    engine.receive_weights(Lender(model), 0)
    ask = Sampling(max_tokens=args.tokens, ignore_eos=True)

    def with_engine() -> None:
        engine.submit([Request(str(i), "", prompts[i // args.samples], ask, seed=i) for i in range(rows)])
        missing = rows
        while missing:
            missing -= len(engine.poll(60.0))

    width = max(len(p) for p in prompts)
    ids, mask = torch.zeros(rows, width, dtype=torch.int64), torch.zeros(rows, width, dtype=torch.int64)
    for i in range(rows):
        prompt = torch.from_numpy(prompts[i // args.samples])
        ids[i, width - len(prompt) :], mask[i, width - len(prompt) :] = prompt, 1
    ids, mask = ids.to(args.device), mask.to(args.device)

    def with_generate() -> None:
        limits = {"max_new_tokens": args.tokens, "min_new_tokens": args.tokens}
        model.generate(ids, attention_mask=mask, do_sample=True, top_k=0, pad_token_id=0, **limits)

    made = rows * args.tokens
    ours, theirs = seconds(with_engine, args.device), seconds(with_generate, args.device)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    print(
        f"{size:.2f}M parameters, {args.prompts} prompts × {args.samples} samples × {args.tokens} tokens, {args.device}"
    )
    print(f"rollout hf        {made / ours:10,.0f} tokens/s")
    print(f"model.generate    {made / theirs:10,.0f} tokens/s")
    print(f"ratio             {theirs / ours:10.2f}")


if __name__ == "__main__":
    main()
