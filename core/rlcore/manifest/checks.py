"""What sections must agree on. Each check is one function that yields problems with their places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlcore.manifest import algorithm_checks
from rlcore.manifest.layers import looks_like_path
from rlcore.manifest.memory import context_tokens
from rlcore.manifest.nodes import KeyPath, Problem
from rlcore.manifest.schema import Manifest
from rlcore.manifest.validate import Check, Validation, is_trust_key

DATA_SUFFIXES = (".parquet", ".jsonl")


def check(state: Validation) -> Iterator[Problem]:
    """Every problem between sections. Where the manifest is wrong in itself, those that can still be told."""
    yield from _trust(state)
    if state.manifest is not None:
        for one in _CHECKS:
            yield from one(state, state.manifest)


def find_warnings(state: Validation) -> Iterator[Problem]:
    """What is allowed but seldom meant."""
    if state.manifest is not None:
        for one in _WARNINGS:
            yield from one(state, state.manifest)


def _trust(state: Validation) -> Iterator[Problem]:
    rule = "code that comes with a model is allowed by model.trust_remote_code alone; remove it here"
    for path, node in state.root.walk():
        if is_trust_key(path[-1]) and path != ("model", "trust_remote_code"):
            yield Problem(node.where, path, rule)
        elif isinstance(node.value, str) and _asks_for_trust(node.value):
            yield Problem(node.source, path, rule)


def _asks_for_trust(text: str) -> bool:
    """Whether a text is, or holds, an argument such as ``--trust-remote-code=true``."""
    return is_trust_key(text.partition("=")[0]) or any(
        word.startswith("-") and is_trust_key(word.partition("=")[0]) for word in text.split()
    )


def _sizes(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    data, trainer = manifest.data, manifest.trainer
    if (trainer.prompts_per_update or 0) > data.prompts_per_step:
        message = f"must be at most data.prompts_per_step ({data.prompts_per_step}), got {trainer.prompts_per_update}"
        yield state.problem(("trainer", "prompts_per_update"), message)
    longest = data.max_prompt_tokens + data.max_response_tokens
    # Both sequences of a pair are in one pass, where the policy learns from their difference.
    pair = 2 * longest if "pairs" in algorithm_checks.needs(state) else 0
    if longest <= trainer.tokens_per_micro_batch < pair:
        message = (
            f"must hold a pair of the longest sequences, as the loss compares them: 2 × (data.max_prompt_tokens + "
            f"data.max_response_tokens) = {pair}, got {trainer.tokens_per_micro_batch}"
        )
        yield state.problem(("trainer", "tokens_per_micro_batch"), message)
    for name, section in (("trainer", trainer), ("reference", manifest.reference), ("critic", manifest.critic)):
        if section is not None and section.tokens_per_micro_batch < longest:
            message = (
                f"must hold the longest sequence, as none is ever split: data.max_prompt_tokens + "
                f"data.max_response_tokens = {longest}, got {section.tokens_per_micro_batch}"
            )
            yield state.problem((name, "tokens_per_micro_batch"), message)
    if manifest.rollout.min_tokens > data.max_response_tokens:
        message = (
            f"must be at most data.max_response_tokens ({data.max_response_tokens}), got {manifest.rollout.min_tokens}"
        )
        yield state.problem(("rollout", "min_tokens"), message)


def _evaluation(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    evaluation, samples = manifest.eval, manifest.eval.samples_per_prompt
    for i, k in enumerate(evaluation.k):
        if k > samples:
            yield state.problem(("eval", "k", i), f"must be at most eval.samples_per_prompt ({samples}), got {k}")
    if samples > 1 and evaluation.temperature == 0:
        message = f"greedy decoding gives {samples} equal answers; set eval.temperature above 0, or this to 1"
        yield state.problem(("eval", "samples_per_prompt"), message)
    if not manifest.data.val:
        for key, on in (("eval_first", manifest.run.eval_first), ("eval_every", manifest.run.eval_every)):
            if on:
                yield state.problem(("run", key), "there is nothing to evaluate on; set data.val")


def _trackers(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for i, tracker in enumerate(manifest.run.trackers):
        if first.setdefault(tracker.use, i) != i:
            message = f"{tracker.use!r} is there already, as item {first[tracker.use]}; a run has one tracker of a name"
            yield state.problem(("run", "trackers", i), message)


def _files(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    for key in ("train", "val"):
        given = getattr(manifest.data, key)
        files = [given] if isinstance(given, str) else given or []
        for i, name in enumerate(files):
            path: KeyPath = ("data", key) if isinstance(given, str) else ("data", key, i)
            file = Path(name)
            if not name or not file.exists():
                yield state.problem(path, f"no such file: {name}")
            elif not file.is_file():
                what = "a folder; name the files in it" if file.is_dir() else "no file that can be read twice"
                yield state.problem(path, f"{name} is {what}")
            elif name in files[:i]:
                yield state.problem(path, f"{name} is there already, as item {files.index(name)}")
            elif file.suffix not in DATA_SUFFIXES:
                yield state.problem(path, f"{name} must end in {' or '.join(DATA_SUFFIXES)}")
        if key == "train" and not files:
            yield state.problem(("data", "train"), "names no file")


def _models(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    for name, given in _model_paths(manifest):
        if not given:
            yield state.problem((name, "path"), "must be a Hugging Face id or a folder, got ''")
        elif looks_like_path(given):
            if not Path(given).is_dir():
                yield state.problem((name, "path"), f"no such folder: {given}")
            elif not (Path(given) / "config.json").is_file():
                message = f"{given} holds no config.json; it is no Hugging Face model folder"
                yield state.problem((name, "path"), message)


def _model_paths(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "model", manifest.model.path
    if manifest.critic is not None and manifest.critic.path is not None:
        yield "critic", manifest.critic.path


def _warn_data(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    train, val = (
        [given] if isinstance(given, str) else given or [] for given in (manifest.data.train, manifest.data.val)
    )
    if both := [name for name in val if name in train]:
        yield state.problem(
            ("data", "val"), f"{both[0]} is trained on too, so its accuracy says nothing of other prompts"
        )


def _warn_models(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    for name, given in _model_paths(manifest):
        if name == "model" and manifest.model.trust_remote_code:
            yield state.problem(("model", "trust_remote_code"), f"Python code that comes with {given} will run here")
        if not looks_like_path(given) and (manifest.base / given).is_dir():
            message = f"is taken for an id on the hub; for the folder beside the manifest write ./{given}"
            yield state.problem((name, "path"), message)


def _warn_context(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    made_for = context_tokens(Path(manifest.model.path))
    if made_for is not None and manifest.longest_tokens > made_for:
        message = (
            f"a prompt and its response may have {manifest.longest_tokens:,} tokens, and the model was made for "
            f"{made_for:,} (max_position_embeddings)"
        )
        yield state.problem(("data", "max_response_tokens"), message)


_CHECKS: tuple[Check, ...] = (*algorithm_checks.CHECKS, _sizes, _evaluation, _trackers, _files, _models)
_WARNINGS: tuple[Check, ...] = (*algorithm_checks.WARNINGS, _warn_data, _warn_models, _warn_context)
