"""The manifest as typed values: every key that the core knows, each with its sentence.

A section with ``use`` also takes the options of the plugin it names; they end up validated in ``options``. Keys that
end in a unit mean that unit. ``None`` means "off" or "decided by the run", as the sentence says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rlcore.plugins.config import Kind, PluginRef

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A mapping of the manifest."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )


class PluginSection(Section):
    """A mapping that names a plugin and holds its options beside the core's; in a file a name alone will do."""

    use: str
    """Name of an installed plugin, or path of a local .py file that implements the hook."""
    options: dict[str, Any] = Field(default={}, exclude=True, json_schema_extra={"internal": True})
    """The plugin's own options, validated by its config; not a key of the manifest."""

    def plugin(self, kind: Kind) -> PluginRef:
        """The plugin by name and options, ready to cross a process."""
        return PluginRef(kind, self.use, self.options)


class ModelSection(Section):
    """The model that is trained."""

    path: str
    """A Hugging Face id, or a folder (relative to the manifest, starting with . or / or ~ to be told from an id)."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """What the model computes in. Master weights, gradients' sums and optimizer state are float32 either way."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Leave off unless you have read that code."""


class ColumnsSection(Section):
    """Where a flat file keeps what a prompt needs; leave out for verl's schema. Dots reach into structs."""

    prompt: str | None = None
    """Column with the question: a string, or a list of {role, content}."""
    ground_truth: str | None = None
    """Column with the right answer; a null that is written out says that no reward reads one."""
    source: str | None = None
    """Column with the name of the data set."""
    id: str | None = None
    """Column with a stable id; otherwise the id is a hash of the prompt."""


class DataSection(Section):
    """The prompts."""

    train: str | list[str]
    """Parquet or JSONL files to train on."""
    val: str | list[str] | None = None
    """Parquet or JSONL files to evaluate on."""
    columns: ColumnsSection = ColumnsSection()
    """Names of the columns in flat files."""
    source: str | None = None
    """Name of the data set, for files without such a column."""
    prompts_per_step: PositiveInt
    """Prompts that are sampled for one step."""
    last_batch: Literal["drop", "short"] = "drop"
    """What an epoch does with prompts that don't fill a step."""
    shuffle: bool = True
    """Whether each epoch has an order of its own, drawn from run.seed."""
    max_prompt_tokens: PositiveInt
    """Longest prompt, chat template included."""
    max_response_tokens: PositiveInt
    """Longest response."""
    overlong_prompts: Literal["drop", "error", "truncate_left", "truncate_right"] = "error"
    """What happens to longer prompts: dropped and counted, refused, or cut."""
    system_prompt: str | None = None
    """A system message put before every prompt that has none."""
    template: Literal["chat", "none"] = "chat"
    """How a prompt becomes tokens: by the tokenizer's chat template, or as plain text."""
    chat_template_kwargs: dict[str, Any] = {}
    """Arguments for the chat template, such as Qwen3's enable_thinking."""


class OffloadSection(Section):
    """What waits in host memory while it is not in use."""

    params: bool = False
    """Parameters of the model."""
    optimizer: bool = False
    """Moments of the optimizer."""


class TrainerSection(PluginSection):
    """How a model is trained."""

    lr: PositiveFloat = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after warm-up, over all updates of the run."""
    warmup_updates: NonNegativeInt = 0
    """Updates over which the learning rate rises from 0."""
    min_lr_ratio: Fraction = 0.0
    """Where a falling schedule ends, as a fraction of lr."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's decay of the first and second moment."""
    eps: PositiveFloat = 1e-8
    """AdamW's epsilon."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradients are scaled down to this norm; null leaves them."""
    prompts_per_update: PositiveInt | None = None
    """Prompts that one optimizer step trains on; null is all of a step's. A remainder is a last, smaller update."""
    epochs_per_batch: PositiveInt = 1
    """Times that a step's samples are trained on (PPO epochs)."""
    tokens_per_micro_batch: PositiveInt = 16384
    """Tokens of one packed forward and backward pass. Changes memory and speed, never the gradient."""
    logprob_chunk_tokens: PositiveInt = 1024
    """Tokens whose logits exist at one time. Changes memory and speed only."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    offload: OffloadSection = OffloadSection()
    """What waits in host memory while it is not in use."""


class CriticSection(TrainerSection):
    """How the critic is trained, for estimators that read values. It has a trainer's keys and these; which prompts an
    update trains on, and how often, is the trainer's to say.
    """

    path: str | None = None
    """Model that the critic starts from: a language model, which gets a value head of zeros, a saved critic, or a
    reward model of one label. A folder or an id, as model.path; null is that one."""
    value_clip: PositiveFloat | None = 0.5
    """How far an update may move a value from what it was; null doesn't limit it."""
    warmup_steps: NonNegativeInt = 0
    """Steps at the start in which only the critic is trained."""


class RolloutSection(PluginSection):
    """How samples are generated for training."""

    samples_per_prompt: PositiveInt
    """Samples for each prompt: the size of a group."""
    temperature: PositiveFloat = 1.0
    """Divides the logits, of engine and trainer alike. Greedy decoding is for evaluation only."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Keep the smallest set of tokens with this probability; 1 keeps all."""
    top_k: NonNegativeInt = 0
    """Keep this many likeliest tokens; 0 keeps all."""
    min_tokens: NonNegativeInt = 0
    """No EOS before so many tokens."""
    stop: list[Text] = []
    """Texts that end a response; left out of the text that is scored."""
    ignore_eos: bool = False
    """Always generate max_response_tokens; for benchmarks."""


class KlSection(Section):
    """Keeps the policy near the reference model."""

    placement: Literal["loss", "reward"] = Field(alias="in")
    """As a term of the loss, or taken off the reward of each token."""
    coef: NonNegativeFloat
    """Weight of the KL term."""
    estimator: Literal["k1", "k2", "k3", "k3+", "abs"] = "k3"
    """How KL is estimated from one token's log-ratio (docs/losses.md)."""
    target: PositiveFloat | None = None
    """Adapt coef so that KL per sample goes here (in: reward only); null keeps it fixed."""
    horizon: PositiveInt = 10000
    """Samples over which an adaptive coef moves towards its target."""


class DynamicSamplingSection(Section):
    """Only groups with spread are trained on; others are dropped, and more prompts are sampled in their place."""

    filter_on: str | None = None
    """Name of the reward whose spread counts; null is the first one. Never the shaped sum."""
    max_generation_rounds: PositiveInt = 10
    """Waves of generation in one step, the first one included."""
    when_short: Literal["stop", "train"] = "stop"
    """After the last wave with too few groups: end the run in order, or train on what there is."""


class RolloutCorrectionSection(Section):
    """Importance weights for what the engine sampled with other probabilities than the trainer's.

    Both are over the whole vocabulary, so that what top_p and top_k leave out is not seen here.
    """

    level: Literal["token", "sequence"] = "token"
    """One weight for each token, or one for a whole sample: the product over its tokens."""
    mode: Literal["truncate", "mask"] = "truncate"
    """Weights above cap are cut to it; or tokens (samples) whose weight is outside [floor, cap] don't train."""
    cap: PositiveFloat = 2.0
    """Largest weight."""
    floor: NonNegativeFloat = 0.0
    """Smallest weight that trains, where mode is mask."""


class AlgorithmSection(PluginSection):
    """How rewards become updates. The estimator brings defaults for keys that are left out."""

    loss: PluginSection | None = None
    """The policy loss and its options; a name alone will do."""
    aggregate: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] | None = (
        None
    )
    """How losses of tokens are averaged over an update."""
    kl: KlSection | None = None
    """KL term against the reference model; null holds no reference model."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus in the loss."""
    dynamic_sampling: DynamicSamplingSection | None = None
    """Replace groups without spread; null trains on every group."""
    rollout_correction: RolloutCorrectionSection | None = None
    """Importance weights between engine and trainer; null trusts the engine's probabilities."""


class RewardSection(PluginSection):
    """One reward; the sum of all, times their weights, is what is trained on."""

    weight: float = 1.0
    """Factor of this reward in the sum."""


class EvalSection(Section):
    """How the validation prompts are answered."""

    samples_per_prompt: PositiveInt = 1
    """Answers to each prompt; more than one for pass@k and maj@k."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """As in rollout."""
    top_k: NonNegativeInt = 0
    """As in rollout."""
    k: list[PositiveInt] = [1]
    """The k of pass@k and maj@k to report; none above samples_per_prompt."""
    max_prompts: PositiveInt | None = None
    """Evaluate on the first so many prompts only; null is all."""
    max_response_tokens: PositiveInt | None = None
    """Longest answer; null is data.max_response_tokens."""


class ResourcesSection(Section):
    """What the run runs on."""

    runtime: Literal["local"] = "local"
    """Where workers live: in this process."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU where there is one."""
    threads: PositiveInt | None = None
    """CPU threads of torch; null leaves torch's choice."""


class RunSection(Section):
    """How long, how often, and where to."""

    folder: str = "runs"
    """Folder that holds the run's folder, relative to the manifest."""
    seed: int = 0
    """Seeds the order of prompts, every sample, and initial values."""
    epochs: PositiveInt = 1
    """Passes over the training prompts."""
    max_steps: PositiveInt | None = None
    """Stop after so many steps, even in the middle of an epoch."""
    eval_first: bool = False
    """Evaluate before the first step."""
    eval_every: PositiveInt | None = None
    """Evaluate after each so many steps, and at the end; null never does."""
    save_every: PositiveInt | None = None
    """Save a checkpoint after each so many steps; one at the end is always saved."""
    keep_checkpoints: PositiveInt = 2
    """Newest checkpoints that are kept."""
    keep_rollouts: NonNegativeInt = 20
    """Newest rollout files that are kept; 0 writes none."""
    trackers: list[PluginSection] = [PluginSection(use="console"), PluginSection(use="jsonl")]
    """Where metrics go: names, or mappings with options."""


class Manifest(Section):
    """A whole run, declared."""

    rlcore: Literal[1]
    """Version of the manifest's format."""
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")
    """Name of the run and of its folder."""
    model: ModelSection
    """The model that is trained."""
    data: DataSection
    """The prompts."""
    trainer: TrainerSection
    """How the policy is trained."""
    reference: TrainerSection | None = None
    """Settings of the reference model where a KL term needs one; left out, those of trainer."""
    critic: CriticSection | None = None
    """How the critic is trained, where the estimator reads values."""
    rollout: RolloutSection
    """How samples are generated."""
    algorithm: AlgorithmSection
    """How rewards become updates."""
    rewards: dict[str, RewardSection] = Field(min_length=1)
    """The rewards by name."""
    eval: EvalSection = EvalSection()
    """How validation prompts are answered."""
    resources: ResourcesSection = ResourcesSection()
    """What the run runs on."""
    run: RunSection = RunSection()
    """How long, how often, and where to."""
    base: Path = Field(default=Path(), exclude=True, json_schema_extra={"internal": True})
    """Folder of the manifest file: paths are relative to it; not a key of the manifest."""

    def path(self, given: str) -> Path:
        """A path of the manifest as an absolute one."""
        return (self.base / Path(given).expanduser()).resolve()

    @property
    def longest_tokens(self) -> int:
        """The longest prompt with the longest response, of training or evaluation."""
        return self.data.max_prompt_tokens + max(self.data.max_response_tokens, self.eval.max_response_tokens or 0)

    @property
    def run_folder(self) -> Path:
        """The folder of this run."""
        return self.path(self.run.folder) / self.name
