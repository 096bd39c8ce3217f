"""How good answers are: pass@k, maj@k, and the metrics of an evaluation. Pure functions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from rlcore.data.sample import Group, Sample
from rlcore.errors import DataError

RIGHT_ABOVE = 0.5
"""A sample is right if its first reward scores above this: for rewards of 0 or 1 and of −1 or 1, if it is 1."""


def is_right(sample: Sample) -> bool:
    """Whether the first reward of the manifest takes the answer for right."""
    return next(iter(sample.rewards.values())) > RIGHT_ABOVE


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that of ``k`` of the ``n`` samples, drawn without replacement, at least one of the ``c`` right ones is.

    ``1 − C(n−c, k) / C(n, k)``, the unbiased estimator of Chen et al. 2021 (https://arxiv.org/abs/2107.03374).
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise DataError(f"pass@{k} of {n} samples, {c} of them right: needs 0 ≤ right ≤ samples and 1 ≤ k ≤ samples")
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def maj_at_k(answers: Sequence[str | None], right: Sequence[bool], k: int) -> float:
    """Chance that the commonest of ``k`` answers is right: self-consistency (https://arxiv.org/abs/2203.11171).

    ``answers`` are normalised, so that equal answers are equal texts; ``None`` has no vote. An answer is as right as
    the share of its voters that are. Where several answers lead, the result is their mean: what breaking the tie at
    random would give on average. Without any vote it is 0. With more than ``k`` samples, it is the mean over as many
    blocks of ``k`` samples in a row as there are; a remainder is left out.
    """
    n = len(answers)
    if len(right) != n or not 1 <= k <= n:
        raise DataError(f"maj@{k} of {n} answers and {len(right)} verdicts: needs as many of each, and 1 ≤ k ≤ answers")
    return fmean(_majority(answers[i : i + k], right[i : i + k]) for i in range(0, n - k + 1, k))


def _majority(answers: Sequence[str | None], right: Sequence[bool]) -> float:
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    won = sum(
        correct for answer, correct in zip(answers, right, strict=True) if answer is not None and votes[answer] == most
    )
    return won / sum(count for count in votes.values() if count == most)


def evaluation_metrics(groups: Sequence[Group], k: Sequence[int]) -> dict[str, float]:
    """Metrics of scored validation samples; every prompt counts the same, however many samples it has.

    ``eval/accuracy``: share of samples whose first reward is above ``RIGHT_ABOVE``. ``eval/reward/mean``: the weighted
    sum; ``eval/reward/NAME/mean``: each reward; ``eval/reward/NAME/KEY``: its further numbers, over the samples that
    have them. ``eval/pass@k``; ``eval/maj@k`` where the first reward tells the answers it found.
    ``eval/response_tokens_mean``, ``eval/truncated_fraction``. With more than one source of data, the same for each
    under ``eval/SOURCE/``. Raises DataError if there is nothing to average, or a group has fewer than ``k`` samples.
    """
    if not groups or not all(group.samples for group in groups):
        raise DataError("an evaluation needs at least one prompt, and one sample of each")
    by_source: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_source[group.prompt.source or "unnamed"].append(group)
    metrics = _metrics("eval", groups, k)
    if len(by_source) > 1:
        for source in sorted(by_source):
            metrics |= _metrics(f"eval/{source}", by_source[source], k)
    return metrics


def _metrics(prefix: str, groups: Sequence[Group], k: Sequence[int]) -> dict[str, float]:
    metrics = {
        "accuracy": _mean(groups, is_right),
        "reward/mean": _mean(groups, lambda sample: sample.reward),
        "response_tokens_mean": _mean(groups, lambda sample: sample.response_tokens),
        "truncated_fraction": _mean(groups, lambda sample: sample.truncated),
    }
    metrics |= _named_means(groups)
    votes = any(_answer(sample) is not None for group in groups for sample in group.samples)
    for each in k:
        metrics[f"pass@{each}"] = fmean(_pass(group, each) for group in groups)
        if votes:
            metrics[f"maj@{each}"] = fmean(_maj(group, each) for group in groups)
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def _named_means(groups: Sequence[Group]) -> dict[str, float]:
    """Means of each reward and of its further numbers, over the samples that have them."""
    values: dict[str, list[list[float]]] = defaultdict(list)
    for group in groups:
        of_group: dict[str, list[float]] = defaultdict(list)
        for sample in group.samples:
            for name, value in [*((f"{n}/mean", v) for n, v in sample.rewards.items()), *sample.metrics.items()]:
                of_group[f"reward/{name}"].append(value)
        for name, of_samples in of_group.items():
            values[name].append(of_samples)
    return {name: fmean(map(fmean, of_groups)) for name, of_groups in values.items()}


def _mean(groups: Iterable[Group], value: Callable[[Sample], float]) -> float:
    return fmean(fmean(map(value, group.samples)) for group in groups)


def _pass(group: Group, k: int) -> float:
    return pass_at_k(len(group.samples), sum(map(is_right, group.samples)), k)


def _maj(group: Group, k: int) -> float:
    return maj_at_k([_answer(sample) for sample in group.samples], [is_right(sample) for sample in group.samples], k)


def _answer(sample: Sample) -> str | None:
    """The answer that the first reward found."""
    return sample.answers.get(next(iter(sample.rewards)))
