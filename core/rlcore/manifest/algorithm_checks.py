"""What algorithm, losses, critic and rollouts must agree on. Each check yields problems with their places."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import suppress

from rlcore.engine.prepare import ON_DEMAND
from rlcore.manifest.nodes import KeyPath, Problem
from rlcore.manifest.schema import Manifest
from rlcore.manifest.sections import kind_at
from rlcore.manifest.validate import Check, Validation
from rlcore.plugins.capabilities import batch_columns, missing
from rlcore.plugins.config import AlgorithmConfig
from rlcore.plugins.discovery import find_plugins
from rlcore.plugins.interfaces import AlgorithmContext

# Columns that every batch has; the others depend on the manifest.
_ALWAYS = ("reward", "group", "unit", "truncated", "response_tokens", "weight_version", "loss_mask")
_READERS: tuple[KeyPath, ...] = (("algorithm",), ("algorithm", "loss"))


def needs(state: Validation) -> frozenset[str]:
    """What the estimator and the policy loss need. One that can't be asked is reported by ``_capabilities``."""
    found: set[str] = set()
    for path in _READERS:
        if path in state.configs:
            with suppress(Exception):
                found |= state.configs[path].needs()
    return frozenset(found)


def _names(told: object) -> frozenset[str]:
    """What ``needs`` or ``provides`` of a plugin returned, checked: of a text alone a set would be its letters."""
    if not isinstance(told, Set) or not all(isinstance(name, str) for name in told):
        raise TypeError(f"it returned {told!r}, which is no set of texts")
    return frozenset(told)


def _provided(state: Validation, manifest: Manifest) -> dict[str, frozenset[str]]:
    """What the loop brings into the run as the manifest has it."""
    kl, algorithm = manifest.algorithm.kl, manifest.algorithm
    columns = {*_ALWAYS, *ON_DEMAND, *(f"reward/{name}" for name in manifest.rewards)}
    more = {
        "batch:values": manifest.critic is not None,
        "batch:token_rewards": kl is not None and kl.coef > 0 and kl.placement == "reward",
        "batch:correction": algorithm.rollout_correction is not None,
        "role:critic": manifest.critic is not None,
        "role:reference": _reference_used(state, manifest),
        "groups": manifest.rollout.samples_per_prompt > 1,
    }
    always = {"role:policy", *(f"batch:{name}" for name in columns)}
    return {"core": frozenset(always | {name for name, there in more.items() if there})}


def _reference_used(state: Validation, manifest: Manifest) -> bool:
    kl = manifest.algorithm.kl
    return (kl is not None and kl.coef > 0) or "ref_logprobs" in batch_columns(needs(state))


def _capabilities(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    provides = _provided(state, manifest)
    wanted: dict[KeyPath, tuple[str, frozenset[str]]] = {}
    for path, config in state.configs.items():
        use = state.root.get(*path, "use")
        part = f"{kind_at(path)} {use.value if use else '?'}"
        try:
            wanted[path] = part, _names(config.needs())
            provides[part] = _names(config.provides())
        except Exception as error:  # noqa: BLE001 - a plugin's own code
            yield state.problem((*path, "use"), f"{part}: asking what it needs and provides failed: {error!r}")
    for path, (part, capabilities) in wanted.items():
        told: set[str] = set()
        if "groups" in capabilities and manifest.rollout.samples_per_prompt == 1:
            message = f"{part} compares the samples of a prompt, and one has nothing to be compared with; set 2 or more"
            yield state.problem(("rollout", "samples_per_prompt"), message)
            told |= {"groups"}
        if "batch:values" in capabilities and manifest.critic is None:
            section = f"critic: {{use: {manifest.trainer.use}, lr: 1.0e-5}}"
            yield state.problem((*path, "use"), f"{part} reads a critic's values; add a section `{section}`")
            told |= {"batch:values", "role:critic"}
        for sentence in missing({part: capabilities - told}, provides):
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


def _kl(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    kl = manifest.algorithm.kl
    if kl is None or kl.target is None:
        return
    path: KeyPath = ("algorithm", "kl", "target")
    if kl.placement == "loss":
        yield state.problem(path, "adapts coef for a KL in the reward; set algorithm.kl.in to reward, or remove this")
    elif not kl.coef:
        yield state.problem(path, "adapts coef by factors, and 0 stays 0; start algorithm.kl.coef above 0")


def _correction(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    section = manifest.algorithm.rollout_correction
    if section is None:
        return
    path: KeyPath = ("algorithm", "rollout_correction", "floor")
    if section.mode == "mask" and section.floor >= section.cap:
        yield state.problem(path, f"must be below cap ({section.cap:g}), or no token trains; got {section.floor:g}")
    elif section.mode == "truncate" and section.floor:
        yield state.problem(path, "is read with mode: mask only; truncation leaves small weights as they are")


def _roles(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    if not state.defaults_known or any(path in state.unloaded for path in _READERS):
        return
    if manifest.reference is not None and not _reference_used(state, manifest):
        message = "nobody uses a reference model without a KL term; set algorithm.kl, or remove this section"
        yield state.problem(("reference",), message)
    if manifest.critic is not None and "batch:values" not in needs(state):
        message = f"nobody uses a critic: algorithm {manifest.algorithm.use} reads no values; remove this section"
        yield state.problem(("critic",), message)


def _critic(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    critic, trainer, most = manifest.critic, manifest.trainer, manifest.run.max_steps
    if critic is None:
        return
    config = state.configs.get(("critic",))
    with suppress(Exception):  # one that can't be asked is reported by _capabilities
        if config is not None and "trains:critic" not in config.provides():
            yield state.problem(("critic", "use"), f"trainer {critic.use} trains no critic; it has no value head")
    # A manifest with every value written out has the defaults too.
    for key, default in (("prompts_per_update", None), ("epochs_per_batch", 1)):
        if getattr(critic, key) not in (default, getattr(trainer, key)):
            message = f"the critic learns from the policy's updates; remove this, or set trainer.{key}"
            yield state.problem(("critic", key), message)
    if most is not None and critic.warmup_steps >= most:
        message = f"must be below run.max_steps ({most}), or the policy is never trained; got {critic.warmup_steps}"
        yield state.problem(("critic", "warmup_steps"), message)


def _warn_filters(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    corrected = manifest.algorithm.rollout_correction is not None
    for key, off in (("top_p", 1.0), ("top_k", 0)):
        if getattr(manifest.rollout, key) != off:
            message = (
                "tokens are drawn from those that are kept, while log-probs of engine and trainer are of the whole "
                f"vocabulary; training is off-policy by that difference ({off:g} keeps all)"
            )
            more = ", which algorithm.rollout_correction doesn't see" if corrected else ""
            yield state.problem(("rollout", key), message + more)


def _warn_kl(state: Validation, manifest: Manifest) -> Iterator[Problem]:
    kl = manifest.algorithm.kl
    if kl is not None and kl.placement == "loss" and kl.estimator == "k1" and kl.coef:
        message = "as a loss term k1 has an expected gradient of zero; take k2 or k3, or put it in the reward"
        yield state.problem(("algorithm", "kl", "estimator"), message)
    if kl is not None and not kl.coef:
        message = "0 switches the KL term off, and no reference model is held"
        yield state.problem(("algorithm", "kl", "coef"), message)


CHECKS: tuple[Check, ...] = (_capabilities, _algorithm, _dynamic_sampling, _kl, _correction, _roles, _critic)
WARNINGS: tuple[Check, ...] = (_warn_filters, _warn_kl)
