"""Two processes over gloo do what one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rlcore import Batch, LossSpec, TrainContext
from rlcore.errors import PluginError
from rlcore.manifest.schema import ModelSection, TrainerSection
from rlcore_fsdp.backend import FsdpBackend
from rlcore_fsdp.plugin import Config
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable

# Rank 0 needs several micro-batches where rank 1 needs one, or none at all.
SHARES = {"uneven": [[0, 1, 3, 4, 5], [2]], "one rank idle": [[0, 1, 2, 3, 4, 5], []]}
TRAIN = {"lr": 1e-3, "tokens_per_micro_batch": 40, "max_grad_norm": 0.05}


def run(folder: Path, **given: Any) -> list[dict[str, Any]]:
    torch.save(given, folder / "given.pt")
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-W", "error", str(script), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in (0, 1)
    ]
    try:
        texts = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(texts)
    return [torch.load(folder / f"seen-{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize(("case", "gradient_checkpointing"), [("uneven", True), ("one rank idle", False)])
def test_two_ranks_do_what_one_does(
    case: str,
    gradient_checkpointing: bool,
    new_backend: Callable[..., FsdpBackend],
    model_folder: Path,
    batch: Batch,
    spec: LossSpec,
    tmp_path: Path,
) -> None:
    train = TRAIN | {"gradient_checkpointing": gradient_checkpointing}
    loss = {"kl_coef": spec.kl_coef, "kl_estimator": spec.kl_estimator, "entropy_coef": spec.entropy_coef}
    shares = SHARES[case]
    seen = run(tmp_path, model=str(model_folder), dtype="float32", train=train, batch=batch, shares=shares, loss=loss)
    one = new_backend(**train)
    logprobs = one.forward(batch, ["logprobs"])
    metrics = one.forward_backward(batch, spec)
    gradients = {n: p.grad.full_tensor().clone() for n, p in one.parameters.items()}  # type: ignore[union-attr]
    step = one.optimizer_step()
    weights = dict(one.weights())

    for rank, mine in enumerate(seen):
        want = logprobs.select(np.array(shares[rank], np.int64))["logprobs"]
        np.testing.assert_allclose(mine["logprobs"], want, atol=1e-5)
        assert mine["metrics"] == pytest.approx(dict(metrics), rel=1e-5, abs=1e-6)
        for name, gradient in gradients.items():
            assert (mine["gradients"][name] - gradient).norm() < 1e-5 * gradient.norm(), name
        assert mine["step"] == pytest.approx(dict(step), rel=1e-5)
        for name, tensor in weights.items():
            torch.testing.assert_close(mine["weights"][name], tensor, atol=2e-5, rtol=0)
        assert mine["again"] == mine["after"], "loading restores a rank's shards bit for bit"
        assert mine["failure"].startswith("CheckpointError: can't write"), "an error of rank 0 is raised at all"
    assert sum(mine["shards"]["model.embed_tokens.weight"][0] for mine in seen) == 261, "each rank holds its part"
    assert seen[0]["metrics"] == seen[1]["metrics"]
    assert seen[0]["step"] == seen[1]["step"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / "model")
    torch.testing.assert_close(model(torch.arange(9)[None]).logits.detach(), seen[0]["logits"])
    torch.testing.assert_close(seen[0]["logits"], seen[1]["logits"])

    one.load(tmp_path / "saved")  # what two ranks saved, on one
    assert all(torch.equal(tensor, seen[0]["weights"][name]) for name, tensor in one.weights())
    one.forward_backward(batch, spec)
    assert one.optimizer_step() == pytest.approx(seen[0]["after"], rel=1e-5)


def test_a_wrong_idea_of_the_ranks_is_refused(new_backend: Callable[..., FsdpBackend], model_folder: Path) -> None:
    new_backend()  # this process is now rank 0 of 1
    context = TrainContext(
        role="policy",
        model=ModelSection(path=str(model_folder)),
        train=TrainerSection(use="fsdp"),
        temperature=1.0,
        total_updates=1,
        seed=0,
        device="cpu",
        rank=1,
        world_size=2,
    )
    with pytest.raises(PluginError, match="told it is rank 1 of 2, but the process group says rank 0 of 1"):
        FsdpBackend(Config(), context)
