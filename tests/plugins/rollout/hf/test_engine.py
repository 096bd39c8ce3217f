"""What the engine generates, against transformers' own generation and forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.mark.parametrize("architecture", ["Qwen3", "Qwen2", "Llama"])
def test_greedy_is_that_of_generate(architecture: str, bench: Any, lender: Any, request_of: Any, run: Any) -> None:
    torch.manual_seed(1)
    config = getattr(transformers, f"{architecture}Config")(**SIZES)
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    engine = bench.engine(max_rows=5)
    engine.receive_weights(lender(model), 1)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 97, size=n).tolist() for n in (1, 4, 17, 4, 9, 30)]
    done = run(engine, [request_of(str(i), p, temperature=0.0, max_tokens=15) for i, p in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        out = model.generate(torch.tensor([prompt]), max_new_tokens=15, do_sample=False)
        assert done[str(i)].tokens.tolist() == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.7}, {"temperature": 1.3, "top_k": 20}, {"top_p": 0.5}, {"min_tokens": 8}, {"temperature": 0.0}],
    ids=str,
)
def test_logprobs_are_those_of_a_full_forward_pass(
    sampling: dict[str, Any], bench: Any, prompts: Any, request_of: Any, run: Any
) -> None:
    """At the temperature, before filters and before EOS was held back: what the trainer computes."""
    engine = bench.engine(eos=range(40), max_rows=4)
    requests = [request_of(f"{i}/{s}", p, seed=s, **sampling) for i, p in enumerate(prompts) for s in range(3)]
    done = run(engine, requests)
    for request in requests:
        completion = done[request.id]
        expected = bench.logprobs(request, completion)[np.arange(len(completion.tokens)), completion.tokens]
        assert completion.logprobs.dtype == np.float32
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


def test_a_sample_does_not_depend_on_its_company(bench: Any, prompts: Any, request_of: Any, run: Any) -> None:
    engine = bench.engine(eos=[7, 8])
    requests = [request_of(f"{i}/{s}", p, seed=9 * i + s) for i, p in enumerate(prompts) for s in range(4)]
    together = run(engine, requests)
    for request in requests:
        alone = run(engine, [request])[request.id]
        assert alone.tokens.tolist() == together[request.id].tokens.tolist()
        np.testing.assert_allclose(alone.logprobs, together[request.id].logprobs, atol=1e-5)


@pytest.mark.parametrize("timeout", [0.0, 60.0])
@pytest.mark.parametrize("config", [{"max_rows": 3}, {"max_rows": 1}, {"prefill_tokens": 1}, {"max_rows": 40}], ids=str)
def test_nor_on_limits_and_timing(
    timeout: float, config: dict[str, int], bench: Any, prompts: Any, request_of: Any, run: Any
) -> None:
    requests = [
        request_of(f"{i}/{s}", p, seed=9 * i + s, max_tokens=4 + 3 * s) for i, p in enumerate(prompts) for s in range(3)
    ]
    expected = run(bench.engine(eos=[7, 8]), requests)
    engine = bench.engine(eos=[7, 8], **config)
    done: dict[str, Any] = {}
    for request in requests:  # come in one by one while others run
        engine.submit([request])
        done.update({c.request_id: c for c in engine.poll(timeout)})
    while len(done) < len(requests):
        done.update({c.request_id: c for c in engine.poll(timeout)})
    assert engine.poll(5.0) == []
    assert {k: c.tokens.tolist() for k, c in done.items()} == {k: c.tokens.tolist() for k, c in expected.items()}


def test_seeds(bench: Any, request_of: Any, run: Any) -> None:
    """Samples of a group differ, the same seed gives the same, and any integer is a seed."""
    seeds = [0, 1, 2, -1, 2**63, 2**64 - 2]
    requests = [request_of(str(s), [1, 2, 3], group="g", seed=s) for s in seeds]
    first, second = run(bench.engine(), requests), run(bench.engine(), requests)
    texts = [tuple(first[r.id].tokens) for r in requests]
    assert len(set(texts)) == len(seeds)
    assert texts == [tuple(second[r.id].tokens) for r in requests]


def test_first_draws_follow_the_model(bench: Any, request_of: Any, run: Any) -> None:
    """Chi-square of 4,000 first tokens; the likeliest 12 and the rest, 12 degrees of freedom, p = 0.001 at 32.9."""
    requests = [request_of(str(s), [10, 20, 30], group="g", seed=s, max_tokens=1) for s in range(4000)]
    done = run(bench.engine(max_rows=1000), requests)
    p = np.exp(bench.logprobs(requests[0], done["0"])[0])
    counts = np.bincount([done[r.id].tokens[0] for r in requests], minlength=len(p))
    top = np.argsort(-p)[:12]
    seen = np.array([*counts[top], counts.sum() - counts[top].sum()])
    expected = np.array([*p[top], 1 - p[top].sum()]) * len(requests)
    assert ((seen - expected) ** 2 / expected).sum() < 32.9


def test_equal_prompts_are_read_once(bench: Any, request_of: Any, run: Any) -> None:
    shapes: list[tuple[int, ...]] = []
    hook = bench.model.get_input_embeddings().register_forward_hook(lambda _m, args, _o: shapes.append(args[0].shape))
    try:
        engine = bench.engine()
        shapes.clear()
        prompts = {"f": [3] * 5 + [1], "g": [3] * 5 + [2, 2]}
        requests = [request_of(f"{g}{i}", p, group=g, max_tokens=3) for g, p in prompts.items() for i in range(4)]
        run(engine, requests)
    finally:
        hook.remove()
    assert shapes == [(2, 7), (8, 1), (8, 1)]


def test_prefill_keeps_to_its_budget(bench: Any, request_of: Any, run: Any) -> None:
    """Padding included; a prompt that is longer than the budget goes alone."""
    shapes: list[tuple[int, ...]] = []
    hook = bench.model.get_input_embeddings().register_forward_hook(lambda _m, args, _o: shapes.append(args[0].shape))
    try:
        engine = bench.engine(prefill_tokens=10)
        shapes.clear()
        run(engine, [request_of(str(n), [n] * n, max_tokens=1) for n in (5, 12, 3, 4, 2)])
    finally:
        hook.remove()
    assert shapes == [(2, 3), (2, 5), (1, 12)]


def test_finished_rows_leave_and_waiting_ones_come_in(bench: Any, request_of: Any, run: Any) -> None:
    """Rows put through the model add up to the tokens asked for: none is generated for a row that is done."""
    rows: list[int] = []
    hook = bench.model.lm_head.register_forward_hook(lambda _m, args, _o: rows.append(len(args[0])))
    try:
        engine = bench.engine(max_rows=4)
        rows.clear()
        lengths = [1, 9, 2, 5, 7, 1, 3, 8]
        done = run(engine, [request_of(str(i), [i], max_tokens=n) for i, n in enumerate(lengths)])
    finally:
        hook.remove()
    assert [len(done[str(i)].tokens) for i in range(8)] == lengths
    assert sum(rows) == sum(lengths)
    assert max(rows) == 4


def test_poll_returns_as_soon_as_something_is_done(bench: Any, request_of: Any) -> None:
    engine = bench.engine()
    engine.submit([request_of("short", [1], max_tokens=2), request_of("long", [2], max_tokens=100)])
    assert [c.request_id for c in engine.poll(60.0)] == ["short"]
    assert engine.poll(0.0) == []  # one more token each, and nothing done
    assert [c.request_id for c in engine.poll(60.0)] == ["long"]
    assert engine.poll(60.0) == []


def test_requests_without_logprobs_get_none(bench: Any, run: Any) -> None:
    from rlcore.data.sample import Request, Sampling

    plain = Request("a", "a", np.array([1, 2], np.int32), Sampling(max_tokens=3), seed=0)
    completion = run(bench.engine(), [plain])["a"]
    assert completion.logprobs is None
    assert completion.tokens.dtype == np.int32
    assert completion.weight_version == 7


def test_logits_that_diverged_are_an_error(bench: Any, lender: Any, request_of: Any, run: Any) -> None:
    import copy

    from rlcore.errors import ModelError

    broken = copy.deepcopy(bench.model)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    engine = bench.engine()
    engine.receive_weights(lender(broken), 3)
    with pytest.raises(ModelError, match=r"logits are not finite \(request 'a', weight version 3\)"):
        run(engine, [request_of("a", [1])])


def test_the_same_batch_gives_the_same_bits(bench: Any, prompts: Any, request_of: Any, run: Any) -> None:
    """Whatever the engine did before: a resumed run must repeat the one that never stopped."""
    requests = [request_of(f"{i}/{s}", p, seed=s) for i, p in enumerate(prompts) for s in range(5)]
    fresh = run(bench.engine(), requests)
    used = bench.engine()
    run(used, [request_of(f"long{i}", [i], max_tokens=150, seed=i) for i in range(50)])
    again = run(used, requests)
    for name, completion in fresh.items():
        assert completion.tokens.tolist() == again[name].tokens.tolist()
        assert completion.logprobs.tolist() == again[name].logprobs.tolist()
