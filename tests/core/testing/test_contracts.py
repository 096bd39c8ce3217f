"""The contracts catch the mistakes they are for: each is run, as a plugin's author would, on plugins that make one."""

from textwrap import dedent, indent
from uuid import uuid4

import pytest

REWARD = """
from rlcore import PluginConfig, hookimpl

class Config(PluginConfig):
    {doc}
    max_words: int = 50
    {field}

@hookimpl
def rlcore_reward(config: Config):
{body}
"""

ESTIMATOR = """
import numpy as np
from rlcore import AlgorithmConfig, hookimpl

class Config(AlgorithmConfig):
    '''An estimator, perhaps with a mistake.'''

    def needs(self):
        return frozenset({{"groups"}})

    def defaults(self):
        return {defaults}

@hookimpl
def rlcore_advantage_estimator(config: Config):
    def estimate(batch):
        live, reward = batch["loss_mask"], batch["reward"]
        _, group = np.unique(batch["group"], return_inverse=True)
        centred = reward - (np.bincount(group, reward) / np.bincount(group))[group].astype(np.float32)
{body}
        return batch.with_tokens(advantages=advantages)
    return estimate
"""
CENTRED = "advantages = batch.spread(centred) * live"


class Reports:
    """A pytest plugin that keeps what the tests of a run said."""

    def __init__(self):
        self.passed, self.failed, self.output = set(), set(), ""

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.rpartition("::test_")[2].partition("[")[0]
        if report.failed:
            self.failed.add(name)
            self.output += f"{report.nodeid}\n{report.longreprtext}\n"
        elif report.when == "call":
            self.passed.add(name)


@pytest.fixture
def failures(tmp_path):
    """Runs a test file by pytest; gives the names of those that failed. What they said is in ``failures.output``."""

    def run(code, select=""):
        file = tmp_path / f"test_{uuid4().hex}.py"
        file.write_text(dedent(code))
        reports = Reports()
        options = ["-c", str(tmp_path / "none.ini"), "--import-mode=importlib", "-W", "error", "-k", select]
        quiet = ["-p", "no:cacheprovider", "-p", "no:terminal"]
        exit_code = pytest.main([str(file), *options, *quiet], plugins=[reports])
        assert exit_code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), exit_code
        run.output = reports.output
        return reports.failed

    (tmp_path / "none.ini").write_text("[pytest]\n")
    return run


@pytest.fixture
def reward_failures(failures, tmp_path):
    def run(
        body="return lambda sample: 1.0", doc='"""Score."""', field='"""Most words."""', more="", top="", select=""
    ):
        file = tmp_path / "reward.py"
        file.write_text(top + REWARD.format(body=indent(dedent(body), "    "), doc=doc, field=field))
        return failures(
            f"""
            from rlcore.testing.contracts import RewardContract
            from rlcore.testing.samples import make_sample

            class TestReward(RewardContract):
                plugin = {str(file)!r}
                samples = (make_sample("#### 1", 1), make_sample("two words", 2))
                {more}
            """,
            select,
        )

    return run


@pytest.fixture
def estimator_failures(failures, tmp_path):
    def run(body, defaults='{"loss": "clip"}'):
        file = tmp_path / "estimator.py"
        file.write_text(ESTIMATOR.format(body=indent(body, "        "), defaults=defaults))
        return failures(
            f"""
            from rlcore.testing.contracts import AdvantageContract

            class TestEstimator(AdvantageContract):
                plugin = {str(file)!r}
            """,
            "not heavy",
        )

    return run


def test_a_good_reward_passes(reward_failures):
    assert reward_failures("return lambda sample: len(sample.response.split()) <= config.max_words") == set()


@pytest.mark.parametrize(
    ("mistake", "test", "said"),
    [
        ({"field": ""}, "options_are_documented", "options without a sentence under them: max_words"),
        ({"doc": ""}, "options_are_documented", "Config needs a docstring"),
        ({"top": "import torch\n"}, "module_imports_nothing_heavy", "imports torch; import inside the hook"),
        ({"more": "options = {'max_words': lambda: 1}"}, "ref_crosses_processes", "pickle"),
        ({"body": "return lambda sample: float('nan')"}, "scores_are_finite", "returned nan"),
        ({"body": "return lambda sample: sample.extra.update(n=1) or 0.0"}, "samples_are_left_alone", "assert"),
        ({"body": "calls = []\nreturn lambda sample: calls.append(1) or len(calls)"}, "scores_repeat", "assert"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_reward_with_a_mistake(reward_failures, failures, mistake, test, said):
    assert test in reward_failures(**mistake, select=test)
    assert said in failures.output


def test_reward_that_says_it_does_not_repeat(reward_failures):
    random = "calls = []\nreturn lambda sample: calls.append(1) or len(calls)"
    assert reward_failures(random, more="deterministic = False", select="scores") == set()


@pytest.mark.parametrize(
    ("odd", "body"),
    [
        ("empty", "return lambda sample: 1 / len(sample.response)"),
        ("lone surrogate", "return lambda sample: len(sample.response.encode())"),
        ("many digits", "return lambda sample: int(sample.response) > 1 if sample.response.isdecimal() else 0"),
        ("other digits", "return lambda sample: sum(int(c) for c in sample.response if c.isnumeric())"),
    ],
)
def test_reward_that_odd_responses_break(reward_failures, failures, odd, body):
    assert "odd_responses_are_scored" in reward_failures(body, select="odd")
    assert f"[{odd}]" in failures.output


def test_a_good_estimator_passes(estimator_failures):
    assert estimator_failures(CENTRED) == set()


@pytest.mark.parametrize(
    ("body", "test"),
    [
        ("advantages = batch.spread(centred)", "masked_tokens_get_zero"),
        (
            "advantages = batch.spread(centred) * live * np.arange(len(live)).astype('f')",
            "order_of_rows_does_not_matter",
        ),
        ("advantages = batch.spread(reward - reward.mean()) * live", "groups_do_not_touch_each_other"),
        ("advantages = batch.spread(reward) * live", "equal_rewards"),
        ("with np.errstate(all='ignore'): centred = centred / reward.std()\n" + CENTRED, "equal_rewards"),
        (CENTRED + " + np.where(live > 0, np.nan, 0)", "adds_finite_advantages"),
        (CENTRED + " * 0", "adds_finite_advantages"),
        ("batch = batch.with_samples(reward=reward + 1)\n" + CENTRED, "leaves_its_input_alone"),
        ("batch = batch.with_tokens(loss_mask=1 - live)\n" + CENTRED, "leaves_its_input_alone"),
    ],
)
def test_estimator_with_a_mistake(estimator_failures, body, test):
    assert test in estimator_failures(body)


def test_estimator_with_unknown_defaults(estimator_failures, failures):
    assert estimator_failures(CENTRED, '{"agregate": "token-mean"}') == {"defaults_are_keys_of_the_section"}
    assert "agregate" in failures.output


@pytest.mark.parametrize(
    ("change", "tests"),
    [
        ("{}", set()),
        ("{'finish': 'stop' if len(c.tokens) == 48 else c.finish}", {"tokens_and_finish"}),
        ("{'logprobs': c.logprobs if c.logprobs is None else c.logprobs * 1.3}", {"logprobs_if_asked"}),
        ("{'logprobs': np.zeros(len(c.tokens), 'f')}", {"logprobs_if_asked"}),
        ("{'tokens': c.tokens[:-1] if c.finish == 'stop' else c.tokens}", {"tokens_and_finish"}),
        ("{'tokens': (c.tokens + 1) % 256}", {"greedy_takes_the_likeliest_token"}),
        ("{'weight_version': 0}", {"new_weights_and_sleep"}),
    ],
)
def test_engine_with_a_mistake(failures, change, tests):
    pytest.importorskip("rlcore_hf")
    failed = failures(
        f"""
        from dataclasses import replace
        import numpy as np
        from rlcore.testing.contracts import RolloutContract
        from rlcore_hf.engine import HfEngine

        class Engine(HfEngine):
            def poll(self, timeout_seconds):
                return [replace(c, **{change}) for c in super().poll(timeout_seconds)]

        class TestEngine(RolloutContract):
            plugin = "hf"
            tied = False

            @classmethod
            def make_engine(cls, context):
                return Engine(cls.config(), context)
        """,
        " or ".join(tests) or "tokens_and_finish or logprobs or greedy or weights",
    )
    assert failed == tests


@pytest.mark.parametrize(
    ("methods", "test"),
    [
        ("def optimizer_step(self): return {'grad_norm': 1.0, 'lr': 1e-2}", "step_goes_the_right_way"),
        (
            "def forward_backward(self, batch, loss):\n"
            "    return super().forward_backward(batch.with_tokens(advantages=-batch['advantages']), loss)",
            "step_goes_the_right_way",
        ),
        (
            "def forward_backward(self, batch, loss):\n"
            "    weights = batch['loss_weights'] / batch['loss_weights'].sum()\n"
            "    return super().forward_backward(batch.with_tokens(loss_weights=weights), loss)",
            "split_does_not_change_the_update",
        ),
        ("def weights(self): return (x for x in super().weights() if x[0] != 'lm_head.weight')", "weights_are_as_spec"),
        ("def load(self, folder): super().load(folder); self.updates = 0", "save_and_load"),
        ("def export(self, folder): super().export(folder.parent)", "export_is_a_plain_folder"),
    ],
)
def test_backend_with_a_mistake(failures, methods, test):
    pytest.importorskip("rlcore_fsdp")
    code = """
        from rlcore.testing.contracts import TrainBackendContract
        from rlcore_fsdp.backend import FsdpBackend

        class Backend(FsdpBackend):
            pass
        {methods}

        class TestBackend(TrainBackendContract):
            plugin = "fsdp"

            @classmethod
            def make_backend(cls, context):
                return Backend(cls.config(), context)
        """
    failed = failures(dedent(code).format(methods=indent(methods, "    ")), f"{test} and not untied")
    assert len(failed) == 1
    assert failed.pop().startswith(test)
