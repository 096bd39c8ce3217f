"""Weights that come and go, sleep, abort, and what is refused."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from rlcore.errors import DataError, ModelError, WeightSyncError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build
from rlcore.testing.contracts.rollout import RolloutContract
from rlcore_hf.cache import ATTENTION
from rlcore_hf.engine import HfEngine
from rlcore_hf.plugin import Config
from rlcore_hf.weights import cached_attention_in, check_supported, probe_head


class TestContract(RolloutContract):
    plugin = "hf"


class TestContractInPlace(RolloutContract):
    plugin = "hf"
    way = "in_place"


@dataclass
class Stream:
    """Streams these tensors."""

    items: dict[str, Any]
    way: str = "stream"

    def tensors(self) -> Any:
        yield from self.items.items()


def test_it_is_found_by_name(bench: Any) -> None:
    assert isinstance(build(PluginRef("rollout", "hf", {"max_rows": 3}), bench.context()), HfEngine)


def test_sleep_gives_module_and_cache_back(bench: Any, lender: Any, request_of: Any, run: Any) -> None:
    engine = HfEngine(Config(), bench.context())
    lend = lender(bench.model)
    engine.receive_weights(lend, 0)
    assert (lend.entered, lend.left) == (1, 0)
    first = run(engine, [request_of("a", [1, 2, 3])])["a"]
    buffer = weakref.ref(engine._cache._keys[0])
    assert engine._cache.nbytes > 0
    for _ in range(2):  # twice is as good as once
        engine.sleep()
        gc.collect()
        assert buffer() is None
        assert engine._cache.nbytes == 0
        assert (lend.entered, lend.left) == (1, 1)
    with pytest.raises(WeightSyncError, match=r"submit while the hf engine sleeps: call wake\(\) first"):
        engine.submit([request_of("b", [1])])
    for _ in range(2):
        engine.wake()
        assert (lend.entered, lend.left) == (2, 1)
    assert run(engine, [request_of("a", [1, 2, 3])])["a"].tokens.tolist() == first.tokens.tolist()
    engine.close()
    engine.close()
    assert (lend.entered, lend.left) == (2, 2)


def test_waking_before_the_first_weights(bench: Any, lender: Any, request_of: Any, run: Any) -> None:
    """Either order will do; a sleeping engine borrows nothing."""
    engine = HfEngine(Config(), bench.context())
    engine.wake()
    engine.sleep()
    lend = lender(bench.model)
    engine.receive_weights(lend, 4)
    assert lend.entered == 0
    engine.wake(weights=False, cache=True)
    assert lend.entered == 0
    engine.wake(weights=True, cache=False)
    assert lend.entered == 1
    assert run(engine, [request_of("a", [1])])["a"].weight_version == 4


def test_changed_weights_are_seen(bench: Any, lender: Any, request_of: Any, run: Any) -> None:
    """In place means the very tensors, and the new version."""
    model = copy.deepcopy(bench.model)
    engine = bench.engine()
    engine.receive_weights(lender(model), 1)
    before = run(engine, [request_of("a", [1, 2], max_tokens=30)])["a"]
    engine.sleep()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-3)
    engine.receive_weights(lender(model), 2)
    engine.wake()
    after = run(engine, [request_of("a", [1, 2], max_tokens=30)])["a"]
    assert (before.weight_version, after.weight_version) == (1, 2)
    assert before.tokens.tolist() != after.tokens.tolist()


def test_the_trainer_s_attention_is_put_back(bench: Any, request_of: Any) -> None:
    """The module attends through the cache during poll only, also if poll fails."""
    own = bench.model.config._attn_implementation
    engine = bench.engine()
    engine.submit([request_of("a", [1], max_tokens=3)])
    seen = []
    hook = bench.model.model.layers[0].register_forward_pre_hook(
        lambda *_: seen.append(bench.model.config._attn_implementation)
    )
    engine.poll(10.0)
    hook.remove()
    assert set(seen) == {ATTENTION}
    assert bench.model.config._attn_implementation == own
    engine.submit([request_of("a", [100_000])])
    with pytest.raises(DataError):
        engine.poll(0.0)
    assert bench.model.config._attn_implementation == own


def test_streamed_weights(bench: Any, request_of: Any, run: Any) -> None:
    """A copy in compute dtype, the same as the model in place; tensors are not kept."""
    state = {name: tensor.clone() for name, tensor in bench.model.state_dict().items()}
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= state.keys()
    engine = HfEngine(Config(), bench.context())
    engine.receive_weights(Stream(state), 1)  # type: ignore[arg-type]
    request = request_of("a", [1, 2, 3])
    expected = run(bench.engine(), [request])["a"]
    got = run(engine, [request])["a"]
    assert got.tokens.tolist() == expected.tokens.tolist()
    assert got.logprobs.tolist() == expected.logprobs.tolist()
    for tensor in state.values():
        tensor.zero_()
    engine.sleep()
    engine.wake()
    assert run(engine, [request])["a"].tokens.tolist() == expected.tokens.tolist()


def test_a_stream_that_does_not_fit(bench: Any, request_of: Any) -> None:
    """After one, the engine has no weights until a whole set has come."""
    whole = bench.model.state_dict()
    engine = HfEngine(Config(), bench.context())
    engine.receive_weights(Stream(whole), 1)  # type: ignore[arg-type]
    name = "model.layers.0.mlp.up_proj.weight"
    for items, message in (
        ({n: t for n, t in whole.items() if n != name}, f"1 weights did not arrive: {name}"),
        ({}, rf"{len(whole)} weights did not arrive: .* …"),
        ({**whole, "model.extra": torch.zeros(1)}, "the trainer sent 'model.extra', which the engine's model does not"),
        ({**whole, name: torch.zeros(2, 3)}, rf"{name}' came with shape \(2, 3\); the engine has \(64, 32\)"),
    ):
        with pytest.raises(WeightSyncError, match=message):
            engine.receive_weights(Stream(items), 2)  # type: ignore[arg-type]
        with pytest.raises(WeightSyncError, match="holds no whole set of weights"):
            engine.submit([request_of("a", [1])])
    engine.receive_weights(Stream(whole), 3)  # type: ignore[arg-type]
    engine.submit([request_of("a", [1])])


def test_abort(bench: Any, request_of: Any, run: Any) -> None:
    """Waiting, running and done; the others are not disturbed."""
    requests = [request_of(str(i), [i], seed=i, max_tokens=3 + i) for i in range(8)]
    expected = run(bench.engine(), requests)
    engine = bench.engine(max_rows=5)
    engine.submit(requests)
    engine.poll(0.0)
    engine.abort(["0", "3", "6", "nobody"])  # 0 and 3 run, 6 waits
    done: dict[str, Any] = {}
    while len(done) < 5:
        done.update({c.request_id: c for c in engine.poll(60.0)})
    assert {n: c.tokens.tolist() for n, c in done.items()} == {n: expected[n].tokens.tolist() for n in "12457"}
    assert engine.poll(60.0) == []
    engine.sleep()  # nothing is in flight


def test_what_is_done_and_aborted_is_not_returned(bench: Any, request_of: Any) -> None:
    engine = bench.engine()
    engine.submit([request_of("a", [1], max_tokens=1), request_of("b", [2], max_tokens=1)])
    with torch.no_grad(), cached_attention_in(bench.model):
        engine._step()  # what poll does, without handing out what is done
    engine.abort(["a"])
    assert [c.request_id for c in engine.poll(0.0)] == ["b"]


def test_nothing_may_be_in_flight(bench: Any, lender: Any, request_of: Any) -> None:
    engine = bench.engine(max_rows=1)
    engine.submit([request_of("a", [1]), request_of("b", [1])])
    engine.poll(0.0)
    for verb, call in (
        ("sleep", engine.sleep),
        ("receive_weights", lambda: engine.receive_weights(lender(bench.model), 8)),
    ):
        with pytest.raises(WeightSyncError, match=f"{verb} with 2 requests in flight; poll until"):
            call()
    engine.abort(["a", "b"])
    engine.sleep()


def test_requests_before_weights(bench: Any, request_of: Any) -> None:
    engine = HfEngine(Config(), bench.context())
    assert engine.poll(0.0) == []
    with pytest.raises(WeightSyncError, match=r"no whole set of weights: call receive_weights\(\) first"):
        engine.submit([request_of("a", [1])])


@pytest.mark.parametrize(
    ("tokens", "sampling", "message"),
    [
        ([], {}, "request 'a': the prompt is empty"),
        ([1], {"max_tokens": 0}, "request 'a': max_tokens is 0; there must be room"),
        ([1], {"min_tokens": 13}, "min_tokens is 13; it must be within 0 and max_tokens"),
        ([1], {"temperature": -1.0}, "temperature is -1.0; it must be 0"),
        ([1], {"temperature": float("nan")}, "temperature is nan"),
        ([1], {"temperature": 1e-9}, "temperature is 1e-09; it must be 0"),
        ([1], {"top_p": 0.0}, "top_p is 0.0; it must be above 0"),
        ([1], {"top_k": -1}, "top_k is -1"),
        ([1], {"stop": ("x", "")}, "a stop string is empty"),
        ([1] * 250, {}, r"prompt \(250 tokens\) and max_tokens \(12\) are 262 together; the engine was made for 256"),
    ],
)
def test_requests_that_can_t_be_run(
    tokens: list[int], sampling: dict[str, Any], message: str, bench: Any, request_of: Any
) -> None:
    """One bad request of several: none is queued."""
    engine = bench.engine()
    with pytest.raises(DataError, match=message):
        engine.submit([request_of("good", [1]), request_of("a", tokens, **sampling)])
    assert engine.poll(0.0) == []
    engine.sleep()


def test_ids_are_unique_and_tokens_within_the_vocabulary(bench: Any, request_of: Any) -> None:
    engine = bench.engine()
    with pytest.raises(DataError, match="request 'a' is in flight already"):
        engine.submit([request_of("a", [1]), request_of("a", [2])])
    engine.submit([request_of("a", [1, 261])])
    with pytest.raises(DataError, match="holds token 261 but the model's vocabulary ends at 260"):
        engine.poll(0.0)


def test_models_that_it_would_compute_wrongly(bench: Any) -> None:
    model = copy.deepcopy(bench.model)
    with pytest.raises(ModelError, match="Qwen3ForCausalLM is in training mode"):
        check_supported(model.train(), 256)
    model.eval()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    model.config.sliding_window = 100
    check_supported(model, 100)
    with pytest.raises(ModelError, match=r"within a window of 100 tokens.*may have 101"):
        check_supported(model, 101)
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ModelError, match="layers of kind linear_attention"):
        check_supported(model, 100)
    model.config.layer_types = None
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ModelError, match="has final_logit_softcapping"):
        check_supported(model, 100)


def test_more_tokens_than_positions(bench: Any) -> None:
    """Absolute positions end in an index error in the middle of a run, rotary ones in text that goes wrong silently."""
    model = copy.deepcopy(bench.model)
    model.config.max_position_embeddings = 100
    check_supported(model, 100)
    with pytest.raises(ModelError, match="knows 100 positions; prompt and response may have 101 tokens: lower"):
        check_supported(model, 101)
    model.config.rope_parameters = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    check_supported(model, 400)
    with pytest.raises(ModelError, match="knows 400 positions"):
        check_supported(model, 401)


def test_a_head_of_its_own_is_refused(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(bench.model)
    plain = model.forward

    def doubled(*args: Any, **kwargs: Any) -> Any:
        out = plain(*args, **kwargs)
        out.logits = out.logits * 2
        return out

    probe_head(model, torch.device("cpu"))
    monkeypatch.setattr(model, "forward", doubled)
    with pytest.raises(ModelError, match="computes its logits in a way of its own"):
        probe_head(model, torch.device("cpu"))


def test_the_cache_grows_with_what_is_needed(bench: Any, request_of: Any, run: Any) -> None:
    """Not with what might be: four short requests take a small part of 512 rows of 4,096 tokens."""
    engine = bench.engine(max_tokens=4096)
    run(engine, [request_of(str(i), [i] * 9, max_tokens=20) for i in range(4)])
    per_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, dimension, bytes
    assert engine._cache.nbytes == 4 * 64 * per_token
    long = run(engine, [request_of("x", [1], max_tokens=150)])["x"]
    assert len(long.tokens) == 150
    assert np.isfinite(long.logprobs).all()
