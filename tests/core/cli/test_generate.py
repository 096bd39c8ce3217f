from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rlcore.cli.generate import app
from rlcore.errors import DataError, ModelError, UnknownPluginError
from rlcore.testing.tiny import write_byte_tokenizer, write_tiny_model
from typer.testing import CliRunner

pytest.importorskip("rlcore_hf")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", tied=False)


def generate(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def transformers_answer(folder: Path, text: str, *, chat: bool, system: str | None = None, tokens: int = 12) -> str:
    """What transformers' own generate gives, greedily."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    if chat:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, return_tensors="pt"
        )
    else:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def test_greedy_answers_are_those_of_transformers_in_the_order_of_the_prompts(model: Path) -> None:
    prompts = ["2+2?", "What is the capital of France?", "x"]
    given = [argument for prompt in prompts for argument in ("--prompt", prompt)]
    expected = [transformers_answer(model, prompt, chat=True) for prompt in prompts]
    assert len(set(expected) - {""}) == 3
    assert generate(model, *given, "--max-tokens", 12) == "".join(f"{answer}\n" for answer in expected)


def test_plain_text_and_system_message(model: Path) -> None:
    assert generate(model, "--prompt", "2+2?", "--no-chat", "--max-tokens", 12) == (
        transformers_answer(model, "2+2?", chat=False) + "\n"
    )
    with_system = generate(model, "--prompt", "2+2?", "--system", "Be short.", "--max-tokens", 12)
    assert with_system == transformers_answer(model, "2+2?", chat=True, system="Be short.") + "\n"
    with pytest.raises(DataError, match="--system needs a chat template"):
        generate(model, "--prompt", "x", "--no-chat", "--system", "y")


def test_a_tokenizer_without_template_takes_plain_text(model: Path, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "plain", tied=False)
    tokenizer = write_byte_tokenizer(folder)
    tokenizer.chat_template = None
    (folder / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(folder)
    assert generate(folder, "--prompt", "2+2?", "--max-tokens", 12) == (
        transformers_answer(folder, "2+2?", chat=False) + "\n"
    )
    with pytest.raises(DataError, match="no chat template"):
        generate(folder, "--prompt", "2+2?", "--chat")


def test_sampling_follows_the_seed(model: Path) -> None:
    answers = [generate(model, "--prompt", "hi", "--temperature", 1, "--seed", seed) for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]
    assert len(answers[0]) > 10


def test_what_is_no_model_and_no_engine(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"no config\.json, so it holds no model; name a folder that `rlcore export` wrote"
    ):
        generate(tmp_path, "--prompt", "x")
    with pytest.raises(UnknownPluginError, match="no-such-engine"):
        generate(model, "--prompt", "x", "--engine", "no-such-engine")


def test_weights_in_a_pickle_are_refused(model: Path, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"weights are missing: .*model\.safetensors"):
        generate(folder, "--prompt", "x")
