from __future__ import annotations

import json

import pytest
from rlcore.manifest.memory import read_shape, training_bytes
from rlcore.manifest.schema import TrainerSection

SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}),
        ("Mistral", {"head_dim": 10}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 16}),
        ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    ],
)
def test_parameters_are_those_of_the_model(tmp_path, name, more, tied) -> None:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**SIZES, **more, tie_word_embeddings=tied)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    config.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    assert shape is not None
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    config.num_labels = 1
    critic = getattr(transformers, f"{name}ForTokenClassification")(config)
    assert shape.critic_parameters == sum(p.numel() for p in critic.parameters())


def test_a_known_model(tmp_path) -> None:
    # SmolLM2-135M has 134,515,008 parameters.
    config = {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
    config |= {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(tmp_path)
    assert shape is not None
    assert shape.parameters == 134_515_008


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"model_type": "qwen3_moe"}', '{"model_type": "llama"}',
             '{"model_type": "llama", "vocab_size": "x"}',
             json.dumps({**SIZES, "model_type": "llama", "num_attention_heads": 0})]
)  # fmt: skip
def test_what_is_not_known_is_none(tmp_path, text) -> None:
    (tmp_path / "config.json").write_text(text)
    assert read_shape(tmp_path) is None


def test_bytes(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama"}))
    shape = read_shape(tmp_path)
    assert shape is not None
    n = shape.parameters
    trainer = TrainerSection(use="t", tokens_per_micro_batch=1000, logprob_chunk_tokens=100)
    parts = training_bytes(shape, "float32", trainer, reference=True)
    assert (parts["weights"], parts["gradients"], parts["optimizer"], parts["reference"]) == (
        4 * n,
        4 * n,
        8 * n,
        4 * n,
    )
    assert parts["logits"] == 100 * 97 * 4 * 2
    half = training_bytes(shape, "bfloat16", trainer, reference=False)
    assert half["weights"] == 6 * n
    assert "reference" not in half
    assert half["activations"] * 2 == parts["activations"]
    saving = training_bytes(
        shape, "float32", trainer.model_copy(update={"gradient_checkpointing": True}), reference=False
    )
    assert saving["activations"] < parts["activations"]


@pytest.mark.parametrize("larger", ["policy", "critic"])
def test_a_critic_takes_its_own_and_the_larger_of_what_is_shared(tmp_path, larger) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama"}))
    small = read_shape(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, "model_type": "llama", "num_hidden_layers": 7}))
    large = read_shape(tmp_path)
    assert small is not None
    assert large is not None
    policy, critic = (large, small) if larger == "policy" else (small, large)
    trainer = TrainerSection(use="t", tokens_per_micro_batch=1000)
    alone = training_bytes(policy, "bfloat16", trainer, reference=False)
    other = training_bytes(critic, "bfloat16", trainer, reference=False)
    both = training_bytes(policy, "bfloat16", trainer, reference=False, critic=(critic, trainer))
    # Untied: 97 × 24 weights of the output head give way to 24 and a bias.
    m = critic.parameters - 97 * 24 + 25
    assert both.pop("critic") == (4 + 2 + 8) * m
    assert both.pop("gradients") == 4 * max(policy.parameters, m)
    assert both.pop("activations") == max(alone["activations"], other["activations"])
    assert both == {name: alone[name] for name in ("weights", "optimizer", "logits")}
