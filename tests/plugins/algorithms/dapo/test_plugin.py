from __future__ import annotations

import numpy as np
import pytest
from rlcore import Batch
from rlcore.engine.prepare import StepPlan
from rlcore.errors import ManifestError, PluginError
from rlcore.manifest.load import manifest_from_dict
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import AlgorithmContext
from rlcore.plugins.loading import build, config_class
from rlcore_dapo.overlong import overlong_penalty

CONTEXT = AlgorithmContext(samples_per_prompt=4, max_response_tokens=10, seed=0)


def batch_of(rewards, groups, lengths, truncated=None, masks=None):
    """A prompt of one token, then so many generated ones."""
    batch = Batch.from_sequences([range(1 + length) for length in lengths])
    mask = np.concatenate([[0] + [1] * length for length in lengths] if masks is None else masks)
    return batch.with_tokens(loss_mask=np.float32(mask)).with_samples(
        reward=np.float32(rewards),
        group=np.int64(groups),
        response_tokens=np.int64(lengths),
        truncated=np.array([False] * len(lengths) if truncated is None else truncated),
    )


def by_row(batch, **options):
    """The advantage of each row that is left, which its live tokens share."""
    out = build(PluginRef("algorithm", "dapo", options), CONTEXT)(batch)
    parts = np.split(out["advantages"], out.offsets[1:-1])
    masks = np.split(out["loss_mask"], out.offsets[1:-1])
    rows = list(zip(parts, masks, strict=True))
    assert all(len(set(part[mask == 1])) <= 1 and not part[mask == 0].any() for part, mask in rows)
    return [float(part.sum() / max(1, mask.sum())) for part, mask in rows]


def test_advantages_are_those_of_the_group():
    """Means ½ and ¾, deviations .70711 and .35355 (n − 1), plus 1e-6."""
    got = by_row(batch_of([1, 0, 0.5, 1], [7, 7, 3, 3], [3, 2, 4, 1]))
    np.testing.assert_allclose(got, [0.70711, -0.70711, -0.70710, 0.70710], atol=5e-6)


def test_penalty_by_hand():
    """Eq. 13 with L = 10 and a buffer of 4: from the 7th token on a quarter each; −1 at the limit and beyond."""
    lengths = np.array([0, 1, 6, 7, 8, 9, 10, 25])
    got = overlong_penalty(lengths, max_tokens=10, buffer_tokens=4, factor=1.0)
    assert got.tolist() == [0, 0, 0, -0.25, -0.5, -0.75, -1, -1]
    assert overlong_penalty(lengths, max_tokens=10, buffer_tokens=10, factor=0.5)[:2].tolist() == [0, -0.05]


def test_penalty_enters_the_total():
    """Both right; 8 tokens cost ½ of the factor 2, so totals are 1 and 0: mean ½, deviation .70711."""
    batch = batch_of([1, 1], [0, 0], [6, 8])
    assert by_row(batch) == [0, 0]
    got = by_row(batch, overlong_buffer_tokens=4, overlong_penalty=2.0)
    np.testing.assert_allclose(got, [0.70711, -0.70711], atol=5e-6)


def test_length_is_what_was_generated_whatever_the_mask_says():
    """Tokens that a correction or a tool took out of the loss were generated, or not, all the same."""
    batch = batch_of([1, 1], [0, 0], [6, 8], masks=[[0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0, 1]])
    assert by_row(batch, overlong_buffer_tokens=4)[1] < 0


def test_truncated_rows_leave_the_loss_but_count_in_their_group():
    batch = batch_of([1, 0, 1, 0], [0, 0, 1, 1], [3, 10, 10, 10], truncated=[False, True, True, True])
    got = by_row(batch, mask_truncated=True)
    np.testing.assert_allclose(got, [0.70711], atol=5e-6)
    out = build(PluginRef("algorithm", "dapo", {"mask_truncated": True}), CONTEXT)(batch)
    assert out["group"].tolist() == [0]
    none = build(PluginRef("algorithm", "dapo", {"mask_truncated": True}), CONTEXT)(batch.select(np.array([2, 3])))
    assert len(none) == 0


def load(folder, algorithm, **sections):
    (folder / "train.jsonl").write_text('{"prompt": "x"}\n')
    values = {
        "rlcore": 1,
        "name": "x",
        "model": {"path": "org/model"},
        "data": {"train": "train.jsonl", "prompts_per_step": 1, "max_prompt_tokens": 8, "max_response_tokens": 10},
        "trainer": {"use": "fsdp"},
        "rollout": {"use": "hf", "samples_per_prompt": 2},
        "algorithm": {"use": "dapo", **algorithm},
        "rewards": {"right": {"use": "gsm8k-rule-reward"}, "short": {"use": "gsm8k-rule-reward"}},
    }
    return manifest_from_dict({**values, **sections}, folder).manifest


def test_what_it_brings_to_a_manifest(tmp_path):
    algorithm = load(tmp_path, {}).algorithm
    assert algorithm.loss.plugin("loss") == PluginRef(
        "loss", "clip", {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0}
    )
    assert algorithm.aggregate == "token-mean"
    assert algorithm.kl is None
    assert algorithm.dynamic_sampling.max_generation_rounds == 10
    assert algorithm.dynamic_sampling.filter_on is None
    assert algorithm.dynamic_sampling.when_short == "stop"


def test_each_of_it_can_be_set(tmp_path):
    assert load(tmp_path, {"dynamic_sampling": None}).algorithm.dynamic_sampling is None
    partly = load(tmp_path, {"dynamic_sampling": {"filter_on": "short"}, "loss": {"clip_high": 0.3}}).algorithm
    assert partly.dynamic_sampling.filter_on == "short"
    assert partly.dynamic_sampling.max_generation_rounds == 10
    assert partly.loss.options == {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 10.0}
    other = load(tmp_path, {"loss": "sft"})
    assert StepPlan.of(other).loss.policy == PluginRef("loss", "sft", {})


def test_a_buffer_that_is_no_part_of_the_response_is_refused_at_check(tmp_path):
    for buffer in (11, 0, -1):
        with pytest.raises(ManifestError, match=rf"overlong_buffer_tokens: must be from 1 to .*\(10\), got {buffer}$"):
            load(tmp_path, {"overlong_buffer_tokens": buffer})
        with pytest.raises(PluginError, match=rf"overlong_buffer_tokens: must be from 1 to .*\(10\), got {buffer}$"):
            build(PluginRef("algorithm", "dapo", {"overlong_buffer_tokens": buffer}), CONTEXT)
    load(tmp_path, {"overlong_buffer_tokens": 10})
    with pytest.raises(ManifestError, match=r"overlong_penalty: must be .*at least 0.*, got -1"):
        load(tmp_path, {"overlong_penalty": -1.0})


def test_nothing_is_said_of_a_penalty_that_is_off(tmp_path):
    """Field case R14."""
    off = {"overlong_buffer_tokens": 10_000, "overlong_penalty": 0.0}
    load(tmp_path, off)
    assert by_row(batch_of([1, 1], [0, 0], [6, 10]), **off) == [0, 0]


def test_config_says_what_it_needs():
    assert config_class("algorithm", "dapo")().needs() == {"groups"}
