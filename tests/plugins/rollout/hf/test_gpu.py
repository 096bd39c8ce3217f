"""The engine on a GPU: the same promises, within the arithmetic of the dtype."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from rlcore_hf.engine import HfEngine
from rlcore_hf.plugin import Config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize(("dtype", "largest", "mean"), [("float32", 1e-3, 1e-4), ("bfloat16", 1.0, 0.05)])
def test_logprobs_are_those_of_a_full_forward_pass(
    dtype: str, largest: float, mean: float, bench: Any, prompts: Any, request_of: Any, run: Any, lender: Any
) -> None:
    model = copy.deepcopy(bench.model).to("cuda", getattr(torch, dtype))
    engine = HfEngine(Config(max_rows=10), bench.context(device="cuda"))
    engine.receive_weights(lender(model), 1)
    requests = [
        request_of(f"{i}/{s}", p, seed=s, temperature=0.8, top_p=0.95, top_k=50 * (s % 2), max_tokens=64)
        for i, p in enumerate(prompts)
        for s in range(6)
    ]
    done = run(engine, requests)
    differences = []
    for request in requests:
        ids = torch.from_numpy(np.concatenate([request.tokens, done[request.id].tokens]).astype(np.int64)).cuda()
        with torch.no_grad():
            every = (model(ids[None]).logits[0].float() / 0.8).log_softmax(-1).cpu().numpy()
        at = np.arange(len(request.tokens) - 1, len(ids) - 1)
        differences.append(np.abs(every[at, done[request.id].tokens] - done[request.id].logprobs))
    flat = np.concatenate(differences)
    assert len(flat) == len(requests) * 64
    assert flat.max() < largest
    assert flat.mean() < mean
