"""One of two ranks: the gradient and metrics of its share in every case given. Run by test_invariance.py."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from rlcore import TrainContext
from rlcore_fsdp.backend import FsdpBackend
from rlcore_fsdp.plugin import Config


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    given = torch.load(folder / "given.pt", weights_only=False)
    context = TrainContext(**given["context"], rank=rank, world_size=2)
    backend = FsdpBackend(Config(), context)
    assert backend.optimizer is not None
    seen = []
    for batch, shares, spec in given["cases"]:
        metrics = dict(backend.forward_backward(batch.select(shares[rank]), spec))
        # A rank that no row of the update is on has no gradient of its own, and still takes part.
        gradients = {n: p.grad.full_tensor().clone() for n, p in backend.parameters.items()}  # type: ignore[union-attr]
        backend.optimizer.zero_grad()
        seen.append((metrics, gradients))
    torch.save(seen, folder / f"seen-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
