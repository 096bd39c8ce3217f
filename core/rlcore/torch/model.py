"""A Hugging Face causal language model that is run on packed sequences and gives log-probs, never logits.

Or, with a value head in place of its own, values: a critic.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from rlcore.errors import ModelError
from rlcore.torch.attention import PACKED
from rlcore.torch.folder import is_folder, model_folder, read_weights
from rlcore.torch.logprobs import token_logprobs
from rlcore.torch.packing import Packing

if TYPE_CHECKING:
    from rlcore.manifest.schema import ModelSection

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a run shows its own

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""Names of dtypes in manifests and weight specs."""

VALUE_HEAD = "score"
"""Name of a critic's value head: ``score.weight`` [1, D] and ``score.bias`` [1], as in transformers'
``…ForTokenClassification``."""

# Configuration keys that change logits after the head; the probe below would notice, this names the cause.
_LOGIT_CHANGES = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")

# Nats, on any token: sums in another order in float32, and kernels in bfloat16; a difference of design is far larger.
_PROBE_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 1.0}


def read_config(section: ModelSection) -> Any:
    """The transformers config of a model, dropout off: log-probs must depend on nothing but weights and tokens.

    Reads config.json only. Raises ModelError for a folder that is missing or holds no model, and for an architecture
    that is no causal language model or whose head is not a plain linear map.
    """
    folder = model_folder(section) if is_folder(section.path) else None
    try:
        config = AutoConfig.from_pretrained(
            folder or section.path,
            revision=section.revision,
            trust_remote_code=section.trust_remote_code,
            local_files_only=folder is not None,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path: {section.path!r} can't be read as a model: {error}") from error
    remote = section.trust_remote_code and "AutoModelForCausalLM" in getattr(config, "auto_map", {})
    if not remote and type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(f"model.path: {section.path!r} is of type {config.model_type!r}, no causal language model")
    changes = [name for name in _LOGIT_CHANGES if getattr(config, name, None) not in (None, 1, 1.0)]
    if changes:
        raise ModelError(f"model.path: {section.path!r} changes logits by {', '.join(changes)}, which is not supported")
    for name, value in config.to_dict().items():
        if isinstance(value, float) and (name.endswith(("dropout", "_pdrop"))):
            setattr(config, name, 0.0)
    return config


def load_model(
    section: ModelSection, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> nn.Module:
    """The model of a manifest with its weights in ``dtype``, set up for packed attention.

    Before it is returned, its packed log-probs of two short sequences are compared with those that the model itself
    gives for each alone, so that an architecture that packing would change is refused and never trained wrongly.

    Raises ModelError, as ``read_config``, for weights that are missing or don't fit, and for a critic's folder.
    """
    model, missing, unexpected = _read(section, dtype, device)
    if f"{VALUE_HEAD}.weight" in unexpected:
        raise ModelError(
            f"model.path: {section.path!r} is a critic or reward model: it has {VALUE_HEAD}.weight and no output head"
        )
    _refuse_missing(section, missing)
    _probe(model)
    return cast("nn.Module", model)


def load_critic(
    section: ModelSection, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> nn.Module:
    """The model with a value head, a float32 ``Linear(D, 1)`` named ``score``, in place of its output head.

    The folder may be a language model's, a critic's that was saved, or a reward model's (one label). Where it has no
    ``score``, weight and bias are 0: the first values are 0 and not noise, so the first advantages are those of the
    rewards alone, and nothing has to be drawn alike on all ranks. The backbone's gradient is 0 until the head has
    moved, that is for the first update.

    Raises ModelError, as ``load_model``, and for a ``score`` with several labels.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # a report of weights that we look after
    try:
        model, missing, unexpected = _read(section, dtype, device)
    finally:
        transformers_logging.set_verbosity(verbosity)
    output = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
    _refuse_missing(section, [name for name in missing if name != f"{output}.weight"])
    _probe(model)
    hidden = model.get_output_embeddings().in_features
    head = nn.Linear(hidden, 1, device=device)
    saved = {name for name in (f"{VALUE_HEAD}.weight", f"{VALUE_HEAD}.bias") if name in unexpected}
    found = dict(read_weights(model_folder(section, weights=True), saved)) if saved else {}
    with torch.no_grad():
        for name, parameter in head.named_parameters(prefix=VALUE_HEAD):
            value = found.get(name, torch.zeros(parameter.shape))
            if value.shape != parameter.shape:
                raise ModelError(
                    f"model.path: {section.path!r} has a {name} of shape {[*value.shape]}; a critic's has "
                    f"{[*parameter.shape]}"
                )
            parameter.copy_(value)
    parent, _, name = output.rpartition(".")
    delattr(model.get_submodule(parent), name)
    setattr(model, VALUE_HEAD, head)
    return cast("nn.Module", model)


def critic_config(model: nn.Module) -> dict[str, Any]:
    """Keys of config.json by which transformers' ``AutoModelForTokenClassification`` reads a critic: one label."""
    name = type(model).__name__.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return {
        "architectures": [f"{name}ForTokenClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }


def _read(section: ModelSection, dtype: torch.dtype, device: torch.device | str) -> tuple[Any, list[str], list[str]]:
    """The model as transformers loads it, names of weights that it misses, and of those in the files that it hasn't."""
    config = read_config(section)
    try:
        model, info = cast("Any", AutoModelForCausalLM).from_pretrained(
            section.path if not is_folder(section.path) else model_folder(section),
            config=config,
            revision=section.revision,
            trust_remote_code=section.trust_remote_code,
            local_files_only=is_folder(section.path),
            dtype=dtype,
            attn_implementation=PACKED,
            output_loading_info=True,
        )
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"model.path: {section.path!r} can't be loaded: {error}") from error
    model.eval().to(device)
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise ModelError(f"model.path: {type(model).__name__} has no output head that is linear and without bias")
    return model, sorted(info["missing_keys"]), sorted(info["unexpected_keys"])


def _refuse_missing(section: ModelSection, names: list[str]) -> None:
    if names:
        raise ModelError(f"model.path: {section.path!r} has no weights for: {', '.join(names)}")


@torch.no_grad()
def _probe(model: Any) -> None:
    """Refuse a model whose packed log-probs are not its own. One forward pass over 12 tokens each way."""
    head = model.get_output_embeddings().weight
    tokens = torch.arange(12, device=head.device) * 7 % min(head.shape[0], 251)
    offsets = np.array([0, 7, 12])
    packed = PackedModel(model, temperature=1.0, chunk_tokens=64)
    predict = torch.tensor([*range(6), *range(7, 11)], device=head.device)
    own = []
    try:
        got, _ = packed(tokens, Packing.of(offsets, head.device), predict, tokens[predict + 1], entropy=False)
        model.set_attn_implementation("sdpa")
        for row in (tokens[:7], tokens[7:]):
            logits = model(input_ids=row[None], use_cache=False).logits[0, :-1].float()
            own.append(logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{type(model).__name__} can't run on packed sequences: {error}") from error
    finally:
        model.set_attn_implementation(PACKED)
    difference = (got - torch.cat(own)).abs().max().item()
    if not difference <= _PROBE_TOLERANCE[head.dtype]:
        raise ModelError(
            f"{type(model).__name__} gives other log-probs for packed sequences than for each alone "
            f"(by {difference:.2g}); it mixes tokens outside attention, or changes logits, and is not supported"
        )


class PackedModel(nn.Module):
    """Token log-probs of packed sequences; the root module that a train backend shards.

    The head runs in here, so that the parameters it reads are gathered like every other, and only for the tokens that
    are asked for, chunk by chunk: logits of all tokens never exist.
    """

    def __init__(self, model: nn.Module, *, temperature: float, chunk_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens

    def forward(
        self, tokens: Tensor, packing: Packing, predict: Tensor, targets: Tensor, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs float32[L] of ``targets`` int64[L] at temperature, each predicted by the hidden state at position
        ``predict`` int64[L] of ``tokens`` int64[T]; and the entropy float32[L] of each distribution, if asked for.
        """
        return token_logprobs(
            _hidden(self.model, tokens, packing)[predict],
            cast("Any", self.model).get_output_embeddings().weight,
            targets,
            temperature=self.temperature,
            chunk_tokens=self.chunk_tokens,
            entropy=entropy,
        )


class PackedCritic(nn.Module):
    """Values of packed sequences, by a model of ``load_critic``; the root module that a train backend shards."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, packing: Packing, predict: Tensor) -> Tensor:
        """Values float32[L]: of what came before a token, from the hidden state at position ``predict`` int64[L] of
        ``tokens`` int64[T], which is the one that predicts it.
        """
        values: Tensor = getattr(self.model, VALUE_HEAD)(_hidden(self.model, tokens, packing)[predict].float())
        return values[:, 0].clone()  # FSDP can't hook its backward pass onto a view


def _hidden(model: nn.Module, tokens: Tensor, packing: Packing) -> Tensor:
    """The last hidden state at each token, [T, D]."""
    output = cast("Any", model).base_model(
        input_ids=tokens[None], position_ids=packing.position_ids, use_cache=False, packing=packing
    )
    return cast("Tensor", output.last_hidden_state[0])


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The stack of decoder layers of a causal language model: what is sharded and checkpointed one by one."""
    stacks = [m for m in cast("Any", model).base_model.children() if isinstance(m, nn.ModuleList)]
    if len(stacks) != 1:
        raise ModelError(f"{type(model).__name__} has {len(stacks)} stacks of layers, not one; it is not supported")
    return stacks[0]


def plain_twin(model: nn.Module) -> nn.Module:
    """A module of the same architecture with transformers' own attention, on the meta device, in eval mode.

    It has no weights until some are put in; its buffers (rotary frequencies) are those of ``model``.
    """
    with torch.device("meta"):
        twin = cast("Any", type(model))(copy.deepcopy(model.config))
    twin.set_attn_implementation("sdpa")
    own = dict(model.named_modules())
    for name, module in twin.named_modules():
        for key in module._buffers:
            module._buffers[key] = own[name]._buffers[key]
    return cast("nn.Module", twin.eval().requires_grad_(False))


def share_parameters(model: nn.Module, twin: nn.Module) -> None:
    """Let the twin's parameters be those that ``model`` has at this moment: the same storage, without gradients."""
    own = dict(model.named_modules())
    for name, module in twin.named_modules():
        for key, parameter in own[name].named_parameters(recurse=False):
            module.register_parameter(key, nn.Parameter(parameter.detach(), requires_grad=False))


def drop_parameters(twin: nn.Module) -> None:
    """Take the twin's parameters away again, so that nobody reads storage that was freed."""
    for module in twin.modules():
        for key, parameter in module.named_parameters(recurse=False):
            module.register_parameter(key, nn.Parameter(parameter.to("meta"), requires_grad=False))
