"""From what a row asks to the tokens that the model reads: messages, system prompt, chat template, cutting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlcore.errors import DataError

if TYPE_CHECKING:
    from rlcore.data.sample import Tokens
    from rlcore.data.tokenizer import Tokenizer
    from rlcore.manifest.schema import DataSection

Message = Mapping[str, Any]
Content = str | tuple[Message, ...]
"""A prompt before it is tokens: plain text, or a conversation for the chat template."""


@dataclass(frozen=True, slots=True)
class Template:
    """How prompts become tokens: the keys ``template``, ``system_prompt`` and ``chat_template_kwargs`` of ``data:``."""

    tokenizer: Tokenizer
    kind: Literal["chat", "none"]
    system_prompt: str | None
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, data: DataSection, tokenizer: Tokenizer) -> Template:
        """The template that a manifest asks for. Raises DataError where the tokenizer or another key forbids it."""
        if data.template == "chat" and not tokenizer.has_chat_template:
            raise DataError(
                "the tokenizer has no chat template (base models often have none): set data.template: none to give "
                "the model plain text, or use a model that has one, or put a chat_template.jinja into its folder"
            )
        unused = [name for name in ("system_prompt", "chat_template_kwargs") if getattr(data, name)]
        if data.template == "none" and unused:
            raise DataError(f"data.{unused[0]} has no place in plain text; leave it out, or set data.template: chat")
        return cls(tokenizer, data.template, data.system_prompt, data.chat_template_kwargs)

    def content(self, prompt: Any) -> Content:
        """The prompt of a row, which is a string or a list of messages. Raises DataError for anything else."""
        if isinstance(prompt, str):
            if not prompt:
                raise DataError("the prompt is empty")
            if self.kind == "none":
                return prompt
            messages: tuple[Message, ...] = ({"role": "user", "content": prompt},)
        else:
            messages = _messages(prompt)
            if self.kind == "none":
                raise DataError("the prompt is a list of messages, which needs data.template: chat")
        if self.system_prompt is not None and all(message["role"] != "system" for message in messages):
            messages = ({"role": "system", "content": self.system_prompt}, *messages)
        return messages

    def encode(self, content: Content) -> Tokens:
        """The tokens, int32[n], ready for the model's answer."""
        if isinstance(content, str):
            return self.tokenizer.encode_text(content)
        return self.tokenizer.encode_chat(content, self.kwargs)

    def cut(self, content: Content, max_tokens: int, side: Literal["left", "right"]) -> tuple[Content, Tokens]:
        """The longest content that fits, with its tokens, after cutting the start or the end of its text.

        Of a conversation only the last user message is cut, so that the template and all else stay whole.

        Raises:
            DataError: there is nothing to cut, or not one character of it would be left.
        """
        at = _last_user(content)
        text = content if isinstance(content, str) else content[at]["content"]
        if not isinstance(text, str):
            raise DataError("the last user message is a list of parts, which can't be cut")
        best: tuple[Content, Tokens] | None = None
        fits, too_long = 0, len(text)
        # By characters, not tokens: a cut between tokens may fall into a character, and joins differently again.
        while too_long - fits > 1:
            keep = (fits + too_long) // 2
            shorter = _replaced(content, at, text[-keep:] if side == "left" else text[:keep])
            tokens = self.encode(shorter)
            if len(tokens) > max_tokens:
                too_long = keep
            else:
                fits, best = keep, (shorter, tokens)
        if best is None:
            raise DataError(f"without the text that may be cut it is still longer than {max_tokens} tokens")
        return best


def text_of(content: Content) -> str:
    """The plain prompt, or the text of the last message: the question, for people."""
    if isinstance(content, str):
        return content
    last = content[-1]["content"]
    return last if isinstance(last, str) else "".join(part["text"] for part in last or ())


def _messages(prompt: Any) -> tuple[Message, ...]:
    if not isinstance(prompt, Sequence) or not prompt or not all(isinstance(message, Mapping) for message in prompt):
        given = f"{type(prompt).__name__} {prompt!r:.60}"
        raise DataError(f"the prompt must be a string or a list of {{role, content}}, not {given}")
    # Parquet gives all messages of a column the same keys and fills in nulls; templates take those for values.
    messages = tuple(_without_nulls(message) for message in prompt)
    for number, message in enumerate(messages, 1):
        _check_message(message, number)
    if messages[-1]["role"] == "assistant":
        raise DataError("the prompt ends with an assistant message; it must end with what the model is to answer")
    return messages


def _without_nulls(message: Message) -> Message:
    kept = {key: value for key, value in message.items() if value is not None}
    if isinstance(content := kept.get("content"), list) and all(isinstance(part, Mapping) for part in content):
        kept["content"] = [{key: value for key, value in part.items() if value is not None} for part in content]
    return kept


def _check_message(message: Message, number: int) -> None:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise DataError(f"message {number} has role {role!r}; it must be a string such as 'user'")
    if content is None and "tool_calls" in message:
        return
    parts = content if isinstance(content, list) else None
    if isinstance(content, str):
        return
    if not parts or not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        raise DataError(f"message {number} ({role}) has content {content!r:.60}; it must be text, or a list of texts")


def _last_user(content: Content) -> int:
    if isinstance(content, str):
        return 0
    for at in range(len(content) - 1, -1, -1):
        if content[at]["role"] == "user":
            return at
    raise DataError("there is no user message to cut")


def _replaced(content: Content, at: int, text: str) -> Content:
    if isinstance(content, str):
        return text
    return (*content[:at], {**content[at], "content": text}, *content[at + 1 :])
