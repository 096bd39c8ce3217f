"""Draws follow the distribution, depend on seed and step alone, and never hit what has no probability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rlcore_hf.sampling import Draws, keep_likeliest, pick, sample, uniforms

torch.set_num_threads(1)
NO_EOS = torch.zeros(0, dtype=torch.int64)
MASK = (1 << 64) - 1


def splitmix64(seed: int, count: int) -> list[int]:
    """The published generator in Python integers."""
    out = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out.append(z ^ (z >> 31))
    return out


def draws(rows: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Draws:
    greedy = temperature == 0
    return Draws(
        temperature=torch.full((rows,), temperature or 1.0),
        greedy=torch.full((rows,), greedy),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        any_greedy=greedy,
        all_greedy=greedy,
        filtered=top_k > 0 or top_p < 1,
    )


def chi_square(counts: np.ndarray[Any, Any], p: np.ndarray[Any, Any]) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_splitmix64_known_answers() -> None:
    """The oracle itself, against the values that implementations publish for this seed."""
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_uniforms_are_splitmix64() -> None:
    seeds = np.array([0, 1, 1234567, MASK], np.uint64)
    for step in (0, 1, 77):
        streams = [splitmix64(splitmix64(int(seed), 1)[0], step + 1)[step] for seed in seeds]
        expected = [((h >> 12) + 0.5) / 2**52 for h in streams]
        assert uniforms(seeds, np.full(4, step)).tolist() == expected


def test_uniforms_stay_inside_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the smallest and the largest hash."""
    for h, expected in ((0, 2.0**-53), (MASK, 1 - 2.0**-53)):
        monkeypatch.setattr("rlcore_hf.sampling._mix64", lambda z, h=h: np.full_like(z, h))
        assert uniforms(np.zeros(1, np.uint64), np.zeros(1, np.int64))[0] == expected


@pytest.mark.parametrize("axis", ["seeds", "steps"])
def test_draws_follow_the_distribution(axis: str) -> None:
    """Chi-square over neighbouring seeds, and over the steps of one seed; 15 degrees of freedom, p = 0.001 at 37.7."""
    n = 40_000
    p = np.random.default_rng(0).dirichlet(np.ones(16))
    along, still = np.arange(n), np.full(n, 5)
    seeds, steps = (along, still) if axis == "seeds" else (still, along)
    u = torch.from_numpy(uniforms(seeds.astype(np.uint64), steps))
    logits = torch.from_numpy(np.log(p) * 0.8).float().expand(n, -1)
    token, logprob = sample(logits, draws(n, temperature=0.8), u, NO_EOS)
    assert chi_square(np.bincount(token.numpy(), minlength=16), p) < 37.7
    np.testing.assert_allclose(logprob.numpy(), np.log(p)[token.numpy()], atol=1e-6)


@pytest.mark.parametrize("vocab", [1, 3, 1023, 1024, 1025, 2500])
def test_pick_is_the_inverse_cumulative_distribution(vocab: int) -> None:
    """Over block borders too; the oracle is a plain cumulative sum."""
    rng = np.random.default_rng(vocab)
    weights = rng.exponential(size=(1, vocab)).astype(np.float32)
    weights[rng.random(weights.shape) < 0.3] = 0
    weights[0, rng.integers(vocab)] = 1
    u = np.concatenate([rng.random(500), [2.0**-53, 1 - 2.0**-53]])
    cumulative = weights[0].astype(np.float64).cumsum()
    expected = np.searchsorted(cumulative, u * cumulative[-1], side="right")
    got = pick(torch.from_numpy(weights).expand(len(u), -1), torch.from_numpy(u)).numpy()
    # Sums by blocks round otherwise than one long sum: a number next to a border may fall on its other side.
    off = got != expected
    assert off.sum() <= 1
    assert (weights[0, got] > 0).all()


def test_nothing_without_probability_is_drawn() -> None:
    """Zeros before, after and between; u at both ends; sums that round."""
    weights = torch.zeros(1, 3000)
    weights[0, [700, 1500, 2400]] = torch.tensor([0.1, 1.0, 1e-30])
    for u in (0.0, 2.0**-53, 0.0909, 0.5, 1 - 2.0**-53, 1.0):
        token = pick(weights, torch.tensor([u], dtype=torch.float64)).item()
        assert token in (700, 1500, 2400), (u, token)
    assert pick(weights, torch.tensor([0.0], dtype=torch.float64)).item() == 700


def brute_force_support(p: np.ndarray[Any, Any], k: int, top_p: float) -> set[int]:
    """Which tokens may be drawn, by the words of the definition."""
    ranked = sorted(range(len(p)), key=lambda i: (-p[i], i))
    ranked = ranked[:k] if k else ranked
    if top_p == 1:
        return set(ranked)
    total = sum(p[i] for i in ranked)
    kept: list[int] = []
    while sum(p[i] for i in kept) < top_p * total:
        kept.append(ranked[len(kept)])
    return set(kept)


@pytest.mark.parametrize("top_k", [0, 1, 2, 7, 40, 99])
@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.95, 1.0])
def test_support_of_top_k_and_top_p(top_k: int, top_p: float) -> None:
    rng = np.random.default_rng(top_k)
    for scale in (0.0, 1.0, 6.0):  # all equal, mixed, peaked
        weights = np.exp(scale * rng.normal(size=40)).astype(np.float32)
        kept = keep_likeliest(
            torch.from_numpy(weights)[None], torch.tensor([top_k]), torch.tensor([top_p], dtype=torch.float64)
        )
        support = set(torch.nonzero(kept[0])[:, 0].tolist())
        assert support == brute_force_support(weights.astype(np.float64), top_k, top_p)
        np.testing.assert_array_equal(kept[0, list(support)].numpy(), weights[list(support)])


def test_filters_are_each_row_s_own_and_logprobs_are_unfiltered() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]]).expand(600, -1)
    kinds = torch.arange(600) % 3
    row = Draws(
        temperature=torch.ones(600),
        greedy=kinds == 2,
        top_k=torch.where(kinds == 0, 2, 0),
        top_p=torch.where(kinds == 1, 0.5, 1.0).double(),
        any_greedy=True,
        all_greedy=False,
        filtered=True,
    )
    u = torch.from_numpy(uniforms(np.arange(600, dtype=np.uint64), np.zeros(600, np.int64)))
    token, logprob = sample(logits, row, u, NO_EOS)
    assert [set(token[kinds == kind].tolist()) for kind in range(3)] == [{1, 3}, {1}, {1}]
    np.testing.assert_allclose(logprob, logits[0].double().log_softmax(-1)[token], atol=1e-6)


def test_held_rows_draw_another_token_even_where_eos_has_all_probability() -> None:
    logits = torch.tensor([[0.0, 300.0, 1.0], [0.0, 300.0, 1.0]])
    u = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for temperature in (0.0, 1.0):
        token, logprob = sample(
            logits, draws(2, temperature=temperature), u, torch.tensor([1]), torch.tensor([True, False])
        )
        assert token.tolist() == [2, 1]
        assert logprob.tolist() == pytest.approx([-299.0, 0.0])


def test_logits_that_are_not_finite_are_reported() -> None:
    logits = torch.tensor([[0.0, float("nan")], [0.0, float("inf")], [0.0, -float("inf")]])
    token, _ = sample(logits, draws(3), torch.full((3,), 0.9).double(), NO_EOS)
    assert token.tolist() == [-1, -1, 0]
