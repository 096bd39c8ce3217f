from __future__ import annotations

from rlcore.plugins.capabilities import missing


def test_what_somebody_provides_is_not_missing() -> None:
    needs = {"algorithm ppo": frozenset({"batch:values", "groups"}), "rollout hf": frozenset({"weights:in_place"})}
    provides = {"critic": frozenset({"batch:values"}), "trainer fsdp": frozenset({"weights:in_place", "groups"})}
    assert missing(needs, provides) == []


def test_who_needs_what_and_what_brings_it() -> None:
    needs = {"algorithm ppo": frozenset({"role:critic", "batch:values"}), "rollout hf": frozenset({"weights:in_place"})}
    assert missing(needs, {"trainer x": frozenset({"weights:in_place"})}) == [
        "algorithm ppo needs batch:values, which nothing in this run provides (a critic section)",
        "algorithm ppo needs role:critic, which nothing in this run provides (a critic section)",
    ]


def test_a_capability_that_only_plugins_know() -> None:
    needs = {"reward judge": frozenset({"tool:browser"}), "loss x": frozenset({"batch:vaules"})}
    assert missing(needs, {"rollout y": frozenset({"tool:browsers"})}) == [
        "reward judge needs tool:browser, which nothing in this run provides; did you mean 'tool:browsers'?",
        "loss x needs batch:vaules, which nothing in this run provides; did you mean 'batch:values'?",
    ]


def test_nothing_needed_and_nothing_provided() -> None:
    assert missing({}, {}) == []
    assert len(missing({"a": frozenset({"b"})}, {})) == 1
