"""How exact and how fast the packed model is.

    python benchmarks/gpu/packed_forward.py                       # a GPU, the shape of Qwen3-0.6B, random weights
    python benchmarks/gpu/packed_forward.py --device cpu --tiny   # a minute or less anywhere

Prints (a) the difference between packed log-probs in bfloat16 and those of the padded model in float32, beside what the
padded model itself loses in bfloat16; (b) tokens per second of an update with and without gradient checkpointing, with
peak memory; (c) what lending the module, offloading and coming back cost.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import rlcore.losses.clip
import torch
import transformers
from rlcore import Batch, LossSpec, TrainContext
from rlcore.manifest.schema import ModelSection, TrainerSection
from rlcore.plugins.config import PluginRef
from rlcore_fsdp.backend import FsdpBackend
from rlcore_fsdp.plugin import Config
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1_000,
    "max_position_embeddings": 4_096,
}


def backend(folder: Path, device: str, dtype: Any, budget: int, **train: Any) -> FsdpBackend:
    context = TrainContext(
        role="policy",
        model=ModelSection(path=str(folder), dtype=dtype),
        train=TrainerSection(use="fsdp", lr=1e-6, tokens_per_micro_batch=budget, **train),
        temperature=1.0,
        total_updates=100,
        seed=0,
        device=device,
    )
    return FsdpBackend(Config(), context)


def make_batch(vocabulary: int, tokens: int, longest: int, seed: int = 0) -> Batch:
    """Sequences of a quarter to all of ``longest`` tokens, about ``tokens`` together; all but first tokens train."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens - longest:
        lengths.append(int(rng.integers(longest // 4, longest + 1)))
    batch = Batch.from_sequences([rng.integers(0, vocabulary, n, np.int32) for n in lengths])
    mask = np.ones(len(batch.tokens), np.float32)
    mask[batch.offsets[:-1]] = 0
    advantages = rng.normal(size=len(mask)).astype(np.float32)
    return batch.with_tokens(loss_mask=mask, loss_weights=mask / mask.sum(), advantages=advantages)


@torch.no_grad()
def padded_logprobs(folder: Path, batch: Batch, device: str, dtype: torch.dtype) -> np.ndarray:
    """transformers' own forward pass over sequences padded on the right, four at a time; softmax in float32."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    model.to(device).eval()
    out = np.zeros(len(batch.tokens), np.float32)
    for start in range(0, len(batch), 4):
        part = batch.select(np.arange(start, min(start + 4, len(batch))))
        ids = torch.zeros(len(part), int(part.lengths.max()), dtype=torch.int64, device=device)
        real = torch.zeros_like(ids)
        for row, (first, last) in enumerate(zip(part.offsets, part.offsets[1:], strict=False)):
            ids[row, : last - first] = torch.tensor(part.tokens[first:last], device=device)
            real[row, : last - first] = 1
        logits = model(ids, attention_mask=real).logits
        for row, length in enumerate(part.lengths):
            logp = logits[row, : length - 1].float().log_softmax(-1)
            place = batch.offsets[start + row] + 1
            out[place : place + length - 1] = logp.gather(-1, ids[row, 1:length, None])[:, 0].cpu().numpy()
    return out


def compare(folder: Path, vocabulary: int, device: str, longest: int) -> None:
    batch = make_batch(vocabulary, 8 * longest, longest)
    reference = padded_logprobs(folder, batch, device, torch.float32)
    live = batch["loss_mask"] > 0
    print(f"(a) {len(batch)} sequences, {len(batch.tokens)} tokens; padded float32: mean {reference[live].mean():.4f}")
    got = {"padded bfloat16": padded_logprobs(folder, batch, device, torch.bfloat16)}
    for dtype in ("float32", "bfloat16"):
        packed = backend(folder, device, dtype, len(batch.tokens)).forward(batch, ["logprobs"])
        got[f"packed {dtype}"] = packed["logprobs"]
    for name, logprobs in got.items():
        difference = np.abs(logprobs - reference)[live]
        print(f"    {name:16} max {difference.max():.2e}  mean {difference.mean():.2e}")


def seconds(action: Any, device: str, repeats: int = 1) -> float:
    synchronize: Any = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    synchronize()
    return (time.perf_counter() - start) / repeats


def time_updates(folder: Path, vocabulary: int, device: str, tokens: int, longest: int) -> None:
    spec = LossSpec(PluginRef("loss", str(Path(rlcore.losses.clip.__file__).resolve())))
    batch = make_batch(vocabulary, tokens, longest)
    for checkpointing in (False, True):
        # Two micro-batches an update, so that accumulation is part of what is timed.
        trainer = backend(folder, device, "bfloat16", tokens // 2, gradient_checkpointing=checkpointing)

        def update(trainer: FsdpBackend = trainer) -> None:
            trainer.forward_backward(batch, spec)
            trainer.optimizer_step()

        update()
        update()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        took = seconds(update, device, 5)
        forward = seconds(lambda t=trainer: t.forward(batch, ["logprobs"]), device, 3)
        parameters = sum(p.numel() for p in trainer.parameters.values())
        peak = f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device == "cuda" else ""
        count = len(batch.tokens)
        print(f"(b) update of {count} tokens, {parameters / 1e6:.0f}M parameters, checkpointing {checkpointing}{peak}:")
        flops = 6 * parameters * count / took / 1e12
        print(f"    {took * 1e3:.0f} ms, {count / took:.0f} tokens/s, {flops:.1f} TFLOP/s")
        print(f"    log-probs alone {count / forward:.0f} tokens/s")


def time_moves(folder: Path, vocabulary: int, device: str, longest: int) -> None:
    spec = LossSpec(PluginRef("loss", str(Path(rlcore.losses.clip.__file__).resolve())))
    batch = make_batch(vocabulary, 4 * longest, longest)
    trainer = backend(folder, device, "bfloat16", 8 * longest, offload={"params": True, "optimizer": True})
    trainer.forward_backward(batch, spec)
    trainer.optimizer_step()

    def lend() -> None:
        with trainer.generation_model():
            pass

    lend()
    print(f"(c) lend the module and take it back: {seconds(lend, device, 3) * 1e3:.1f} ms")
    before = trainer.forward(batch, ["logprobs"])["logprobs"]
    out = seconds(trainer.offload, device)
    held = torch.cuda.memory_allocated() / 2**30 if device == "cuda" else 0.0
    back = seconds(trainer.onload, device)
    same = np.array_equal(before, trainer.forward(batch, ["logprobs"])["logprobs"])
    trainer.forward_backward(batch, spec)
    norm = trainer.optimizer_step()["grad_norm"]
    print(f"    offload {out:.2f} s (then {held:.2f} GiB on the device), onload {back:.2f} s, same log-probs: {same}")
    print(f"    gradient norm of the update after it: {norm:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="a model of 0.1M parameters and short sequences")
    parser.add_argument("--tokens", type=int, help="tokens of one update")
    given = parser.parse_args()
    shape, longest, tokens = (TINY, 64, 2_048) if given.tiny else (SHAPE, 1_024, 32_768)
    tokens = given.tokens or tokens
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {given.device}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        torch.manual_seed(0)
        model: Any = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))  # type: ignore[no-untyped-call]
        model.save_pretrained(folder)
        compare(folder, shape["vocab_size"], given.device, longest)
        gc.collect()  # sharded modules hold themselves in cycles, and what is left on the device is printed
        time_moves(folder, shape["vocab_size"], given.device, longest)
        time_updates(folder, shape["vocab_size"], given.device, tokens, longest)


if __name__ == "__main__":
    main()
