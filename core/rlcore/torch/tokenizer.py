"""The tokenizer of a Hugging Face folder or hub id, as ``rlcore.data.tokenizer.Tokenizer`` wants it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore.errors import DataError, ModelError

if TYPE_CHECKING:
    from rlcore.data.sample import Tokens
    from rlcore.data.tokenizer import Tokenizer
    from rlcore.manifest.schema import ModelSection

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")

_DECIDED_HERE = frozenset(
    {
        *("conversation", "add_generation_prompt", "continue_final_message", "tokenize", "tokenizer_kwargs", "padding"),
        *("truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    }
)
"""Arguments of ``apply_chat_template`` that say how it is called, not what the template is told."""


def model_source(section: ModelSection, base: Path | None = None) -> tuple[str, bool]:
    """What to hand to ``from_pretrained``, and whether it is a folder on this machine.

    A path that starts with ``.``, ``/`` or ``~`` is a folder, relative to ``base`` (the manifest's folder; left out,
    the working directory); so is one without such a start that is there. All else is a hub id. Raises ``ModelError``
    for a folder that does not exist.
    """
    folder = ((base or Path()) / Path(section.path).expanduser()).resolve()
    if folder.is_dir():
        return str(folder), True
    if section.path.startswith((".", "/", "~")):
        raise ModelError(f"model.path: {section.path!r} is no folder (looked for {folder})")
    return section.path, False


def load_tokenizer(section: ModelSection, base: Path | None = None) -> Tokenizer:
    """Load the tokenizer of a model; a folder on this machine is read without network.

    Raises ``ModelError`` where the folder, the hub id or the tokenizer's files are missing or can't be read.
    """
    from transformers import AutoTokenizer

    source, local = model_source(section, base)
    if local and not any((Path(source) / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"model.path: {source} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); "
            "copy these files from the model that it was trained from"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source,
            revision=section.revision,
            trust_remote_code=section.trust_remote_code,
            local_files_only=local,
        )
    except Exception as error:
        # The tokenizers library raises a bare Exception for a bad file.
        if not local and _unreachable(error):
            raise ModelError(
                f"model.path: {source!r} is no folder here, and as an id on the Hugging Face hub it can't be reached "
                "and isn't in the cache; set model.path to a model's folder (--set model.path=FOLDER)"
            ) from error
        hint = "" if local else "; a folder on this machine is written with ./ or / in front"
        raise ModelError(f"model.path: the tokenizer of {source} can't be loaded: {error}{hint}") from error
    return HfTokenizer(tokenizer, _eos_ids(section, source, tokenizer), source)


def _unreachable(error: BaseException | None) -> bool:
    """Whether an error of transformers came from a hub that doesn't answer or may not be asked."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    while error is not None and not isinstance(error, LocalEntryNotFoundError):
        error = error.__cause__ or error.__context__
    return error is not None


class HfTokenizer:
    """A transformers tokenizer with every id that ends a generation. Picklable."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int], source: str) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._source = source

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a generation, from the generation config, the model config and the tokenizer."""
        return self._eos_ids

    @property
    def has_chat_template(self) -> bool:
        """Whether ``encode_chat`` works."""
        return self._tokenizer.chat_template is not None

    def encode_text(self, text: str) -> Tokens:
        """Ids of a plain prompt, int32[n], with the special tokens that the tokenizer adds; one BOS at most."""
        ids = self._tokenizer(text)["input_ids"]
        bos = self._tokenizer.bos_token_id
        # The text may begin with a written BOS, as one that came out of a template does.
        if bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return np.asarray(ids, np.int32)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]) -> Tokens:
        """Ids of a conversation by the chat template, int32[n], ready for the assistant's turn.

        No special token is added to those that the template writes. Raises ``DataError`` for a message that templates
        can't render, and with the template's own words where it refuses the conversation.
        """
        from jinja2 import TemplateError

        if not self.has_chat_template:
            raise DataError(
                f"the tokenizer of {self._source} has no chat template, and the prompt is a list of messages; "
                "use prompts of plain text with data.template: none, or a model with a template"
            )
        if clash := sorted(_DECIDED_HERE & template_kwargs.keys()):
            raise DataError(f"data.chat_template_kwargs: {', '.join(clash)} can't be set; it is decided by rlcore")
        if not messages:
            raise DataError("a conversation without messages; a prompt needs at least one")
        plain = [_message(message, i) for i, message in enumerate(messages)]
        try:
            ids = self._tokenizer.apply_chat_template(
                plain, add_generation_prompt=True, tokenize=True, return_dict=False, **template_kwargs
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise DataError(f"the chat template of {self._source} refused the messages: {error}") from error
        return np.asarray(ids, np.int32)

    def decode(self, tokens: Tokens) -> str:
        """Text of generated ids, special tokens left out, spaces as they are."""
        text = self._tokenizer.decode(
            np.asarray(tokens).tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A message in plain Python values, checked for what templates would render as nonsense ("None", "nan")."""
    if not isinstance(message, Mapping):
        raise DataError(f"message {index} is a {type(message).__name__}; it must be a mapping with role and content")
    plain: dict[str, Any] = _plain(message)
    role, content = plain.get("role"), plain.get("content")
    if not isinstance(role, str) or not role:
        raise DataError(f"message {index} has role {role!r}; it must be a text such as 'user'")
    # Parquet gives every message of a list the keys of all, so a missing tool call is a null one.
    plain = {key: value for key, value in plain.items() if value is not None or key == "content"}
    calls_tools = bool(plain.get("tool_calls"))
    if not isinstance(content, (str, list)) and not (content is None and calls_tools):
        raise DataError(f"message {index} ({role}) has content {content!r}; it must be a text or a list of parts")
    return plain


def _plain(value: Any) -> Any:
    """The value with numpy arrays and scalars, tuples and mappings turned into lists, numbers and dicts."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _eos_ids(section: ModelSection, source: str, tokenizer: Any) -> frozenset[int]:
    """The union of what three files say: models often name one end of turn here and another there."""
    found: set[int] = set() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    for name in ("generation_config.json", "config.json"):
        given = _read_json(section, source, name).get("eos_token_id")
        ids = given if isinstance(given, list) else [given]
        found.update(i for i in ids if i is not None)
    return frozenset(found)


def _read_json(section: ModelSection, source: str, name: str) -> Mapping[str, Any]:
    """A JSON file of the model, empty where there is none."""
    from transformers.utils.hub import cached_file

    path = cached_file(
        source,
        name,
        revision=section.revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:
        return {}
    try:
        content: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, Mapping):
        raise ModelError(f"{path} is no mapping")
    return content
