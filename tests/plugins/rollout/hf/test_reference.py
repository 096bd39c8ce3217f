"""The engine against the sampler that its words describe, written out: one row, one plain forward pass, no cache.

A completion is right if at every token the reference, given the tokens before it, draws that token, and ends there if
and only if the completion does. So one forward pass a completion is enough, and the first wrong token is shown.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from rlcore.data.batch import Batch
from rlcore.data.sample import Completion, Request, Sampling
from rlcore.manifest.schema import TrainerSection
from rlcore.plugins.config import PluginRef
from rlcore.plugins.interfaces import LossSpec, TrainContext
from rlcore.plugins.loading import build
from rlcore.torch.weights import open_channel
from rlcore_hf.sampling import uniforms

EOS = (5, 6, 60, 61, 130, 200, 255)
CONTEXT = 96
_NEAR = 1e-6  # of probability: float32 logits of another order of sums


def weights_of(logp: np.ndarray[Any, Any], ask: Sampling, held: bool) -> np.ndarray[Any, Any]:
    """What is drawn from, not normalised: EOS held back, then top-k, then the fewest of these with top-p."""
    p: np.ndarray[Any, Any] = np.exp(logp)
    if held:
        p[list(EOS)] = 0
    order = np.argsort(-p, kind="stable")
    if ask.top_k:
        p[order[ask.top_k :]] = 0
    if ask.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= ask.top_p * p.sum()]] = 0
    return p


def check(request: Request, completion: Completion, logp: np.ndarray[Any, Any], letters: Any) -> None:
    """``logp`` float64[n, V] are the log-probs of each next token at the request's temperature."""
    ask, tokens = request.sampling, completion.tokens.tolist()
    text = letters.decode(tokens)
    for i, token in enumerate(tokens):
        p = weights_of(logp[i], ask, held=i < ask.min_tokens)
        if ask.temperature == 0:
            assert p[token] >= p.max() * (1 - 1e-5)
        else:
            u = uniforms(np.array([request.seed], np.uint64), np.array([i]))[0]
            end = p.cumsum() / p.sum()
            assert p[token] > 0, (request.id, i)
            assert end[token] - p[token] / p.sum() - _NEAR <= u <= end[token] + _NEAR, (request.id, i)
        stop = any(text[: i + 1].endswith(s) for s in ask.stop) and i >= ask.min_tokens
        ended = (token in EOS and not ask.ignore_eos) or stop
        last = i == len(tokens) - 1
        assert last is (ended or i + 1 == ask.max_tokens), (request.id, i)
        if last:
            assert completion.finish == ("stop" if ended else "length")
    assert completion.logprobs is not None
    np.testing.assert_allclose(completion.logprobs, logp[np.arange(len(tokens)), tokens], atol=2e-5)


def ragged(count: int) -> list[Request]:
    """Requests of every kind: prompts of one token and of all that the context leaves, of one to forty tokens more."""
    rng = np.random.default_rng(11)
    kinds = [
        Sampling(40),
        Sampling(12, temperature=0.0),
        Sampling(30, temperature=0.5, top_p=0.8),
        Sampling(25, temperature=1.7, top_k=9),
        Sampling(30, top_k=30, top_p=0.6, min_tokens=6),
        Sampling(20, temperature=0.9, min_tokens=12),
        Sampling(9, ignore_eos=True),
        Sampling(35, stop=("ab", "xyz", "q"), min_tokens=2),
        Sampling(35, stop=("c",)),
        Sampling(1),
    ]
    requests = []
    for i in range(count):
        ask = kinds[i % len(kinds)]
        longest = CONTEXT - ask.max_tokens
        length = (1, longest, int(rng.integers(1, longest)))[i % 3]
        prompt = rng.integers(0, 255, length).astype(np.int32)
        requests.append(Request(f"{i}", f"{i // 2}", prompt, ask, int(rng.integers(2**63)), want_logprobs=True))
    # Some share their prompt and nothing else.
    return [replace(r, tokens=requests[i - 10].tokens) if i % 10 == 4 and i > 10 else r for i, r in enumerate(requests)]


@pytest.mark.parametrize("max_rows", [7, 64])
def test_200_ragged_requests_with_aborts_in_the_middle(max_rows: int, bench: Any, letters: Any) -> None:
    requests = ragged(200)
    engine = bench.engine(eos=EOS, max_tokens=CONTEXT, max_rows=max_rows, prefill_tokens=128)
    rng = np.random.default_rng(2)
    waiting = list(requests)
    done: dict[str, Completion] = {}
    dropped: set[str] = set()
    while waiting or len(done) + len(dropped) < len(requests):
        engine.submit(waiting[:23])
        del waiting[:23]
        for completion in engine.poll(0.0 if waiting else 60.0):
            assert completion.request_id not in dropped
            done[completion.request_id] = completion
        if waiting:
            submitted = [r.id for r in requests[: len(requests) - len(waiting)] if r.id not in done]
            gone = set(rng.choice(submitted, min(3, len(submitted)), replace=False).tolist()) - dropped
            engine.abort(gone)
            dropped |= gone
    assert len(dropped) > 10
    assert engine.poll(0.0) == []
    ends = set()
    for request in requests:
        if request.id not in dropped:
            completion = done[request.id]
            check(request, completion, bench.logprobs(request, completion), letters())
            ends.add((completion.finish, len(completion.tokens) == request.sampling.max_tokens))
    assert ends >= {("stop", False), ("length", True)}


@pytest.mark.parametrize("ask", [Sampling(3, temperature=0.6, top_p=0.7), Sampling(3, temperature=1.4, top_k=12)])
def test_frequencies_of_third_tokens_are_those_of_the_filtered_distribution(ask: Sampling, bench: Any) -> None:
    """Chi-square over sequences: the prefixes are the engine's own, the distribution after each is exact."""
    requests = [Request(str(s), "g", np.array([9, 90], np.int32), ask, s, want_logprobs=True) for s in range(3000)]
    engine = bench.engine(max_rows=1000)
    engine.submit(requests)
    done: list[Completion] = []
    while len(done) < len(requests):
        done += engine.poll(60.0)
    seen, expected = np.zeros(261), np.zeros(261)
    exact: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}
    for completion in done:
        prefix = tuple(completion.tokens[:2].tolist())
        if prefix not in exact:
            p = weights_of(bench.logprobs(requests[0], completion)[2], ask, held=False)
            exact[prefix] = p / p.sum()
        seen[completion.tokens[2]] += 1
        expected += exact[prefix]
    assert not seen[expected == 0].any()
    often = expected >= 10
    rest = [seen[~often].sum()], [expected[~often].sum()]
    got, want = np.append(seen[often], rest[0]), np.append(expected[often], rest[1])
    got, want = got[want > 0], want[want > 0]
    statistic, freedom = float(((got - want) ** 2 / want).sum()), len(want) - 1
    assert freedom > 5
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


def make_trainer(section: Any, temperature: float, **train: Any) -> Any:
    settings = TrainerSection(use="fsdp", **train)
    context = TrainContext("policy", section, settings, temperature, 100, seed=0, device="cpu")
    return build(PluginRef("trainer", "fsdp", {}), context)


def cycle(trainer: Any, engine: Any, prompts: Any, version: int) -> float:
    """Generate with the weights of now, train on it; returns the largest difference of log-probs."""
    engine.wake()
    asked = [
        Request(f"{i}/{s}", f"{i}", np.array(p, np.int32), Sampling(24, temperature=0.8), 100 * version + s, True)
        for i, p in enumerate(prompts)
        for s in range(4)
    ]
    engine.submit(asked)
    done: dict[str, Completion] = {}
    while len(done) < len(asked):
        done.update({c.request_id: c for c in engine.poll(60.0)})
    engine.sleep()
    parts = [done[r.id] for r in asked]
    batch = Batch.from_sequences([np.concatenate([r.tokens, c.tokens]) for r, c in zip(asked, parts, strict=True)])
    lengths = [n for r, c in zip(asked, parts, strict=True) for n in (len(r.tokens), len(c.tokens))]
    batch = batch.with_tokens(loss_mask=np.repeat(np.tile(np.array([0, 1], np.float32), len(asked)), lengths))
    live = batch["loss_mask"] == 1
    theirs = trainer.forward(batch, ["logprobs"])["logprobs"][live]
    ours = np.concatenate([c.logprobs for c in parts if c.logprobs is not None])
    signs = np.where(np.arange(len(batch)) % 2 == 0, 1, -1).astype(np.float32)
    batch = batch.with_tokens(advantages=batch.spread(signs) * batch["loss_mask"], loss_weights=live / live.sum())
    trainer.forward_backward(batch, LossSpec(PluginRef("loss", "clip")))
    trainer.optimizer_step()
    engine.receive_weights(open_channel(trainer, engine.way), version)
    assert {c.weight_version for c in parts} == {version - 1}
    return float(np.abs(ours - theirs).max())


@pytest.mark.parametrize("way", ["in_place", "stream"])
def test_the_trainers_log_probs_after_steps_and_memory_that_stays(
    way: str, bench: Any, prompts: Any, load: Any
) -> None:
    """Each step moves log-probs by far more than engine and trainer may differ. RSS is flat once all has run."""
    trainer = make_trainer(bench.section, 0.8, lr=3e-3)
    engine = bench.engine(max_rows=9)
    engine.way = way
    engine.sleep()
    engine.receive_weights(open_channel(trainer, way), 0)  # type: ignore[arg-type]
    process = psutil.Process(os.getpid())
    grown = []
    for version in range(1, 21):
        assert cycle(trainer, engine, prompts, version) < 2e-5, version
        if version >= 8:
            grown.append(process.memory_info().rss / 2**20)
    print(grown)
    assert grown[-1] - grown[0] < 10, grown
    first = make_trainer(bench.section, 0.8)
    row = Batch.from_sequences([list(range(40))])
    apart = np.abs(first.forward(row, ["logprobs"])["logprobs"] - trainer.forward(row, ["logprobs"])["logprobs"])
    assert apart.max() > 0.1
    assert torch.is_grad_enabled()
