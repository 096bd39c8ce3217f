import pytest
import torch
from rlcore.torch.losses import LossInputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_seq_mean_is_over_the_tokens_of_each_sequence(dtype):
    x = torch.tensor([1.0, 2.0, 6.0, 5.0, 7.0], dtype=dtype, requires_grad=True)
    segments = torch.tensor([0, 2, 2, 3, 2])  # sequence 1 has no live token
    mean = LossInputs(x, x, x, x, segments, 4).seq_mean(x)
    assert mean.tolist() == [1, 5, 5, 5, 5]
    mean[1].backward()
    assert x.grad.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3])
