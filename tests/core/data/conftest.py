"""A tokenizer of one token per byte, faked and real, and manifests around data files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from rlcore.manifest.schema import Manifest

# The first call of a function imports and allocates; time says nothing here.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

if TYPE_CHECKING:
    from pathlib import Path


class FakeTokenizer:
    """One token per byte and one per role, as the byte tokenizer of ``rlcore.testing`` has it; nothing to import."""

    eos_ids = frozenset({300})

    def __init__(self, has_chat_template: bool = True) -> None:
        self.has_chat_template = has_chat_template
        self.kwargs: Any = None

    def encode_text(self, text):
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def encode_chat(self, messages, template_kwargs):
        self.kwargs = template_kwargs
        parts = []
        for message in messages:
            parts += [[256 + len(message["role"])], *([byte] for byte in message["content"].encode())]
            if message["role"] == "assistant":
                parts.append([300])
        return np.concatenate([*parts, [256 + len("assistant")]]).astype(np.int32)

    def decode(self, tokens):
        return bytes(token for token in tokens.tolist() if token < 256).decode()


def chat_tokens(*messages: tuple[str, str]) -> int:
    """Tokens of (role, content) by either: a token for the role, the bytes, an end of each answer; one for the turn."""
    return sum(1 + len(text.encode()) + (role == "assistant") for role, text in messages) + 1


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory):
    from rlcore.manifest.schema import ModelSection
    from rlcore.testing.tiny import write_byte_tokenizer
    from rlcore.torch.tokenizer import load_tokenizer

    folder = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder)
    return load_tokenizer(ModelSection(path=str(folder)))


@pytest.fixture(params=["fake", "real"])
def tokenizer(request):
    return FakeTokenizer() if request.param == "fake" else request.getfixturevalue("byte_tokenizer")


@pytest.fixture
def fake():
    return FakeTokenizer


@pytest.fixture
def length_of():
    return chat_tokens


@pytest.fixture
def write(tmp_path):
    """Writes rows as parquet or JSONL, by the suffix of the name."""

    def write(name: str, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows, schema), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def manifest(tmp_path):
    """Makes a manifest with these keys of ``data:``."""

    def make(**data: Any) -> Manifest:
        defaults = {"train": "train.parquet", "prompts_per_step": 1, "max_prompt_tokens": 1000}
        return Manifest.model_validate(
            {
                "rlcore": 1,
                "name": "test",
                "model": {"path": "./model"},
                "data": defaults | {"max_response_tokens": 8} | data,
                "trainer": {"use": "fsdp"},
                "rollout": {"use": "hf", "samples_per_prompt": 2},
                "algorithm": {"use": "grpo"},
                "rewards": {"correct": {"use": "gsm8k-rule-reward"}},
                "base": tmp_path,
            }
        )

    return make


@pytest.fixture
def verl_row():
    """Makes a row in verl's schema."""

    def make(question: str, truth: Any = "1", **more: Any) -> dict[str, Any]:
        return {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": "train", "index": 0},
        } | more

    return make
