"""Messages, system prompts and cutting. Lengths by the formula of the byte tokenizer (conftest)."""

from __future__ import annotations

import pytest
from rlcore.data.templating import Template, text_of
from rlcore.errors import DataError

CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture
def chat(tokenizer):
    return Template(tokenizer, "chat", None, {})


@pytest.fixture
def plain(tokenizer):
    return Template(tokenizer, "none", None, {})


def refusal(call) -> str:
    with pytest.raises(DataError) as caught:
        call()
    return str(caught.value)


def test_a_string_becomes_one_user_message(chat, length_of):
    content = chat.content("hi")
    assert content == ({"role": "user", "content": "hi"},)
    assert len(chat.encode(content)) == length_of(("user", "hi"))


def test_a_string_without_template_is_tokenised_as_it_is(plain):
    content = plain.content("hi")
    assert content == "hi"
    assert plain.encode(content).tolist() == plain.tokenizer.encode_text("hi").tolist()


def test_a_system_prompt_is_put_before_conversations_that_have_none(tokenizer):
    template = Template(tokenizer, "chat", "Be brief.", {})
    system, own = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be rude."}
    assert template.content("hi") == (system, *CHAT)
    assert template.content(CHAT) == (system, *CHAT)
    assert template.content([own, *CHAT]) == (own, *CHAT)


def test_template_arguments_reach_the_template(fake):
    tokenizer = fake()
    Template(tokenizer, "chat", None, {"enable_thinking": False}).encode(tuple(CHAT))
    assert tokenizer.kwargs == {"enable_thinking": False}


def test_nulls_that_parquet_fills_in_are_left_out(chat):
    message = {"role": "user", "content": "hi", "tool_calls": None}
    assert chat.content([message]) == ({"role": "user", "content": "hi"},)


def test_text_is_the_plain_prompt_or_the_last_message():
    assert text_of("hi") == "hi"
    assert text_of(({"role": "system", "content": "Be brief."}, *CHAT)) == "hi"
    assert (
        text_of(({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},)) == "ab"
    )


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (7, "must be a string or a list of {role, content}, not int 7"),
        ([], "not list []"),
        (["hi"], "not list ['hi']"),
        ({"role": "user"}, "not dict"),
        ("", "the prompt is empty"),
        ([{"content": "hi"}], "message 1 has role None"),
        ([*CHAT, {"role": "user"}], "message 2 (user) has content None; it must be text"),
        ([{"role": "user", "content": 5}], "message 1 (user) has content 5"),
        ([{"role": "user", "content": [{"type": "image", "image": "x"}]}], "it must be text"),
        ([*CHAT, {"role": "assistant", "content": "ho"}], "ends with an assistant message"),
    ],
)
def test_what_is_no_prompt(chat, prompt, message):
    assert message in refusal(lambda: chat.content(prompt))


def test_messages_need_the_chat_template(plain):
    assert "a list of messages, which needs data.template: chat" in refusal(lambda: plain.content(CHAT))


class TestOf:
    """Template.of judges the keys of the manifest."""

    def test_keys(self, manifest, fake):
        data = manifest(system_prompt="Be brief.", chat_template_kwargs={"a": 1}).data
        template = Template.of(data, fake())
        assert (template.kind, template.system_prompt, template.kwargs) == ("chat", "Be brief.", {"a": 1})

    def test_no_chat_template(self, manifest, fake):
        tokenizer = fake(has_chat_template=False)
        message = refusal(lambda: Template.of(manifest().data, tokenizer))
        assert "has no chat template" in message
        assert "data.template: none" in message
        assert "chat_template.jinja" in message
        assert Template.of(manifest(template="none").data, tokenizer).kind == "none"

    @pytest.mark.parametrize("key", [{"system_prompt": "x"}, {"chat_template_kwargs": {"a": 1}}])
    def test_keys_that_plain_text_ignores_are_refused(self, manifest, fake, key):
        data = manifest(template="none", **key).data
        assert f"data.{next(iter(key))} has no place in plain text" in refusal(lambda: Template.of(data, fake()))


class TestCut:
    def test_plain(self, plain):
        assert plain.cut("abcdef", 4, "left")[0] == "cdef"
        assert plain.cut("abcdef", 4, "right")[0] == "abcd"

    def test_only_the_last_user_message_is_cut(self, chat):
        system, first = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "first"}
        answer, last = {"role": "assistant", "content": "answer"}, {"role": "user", "content": "abcdef"}
        content = (system, first, answer, last)
        whole = len(chat.encode(content))
        for side, text in (("left", "cdef"), ("right", "abcd")):
            cut, tokens = chat.cut(content, whole - 2, side)
            assert cut == (system, first, answer, {"role": "user", "content": text})
            assert tokens.tolist() == chat.encode(cut).tolist()
            assert len(tokens) == whole - 2

    def test_the_template_stays_whole(self, chat):
        tokens = chat.encode(tuple(CHAT))
        _, cut = chat.cut(({"role": "user", "content": "x" * 50 + "hi"},), len(tokens), "left")
        assert cut.tolist() == tokens.tolist()

    def test_characters_are_never_parted(self, chat, length_of):
        # Each is two bytes: of five bytes of room one stays empty.
        cut, _ = chat.cut(({"role": "user", "content": "äöüß"},), length_of(("user", "12345")), "right")
        assert cut == ({"role": "user", "content": "äö"},)

    def test_nothing_left(self, chat, length_of):
        limit = length_of(("user", ""))
        assert f"still longer than {limit} tokens" in refusal(lambda: chat.cut(tuple(CHAT), limit, "left"))
        assert "longer than 1 tokens" in refusal(lambda: chat.cut(tuple(CHAT), 1, "left"))

    def test_nothing_to_cut(self, chat):
        tool = ({"role": "tool", "content": "abcdef"},)
        assert "no user message" in refusal(lambda: chat.cut(tool, 3, "left"))
        parts = ({"role": "user", "content": [{"type": "text", "text": "abc"}]},)
        assert "can't be cut" in refusal(lambda: chat.cut(parts, 3, "left"))
