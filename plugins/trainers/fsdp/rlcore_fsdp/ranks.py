"""The ranks of a run and what they tell each other."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from rlcore.errors import PluginError
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

if TYPE_CHECKING:
    from rlcore import TrainContext

T = TypeVar("T")


class Ranks:
    """This rank among the others.

    Joins the process group of the process if there is one. Otherwise a single rank makes one of its own, and many ranks
    meet by the environment variables of ``torchrun`` (MASTER_ADDR, MASTER_PORT).
    """

    def __init__(self, context: TrainContext) -> None:
        self.rank, self.size = context.rank, context.world_size
        if context.device == "cuda":
            torch.cuda.set_device(self.rank % torch.cuda.device_count())
        if not dist.is_initialized():
            # Objects and counts travel on the CPU, tensors where they are.
            backend = "cpu:gloo,cuda:nccl" if context.device == "cuda" else "gloo"
            store = HashStore() if self.size == 1 else None
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size)
            atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
        if (dist.get_rank(), dist.get_world_size()) != (self.rank, self.size):
            raise PluginError(
                f"fsdp was told it is rank {self.rank} of {self.size}, but the process group says "
                f"rank {dist.get_rank()} of {dist.get_world_size()}"
            )
        self.mesh: DeviceMesh = init_device_mesh(context.device, (self.size,))
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if context.device == "cuda" else torch.device("cpu")
        )

    def gather(self, value: T) -> list[T]:
        """The picklable values of all ranks, in order; collective."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]
