import subprocess
import sys

import pytest
import torch
from rlcore.errors import BatchError
from rlcore.torch.logprobs import token_logprobs

torch.set_num_threads(1)


def plain(hidden, weight, targets, temperature):
    """The textbook formula, with all logits at once."""
    logp = torch.log_softmax((hidden @ weight.T).float() / temperature, -1)
    if hidden.dtype == torch.float64:
        logp = torch.log_softmax(hidden @ weight.T / temperature, -1)
    return logp[torch.arange(len(targets)), targets], -(logp.exp() * logp).sum(-1)


def inputs(dtype=torch.float32, L=13, D=5, V=31, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(L, D, generator=generator, dtype=dtype).mul_(scale).requires_grad_()
    weight = torch.randn(V, D, generator=generator, dtype=dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (L,), generator=generator)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 13, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("uses", ["logprobs", "entropy", "both"])
def test_value_and_gradient_equal_the_plain_formula(dtype, tolerance, temperature, chunk_tokens, uses):
    hidden, weight, targets = inputs(dtype)
    factors = torch.linspace(-2, 3, len(targets), dtype=dtype)

    def run(logprobs, entropy):
        terms = {"logprobs": (factors * logprobs).sum(), "entropy": (factors**2 * entropy).sum()}
        loss = terms.get(uses, sum(terms.values()))
        return torch.autograd.grad(loss, (hidden, weight))

    got = token_logprobs(
        hidden, weight, targets, temperature=temperature, chunk_tokens=chunk_tokens, entropy=uses != "logprobs"
    )
    want = plain(hidden, weight, targets, temperature)
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(got[0], want[0], **close)
    if got[1] is None:
        assert uses == "logprobs"
        got = (got[0], torch.zeros(()))
    else:
        torch.testing.assert_close(got[1], want[1], **close)
    for a, b in zip(run(*got), run(*want), strict=True):
        torch.testing.assert_close(a, b, **close)


def test_hand_computed_values():
    # Logits are ln 1, ln 3: probabilities 1/4 and 3/4; at temperature 1/2 the odds are squared: 1/10 and 9/10.
    hidden, weight = torch.ones(1, 1), torch.tensor([[1.0], [3.0]]).log()
    for temperature, p in ((1.0, 0.75), (0.5, 0.9)):
        logp, entropy = token_logprobs(
            hidden, weight, torch.tensor([1]), temperature=temperature, chunk_tokens=1, entropy=True
        )
        p = torch.tensor([p])
        torch.testing.assert_close(logp, p.log())
        torch.testing.assert_close(entropy, -(p * p.log() + (1 - p) * (1 - p).log()))


@pytest.mark.parametrize("entropy", [False, True])
def test_numeric_gradient(entropy):
    hidden, weight, targets = inputs(torch.float64, L=5, D=3, V=7)

    def outputs(h, w):
        out = token_logprobs(h, w, targets, temperature=0.7, chunk_tokens=2, entropy=entropy)
        return out if entropy else out[0]

    assert torch.autograd.gradcheck(outputs, (hidden, weight))


def test_logits_far_apart_stay_finite():
    hidden, weight, targets = inputs(scale=200)
    logp, entropy = token_logprobs(hidden, weight, targets, temperature=0.5, chunk_tokens=4, entropy=True)
    (logp.sum() + entropy.sum()).backward()
    for value in (logp, entropy, hidden.grad, weight.grad):
        assert value.isfinite().all()
    assert logp.min() < -500


def test_bfloat16_is_float32_after_the_product():
    hidden, weight, targets = inputs(torch.bfloat16, L=64, V=257, D=16)
    factors = torch.linspace(-1, 1, 64)
    logp, entropy = token_logprobs(hidden, weight, targets, temperature=1.0, chunk_tokens=8, entropy=True)
    assert logp.dtype == entropy.dtype == torch.float32
    logits = (hidden @ weight.T).detach().float()
    torch.testing.assert_close(logp, torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0])
    got = torch.autograd.grad((factors * logp).sum(), (hidden, weight))
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    want = torch.autograd.grad((factors * plain(*exact, targets, 1.0)[0]).sum(), exact)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).norm() < 0.01 * b.norm()  # bfloat16 holds 8 bits: 0.4% of each product


def test_gradient_of_bfloat16_weights_is_summed_in_float32():
    """512 chunks of one token: a sum in bfloat16 would stop growing at 256 times a term."""
    hidden = torch.ones(512, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    logp, _ = token_logprobs(hidden, weight, torch.zeros(512, dtype=torch.int64), temperature=1.0, chunk_tokens=1)
    logp.sum().backward()
    assert weight.grad[:, 0].tolist() == [256.0, -256.0]  # 512 · (1 − 1/2)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_frozen_input_gets_no_gradient(frozen):
    hidden, weight, targets = inputs()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    token_logprobs(hidden, weight, targets, temperature=1.0, chunk_tokens=4)[0].sum().backward()
    assert (hidden.grad is None) == (frozen == "hidden")
    assert (weight.grad is None) == (frozen == "weight")


def test_no_tokens_still_have_a_gradient():
    """A rank without live tokens must take part in the collectives of the backward pass."""
    hidden, weight, targets = inputs(L=0)
    logp, entropy = token_logprobs(hidden, weight, targets, temperature=1.0, chunk_tokens=4, entropy=True)
    (logp.sum() + entropy.sum()).backward()
    assert hidden.grad.shape == (0, 5)
    assert (weight.grad == 0).all()


def test_without_gradients_nothing_is_kept():
    hidden, weight, targets = inputs()
    with torch.no_grad():
        logp, entropy = token_logprobs(hidden, weight, targets, temperature=1.0, chunk_tokens=4, entropy=True)
    assert logp.grad_fn is None
    assert entropy.grad_fn is None
    torch.testing.assert_close(logp, plain(hidden, weight, targets, 1.0)[0])


def test_result_of_a_token_does_not_depend_on_the_others():
    hidden, weight, targets = inputs(L=20)
    together, _ = token_logprobs(hidden, weight, targets, temperature=1.0, chunk_tokens=7)
    alone, _ = token_logprobs(hidden[5:6], weight, targets[5:6], temperature=1.0, chunk_tokens=7)
    torch.testing.assert_close(together[5:6], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": torch.zeros(4, dtype=torch.int64)}, r"\[13, 5\], \[31, 5\] and \[4\]"),
        ({"weight": torch.zeros(31, 6)}, r"weight \[V, D\].*\[31, 6\]"),
        ({"temperature": 0.0}, "temperature above 0, not 0.0"),
        ({"chunk_tokens": 0}, "chunk_tokens must be at least 1, not 0"),
    ],
)
def test_bad_input(change, message):
    hidden, weight, targets = inputs()
    call = {"hidden": hidden, "weight": weight, "targets": targets, "temperature": 1.0, "chunk_tokens": 4} | change
    with pytest.raises(BatchError, match=message):
        token_logprobs(**call)


PEAK = """
import sys, torch
from pathlib import Path
from rlcore.torch.logprobs import token_logprobs
torch.set_num_threads(1)
L, chunk, entropy, V, D = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "entropy", 151_936, 64
hidden, weight = torch.randn(L, D, requires_grad=True), torch.randn(V, D, requires_grad=True)
targets = torch.randint(V, (L,))


def peak():
    # Not ru_maxrss, which a child has from its parent: a large test process would hide all growth.
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


before = peak()
logp, entropies = token_logprobs(hidden, weight, targets, temperature=1.0, chunk_tokens=chunk, entropy=entropy)
(logp.sum() if entropies is None else (logp - entropies).sum()).backward()
print(peak() - before)
"""


def peak_mib(tokens, chunk_tokens, kind="logprobs"):
    """Growth of the peak resident memory of a process over one forward and backward pass, MiB."""
    run = [sys.executable, "-c", PEAK, str(tokens), str(chunk_tokens), kind]
    return float(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


def test_peak_memory_grows_with_the_chunk_and_not_with_the_sequence():
    """Field case L19. A row of logits is 0.58 MiB: 2,048 tokens of them are 1,187 MiB."""
    row_mib = 151_936 * 4 / 2**20
    weight_mib = 64 * row_mib  # of the weight's gradient
    small, double_chunk, double_length = peak_mib(1024, 64), peak_mib(1024, 128), peak_mib(2048, 64)
    assert abs(double_length - small) < 10  # the inputs of 1,024 tokens more are 0.5 MiB
    assert 64 * row_mib < double_chunk - small < 4 * 64 * row_mib
    assert small < weight_mib + 4 * 64 * row_mib
    assert peak_mib(2048, 64, "entropy") < weight_mib + 5 * 64 * row_mib
