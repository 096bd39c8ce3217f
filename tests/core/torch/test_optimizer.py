import math

import pytest
import torch
import torch.distributed as dist
from rlcore.errors import ModelError
from rlcore.manifest.schema import TrainerSection
from rlcore.torch.optimizer import build_optimizer, learning_rate
from torch.distributed.tensor import DTensor, distribute_tensor, init_device_mesh

torch.set_num_threads(1)


def section(**options):
    return TrainerSection(use="x", **options)


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({}, [8, 8, 8, 8]),
        ({"warmup_updates": 4}, [2, 4, 6, 8, 8, 8]),
        ({"schedule": "linear"}, [8, 6, 4, 2, 0, 0]),  # of 4 updates: the last moves, what comes after doesn't
        ({"schedule": "linear", "min_lr_ratio": 0.5}, [8, 7, 6, 5, 4]),
        ({"schedule": "linear", "warmup_updates": 2}, [4, 8, 8, 4, 0]),
        ({"schedule": "cosine"}, [8, 4 + 4 * math.sqrt(0.5), 4, 4 - 4 * math.sqrt(0.5), 0]),
        ({"schedule": "cosine", "min_lr_ratio": 0.25, "warmup_updates": 2}, [4, 8, 8, 5, 2]),
        ({"schedule": "cosine", "warmup_updates": 9}, [8 / 9, 16 / 9, 24 / 9, 32 / 9]),  # a run shorter than warm-up
    ],
)
def test_learning_rate_of_each_of_4_updates_and_after(options, rates):
    got = [learning_rate(update, section(lr=8, **options), 4) for update in range(len(rates))]
    assert got == pytest.approx(rates, abs=1e-12)


def test_warm_up_as_long_as_the_run():
    rates = [learning_rate(u, section(lr=8, schedule="linear", warmup_updates=4), 4) for u in range(6)]
    assert rates == pytest.approx([2, 4, 6, 8, 8, 0])


def adamw_step(x, gradient, m, v, step, o):
    """Loshchilov & Hutter 2019, arXiv:1711.05101 algorithm 2, on numbers."""
    b1, b2 = o.betas
    m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
    x -= o.lr * o.weight_decay * x
    x -= o.lr * (m / (1 - b1**step)) / (math.sqrt(v / (1 - b2**step)) + o.eps)
    return x, m, v


def test_steps_are_adamw_with_decay_on_every_parameter():
    options = section(lr=0.1, weight_decay=0.5, betas=(0.8, 0.9), eps=1e-3)
    matrix, bias = torch.nn.Parameter(torch.full((1, 1), 2.0)), torch.nn.Parameter(torch.full((1,), -3.0))
    optimizer = build_optimizer([matrix, bias], options)
    want = [(2.0, 0.0, 0.0), (-3.0, 0.0, 0.0)]
    for step, gradients in enumerate([(0.5, -1.0), (0.0, 2.0), (-4.0, 0.25)], start=1):
        want = [adamw_step(x, g, m, v, step, options) for (x, m, v), g in zip(want, gradients, strict=True)]
        matrix.grad, bias.grad = torch.full((1, 1), gradients[0]), torch.full((1,), gradients[1])
        optimizer.step()
    assert [matrix.item(), bias.item()] == pytest.approx([want[0][0], want[1][0]], rel=1e-5)


def test_rate_of_the_param_group_is_used():
    p = torch.nn.Parameter(torch.ones(1))
    optimizer = build_optimizer([p], section(lr=0.1, weight_decay=0.0))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    p.grad = torch.ones(1)
    optimizer.step()
    assert p.item() == 1


def test_frozen_parameters_are_left_out():
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    trained = torch.nn.Parameter(torch.ones(1))
    assert build_optimizer(iter([frozen, trained]), section()).param_groups[0]["params"] == [trained]
    with pytest.raises(ModelError, match="no parameter of the model requires gradients"):
        build_optimizer([frozen], section())


@pytest.fixture
def mesh(tmp_path):
    if ours := not dist.is_initialized():  # other tests may have made this process a rank
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    if ours:
        dist.destroy_process_group()


def test_sharded_parameters_step_like_plain_ones(mesh):
    options = section(lr=0.1)
    values, gradient = torch.randn(4, 3), torch.randn(4, 3)
    plain = torch.nn.Parameter(values.clone())
    sharded = torch.nn.Parameter(distribute_tensor(values.clone(), mesh))
    plain.grad, sharded.grad = gradient, distribute_tensor(gradient.clone(), mesh)
    for parameter in (plain, sharded):
        build_optimizer([parameter], options).step()
    assert isinstance(sharded.data, DTensor)
    assert torch.equal(sharded.full_tensor(), plain)
    assert not torch.equal(plain, values)
