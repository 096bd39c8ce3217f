from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from rlcore import AlgorithmConfig, PluginConfig
from rlcore.errors import (
    BrokenPluginError,
    DataError,
    PluginConflictError,
    PluginError,
    UnknownPluginError,
)
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build, config_class

REWARDS = "rlcore.rewards"

SHORT_ANSWER = '''
from rlcore import PluginConfig, hookimpl

class Config(PluginConfig):
    """Score 1.0 for answers of at most ``max_words`` words, else 0.0."""
    max_words: int = 50

@hookimpl
def rlcore_reward(config: Config):
    return lambda sample: float(len(sample.response.split()) <= config.max_words)
'''


@pytest.fixture
def reward(make_distribution):
    """Install a module as ``reward/t``; returns its name."""

    def install(source: str, group: str = REWARDS, **kwargs) -> str:
        make_distribution("t-dist", {group: {"t": "t_module"}}, {"t_module": source}, **kwargs)
        return "t"

    return install


# --- what works ----------------------------------------------------------------------------------------------------


def test_a_reward_is_built_with_its_options(reward) -> None:
    name = reward(SHORT_ANSWER)
    score = build(PluginRef("reward", name, {"max_words": 2}))
    assert score(SimpleNamespace(response="one two")) == 1.0
    assert score(SimpleNamespace(response="one two three")) == 0.0
    assert build(PluginRef("reward", name))(SimpleNamespace(response="w " * 50)) == 1.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("config: Config, context", "4 ctx"),
        ("context, config: Config", "4 ctx"),
        ("context", "None ctx"),
        ("config: 'Config'", "4 None"),
        ("config: Config, context=None", "4 ctx"),
        ("", "None None"),
    ],
)
@pytest.mark.parametrize("future", [True, False])
def test_a_hook_takes_as_much_as_it_wants(reward, arguments: str, expected: str, future: bool) -> None:
    source = (
        ("from __future__ import annotations\n" if future else "")
        + "from rlcore import PluginConfig, hookimpl\n"
        + "class Config(PluginConfig):\n    n: int = 4\n"
        + f"@hookimpl\ndef rlcore_reward({arguments}):\n"
        + "    seen = dict(locals())\n"
        + "    config, context = seen.get('config'), seen.get('context')\n"
        + "    return lambda sample: f'{config and config.n} {context}'\n"
    )
    name = reward(source)
    assert build(PluginRef("reward", name), "ctx")(None) == expected
    assert set(config_class("reward", name).model_fields) == ({"n"} if "config" in arguments else set())


def test_an_annotation_for_type_checkers_only_does_not_hide_the_options(reward) -> None:
    source = SHORT_ANSWER.replace("config: Config", "config: Config, context: RewardContext")
    imports = "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
    name = reward(f"{imports}if TYPE_CHECKING:\n    from rlcore import RewardContext\n{source}")
    assert list(config_class("reward", name).model_fields) == ["max_words"]


def test_an_estimator_without_options_still_has_defaults_to_ask_for(reward) -> None:
    source = (
        "from rlcore import hookimpl\n@hookimpl\ndef rlcore_advantage_estimator():\n    return lambda batch: batch\n"
    )
    assert config_class("algorithm", reward(source, "rlcore.algorithms")) is AlgorithmConfig
    assert AlgorithmConfig().defaults() == {}


def test_loading_one_plugin_imports_no_other(make_distribution, reward) -> None:
    make_distribution("bomb", {REWARDS: {"bomb": "bomb_module"}}, {"bomb_module": "raise RuntimeError('boom')"})
    assert build(PluginRef("reward", reward(SHORT_ANSWER)))
    assert "bomb_module" not in sys.modules


# --- names ---------------------------------------------------------------------------------------------------------


def test_an_unknown_name_suggests_what_is_close(reward, make_distribution) -> None:
    make_distribution("s", {REWARDS: {"short-answer": "m"}})
    with pytest.raises(UnknownPluginError) as caught:
        config_class("reward", "shrot-answer")
    assert "no reward plugin 'shrot-answer' is installed; did you mean 'short-answer'?; installed: " in str(
        caught.value
    )
    assert "gsm8k-rule-reward" in str(caught.value).rpartition("installed: ")[2]


def test_a_known_name_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(UnknownPluginError) as caught:
        config_class("rollout", "sglang")
    assert str(caught.value) == "no rollout plugin 'sglang' is installed; planned, not available yet; installed: hf"


def test_a_misspelt_known_name_that_is_not_installed_says_both() -> None:
    with pytest.raises(UnknownPluginError, match="did you mean 'sglang'\\? planned, not available yet"):
        config_class("rollout", "slgang")


def test_a_name_of_another_kind_says_so(reward) -> None:
    reward(SHORT_ANSWER)
    with pytest.raises(UnknownPluginError, match="no loss plugin 't' is installed; 't' is a plugin of kind reward"):
        config_class("loss", "t")
    with pytest.raises(UnknownPluginError, match="'gspo' is a plugin of kind loss"):  # known, not installed
        config_class("reward", "gspo")


def test_a_conflict_names_both_distributions(make_distribution) -> None:
    make_distribution("dist-a", {REWARDS: {"same": "a_module"}}, {"a_module": SHORT_ANSWER})
    make_distribution("dist-b", {REWARDS: {"same": "b_module"}}, {"b_module": SHORT_ANSWER}, version="2.0")
    with pytest.raises(
        PluginConflictError,
        match=r"reward/same is claimed by dist-a 1.0 \(a_module\) and dist-b 2.0 \(b_module\); uninstall all but one",
    ):
        build(PluginRef("reward", "same"))
    assert {"a_module", "b_module"}.isdisjoint(sys.modules)


@pytest.mark.parametrize(
    ("requirement", "status"), [("not-there>=2", "missing not-there>=2"), ("rlcore>=99", "needs rlcore>=99, found ")]
)
def test_a_plugin_that_cannot_work_here_is_refused_before_its_import(reward, requirement: str, status: str) -> None:
    name = reward(SHORT_ANSWER, metadata=[f"Requires-Dist: {requirement}"])
    with pytest.raises(PluginError, match=rf"reward/t \(distribution t-dist 1.0\) can't be used: {status}"):
        config_class("reward", name)
    assert "t_module" not in sys.modules


def test_what_is_missing_comes_with_the_command_that_installs_it(reward) -> None:
    name = reward(SHORT_ANSWER, metadata=["Requires-Dist: not-there>=2"])
    with pytest.raises(PluginError, match=r'missing not-there>=2; run: pip install "not-there>=2"$'):
        config_class("reward", name)


def test_a_blocked_plugin_is_refused(reward, monkeypatch) -> None:
    name = reward(SHORT_ANSWER)
    monkeypatch.setenv("RLCORE_BLOCK", f"reward/{name}")
    with pytest.raises(PluginError, match="can't be used: blocked by RLCORE_BLOCK"):
        build(PluginRef("reward", name))


# --- modules -------------------------------------------------------------------------------------------------------

WHO = r"reward/t \(distribution t-dist 1.0, module t_module\)"


@pytest.mark.parametrize(
    ("source", "told", "cause"),
    [
        ("\nimport not_there_either\n", r"No module named 'not_there_either' \(at .*t_module.py:2\)", ImportError),
        ("x = 1\n\nx / 0\n", r"ZeroDivisionError: division by zero \(at .*t_module.py:3\)", ZeroDivisionError),
        ("def f(:\n", r"SyntaxError: .* \(at .*t_module.py:1\)", SyntaxError),
        ("import sys\nsys.exit(3)\n", r"SystemExit: 3 \(at .*t_module.py:2\)", SystemExit),
        ("import json\n\njson.loads('{')\n", r"JSONDecodeError: .* \(at .*t_module.py:3\)", ValueError),
    ],
)
def test_a_broken_import_names_plugin_file_and_line(reward, source, told, cause) -> None:
    name = reward(source)
    with pytest.raises(BrokenPluginError, match=f"^{WHO} can't be imported: .*{told}$") as caught:
        config_class("reward", name)
    assert isinstance(caught.value.__cause__, cause)


def test_an_entry_point_to_a_function_says_it_must_be_a_module(make_distribution) -> None:
    make_distribution("f", {REWARDS: {"f": "f_module:reward"}}, {"f_module": SHORT_ANSWER})
    with pytest.raises(BrokenPluginError, match="module f_module:reward\\): an entry point must name a module"):
        config_class("reward", "f")


RULE = r"a reward implements rlcore_reward\(config, context\) under @hookimpl, and no other hook"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (SHORT_ANSWER.replace("def rlcore_reward", "def rlcore_rewrad"), f"unknown hook 'rlcore_rewrad'.*; {RULE}"),
        (SHORT_ANSWER.replace("config: Config", "confg: Config"), f"'confg'.*; {RULE}"),
        (SHORT_ANSWER.replace("config: Config", "config: Config, contxt=None"), f"takes 'contxt'; {RULE}"),
        (SHORT_ANSWER.replace("config: Config", "config: Config, **rest"), f"takes 'rest'; {RULE}"),
        (SHORT_ANSWER.replace("@hookimpl\n", ""), f"implements no hook; {RULE}"),
        (SHORT_ANSWER.replace("rlcore_reward", "rlcore_tracker"), f"implements rlcore_tracker; {RULE}"),
        (
            SHORT_ANSWER + "@hookimpl\ndef rlcore_tracker(config: Config):\n    pass\n",
            f"implements rlcore_reward and rlcore_tracker; {RULE}",
        ),
        (
            SHORT_ANSWER.replace("@hookimpl", "@hookimpl(wrapper=True)").replace("return lambda", "yield lambda"),
            f"rlcore_reward is a wrapper; {RULE}",
        ),
        (
            SHORT_ANSWER.replace("config: Config", "config"),
            "config of rlcore_reward has no annotation; annotate it with its options, a subclass of PluginConfig",
        ),
        (
            SHORT_ANSWER.replace("config: Config", "config: dict"),
            "config of rlcore_reward is annotated <class 'dict'>; it must be a subclass of rlcore.PluginConfig",
        ),
        (
            SHORT_ANSWER.replace("config: Config", "config: 'Confg'"),
            "the annotation of config, 'Confg', can't be resolved: name 'Confg' is not defined",
        ),
        (
            SHORT_ANSWER.replace("max_words", "weight"),
            "option 'weight' of Config is the core's in a reward section; rename it",
        ),
        (
            SHORT_ANSWER.replace("max_words: int", "max_words: int = 5\n    use: str"),
            "option 'use' of Config is the core's in a reward section; rename it",
        ),
    ],
)
def test_a_module_that_does_not_keep_the_contract_says_what_and_how(reward, source: str, told: str) -> None:
    with pytest.raises(BrokenPluginError, match=f"^{WHO}:? .*{told}"):
        config_class("reward", reward(source))


@pytest.mark.parametrize(
    ("group", "kind", "key"), [("trainers", "trainer", "lr"), ("rollout", "rollout", "temperature")]
)
def test_each_kind_has_its_own_reserved_keys(reward, group: str, kind: str, key: str) -> None:
    hook = {"trainer": "rlcore_train_backend", "rollout": "rlcore_rollout_engine"}[kind]
    source = SHORT_ANSWER.replace("rlcore_reward", hook).replace("max_words", key)
    with pytest.raises(BrokenPluginError, match=f"option '{key}' of Config is the core's in a {kind} section"):
        config_class(kind, reward(source, f"rlcore.{group}"))


def test_an_alias_that_is_a_key_of_the_core_clashes_too(reward) -> None:
    field = "from pydantic import Field\nclass Config(PluginConfig):\n    mine: int = Field(5, alias='weight')\n"
    source = f"from rlcore import PluginConfig, hookimpl\n{field}@hookimpl\ndef rlcore_reward(config: Config): ...\n"
    with pytest.raises(BrokenPluginError, match="option 'weight' of Config is the core's"):
        config_class("reward", reward(source))


def test_the_options_of_an_estimator_are_an_algorithm_config(reward) -> None:
    source = SHORT_ANSWER.replace("rlcore_reward", "rlcore_advantage_estimator")
    with pytest.raises(BrokenPluginError, match=r"must be a subclass of rlcore\.AlgorithmConfig"):
        config_class("algorithm", reward(source, "rlcore.algorithms"))


# --- building ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_word": 3}, "unknown option 'max_word'; did you mean 'max_words'\\? options are max_words"),
        ({"max_words": "many"}, "option max_words: Input should be a valid integer.*, got 'many'"),
        ({"max_words": "many", "zzz": 1}, "option max_words: .*; unknown option 'zzz'; options are max_words"),
    ],
)
def test_bad_options_are_named(reward, options, told: str) -> None:
    with pytest.raises(PluginError, match=f"^{WHO}: {told}"):
        build(PluginRef("reward", reward(SHORT_ANSWER), options))


def test_options_for_a_plugin_without_options_are_refused(reward) -> None:
    name = reward("from rlcore import hookimpl\n@hookimpl\ndef rlcore_reward():\n    return len\n")
    assert config_class("reward", name) is PluginConfig
    with pytest.raises(PluginError, match="unknown option 'x'; options are none"):
        build(PluginRef("reward", name, {"x": 1}))


def test_an_error_in_the_hook_is_the_plugins(reward) -> None:
    source = SHORT_ANSWER.replace("return lambda", "return {}['absent'] or (lambda").rstrip() + ")\n"
    with pytest.raises(
        PluginError, match=rf"^{WHO} failed in rlcore_reward: KeyError: 'absent' \(at .*:10\)"
    ) as caught:
        build(PluginRef("reward", reward(source)))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_rlcores_own_keeps_its_class_and_gains_the_name(reward) -> None:
    source = "from rlcore import hookimpl\nfrom rlcore.errors import DataError\n"
    source += "@hookimpl\ndef rlcore_reward():\n    raise DataError('row 3: no answer')\n"
    with pytest.raises(DataError, match=f"^{WHO}: row 3: no answer$"):
        build(PluginRef("reward", reward(source)))


@pytest.mark.parametrize(
    ("kind", "group", "hook", "wanted"),
    [
        ("reward", "rewards", "rlcore_reward", "a function, or an object with score_batch"),
        ("loss", "losses", "rlcore_policy_loss", "a function"),
        ("algorithm", "algorithms", "rlcore_advantage_estimator", "a function"),
        ("trainer", "trainers", "rlcore_train_backend", "a TrainBackend"),
        ("rollout", "rollout", "rlcore_rollout_engine", "a RolloutEngine"),
        ("tracker", "trackers", "rlcore_tracker", "a Tracker"),
    ],
)
def test_a_hook_that_forgets_its_return_is_told(reward, kind, group, hook, wanted) -> None:
    name = reward(f"from rlcore import hookimpl\n@hookimpl\ndef {hook}():\n    pass\n", f"rlcore.{group}")
    with pytest.raises(PluginError, match=rf"{hook} returned None; it must return {wanted}$"):
        build(PluginRef(kind, name))


def test_a_reward_may_be_an_object_that_scores_batches(reward) -> None:
    batch = "class B:\n    def score_batch(self, samples):\n        return [1.0 for _ in samples]\n"
    source = f"from rlcore import hookimpl\n{batch}"
    name = reward(source + "@hookimpl\ndef rlcore_reward():\n    return B()\n")
    assert build(PluginRef("reward", name)).score_batch([1, 2]) == [1.0, 1.0]


def test_loading_in_a_fresh_process_imports_no_torch(reward) -> None:
    name = reward(SHORT_ANSWER)
    code = (
        "import sys; from rlcore.plugins.config import PluginRef; from rlcore.plugins.loading import build;"
        f"build(PluginRef('reward', {name!r}));"
        "print(sorted({'torch', 'transformers', 'ray', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
