"""Dynamic sampling: which groups a step trains on, with a source whose rewards are written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlcore.data.prompts import PromptReport, PromptSet
from rlcore.data.sample import Group, Prompt, Sample, Segment
from rlcore.data.sampler import PromptSampler
from rlcore.engine.collect import Collector
from rlcore.engine.source import GroupRequest, Progress
from rlcore.errors import NoSpreadError
from rlcore.manifest.load import manifest_from_dict

Rewards = Mapping[str, Sequence[float]]
SPREAD: Rewards = {"right": (1.0, 0.0), "length": (0.0, 0.0)}
FLAT: Rewards = {"right": (0.0, 0.0), "length": (0.0, 0.0)}


class FakeSource:
    """Scores the two samples of each prompt as it is told, and remembers every wave it was asked for."""

    def __init__(self, rewards: Mapping[int, Rewards], default: Rewards = SPREAD) -> None:
        self.rewards, self.default = rewards, default
        self.waves: list[list[GroupRequest]] = []

    def collect(self, wanted: Sequence[GroupRequest], progress: Progress) -> list[Group]:
        self.waves.append(list(wanted))
        progress(len(wanted), len(wanted))
        return [Group(one.id, one.prompt, self.samples(one.prompt)) for one in wanted]

    def samples(self, prompt: Prompt) -> list[Sample]:
        named = self.rewards.get(int(prompt.id), self.default)
        segments = (Segment("prompt", prompt.tokens), Segment("generated", prompt.tokens))
        return [
            Sample(prompt, i, segments, "", "stop").scored(sum(each), dict(zip(named, each, strict=True)), {})
            for i, each in enumerate(zip(*named.values(), strict=True))
        ]

    @property
    def sizes(self) -> list[int]:
        return [len(wave) for wave in self.waves]


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """``start(source, count, size, dynamic_sampling={…})``: a collector over prompts 0 … count − 1, in that order."""

    def new(source: FakeSource, count: int = 20, size: int = 4, epochs: int = 1, **changes: Any) -> Collector:
        (tmp_path / "train.jsonl").write_text('{"prompt": "x"}\n')
        last_batch, greedy = changes.pop("last_batch", "drop"), changes.pop("greedy_baseline", False)
        data = {"train": "train.jsonl", "prompts_per_step": size, "max_prompt_tokens": 8, "max_response_tokens": 8}
        values = {
            "rlcore": 1,
            "name": "x",
            "model": {"path": "org/model"},
            "data": data | {"last_batch": last_batch},
            "trainer": {"use": "fsdp"},
            "rollout": {"use": "hf", "samples_per_prompt": 2},
            "algorithm": {"use": "grpo"} | changes,
            "rewards": {name: {"use": "gsm8k-rule-reward"} for name in ("right", "length")},
        }
        prompts = [Prompt(str(i), "p", np.array([7], np.int32)) for i in range(count)]
        sampler = PromptSampler(
            count, prompts_per_step=size, epochs=epochs, seed=0, shuffle=False, last_batch=last_batch
        )
        report = PromptReport("train", count, 0, 0, 1, 8, {})
        manifest = manifest_from_dict(values, tmp_path).manifest
        return Collector(manifest, PromptSet(prompts, report), sampler, source, greedy)

    return new


def step(collector: Collector) -> tuple[list[int], list[int], dict[str, float]]:
    """Prompts that were kept and those that were sampled, and metrics."""
    kept, sampled, metrics = collector.collect(want_logprobs=False, progress=lambda done, total: None)
    return [int(g.prompt.id) for g in kept], [int(g.prompt.id) for g in sampled], metrics


def test_without_dynamic_sampling_every_group_is_trained_on(start: Any) -> None:
    source = FakeSource({}, FLAT)
    assert step(start(source)) == ([0, 1, 2, 3], [0, 1, 2, 3], {"run/epoch": 0.0})
    assert source.sizes == [4]


def test_each_wave_is_as_large_as_what_is_missing(start: Any) -> None:
    source = FakeSource(dict.fromkeys((0, 2, 3, 4, 6), FLAT))
    kept, sampled, metrics = step(start(source, dynamic_sampling={}))
    assert source.sizes == [4, 3, 2]
    assert kept == [1, 5, 7, 8]
    assert sampled == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert metrics == {
        "run/epoch": 0.0,
        "group/generation_rounds": 3.0,
        "group/dropped_fraction": pytest.approx(5 / 9),
    }


def test_no_group_is_asked_for_twice_and_ids_are_unique(start: Any) -> None:
    source = FakeSource(dict.fromkeys((0, 5), FLAT))
    collector = start(source, dynamic_sampling={})
    assert step(collector)[0] == [1, 2, 3, 4]
    assert step(collector)[0] == [6, 7, 8, 9]
    asked = [one for wave in source.waves for one in wave]
    assert [one.id for one in asked] == list(range(10))
    assert [int(one.prompt.id) for one in asked] == list(range(10))


def test_spread_is_that_of_the_first_reward_and_not_of_the_sum(start: Any) -> None:
    """Field case A08: all wrong, told apart by length alone, teaches length; all of one length and right is kept."""
    shaped = {"right": (0.0, 0.0), "length": (0.0, -0.5)}
    cancelled = {"right": (1.0, 0.0), "length": (-1.0, 0.0)}  # the sum has no spread, the answers have
    source = FakeSource({0: shaped, 1: cancelled})
    kept, _, _ = step(start(source, dynamic_sampling={}))
    assert kept == [1, 2, 3, 4]


def test_filter_on_names_the_reward(start: Any) -> None:
    shaped = {"right": (0.0, 0.0), "length": (0.0, -0.5)}
    source = FakeSource({0: shaped, 1: shaped, 2: shaped, 3: shaped})
    kept, _, _ = step(start(source, dynamic_sampling={"filter_on": "length"}))
    assert kept == [0, 1, 2, 3]


@pytest.mark.parametrize("values", [(0.1, 0.1), (0.3, float(np.float32(0.1) + np.float32(0.2)))])
def test_noise_of_float32_is_no_spread(start: Any, values: tuple[float, float]) -> None:
    source = FakeSource({0: {"right": values, "length": (0.0, 1.0)}})
    assert step(start(source, dynamic_sampling={}))[0] == [1, 2, 3, 4]


def test_it_stops_after_the_last_wave_with_counts(start: Any) -> None:
    source = FakeSource({3: SPREAD}, FLAT)
    collector = start(source, dynamic_sampling={"max_generation_rounds": 3})
    with pytest.raises(
        NoSpreadError, match=r"only 1 of 4 .* the reward 'right', out of 10 .*\(3 waves.*when_short"
    ) as e:
        step(collector)
    assert source.sizes == [4, 3, 3]
    assert e.value.exit_code == 1


def test_or_trains_on_what_there_is(start: Any) -> None:
    settings = {"max_generation_rounds": 2, "when_short": "train"}
    source = FakeSource({3: SPREAD}, FLAT)
    kept, sampled, metrics = step(start(source, dynamic_sampling=settings))
    assert kept == [3]
    assert len(sampled) == 7
    assert metrics["group/generation_rounds"] == 2


def test_with_nothing_to_train_on_it_stops_either_way(start: Any) -> None:
    settings = {"max_generation_rounds": 2, "when_short": "train"}
    with pytest.raises(NoSpreadError, match=r"only 0 of 4 .* out of 8 ") as stop:
        step(start(FakeSource({}, FLAT), dynamic_sampling=settings))
    assert "when_short" not in str(stop.value)  # it would not help


def test_one_round_never_refills(start: Any) -> None:
    source = FakeSource({0: FLAT})
    kept, _, _ = step(start(source, dynamic_sampling={"max_generation_rounds": 1, "when_short": "train"}))
    assert (kept, source.sizes) == ([1, 2, 3], [4])


def test_refills_go_on_into_the_next_epoch(start: Any) -> None:
    """6 prompts, 4 a step: the 2 that are left after the first wave make no step, so that epoch is over."""
    source = FakeSource({0: FLAT})
    collector = start(source, count=6, epochs=2, dynamic_sampling={})
    kept, sampled, metrics = step(collector)
    assert sampled == [0, 1, 2, 3, 0, 1]
    assert kept == [1, 2, 3, 1]
    assert metrics["run/epoch"] == source.waves[-1][0].visit == 1
    visits = {(one.prompt.id, one.visit) for wave in source.waves for one in wave}
    assert len(visits) == sum(source.sizes)  # a prompt that comes round again draws anew


def test_the_end_of_the_prompts_is_no_failure(start: Any) -> None:
    """A last step that can't be filled trains on what it has, also with ``when_short: stop``."""
    source = FakeSource(dict.fromkeys((4, 5, 6), FLAT))
    collector = start(source, count=8, dynamic_sampling={})
    assert step(collector)[0] == [0, 1, 2, 3]
    assert step(collector)[0] == [7]
    assert collector.sampler.done


def test_the_end_of_the_prompts_with_nothing_kept_says_so(start: Any) -> None:
    with pytest.raises(NoSpreadError, match=r"only 0 of 4 .* out of 4 sampled for this step \(no prompts are left\)"):
        step(start(FakeSource({}, FLAT), count=4, dynamic_sampling={}))


def test_a_short_last_wave_is_filled_up_from_the_next_epoch_or_not_at_all(start: Any) -> None:
    source = FakeSource({})
    plain = start(source, count=6, last_batch="short")
    assert [step(plain)[0], step(plain)[0]] == [[0, 1, 2, 3], [4, 5]]
    refilled = start(source, count=6, epochs=2, last_batch="short", dynamic_sampling={})
    assert [step(refilled)[0], step(refilled)[0]] == [[0, 1, 2, 3], [4, 5, 0, 1]]


def test_requests_are_as_the_run_wants_them(start: Any) -> None:
    source = FakeSource({0: FLAT})
    collector = start(source, greedy_baseline=True, dynamic_sampling={})
    collector.collect(want_logprobs=True, progress=lambda done, total: None)
    for one in (one for wave in source.waves for one in wave):
        assert (one.samples, one.want_logprobs, one.greedy_baseline) == (2, True, True)
        assert (one.sampling.temperature, one.sampling.max_tokens) == (1.0, 8)


def test_a_restored_collector_goes_on_where_it_was(start: Any) -> None:
    def source() -> FakeSource:
        return FakeSource(dict.fromkeys((0, 2, 5, 9, 10), FLAT))

    straight = start(source(), epochs=2, dynamic_sampling={})
    want = [step(straight) for _ in range(3)]
    before = start(source(), epochs=2, dynamic_sampling={})
    assert step(before) == want[0]
    after = start(source(), epochs=2, dynamic_sampling={})
    after.restore(before.state())
    assert [step(after), step(after)] == want[1:]
    assert after.state() == straight.state()
