import torch
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build
from rlcore.torch.losses import LossInputs


def test_is_minus_the_logprob_whatever_the_advantages():
    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    nothing = torch.full((2,), torch.nan)
    output = build(PluginRef("loss", "sft"))(
        LossInputs(logprobs, nothing, nothing, nothing, torch.zeros(2, dtype=torch.int64), 1)
    )
    output.loss.sum().backward()
    assert output.loss.tolist() == [0.5, 2.0]
    assert logprobs.grad.tolist() == [-1, -1]
    assert not output.metrics
