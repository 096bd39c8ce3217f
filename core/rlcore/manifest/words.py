"""What a value must be, what it is, and what was probably meant, in people's words."""

from __future__ import annotations

import difflib
import json
import math
import re
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from rlcore.manifest.nodes import KeyPath, dotted
from rlcore.manifest.schema import Manifest, PluginSection
from rlcore.manifest.sections import is_model, model_at, options_of, own_fields

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_BOUNDS = {"gt": "above {}", "ge": "of at least {}", "lt": "below {}", "le": "of at most {}"}

FAMILIAR: Mapping[str, str] = {
    "train_batch_size": "data.prompts_per_step",
    "gen_batch_size": "data.prompts_per_step",
    "train_files": "data.train",
    "val_files": "data.val",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_response_length": "data.max_response_tokens",
    "filter_overlong_prompts": "data.overlong_prompts: drop",
    "truncation": "data.overlong_prompts",
    "prompt_key": "data.columns.prompt",
    "ppo_mini_batch_size": "trainer.prompts_per_update",
    "ppo_micro_batch_size_per_gpu": "trainer.tokens_per_micro_batch",
    "ppo_max_token_len_per_gpu": "trainer.tokens_per_micro_batch",
    "ppo_epochs": "trainer.epochs_per_batch",
    "num_ppo_epochs": "trainer.epochs_per_batch",
    "num_iterations": "trainer.epochs_per_batch",
    "learning_rate": "trainer.lr",
    "lr_warmup_steps": "trainer.warmup_updates",
    "lr_scheduler_type": "trainer.schedule",
    "clip_grad": "trainer.max_grad_norm",
    "grad_clip": "trainer.max_grad_norm",
    "enable_gradient_checkpointing": "trainer.gradient_checkpointing",
    "param_offload": "trainer.offload.params",
    "optimizer_offload": "trainer.offload.optimizer",
    "n": "rollout.samples_per_prompt",
    "num_generations": "rollout.samples_per_prompt",
    "do_sample": "rollout.temperature",
    "val_kwargs": "eval",
    "adv_estimator": "algorithm.use",
    "use_kl_loss": "algorithm.kl.in: loss",
    "use_kl_in_reward": "algorithm.kl.in: reward",
    "kl_coef": "algorithm.kl.coef",
    "kl_loss_coef": "algorithm.kl.coef",
    "kl_loss_type": "algorithm.kl.estimator",
    "kl_penalty": "algorithm.kl.estimator",
    "beta": "algorithm.kl.coef",
    "kl_ctrl": "algorithm.kl",
    "target_kl": "algorithm.kl.target",
    "entropy_coeff": "algorithm.entropy_coef",
    "loss_agg_mode": "algorithm.aggregate",
    "clip_ratio": "the options of algorithm.loss",
    "clip_ratio_low": "the options of algorithm.loss",
    "clip_ratio_high": "the options of algorithm.loss",
    "norm_adv_by_std_in_grpo": "the options of the estimator",
    "scale_rewards": "the options of the estimator",
    "overlong_buffer_cfg": "the options of the estimator",
    "mask_truncated_completions": "the options of the estimator",
    "filter_groups": "algorithm.dynamic_sampling",
    "max_num_gen_batches": "algorithm.dynamic_sampling.max_generation_rounds",
    "rollout_is": "algorithm.rollout_correction",
    "rollout_is_threshold": "algorithm.rollout_correction.cap",
    "rollout_rs": "algorithm.rollout_correction.mode: mask",
    "rollout_rs_threshold": "algorithm.rollout_correction.cap",
    "tis_imp_ratio_cap": "algorithm.rollout_correction.cap",
    "vllm_importance_sampling_correction": "algorithm.rollout_correction",
    "vllm_importance_sampling_mode": "algorithm.rollout_correction.level",
    "vllm_importance_sampling_clip_max": "algorithm.rollout_correction.cap",
    "cliprange_value": "critic.value_clip",
    "critic_warmup": "critic.warmup_steps",
    "vf_coef": "critic.lr, as a critic has an optimizer of its own",
    "custom_reward_function": "rewards.NAME.use: ./file.py",
    "reward_model": "rewards",
    "total_epochs": "run.epochs",
    "total_training_steps": "run.max_steps",
    "save_freq": "run.save_every",
    "test_freq": "run.eval_every",
    "val_before_train": "run.eval_first",
    "logger": "run.trackers",
    "experiment_name": "name",
    "project_name": "the options of a tracker",
    "default_local_dir": "run.folder",
    "actor_rollout_ref": "model, trainer and rollout",
    "actor": "trainer",
    "ref": "reference",
    "max_completion_length": "data.max_response_tokens",
    "per_device_train_batch_size": "trainer.tokens_per_micro_batch",
    "report_to": "run.trackers",
    "bf16": "model.dtype: bfloat16",
    "fp16": "model.dtype: bfloat16 or float32",
}
"""Keys of other systems (verl, TRL) and where the same is set here; for hints only."""

_NO_LORA = "LoRA is not supported yet, all weights train"
_ONE_DEVICE = "a run is one process on one device so far, and resources.device chooses it"

ABSENT: Mapping[str, str] = {
    "gradient_accumulation_steps": "it follows from trainer.prompts_per_update and trainer.tokens_per_micro_batch",
    "peft": _NO_LORA,
    "peft_config": _NO_LORA,
    "use_peft": _NO_LORA,
    "lora": _NO_LORA,
    "lora_rank": _NO_LORA,
    "lora_r": _NO_LORA,
    "lora_alpha": _NO_LORA,
    "nnodes": _ONE_DEVICE,
    "n_gpus_per_node": _ONE_DEVICE,
    "gpus": _ONE_DEVICE,
    "optimizer": "AdamW is the one there is",
    "optim": "AdamW is the one there is",
}
"""Keys of other systems that have no like here, and why; for hints only."""

ADVICE: Mapping[str, str] = {
    "rollout.temperature": "greedy decoding (0) is for eval.temperature only",
    "rollout.top_k": "0 keeps all",
    "eval.top_k": "0 keeps all",
    "run.save_every": "null saves at the end only",
    "run.eval_every": "null never evaluates",
    "algorithm.kl": "null holds no reference model",
    "critic.value_clip": "null doesn't limit it",
    "rewards": "name one, such as `correct: {use: NAME}`",
}
"""A sentence for the reader of an error at this key."""


def describe(annotation: Any) -> str:
    """What a value of this type must be: ``a whole number above 0``, ``text or null``."""
    if isinstance(annotation, FieldInfo):
        inner = Annotated[annotation.annotation, *annotation.metadata] if annotation.metadata else annotation.annotation
        return describe(inner)
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        flat = [m for item in metadata for m in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _bounded(describe(inner), flat)
    members = _members(annotation)
    if len(members) > 1:
        words = [describe(member) for member in members if member is not type(None)]
        return " or ".join([*words, "null"] if type(None) in members else words)
    return _describe_plain(annotation)


def _members(annotation: Any) -> list[Any]:
    """The members of a union with their constraints; the one annotation otherwise."""
    if len(options_of(annotation)) < 2:
        return [annotation]
    return [member for arg in get_args(annotation) for member in _members(arg)]


def _describe_plain(annotation: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
    names |= {type(None): "null", dict: "a mapping", list: "a list"}
    if annotation in names:
        return names[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        values = [show(value) for value in args]
        return values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f"one of {', '.join(show(member.value) for member in annotation)}"
    if origin is dict:
        return "a mapping"
    if origin is tuple and args[-1] is not ...:
        return f"a list of {len(args)} values, each {describe(args[0])}"
    if origin in (list, tuple, set, frozenset):
        return f"a list of {_plural(describe(args[0]))}"
    if is_model(annotation):
        return "a plugin's name or a mapping" if issubclass(annotation, PluginSection) else "a mapping"
    return "any value" if annotation is Any else f"of type {getattr(annotation, '__name__', annotation)}"


def _plural(words: str) -> str:
    for one, many in (("a whole number", "whole numbers"), ("a number", "numbers"), ("a mapping", "mappings")):
        words = words.replace(one, many)
    return words.replace("a plugin's name or mappings", "plugins' names or mappings").replace("text", "texts")


def _bounded(words: str, metadata: Collection[Any]) -> str:
    bounds = {name: getattr(item, name) for item in metadata for name in _BOUNDS if hasattr(item, name)}
    if bounds.keys() == {"ge", "le"}:
        return f"{words} from {bounds['ge']:g} to {bounds['le']:g}"
    limits = [_BOUNDS[name].format(f"{bound:g}") for name, bound in bounds.items()]
    for item in metadata:
        if (pattern := getattr(item, "pattern", None)) is not None:
            limits.append(f"that matches {getattr(pattern, 'pattern', pattern)}")
        if getattr(item, "min_length", None):
            limits.append("that is not empty" if item.min_length == 1 else f"of length {item.min_length} or more")
    return " ".join([words, " and ".join(limits)]).strip()


def show(value: Any) -> str:
    """A value as the manifest has it, shortened: ``'ten'``, ``true``, ``a mapping``."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else (".inf" if value > 0 else "-.inf")
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def wrong_value(expected: str, value: Any, path: KeyPath) -> str:
    """``must be a whole number above 0, got 'ten'``, with advice where there is some."""
    message = f"must be {expected}, got {show(value)}"
    if isinstance(value, str) and "number" in expected and re.fullmatch(r"[-+0-9.eE_]+", value):
        message += f"; take off the quotes{' and underscores' if '_' in value else ''}"
    elif (
        isinstance(value, str) and expected.startswith("true or false") and value.lower() in ("yes", "no", "on", "off")
    ):
        message += f"; write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    elif isinstance(value, str) and (close := difflib.get_close_matches(value, re.findall(r"'([^']+)'", expected), 1)):
        message += f"; did you mean {close[0]!r}?"
    elif isinstance(value, (int, float)) and expected.startswith("text"):
        message += "; put it in quotes"
    advice = ADVICE.get(dotted(path))
    return f"{message}; {advice}" if advice else message


def unknown_key(key: str, path: KeyPath, known: Collection[str], elsewhere: Mapping[str, Collection[str]]) -> str:
    """``unknown key 'lrr'; did you mean 'lr'?``: what is near, or where the key belongs, or what is allowed.

    ``path`` is that of the mapping, ``known`` what it takes, ``elsewhere`` further keys by the sections that take them.
    """
    if key in ABSENT:
        return f"unknown key {key!r}: {ABSENT[key]}"
    homes = [section for section, keys in elsewhere.items() if key in keys and section != dotted(path)]
    if homes:
        return f"unknown key {key!r}: {key} belongs in {' or '.join(home or 'the top level' for home in homes)}"
    if key in FAMILIAR:
        return f"unknown key {key!r}: that is {FAMILIAR[key]} here"
    if close := difflib.get_close_matches(key, known, 1, 0.6):
        return f"unknown key {key!r}; did you mean {close[0]!r}?"
    return f"unknown key {key!r}; allowed: {', '.join(known) or 'none'}"


def core_homes() -> dict[str, Collection[str]]:
    """The keys that the core knows, by the dotted path of their section; a trainer's are not a critic's again."""
    homes: dict[str, Collection[str]] = {}
    pending: list[KeyPath] = [()]
    while pending:
        path = pending.pop()
        model = model_at(Manifest, path)
        if model is None:
            continue
        keys = own_fields(model, path)
        homes[dotted(path)] = [key for key in keys if key != "use"]
        pending += [(*path, key) for key in keys if model_at(Manifest, (*path, key))]
    return homes
