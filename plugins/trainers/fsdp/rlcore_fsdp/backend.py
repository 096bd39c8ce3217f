"""The train backend: packed micro-batches through an FSDP2 model, gradients summed, one optimizer step an update."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from rlcore import Batch, LossSpec, TrainBackend, TrainContext, WeightSpec
from rlcore.data.sharding import micro_batches
from rlcore.errors import PluginError
from rlcore.plugins.interfaces import ValueLossSpec
from rlcore.torch.folder import model_folder
from rlcore.torch.model import (
    DTYPES,
    VALUE_HEAD,
    PackedCritic,
    PackedModel,
    critic_config,
    decoder_layers,
    drop_parameters,
    load_critic,
    load_model,
    plain_twin,
    share_parameters,
)
from rlcore.torch.objective import Objective
from rlcore.torch.optimizer import build_optimizer, learning_rate
from rlcore.torch.packing import MicroBatch, live_tokens, pack
from rlcore.torch.value_objective import ValueObjective
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rlcore_fsdp import state
from rlcore_fsdp.ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from rlcore_fsdp.plugin import Config

Rows = np.ndarray[Any, np.dtype[np.int64]]


class FsdpBackend(TrainBackend):
    """One model role on one rank. Master weights are float32, sharded by decoder layer; a reference holds no more than
    its weights in compute dtype. A critic has a value head, which computes in float32, in place of the output head.
    """

    def __init__(self, config: Config, context: TrainContext) -> None:
        self.context = context
        self.ranks = Ranks(context)
        self.critic = context.role == "critic"
        self.trains = context.role in ("policy", "critic")
        self.compute_dtype = DTYPES[context.model.dtype]
        load = load_critic if self.critic else load_model
        model = load(context.model, dtype=torch.float32 if self.trains else self.compute_dtype)
        model.requires_grad_(self.trains)
        if self.trains and context.train.gradient_checkpointing:
            cast("Any", model).gradient_checkpointing_enable({"use_reentrant": False})
            model.train()  # layers recompute in training mode only; dropout is off either way
        self.root = self._shard(model, config)
        self.tensors: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
        """Every weight by its Hugging Face name, tied ones under both; sharded."""
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.optimizer = build_optimizer(self.parameters.values(), context.train) if self.trains else None
        self.updates = 0
        self._twin: nn.Module | None = None
        self._lent = False
        self._objective: tuple[LossSpec | ValueLossSpec, Objective | ValueObjective] | None = None

    def _shard(self, model: nn.Module, config: Config) -> PackedModel | PackedCritic:
        chunk, temperature = self.context.train.logprob_chunk_tokens, self.context.temperature
        root = PackedCritic(model) if self.critic else PackedModel(model, temperature=temperature, chunk_tokens=chunk)
        mixed = self.trains and self.compute_dtype != torch.float32
        policy = MixedPrecisionPolicy(param_dtype=self.compute_dtype, reduce_dtype=torch.float32)
        shared: dict[str, Any] = {"mesh": self.ranks.mesh, "mp_policy": policy if mixed else MixedPrecisionPolicy()}
        for layer in decoder_layers(model):
            fully_shard(layer, reshard_after_forward=config.reshard_after_forward, **shared)
        if self.critic:
            fully_shard(getattr(model, VALUE_HEAD), mesh=self.ranks.mesh, reshard_after_forward=False)  # in float32
        # The backward pass starts at the root, so its parameters stay gathered.
        fully_shard(root, reshard_after_forward=False, **shared)
        return root.to(self.ranks.device)  # buffers

    # --- run and train ---------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, want: Collection[str]) -> Batch:
        """Add ``logprobs`` and ``entropy``, or a critic's ``values``, float32[T].

        They are 0 where ``loss_mask`` is 0 and at first tokens.
        """
        known = ("values",) if self.critic else ("logprobs", "entropy")
        unknown = sorted(set(want) - set(known))
        if unknown:
            raise PluginError(f"fsdp as {self.context.role} computes {' and '.join(known)}, not {', '.join(unknown)}")
        self._need_home()
        columns = {name: np.zeros(len(batch.tokens), np.float32) for name in want}
        with torch.no_grad():
            for rows in self._split(batch):
                micro = self._pack(batch, rows, ())
                for name, values in zip(known, self._run(micro, entropy="entropy" in want), strict=False):
                    if len(rows) and name in columns and values is not None:
                        columns[name][micro.live] = values.cpu().numpy()
        self._reshard()
        return batch.with_tokens(**columns)

    def forward_backward(self, batch: Batch, loss: LossSpec | ValueLossSpec) -> Mapping[str, float]:
        """Add the gradient of the loss, summed over micro-batches and ranks. Rows without live tokens are skipped;
        where there are no others there is no gradient and no metric.
        """
        self._need_home()
        self._need_optimizer()
        objective = self._objective_of(loss)
        entropy = isinstance(objective, Objective) and objective.wants_entropy
        parts = self._split(batch)
        totals: dict[str, Tensor] = {}
        for number, rows in enumerate(parts):
            micro = self._pack(batch, rows, objective.columns & batch.token_columns.keys())
            # Only the last backward pass exchanges gradients; FSDP adds the others up in float32.
            cast("FSDPModule", self.root).set_requires_gradient_sync(number == len(parts) - 1)
            outputs = self._run(micro, entropy=entropy)
            if len(rows):
                value, sums = _loss(objective, outputs, micro)
                for name, addend in sums.items():
                    totals[name] = totals[name] + addend if name in totals else addend
            else:
                value = outputs[0].sum() * 0
            # FSDP averages over ranks; the loss weights are made for a sum.
            torch.autograd.backward(value * self.ranks.size)
        self._reshard()
        summed = self._sum_over_ranks(totals)
        return objective.metrics(summed) if summed else {}

    def optimizer_step(self) -> Mapping[str, float]:
        """Clip by the norm over all ranks, step and clear gradients.

        A gradient that is not finite is thrown away: weights and moments stay as they are, ``skipped_updates`` is 1 and
        ``grad_norm`` shows what it was. The schedule goes on either way.
        """
        self._need_home()
        optimizer = self._need_optimizer()
        train = self.context.train
        lr = learning_rate(self.updates, train, self.context.total_updates)
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = get_total_norm(grads) if grads else torch.zeros(())
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        finite = bool(norm.isfinite())
        if finite and grads:
            if train.max_grad_norm is not None:
                clip_grads_with_norm_(self.parameters.values(), train.max_grad_norm, norm)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return {"grad_norm": norm.item(), "lr": lr, "skipped_updates": float(not finite)}

    def _objective_of(self, loss: LossSpec | ValueLossSpec) -> Objective | ValueObjective:
        if isinstance(loss, ValueLossSpec) != self.critic:
            raise PluginError(f"fsdp holds this model as {self.context.role}: it has no {type(loss).__name__}")
        if self._objective is None or self._objective[0] != loss:
            self._objective = (loss, ValueObjective(loss) if isinstance(loss, ValueLossSpec) else Objective(loss))
        return self._objective[1]

    def _need_home(self) -> None:
        """Refuse to run while an engine holds the parameters: running frees them under its hands."""
        if self._lent:
            raise PluginError("the model is lent to a rollout engine; put the engine to sleep before the trainer runs")

    def _need_optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            raise PluginError(f"fsdp holds this model as {self.context.role}: it is not trained")
        return self.optimizer

    def _split(self, batch: Batch) -> list[Rows]:
        """Row indices of each micro-batch. All ranks get the same number, for every pass is collective: a rank that
        runs out gets empty ones.
        """
        rows = np.flatnonzero(batch.sum_rows(live_tokens(batch)) > 0)
        budget = self.context.train.tokens_per_micro_batch
        units = batch["unit"][rows] if "unit" in batch else None
        parts = [rows[part] for part in micro_batches(batch.lengths[rows], budget, units)]
        return parts + [np.zeros(0, np.int64)] * (max(self.ranks.gather(len(parts))) - len(parts))

    def _pack(self, batch: Batch, rows: Rows, columns: Collection[str]) -> MicroBatch:
        if len(rows):
            return pack(batch, rows, columns, self.ranks.device)
        return pack(Batch.from_sequences([[0, 0]]), np.zeros(1, np.int64), (), self.ranks.device)

    def _run(self, micro: MicroBatch, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Log-probs and perhaps entropy, or values and None."""
        if self.critic:
            return self.root(micro.tokens, micro.packing, micro.predict), None
        out = self.root(micro.tokens, micro.packing, micro.predict, micro.targets, entropy=entropy)
        return cast("tuple[Tensor, Tensor | None]", out)

    def _sum_over_ranks(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        names = list(totals)
        values = torch.stack([totals[n].double() for n in names]).tolist() if names else []
        sums: dict[str, float] = {}
        for theirs in self.ranks.gather(dict(zip(names, values, strict=True))):
            for name, value in theirs.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    # --- weights ---------------------------------------------------------------------------------------------------

    def _fsdp_modules(self) -> list[FSDPModule]:
        return [m for m in self.root.modules() if isinstance(m, FSDPModule)]

    def _reshard(self) -> None:
        """Drop gathered parameters: the next pass must gather what an optimizer step may have changed."""
        for module in self._fsdp_modules():
            module.reshard()

    def weight_specs(self) -> Sequence[WeightSpec]:
        """Every weight with its full shape, in compute dtype; a critic's value head among them, and no output head."""
        dtype = self.context.model.dtype
        return [WeightSpec(name, tuple(tensor.shape), dtype) for name, tensor in self.tensors.items()]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors in compute dtype, gathered one at a time; collective."""
        return state.full_tensors(self.tensors, self.compute_dtype)

    @contextmanager
    def generation_model(self) -> Iterator[nn.Module]:
        """A plain module that shares the gathered parameters in compute dtype. It is valid inside the context only, and
        nothing else runs meanwhile.
        """
        if self.critic:
            raise PluginError("fsdp holds this model as critic: it has no output head, so nothing generates with it")
        self._need_home()
        if self._twin is None:
            self._twin = plain_twin(self.root.model)
        for module in self._fsdp_modules():
            module.unshard()
        self._lent = True
        try:
            share_parameters(self.root.model, self._twin)
            yield self._twin
        finally:
            self._lent = False
            drop_parameters(self._twin)
            self._reshard()

    # --- folders ---------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write ``folder/model`` in master precision and ``folder/optimizer`` with moments and schedule."""
        self._write(folder / "model", torch.float32 if self.trains else self.compute_dtype)
        if self.optimizer is not None:
            state.save_optimizer(folder / "optimizer", self.optimizer, self.parameters, self.updates, self.ranks)

    def load(self, folder: Path) -> None:
        """Restore weights, moments and schedule, bit for bit."""
        self._need_home()
        state.load_model(folder / "model", self.tensors)
        if self.optimizer is not None:
            self.updates = state.load_optimizer(folder / "optimizer", self.optimizer, self.parameters)

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder in compute dtype; of a critic, one for transformers' token classification."""
        self._write(folder, self.compute_dtype)

    def _write(self, folder: Path, dtype: torch.dtype) -> None:
        source, config = model_folder(self.context.model), critic_config(self.root.model) if self.critic else None
        state.save_model(folder, self.tensors, source=source, dtype=dtype, ranks=self.ranks, config=config)

    def offload(self) -> None:
        """Move what ``offload`` names to host memory; nothing on a CPU."""
        self._move("cpu")

    def onload(self) -> None:
        """Bring back what ``offload`` moved."""
        self._move(self.ranks.device)

    def _move(self, device: torch.device | str) -> None:
        if self.ranks.device.type == "cpu":
            return
        self._need_home()
        section = self.context.train.offload
        if section.params:
            self.root.to(device)
        if section.optimizer and self.optimizer is not None:
            for values in self.optimizer.state.values():
                for key, value in values.items():
                    values[key] = value.to(device)
        torch.cuda.empty_cache()


def _loss(
    objective: Objective | ValueObjective, outputs: tuple[Tensor, Tensor | None], micro: MicroBatch
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a micro-batch, with gradient, and the sums behind its metrics."""
    if isinstance(objective, ValueObjective):
        return objective(outputs[0], micro.columns)
    return objective(*outputs, micro.columns, micro.segments, micro.sequences, micro.units)
