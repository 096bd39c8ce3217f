"""One of two ranks: trains on its share, saves, and reports what it saw. Run by test_ranks.py in its own process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from rlcore import Batch, LossSpec, TrainContext
from rlcore.manifest.schema import ModelSection, TrainerSection
from rlcore.plugins.config import PluginRef
from rlcore_fsdp.backend import FsdpBackend
from rlcore_fsdp.plugin import Config


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    given = torch.load(folder / "given.pt", weights_only=False)
    context = TrainContext(
        role="policy",
        model=ModelSection(path=given["model"], dtype=given["dtype"]),
        train=TrainerSection(use="fsdp", **given["train"]),
        temperature=1.0,
        total_updates=20,
        seed=0,
        device="cpu",
        rank=rank,
        world_size=2,
    )
    backend = FsdpBackend(Config(), context)
    share: Batch = given["batch"].select(np.array(given["shares"][rank], np.int64))
    spec = LossSpec(PluginRef("loss", "clip"), **given["loss"])
    logprobs = backend.forward(share, ["logprobs"])["logprobs"]
    metrics = dict(backend.forward_backward(share, spec))
    gradients = {n: p.grad.full_tensor() for n, p in backend.parameters.items()}  # type: ignore[union-attr]
    shards = {n: tuple(p.to_local().shape) for n, p in backend.parameters.items()}  # type: ignore[attr-defined]
    step = dict(backend.optimizer_step())
    weights = {name: tensor.clone() for name, tensor in backend.weights()}
    with backend.generation_model() as model, torch.no_grad():
        logits = model(torch.arange(9)[None]).logits
    backend.save(folder / "saved")
    backend.forward_backward(share, spec)
    after = dict(backend.optimizer_step())
    backend.load(folder / "saved")
    backend.forward_backward(share, spec)
    again = dict(backend.optimizer_step())
    failure = ""
    try:
        backend.export(folder / "given.pt")  # a file is in the way, which only rank 0 can see
    except OSError as error:
        failure = f"{type(error).__name__}: {error}"
    torch.save(
        {
            "logprobs": logprobs,
            "metrics": metrics,
            "gradients": gradients,
            "shards": shards,
            "step": step,
            "weights": weights,
            "logits": logits,
            "after": after,
            "again": again,
            "failure": failure,
        },
        folder / f"seen-{rank}.pt",
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
