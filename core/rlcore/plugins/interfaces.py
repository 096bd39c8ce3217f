"""What each kind of plugin returns. Every kind fits on a screen; the hooks that return them are in ``hookspecs``.

Nothing here imports torch: tensors and modules are named in annotations only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rlcore.data.batch import Batch
from rlcore.data.sample import Completion, Request, Sample
from rlcore.plugins.config import PluginRef

if TYPE_CHECKING:
    import torch

    from rlcore.data.tokenizer import Tokenizer
    from rlcore.manifest.schema import Manifest, ModelSection, TrainerSection
    from rlcore.torch.losses import LossInputs, LossOutput

Metrics = Mapping[str, float]
Role = Literal["policy", "reference", "critic"]


# --- train backend -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightSpec:
    """A weight as engines see it: its Hugging Face name, full shape, and dtype ("bfloat16")."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class TrainContext:
    """What a train backend is told: which role it plays, with which model, on which of how many ranks.

    ``total_updates`` is the length of the learning-rate schedule; ``temperature`` divides logits wherever log-probs
    are computed; ``device`` is "cpu" or "cuda".
    """

    role: Role
    model: ModelSection
    train: TrainerSection
    temperature: float
    total_updates: int
    seed: int
    device: str
    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True)
class LossSpec:
    """The loss of an update as it crosses a process: ``Σ_t w_t (policy_t + kl_coef·KL_t − entropy_coef·H_t)``.

    ``entropy`` asks for the entropy metric even where the coefficient is 0.
    """

    policy: PluginRef
    kl_coef: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3", "k3+", "abs"] = "k3"
    entropy_coef: float = 0.0
    entropy: bool = False


@dataclass(frozen=True)
class ValueLossSpec:
    """The loss of a critic's update: ``Σ_t w_t ½ max((v − G)², (clip(v, v_old ± value_clip) − G)²)``.

    v is the critic's value now, v_old the batch's ``values``, G its ``returns``. Schulman's baselines implementation
    of PPO; without ``value_clip`` the plain squared error.
    """

    value_clip: float | None = None


class TrainBackend(ABC):
    """A model of one role on one rank: runs it, trains it, streams, saves and moves its weights.

    Every rank calls the same verbs in the same order. A Batch given here is this rank's share, with ``loss_weights``
    made for the whole update: gradients are *summed* over micro-batches and ranks.
    """

    @abstractmethod
    def forward(self, batch: Batch, want: Collection[str]) -> Batch:
        """The batch with the token columns in ``want`` ("logprobs", "entropy", "values") added; no gradients."""

    @abstractmethod
    def forward_backward(self, batch: Batch, loss: LossSpec | ValueLossSpec) -> Metrics:
        """Add the gradient of the loss over the batch, in packed micro-batches. Metrics are the whole batch's."""

    @abstractmethod
    def optimizer_step(self) -> Metrics:
        """Clip, step, advance the schedule, clear gradients. Returns ``grad_norm`` and ``lr``."""

    @abstractmethod
    def weight_specs(self) -> Sequence[WeightSpec]:
        """Every weight that ``weights`` yields, in its order; tied weights under both names."""

    @abstractmethod
    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors in compute dtype under Hugging Face names, one at a time; collective over ranks."""

    @abstractmethod
    def generation_model(self) -> AbstractContextManager[torch.nn.Module]:
        """The Hugging Face module, current weights in compute dtype, for an engine in this process (one rank)."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write ``folder/model`` (a Hugging Face folder, master precision) and ``folder/optimizer``; collective."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, on any number of ranks; collective."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write a plain Hugging Face folder: safetensors, config, generation config, tokenizer; collective."""

    @abstractmethod
    def offload(self) -> None:
        """Move what the manifest's ``offload`` names to host memory."""

    @abstractmethod
    def onload(self) -> None:
        """Bring back what ``offload`` moved."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release processes and memory."""


# --- rollout engine ------------------------------------------------------------------------------------------------


class WeightReceiver(Protocol):
    """The engine's end of a weight channel, already checked against the trainer's weight specs."""

    way: Literal["in_place", "stream"]

    def module(self) -> AbstractContextManager[torch.nn.Module]:
        """``in_place``: the trainer's own module, valid inside the context."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """``stream``: every weight in turn."""


@dataclass(frozen=True)
class RolloutContext:
    """What a rollout engine is told. ``max_tokens`` is the longest prompt plus the longest response."""

    model: ModelSection
    tokenizer: Tokenizer
    max_tokens: int
    device: str
    seed: int


class RolloutEngine(ABC):
    """Continuous generation: requests go in, completions come out in whatever order they finish."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; returns at once."""

    @abstractmethod
    def poll(self, timeout_seconds: float) -> list[Completion]:
        """What has finished since the last poll; waits up to the timeout for the first.

        An engine in this process generates in here.
        """

    @abstractmethod
    def abort(self, ids: Collection[str]) -> None:
        """Drop these requests; their completions, if any, are not returned. Unknown ids are ignored."""

    @abstractmethod
    def receive_weights(self, receiver: WeightReceiver, version: int) -> None:
        """Take the trainer's weights; completions from now on carry ``version``. Nothing may be in flight."""

    @abstractmethod
    def sleep(self) -> None:
        """Free what generation holds (cache, borrowed weights). Nothing may be in flight."""

    @abstractmethod
    def wake(self, *, weights: bool = True, cache: bool = True) -> None:
        """Get ready to generate again: first weights, then cache, so that the two peaks need not meet."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release processes and memory."""


# --- algorithm -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlgorithmContext:
    """What an estimator is told of the rest of the manifest."""

    samples_per_prompt: int
    max_response_tokens: int
    seed: int
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    kl_in_reward: bool = False

    @classmethod
    def of(cls, manifest: Manifest) -> AlgorithmContext:
        """What this manifest says."""
        kl = manifest.algorithm.kl
        return cls(
            samples_per_prompt=manifest.rollout.samples_per_prompt,
            max_response_tokens=manifest.data.max_response_tokens,
            seed=manifest.run.seed,
            reward_weights={name: reward.weight for name, reward in manifest.rewards.items()},
            kl_in_reward=kl is not None and kl.coef > 0 and kl.placement == "reward",
        )


class AdvantageEstimator(Protocol):
    """A pure numpy function of a batch: returns it with ``advantages`` (and ``returns``, for a critic) added.

    It may drop rows. It reads ``group``, ``reward``, ``loss_mask``, ``token_rewards`` where there are any, and the
    columns its config names in ``needs()`` as ``batch:NAME``.
    """

    def __call__(self, batch: Batch) -> Batch:
        """The batch with advantages."""
        ...


class PolicyLoss(Protocol):
    """A pure torch function of one packed micro-batch: a loss per live token, and metrics per live token.

    Weights, KL and entropy are the core's business. It may have ``prepare(batch) -> Batch``, for statistics that must
    not depend on the split into micro-batches and over ranks: numpy, run once over a whole update where the controller
    is, before the update's first forward pass. And ``ignores_advantages = True``, if the batch needs no advantages.
    """

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss of each live token."""
        ...


# --- reward --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RewardContext:
    """What a reward is told: its name in the manifest."""

    name: str


Score = float | Mapping[str, float | str]
"""A reward's result: a number, or a mapping with ``score``, further numbers to log, and perhaps ``answer``: the text
that the reward took for the answer, in one spelling for equal answers, on which ``maj@k`` votes."""

Reward = Callable[[Sample], Score | Awaitable[Score]]
"""A function of one sample; or any object with ``score_batch(samples) -> Sequence[Score]`` instead."""


# --- tracker -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrackerContext:
    """What a tracker is told: the run's name and folder, its manifest as plain values, and what it saved before."""

    run_name: str
    folder: Path
    manifest: Mapping[str, Any]
    state: Mapping[str, Any]
    total_steps: int


class Tracker:
    """Where metrics go. Every method is optional; an error in one is reported once and never stops the run."""

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """The step has entered a phase ("generate", "update"), or got further in it."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Metrics of a step that is over; step 0 holds the evaluation before training."""

    def message(self, level: Literal["info", "warning"], text: str) -> None:
        """A sentence for the person who watches."""

    def state(self) -> Mapping[str, Any]:
        """What goes into a checkpoint so that a resumed run continues the same record (a run id)."""
        return {}

    def close(self) -> None:
        """Flush and release."""
