from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rlcore.data.batch import Batch
from rlcore.errors import ModelError
from rlcore.manifest.schema import ModelSection
from rlcore.torch import model as module
from rlcore.torch.model import PackedModel, decoder_layers, load_model, plain_twin, share_parameters
from rlcore.torch.packing import pack
from transformers import AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., Path]

SEQUENCES = [np.random.default_rng(n).integers(0, 97, n, np.int32) for n in (5, 2, 31, 64, 18, 17)]


def section(folder: Path, **options: Any) -> ModelSection:
    return ModelSection(path=str(folder), **options)


def packed(model: Any, temperature: float = 1.0, *, entropy: bool = False) -> tuple[Any, Any]:
    batch = Batch.from_sequences(SEQUENCES)
    micro = pack(batch, np.arange(len(batch)), (), "cpu")
    root = PackedModel(model, temperature=temperature, chunk_tokens=16)
    out: tuple[Any, Any] = root(micro.tokens, micro.packing, micro.predict, micro.targets, entropy=entropy)
    return out


def alone(folder: Path, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies by transformers' eager attention, one sequence at a time."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    logprobs, entropies = [], []
    for sequence in (torch.from_numpy(s.astype(np.int64)) for s in SEQUENCES):
        logp = (model(sequence[None]).logits[0, :-1] / temperature).log_softmax(-1)
        logprobs.append(logp.gather(-1, sequence[1:, None])[:, 0])
        entropies.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["Qwen3", "Qwen2", "Llama", "Mistral", "GPT2"])
def test_packed_logprobs_are_those_of_each_sequence_alone(write_model: Write, architecture: str, tied: bool) -> None:
    folder = write_model(architecture, tie_word_embeddings=tied)
    logprobs, entropy = packed(load_model(section(folder)), 0.7, entropy=True)
    want, want_entropy = alone(folder, 0.7)
    assert want.std() > 0.5, "the model should have an opinion"
    torch.testing.assert_close(logprobs, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, want_entropy, atol=1e-5, rtol=1e-5)


def test_temperature_divides_the_logits(write_model: Write) -> None:
    folder = write_model("Qwen3")
    model = load_model(section(folder))
    hot, cold = packed(model, 2.0)[0], packed(model, 0.5)[0]
    torch.testing.assert_close(hot, alone(folder, 2.0)[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cold, alone(folder, 0.5)[0], atol=1e-5, rtol=1e-5)


def test_dropout_is_off_even_in_training_mode(write_model: Write) -> None:
    model = load_model(section(write_model("GPT2", resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5))).train()
    assert torch.equal(packed(model)[0], packed(model)[0])


def test_the_twin_shares_storage_and_buffers(write_model: Write) -> None:
    folder = write_model("Llama")
    model = load_model(section(folder))
    twin: Any = plain_twin(model)
    share_parameters(model, twin)
    first = torch.from_numpy(SEQUENCES[2].astype(np.int64))[None]
    own = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(twin(first).logits, own(first).logits)
    assert not twin.training
    pointers = {p.data_ptr() for p in model.parameters()}
    assert {p.data_ptr() for p in twin.parameters()} == pointers
    assert not any(p.requires_grad for p in twin.parameters())


def test_decoder_layers(write_model: Write) -> None:
    assert len(decoder_layers(load_model(section(write_model("GPT2", n_layer=3))))) == 3


# --- refusals ------------------------------------------------------------------------------------------------------


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"the folder {tmp_path / 'nowhere'} does not exist"):
        load_model(section(tmp_path / "nowhere"))


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_model(section(tmp_path))


def test_an_id_that_can_not_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="'nobody/nothing' can't be read as a model"):
        load_model(ModelSection(path="nobody/nothing"))


def test_missing_weights_are_named(write_model: Write) -> None:
    folder = write_model("Qwen3")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="can't be loaded"):
        load_model(section(folder))


def test_weights_that_would_stay_random_are_refused(write_model: Write) -> None:
    folder = write_model("Qwen3", num_hidden_layers=1)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"has no weights for: model\.layers\.1\."):
        load_model(section(folder))


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("Gemma2", {}, "changes logits by final_logit_softcapping"),
        ("Granite", {"logits_scaling": 2.0}, "changes logits by logits_scaling"),
    ],
)
def test_a_head_that_is_not_linear_is_refused(
    write_model: Write, architecture: str, changes: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(section(write_model(architecture, **changes)))


def test_the_probe_notices_a_head_that_is_not_linear(write_model: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model("Granite", logits_scaling=2.0)
    monkeypatch.setattr(module, "_LOGIT_CHANGES", ())
    with pytest.raises(ModelError, match="GraniteForCausalLM gives other log-probs for packed sequences"):
        load_model(section(folder))


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelError, match="of type 'vit', no causal language model"):
        load_model(section(tmp_path))


@pytest.mark.parametrize("model_type", ["my-own", "qwen3"])
def test_code_of_a_model_is_not_run_unless_allowed(write_model: Write, model_type: str) -> None:
    folder = write_model("Qwen3")
    marker = folder / "was-run"
    (folder / "code.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nclass C: pass\nclass M: pass\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": model_type, "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    if model_type == "my-own":
        with pytest.raises(ModelError, match="trust_remote_code"):
            load_model(section(folder))
    else:
        load_model(section(folder))
    assert not marker.exists()
