"""What sections must agree on. Each check is one function that yields problems with their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from pathlib import Path

from rlcore.manifest.layers import looks_like_path
from rlcore.manifest.memory import context_tokens
from rlcore.manifest.nodes import KeyPath, Problem
from rlcore.manifest.schema import Manifest
from rlcore.manifest.sections import kind_at
from rlcore.manifest.validate import Validation, is_trust_key
from rlcore.plugins.capabilities import batch_columns, missing
from rlcore.plugins.config import AlgorithmConfig
from rlcore.plugins.discovery import find_plugins
from rlcore.plugins.interfaces import AlgorithmContext

# Columns that every batch has; the others depend on the manifest.
_ALWAYS = ("reward", "group", "unit", "truncated", "response_tokens", "weight_version", "loss_mask")
# Columns that are computed where something reads them, whatever the manifest says.
_ON_DEMAND = ("old_logprobs", "ref_logprobs", "rollout_logprobs", "baseline_reward")
DATA_SUFFIXES = (".parquet", ".jsonl")

Check = Callable[[Validation, Manifest], Iterator[Problem]]


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


def _provided(state: Validation, manifest: Manifest) -> dict[str, frozenset[str]]:
    """What the loop brings into the run as the manifest has it."""
    kl = manifest.algorithm.kl
    columns = {*_ALWAYS, *_ON_DEMAND} | ({"values"} if manifest.critic is not None else set())
    roles = {"role:policy"} | ({"role:critic"} if manifest.critic is not None else set())
    if kl is not None and kl.coef:
        columns |= {"token_rewards"} if kl.placement == "reward" else set()
    if _reference_used(state, manifest):
        roles |= {"role:reference"}
    groups = {"groups"} if manifest.rollout.samples_per_prompt > 1 else set()
    return {"core": frozenset({f"batch:{name}" for name in columns} | roles | groups)}


def _names(told: object) -> frozenset[str]:
    """What ``needs`` or ``provides`` of a plugin returned, checked: of a text alone a set would be its letters."""
    if not isinstance(told, Set) or not all(isinstance(name, str) for name in told):
        raise TypeError(f"it returned {told!r}, which is no set of texts")
    return frozenset(told)


def _needs(state: Validation) -> frozenset[str]:
    """What the estimator and the policy loss need. One that can't be asked is reported by ``_capabilities``."""
    found: set[str] = set()
    for path in (("algorithm",), ("algorithm", "loss")):
        if path in state.configs:
            with suppress(Exception):
                found |= state.configs[path].needs()
    return frozenset(found)


def _reference_used(state: Validation, manifest: Manifest) -> bool:
    kl = manifest.algorithm.kl
    return (kl is not None and kl.coef > 0) or "ref_logprobs" in batch_columns(_needs(state))


def _capabilities(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    provides = _provided(state, manifest)
    needs: dict[KeyPath, tuple[str, frozenset[str]]] = {}
    for path, config in state.configs.items():
        use = state.root.get(*path, "use")
        part = f"{kind_at(path)} {use.value if use else '?'}"
        try:
            needs[path] = part, _names(config.needs())
            provides[part] = _names(config.provides())
        except Exception as error:  # noqa: BLE001 - a plugin's own code
            yield state.problem((*path, "use"), f"{part}: asking what it needs and provides failed: {error!r}")
    for path, (part, capabilities) in needs.items():
        if "groups" in capabilities and manifest.rollout.samples_per_prompt == 1:
            message = f"{part} compares the samples of a prompt, and one has nothing to be compared with; set 2 or more"
            yield state.problem(("rollout", "samples_per_prompt"), message)
        for sentence in missing({part: capabilities - {"groups"}}, provides):
            yield state.problem((*path, "use"), sentence)


def _algorithm(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    # Where the estimator could not be asked for its defaults, nothing is known to be missing.
    if not state.defaults_known:
        return
    brings = f"algorithm {manifest.algorithm.use} brings no default for it"
    if manifest.algorithm.loss is None:
        names = ", ".join(dict.fromkeys(info.name for info in find_plugins("loss")))
        yield state.problem(("algorithm", "loss"), f"is needed, as {brings}; installed: {names or 'none'}")
    if manifest.algorithm.aggregate is None:
        yield state.problem(("algorithm", "aggregate"), f"is needed, as {brings}; token-mean is a common one")
    config = state.configs.get(("algorithm",))
    if isinstance(config, AlgorithmConfig):
        try:
            conflicts = dict(config.conflicts(AlgorithmContext.of(manifest)))
        except Exception as error:  # noqa: BLE001 - a plugin's own code
            message = f"algorithm {manifest.algorithm.use}: asking what its options conflict with failed: {error!r}"
            yield state.problem(("algorithm", "use"), message)
            return
        for option, message in conflicts.items():
            yield state.problem(("algorithm", option), message)


def _dynamic_sampling(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    section = manifest.algorithm.dynamic_sampling
    if section is None:
        return
    name = section.filter_on
    if name is not None and name not in manifest.rewards:
        message = f"there is no reward {name!r}; the rewards are: {', '.join(manifest.rewards)}"
        yield state.problem(("algorithm", "dynamic_sampling", "filter_on"), message)
    if manifest.rollout.samples_per_prompt == 1:
        message = "one sample of a prompt has no spread, so every group would be dropped; set 2 or more"
        yield state.problem(("rollout", "samples_per_prompt"), message)


def _roles(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    if not state.defaults_known:
        return
    if manifest.reference is not None and not _reference_used(state, manifest):
        message = "nobody uses a reference model without a KL term; set algorithm.kl, or remove this section"
        yield state.problem(("reference",), message)
    if manifest.critic is not None and "batch:values" not in _needs(state):
        message = f"nobody uses a critic: algorithm {manifest.algorithm.use} reads no values; remove this section"
        yield state.problem(("critic",), message)


def _sizes(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    data, trainer = manifest.data, manifest.trainer
    if (trainer.prompts_per_update or 0) > data.prompts_per_step:
        message = f"must be at most data.prompts_per_step ({data.prompts_per_step}), got {trainer.prompts_per_update}"
        yield state.problem(("trainer", "prompts_per_update"), message)
    longest = data.max_prompt_tokens + data.max_response_tokens
    # Both sequences of a pair are in one pass, where the policy learns from their difference.
    pair = 2 * longest if "pairs" in _needs(state) else 0
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


def _model(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    given = manifest.model.path
    if not given:
        yield state.problem(("model", "path"), "must be a Hugging Face id or a folder, got ''")
    elif looks_like_path(given):
        if not Path(given).is_dir():
            yield state.problem(("model", "path"), f"no such folder: {given}")
        elif not (Path(given) / "config.json").is_file():
            yield state.problem(("model", "path"), f"{given} holds no config.json; it is no Hugging Face model folder")


def _warn_filters(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    for key, off in (("top_p", 1.0), ("top_k", 0)):
        if getattr(manifest.rollout, key) != off:
            message = (
                "the engine's log-probs are those of the tokens it kept, the trainer's those of the whole vocabulary; "
                f"training is off-policy by that difference ({off:g} keeps all)"
            )
            yield state.problem(("rollout", key), message)


def _warn_data(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    train, val = (
        [given] if isinstance(given, str) else given or [] for given in (manifest.data.train, manifest.data.val)
    )
    if both := [name for name in val if name in train]:
        yield state.problem(
            ("data", "val"), f"{both[0]} is trained on too, so its accuracy says nothing of other prompts"
        )


def _warn_kl(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    kl = manifest.algorithm.kl
    if kl is not None and kl.placement == "loss" and kl.estimator == "k1" and kl.coef:
        message = "as a loss term k1 has an expected gradient of zero; take k2 or k3, or put it in the reward"
        yield state.problem(("algorithm", "kl", "estimator"), message)
    if kl is not None and not kl.coef:
        message = "0 switches the KL term off, and no reference model is held"
        yield state.problem(("algorithm", "kl", "coef"), message)


def _warn_model(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    given = manifest.model.path
    if manifest.model.trust_remote_code:
        yield state.problem(("model", "trust_remote_code"), f"Python code that comes with {given} will run here")
    if not looks_like_path(given) and (manifest.base / given).is_dir():
        yield state.problem(
            ("model", "path"), f"is taken for an id on the hub; for the folder beside the manifest write ./{given}"
        )


def _warn_context(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    made_for = context_tokens(Path(manifest.model.path))
    if made_for is not None and manifest.longest_tokens > made_for:
        message = (
            f"a prompt and its response may have {manifest.longest_tokens:,} tokens, and the model was made for "
            f"{made_for:,} (max_position_embeddings)"
        )
        yield state.problem(("data", "max_response_tokens"), message)


_CHECKS: tuple[Check, ...] = (
    _capabilities,
    _algorithm,
    _dynamic_sampling,
    _roles,
    _sizes,
    _evaluation,
    _trackers,
    _files,
    _model,
)
_WARNINGS: tuple[Check, ...] = (_warn_filters, _warn_data, _warn_kl, _warn_model, _warn_context)
