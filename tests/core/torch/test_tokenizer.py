"""Prompts become the ids that the model was trained on: one BOS, the template's words, every EOS known."""

from __future__ import annotations

import json
import pickle
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rlcore.errors import DataError, ModelError
from rlcore.manifest.schema import ModelSection
from rlcore.testing.tiny import END, TEMPLATE, write_byte_tokenizer
from rlcore.torch.tokenizer import load_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

if TYPE_CHECKING:
    from pathlib import Path

BOS = "<|pad|>"  # any token will do
USER = [{"role": "user", "content": "hé"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the byte tokenizer and nothing else."""
    write_byte_tokenizer(tmp_path)
    return tmp_path


def write_with_bos(folder: Path, template: str | None) -> int:
    """A tokenizer that adds a BOS by itself, as Llama's does; returns the BOS id."""
    fast = write_byte_tokenizer(folder)
    bos = int(fast.convert_tokens_to_ids(BOS))
    fast.backend_tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    fast.bos_token = BOS
    fast.chat_template = template
    (folder / "chat_template.jinja").unlink()
    fast.save_pretrained(folder)
    return bos


def load(folder: Path) -> Any:
    return load_tokenizer(ModelSection(path=str(folder)))


def ids(folder: Path, *tokens: str) -> list[int]:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return list(tokenizer.convert_tokens_to_ids(list(tokens)))


def test_chat_is_the_template_s_text(folder: Path) -> None:
    user, assistant = ids(folder, "<|user|>", "<|assistant|>")
    raw = AutoTokenizer.from_pretrained(folder)
    content = raw("hé", add_special_tokens=False)["input_ids"]
    assert len(content) == 3  # a byte a token
    tokens = load(folder).encode_chat(USER, {})
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [user, *content, assistant]


def test_a_conversation_goes_on(folder: Path) -> None:
    system, user, assistant, end = ids(folder, "<|system|>", "<|user|>", "<|assistant|>", END)
    messages = [{"role": r, "content": ""} for r in ("system", "user", "assistant", "user")]
    assert load(folder).encode_chat(messages, {}).tolist() == [system, user, assistant, end, user, assistant]


@pytest.mark.parametrize("write", [True, False], ids=["template-writes-bos", "template-does-not"])
def test_chat_has_just_the_template_s_bos(write: bool, tmp_path: Path) -> None:
    """D07: the tokenizer would add another."""
    bos = write_with_bos(tmp_path, ("{{ bos_token }}" if write else "") + TEMPLATE)
    tokens = load(tmp_path).encode_chat(USER, {}).tolist()
    assert tokens.count(bos) == int(write)
    assert (tokens[0] == bos) is write


def test_text_has_one_bos(tmp_path: Path) -> None:
    """D08, D07: added where there is no template; not doubled where the text begins with one."""
    bos = write_with_bos(tmp_path, None)
    tokenizer = load(tmp_path)
    assert not tokenizer.has_chat_template
    plain = tokenizer.encode_text("ab")
    assert plain.dtype == np.int32
    assert (plain[0], len(plain)) == (bos, 3)
    assert tokenizer.encode_text(f"{BOS}ab").tolist() == plain.tolist()
    assert tokenizer.encode_text("").tolist() == [bos]


def test_no_template(tmp_path: Path) -> None:
    """D05: messages are refused, plain text is tokenised."""
    write_with_bos(tmp_path, None)
    with pytest.raises(
        DataError, match=r"has no chat template, and the prompt is a list of messages; use .*template: none"
    ):
        load(tmp_path).encode_chat(USER, {})


def test_template_arguments(tmp_path: Path) -> None:
    template = TEMPLATE + "{% if enable_thinking is false %}<|system|>{% endif %}"
    write_with_bos(tmp_path, template)
    tokenizer = load(tmp_path)
    (system,) = ids(tmp_path, "<|system|>")
    assert system not in tokenizer.encode_chat(USER, {"enable_thinking": True})
    assert tokenizer.encode_chat(USER, {"enable_thinking": False})[-1] == system
    with pytest.raises(DataError, match=r"chat_template_kwargs: add_generation_prompt, tokenize can't be set"):
        tokenizer.encode_chat(USER, {"tokenize": False, "add_generation_prompt": False})


def test_template_s_own_error_is_shown(tmp_path: Path) -> None:
    write_with_bos(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match=r"chat template of .* refused the messages: roles must alternate"):
        load(tmp_path).encode_chat(USER, {})


def test_template_with_a_mistake(tmp_path: Path) -> None:
    write_with_bos(tmp_path, "{% for m in messages %}")
    with pytest.raises(DataError, match="refused the messages: Unexpected end of template"):
        load(tmp_path).encode_chat(USER, {})
    write_with_bos(tmp_path, "{% for m in messages %}{{ m['content'] + m['rank'] }}{% endfor %}")
    with pytest.raises(DataError, match=r"refused the messages: .*rank"):
        load(tmp_path).encode_chat(USER, {})


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "a conversation without messages"),
        (["hello"], "message 0 is a str; it must be a mapping with role and content"),
        ([*USER, {"role": "user", "content": None}], r"message 1 \(user\) has content None; it must be a text"),
        ([{"role": "user"}], r"message 0 \(user\) has content None"),
        ([{"role": "user", "content": float("nan")}], r"message 0 \(user\) has content nan"),
        ([{"role": "user", "content": 18}], r"message 0 \(user\) has content 18"),
        ([{"content": "x"}], "message 0 has role None"),
        ([{"role": "", "content": "x"}], "message 0 has role ''"),
    ],
)
def test_messages_that_templates_would_render_as_nonsense(messages: Any, message: str, folder: Path) -> None:
    with pytest.raises(DataError, match=message):
        load(folder).encode_chat(messages, {})


def test_values_as_pandas_and_arrow_give_them(tmp_path: Path) -> None:
    """D04: arrays for lists, numpy's texts and numbers, and a null for every key that another message has."""
    template = (
        "{% for m in messages %}{{ m['content'] if m['content'] is string else m['content'][0]['text'] }}"
        "{% if m.name is defined %}{{ m.name }}{% endif %}{% endfor %}"
    )
    write_with_bos(tmp_path, template)
    tokenizer = load(tmp_path)
    odd = np.array(
        [
            {"role": np.str_("user"), "content": np.str_("a"), "name": None},
            {"role": "user", "content": np.array([{"type": "text", "text": "b"}], object), "name": "c"},
        ],
        object,
    )
    assert tokenizer.decode(tokenizer.encode_chat(list(odd), {})) == "abc"


def test_a_tool_call_needs_no_content(folder: Path) -> None:
    write_with_bos(folder, "{% for m in messages %}{{ m.content or m.tool_calls[0].name }}{% endfor %}")
    tokenizer = load(folder)
    message = {"role": "assistant", "content": None, "tool_calls": ({"name": "add"},)}
    assert tokenizer.decode(tokenizer.encode_chat([message], {})) == "add"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {END}),
        ({"config.json": {"eos_token_id": None}}, {END}),
        ({"generation_config.json": {"eos_token_id": 3}}, {END, 3}),
        ({"generation_config.json": {"eos_token_id": [3, 4]}, "config.json": {"eos_token_id": 5}}, {END, 3, 4, 5}),
        ({"config.json": {"eos_token_id": [5, 3]}, "generation_config.json": {}}, {END, 3, 5}),
    ],
    ids=str,
)
def test_every_eos_id(files: dict[str, Any], expected: set[Any], folder: Path) -> None:
    """Instruct models name the end of a turn in one file and the end of text in another."""
    for name, content in files.items():
        (folder / name).write_text(json.dumps({"model_type": "qwen3"} | content if name == "config.json" else content))
    (end,) = ids(folder, END)
    assert load(folder).eos_ids == frozenset(end if i == END else i for i in expected)


def test_decode_leaves_special_tokens_out_and_spaces_in(folder: Path) -> None:
    tokenizer = load(folder)
    text = "a  b , c .\n\n 1 ' s"
    tokens = np.concatenate([tokenizer.encode_text(text), np.array(ids(folder, END, "<|user|>"), np.int32)])
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(np.zeros(0, np.int32)) == ""


def test_it_crosses_processes(folder: Path) -> None:
    tokenizer = load(folder)
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.eos_ids == tokenizer.eos_ids
    assert again.encode_chat(USER, {}).tolist() == tokenizer.encode_chat(USER, {}).tolist()


def test_a_folder_is_read_without_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("went to the network")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    load(folder)


def test_paths_are_relative_to_the_manifest(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path / "models" / "m")
    for path in ("./models/m", "models/m"):
        assert load_tokenizer(ModelSection(path=path), tmp_path).has_chat_template


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"model.path: './nowhere' is no folder \(looked for {tmp_path}/nowhere\)"):
        load_tokenizer(ModelSection(path="./nowhere"), tmp_path)


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ModelError, match=r"has no tokenizer \(none of tokenizer.json, .*copy these files from"):
        load(tmp_path)


def test_a_tokenizer_that_is_broken(folder: Path) -> None:
    whole = (folder / "tokenizer.json").read_text()
    for content in ("{", '{"model": 3}', whole[: len(whole) // 2]):
        (folder / "tokenizer.json").write_text(content)
        with pytest.raises(ModelError, match=f"the tokenizer of {folder} can't be loaded: "):
            load(folder)


def test_a_config_that_is_no_json(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config.json is no JSON"):
        load(folder)


def test_a_hub_id_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError) as error:
        load_tokenizer(ModelSection(path="nobody/nothing"), tmp_path)
    assert str(error.value) == (
        "model.path: 'nobody/nothing' is no folder here, and as an id on the Hugging Face hub it can't be reached "
        "and isn't in the cache; set model.path to a model's folder (--set model.path=FOLDER)"
    )


def test_code_of_the_model_is_not_run(folder: Path) -> None:
    """Unless the manifest says so."""
    ran = folder / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass T: pass\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="trust_remote_code"):
        load(folder)
    assert not ran.exists()
