"""From files and a manifest to judged prompts; every test runs with a fake and with the real byte tokenizer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from rlcore.data.ids import stable_prompt_id
from rlcore.data.prompts import load_prompt_set
from rlcore.errors import DataError

FLAT = {"prompt": "question", "ground_truth": "answer"}


def refusal(*args) -> str:
    with pytest.raises(DataError) as caught:
        load_prompt_set(*args)
    return str(caught.value)


class TestSchemas:
    def test_verl(self, manifest, write, verl_row, tokenizer, length_of):
        write("train.parquet", [verl_row("1+1?", "2"), verl_row("2+2?", "4")])
        loaded = load_prompt_set(manifest(), "train", tokenizer)
        first, second = loaded.prompts
        assert (first.text, first.ground_truth, first.source) == ("1+1?", "2", "openai/gsm8k")
        assert first.messages == ({"role": "user", "content": "1+1?"},)
        assert first.tokens.dtype == np.int32
        assert first.tokens.tolist() == tokenizer.encode_chat(first.messages, {}).tolist()
        assert first.extra == {
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"split": "train", "index": 0},
        }
        assert (first.location, second.location) == ("train.parquet row 1", "train.parquet row 2")
        assert loaded.report.longest_tokens == length_of(("user", "1+1?"))

    def test_verl_with_a_plain_prompt(self, manifest, write, verl_row, tokenizer):
        write("train.parquet", [verl_row("", prompt="1+1?")])
        chat = load_prompt_set(manifest(), "train", tokenizer).prompts[0]
        assert chat.messages == ({"role": "user", "content": "1+1?"},)
        plain = load_prompt_set(manifest(template="none"), "train", tokenizer).prompts[0]
        assert (plain.text, plain.messages) == ("1+1?", ())
        assert plain.tokens.tolist() == tokenizer.encode_text("1+1?").tolist()

    def test_flat(self, manifest, write, tokenizer):
        write("t.jsonl", [{"question": "1+1?", "meta": {"gold": 2, "set": "sums", "key": 7}, "level": 1}])
        columns = {"prompt": "question", "ground_truth": "meta.gold", "source": "meta.set", "id": "meta.key"}
        (prompt,) = load_prompt_set(manifest(train="t.jsonl", columns=columns), "train", tokenizer).prompts
        assert (prompt.text, prompt.ground_truth, prompt.source, prompt.id) == ("1+1?", 2, "sums", "7")
        assert prompt.extra == {"meta": {"gold": 2, "set": "sums", "key": 7}, "level": 1}

    def test_source_of_the_manifest_is_for_files_and_rows_without_one(self, manifest, write, verl_row, tokenizer):
        write("flat.jsonl", [{"question": "a", "answer": 1}])
        flat = manifest(train="flat.jsonl", columns=FLAT, source="sums")
        assert load_prompt_set(flat, "train", tokenizer).prompts[0].source == "sums"
        write("verl.jsonl", [verl_row("a"), verl_row("b", data_source=None)])
        verl = manifest(train="verl.jsonl", source="sums")
        assert [p.source for p in load_prompt_set(verl, "train", tokenizer).prompts] == ["openai/gsm8k", "sums"]

    def test_several_files_in_order_with_golds_of_different_types(self, manifest, write, verl_row, tokenizer):
        write("a.parquet", [verl_row("a", "18")])
        write("b.parquet", [verl_row("b", 18)])
        write("c.jsonl", [verl_row("c", 18.0), verl_row("d", ["18"])])
        loaded = load_prompt_set(manifest(train=["a.parquet", "b.parquet", "c.jsonl"]), "train", tokenizer)
        golds = [prompt.ground_truth for prompt in loaded.prompts]
        assert golds == ["18", 18, 18.0, ["18"]]
        assert [type(gold) for gold in golds] == [str, int, float, list]

    def test_validation_prompts(self, manifest, write, verl_row, tokenizer):
        write("val.parquet", [verl_row("a")])
        loaded = load_prompt_set(manifest(val="val.parquet", prompts_per_step=100), "val", tokenizer)
        assert len(loaded.prompts) == 1
        assert "data.val names no file" in refusal(manifest(), "val", tokenizer)

    def test_system_prompt_counts(self, manifest, write, verl_row, tokenizer, length_of):
        write("train.parquet", [verl_row("a")])
        loaded = load_prompt_set(manifest(system_prompt="Be brief."), "train", tokenizer)
        assert loaded.report.longest_tokens == length_of(("system", "Be brief."), ("user", "a"))


class TestIds:
    def test_hash_of_source_and_prompt_numbered_where_it_comes_again(self, manifest, write, verl_row, tokenizer):
        write("train.parquet", [verl_row("a"), verl_row("b"), verl_row("a"), verl_row("a")])
        ids = [prompt.id for prompt in load_prompt_set(manifest(), "train", tokenizer).prompts]
        a, b = (stable_prompt_id("openai/gsm8k", [{"role": "user", "content": text}]) for text in "ab")
        assert ids == [a, b, f"{a}-2", f"{a}-3"]

    def test_settings_do_not_change_ids(self, manifest, write, verl_row, tokenizer):
        write("train.parquet", [verl_row("a" * 50)])
        plain = load_prompt_set(manifest(), "train", tokenizer).prompts[0]
        other = manifest(system_prompt="x", max_prompt_tokens=20, overlong_prompts="truncate_left")
        cut = load_prompt_set(other, "train", tokenizer).prompts[0]
        assert cut.id == plain.id
        assert cut.text != plain.text

    def test_explicit_ids(self, manifest, write, tokenizer):
        columns = {**FLAT, "id": "key"}
        write("a.jsonl", [{"question": "a", "answer": 1, "key": "x"}, {"question": "b", "answer": 1, "key": 2}])
        write("b.jsonl", [{"question": "c", "answer": 1, "key": "2"}])
        loaded = load_prompt_set(manifest(train="a.jsonl", columns=columns), "train", tokenizer)
        assert [prompt.id for prompt in loaded.prompts] == ["x", "2"]
        message = refusal(manifest(train=["a.jsonl", "b.jsonl"], columns=columns), "train", tokenizer)
        assert "b.jsonl line 1: id '2' (key) is also that of a.jsonl line 2" in message

    @pytest.mark.parametrize(("key", "shown"), [(None, "null"), (True, "True"), (1.5, "1.5"), ("", "''")])
    def test_ids_that_are_none(self, manifest, write, tokenizer, key, shown):
        write("a.jsonl", [{"question": "a", "answer": 1, "key": key}])
        message = refusal(manifest(train="a.jsonl", columns={**FLAT, "id": "key"}), "train", tokenizer)
        assert f"a.jsonl line 1: the id (key) is {shown}; it must be a string or an integer" in message


class TestColumns:
    def test_flat_file_without_mapping_names_file_columns_and_options(self, manifest, write, tokenizer, tmp_path):
        write("hub.parquet", [{"question": "a", "answer": "1"}])
        message = refusal(manifest(train="hub.parquet"), "train", tokenizer)
        assert f"{tmp_path}/hub.parquet has no column for prompt (prompt)" in message
        assert "ground_truth (reward_model.ground_truth)" in message
        assert "its columns are: question, answer" in message
        assert "data.columns.prompt and data.columns.ground_truth" in message

    def test_ground_truth_alone_missing(self, manifest, write, tokenizer):
        write("a.parquet", [{"prompt": "a", "meta": {"gold": "1"}}])
        message = refusal(manifest(train="a.parquet"), "train", tokenizer)
        assert "no column for ground_truth (reward_model.ground_truth)" in message
        assert "its columns are: prompt, meta.gold" in message
        assert "data.columns.ground_truth (or null" in message

    def test_a_written_null_says_that_there_are_no_ground_truths(self, manifest, write, tokenizer, verl_row):
        columns = {"ground_truth": None}
        write("a.parquet", [{"prompt": "a"}])
        loaded = load_prompt_set(manifest(train="a.parquet", columns=columns), "train", tokenizer)
        assert loaded.prompts[0].ground_truth is None
        write("b.parquet", [verl_row("a", "7")])
        loaded = load_prompt_set(manifest(train="b.parquet", columns=columns), "train", tokenizer)
        assert loaded.prompts[0].ground_truth == "7"

    @pytest.mark.parametrize("key", ["prompt", "ground_truth", "source", "id"])
    def test_a_mapped_column_that_is_not_there(self, manifest, write, tokenizer, key):
        write("a.jsonl", [{"question": "a", "answer": 1}])
        message = refusal(manifest(train="a.jsonl", columns={**FLAT, key: "nope"}), "train", tokenizer)
        assert f"no column for {key} (nope)" in message
        assert f"data.columns.{key}" in message


class TestRows:
    def test_null_ground_truths_are_all_counted_and_the_first_named(self, manifest, write, verl_row, tokenizer):
        write("a.parquet", [verl_row("x", "1"), *(verl_row(f"q{i}", None) for i in range(4))])
        write("b.jsonl", [verl_row("y", None), verl_row("z", None), {"prompt": "p"}])
        message = refusal(manifest(train=["a.parquet", "b.jsonl"]), "train", tokenizer)
        assert "data.train: 7 rows can't be used" in message
        assert "a.parquet row 2: the ground truth (reward_model.ground_truth) is null" in message
        assert "b.jsonl line 1: the ground truth" in message
        assert "b.jsonl line 2" not in message
        assert "and 2 more" in message

    def test_a_gold_of_nan_is_a_null(self, manifest, write, tokenizer):
        write("a.parquet", [{"question": "a", "answer": 18.0}, {"question": "b", "answer": float("nan")}])
        message = refusal(manifest(train="a.parquet", columns=FLAT), "train", tokenizer)
        assert "1 row can't be used" in message
        assert "a.parquet row 2: the ground truth (answer) is null" in message

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [(None, "the prompt (prompt) is null"), (3, "not int 3"), (["a"], "not list ['a']"), ("", "is empty")],
    )
    def test_prompts_of_the_wrong_type(self, manifest, write, verl_row, tokenizer, prompt, message):
        write("a.jsonl", [verl_row("ok"), verl_row("", prompt=prompt)])
        found = refusal(manifest(train="a.jsonl"), "train", tokenizer)
        assert "a.jsonl line 2: " in found
        assert message in found

    def test_a_column_of_the_wrong_type(self, manifest, write, tokenizer):
        write("a.parquet", [{"question": 1, "answer": 1}] * 9)
        message = refusal(manifest(train="a.parquet", columns=FLAT), "train", tokenizer)
        assert "9 rows can't be used" in message
        assert "a.parquet row 1: the prompt must be a string or a list of {role, content}, not int 1" in message

    def test_source_of_the_wrong_type(self, manifest, write, verl_row, tokenizer):
        write("a.jsonl", [verl_row("a", data_source=3)])
        assert "the source (data_source) is 3; it must be a string" in refusal(
            manifest(train="a.jsonl"), "train", tokenizer
        )

    def test_messages_without_template(self, manifest, write, verl_row, tokenizer):
        write("train.parquet", [verl_row("a")])
        message = refusal(manifest(template="none"), "train", tokenizer)
        assert "train.parquet row 1: the prompt is a list of messages, which needs data.template: chat" in message

    def test_a_tokenizer_without_chat_template_is_told_before_files_are_read(self, manifest, fake):
        message = refusal(manifest(train="missing.parquet"), "train", fake(has_chat_template=False))
        assert "no chat template" in message


class TestOverlong:
    """Three prompts of 4, 10 and 20 bytes; the limit lets through what the template makes of 10 bytes, no more."""

    @pytest.fixture
    def made(self, manifest, write, verl_row, length_of):
        write("train.parquet", [verl_row("abcd"), verl_row("0123456789"), verl_row("0123456789ABCDEFGHIJ")])
        limit = length_of(("user", "0123456789"))

        def make(policy, *, limit=limit, **data):
            return manifest(overlong_prompts=policy, max_prompt_tokens=limit, **data)

        return make

    def test_drop_judges_the_templated_length(self, made, tokenizer, length_of):
        loaded = load_prompt_set(made("drop"), "train", tokenizer)
        report = loaded.report
        assert [prompt.text for prompt in loaded.prompts] == ["abcd", "0123456789"]
        assert (report.rows, report.dropped, report.truncated) == (3, 1, 0)
        assert report.longest_tokens == length_of(("user", "0123456789ABCDEFGHIJ"))
        one_less = load_prompt_set(made("drop", limit=report.max_prompt_tokens - 1), "train", tokenizer)
        assert [prompt.text for prompt in one_less.prompts] == ["abcd"]

    def test_drop_counts_the_system_prompt(self, made, tokenizer):
        loaded = load_prompt_set(made("drop", system_prompt="x"), "train", tokenizer)
        assert [prompt.text for prompt in loaded.prompts] == ["abcd"]

    def test_error_names_rows_lengths_and_limit(self, made, tokenizer, length_of):
        limit, length = length_of(("user", "0123456789")), length_of(("user", "0123456789ABCDEFGHIJ"))
        message = refusal(made("error"), "train", tokenizer)
        assert f"1 row can't be used; longer than data.max_prompt_tokens ({limit})" in message
        assert f"train.parquet row 3: {length} tokens" in message
        assert "data.overlong_prompts to drop" in message

    @pytest.mark.parametrize(("policy", "text"), [("truncate_left", "ABCDEFGHIJ"), ("truncate_right", "0123456789")])
    def test_truncate(self, made, tokenizer, length_of, policy, text):
        loaded = load_prompt_set(made(policy), "train", tokenizer)
        cut = loaded.prompts[2]
        assert cut.text == text
        assert cut.messages == ({"role": "user", "content": text},)
        assert cut.tokens.tolist() == tokenizer.encode_chat(cut.messages, {}).tolist()
        assert (loaded.report.dropped, loaded.report.truncated) == (0, 1)

    def test_truncating_where_the_template_alone_is_too_long(self, made, tokenizer):
        message = refusal(made("truncate_left", limit=2), "train", tokenizer)
        assert "3 rows can't be used" in message
        assert "train.parquet row 1: without the text that may be cut it is still longer than 2 tokens" in message

    @pytest.mark.parametrize("split", ["train", "val"])
    def test_all_too_long(self, made, tokenizer, length_of, split):
        message = refusal(made("drop", limit=3, val="train.parquet"), split, tokenizer)
        longest = length_of(("user", "0123456789ABCDEFGHIJ"))
        assert f"data.{split}: all 3 prompts are longer than data.max_prompt_tokens (3)" in message
        assert f"the longest has {longest} tokens" in message

    def test_too_few_left_for_a_step(self, made, tokenizer):
        message = refusal(made("drop", prompts_per_step=3), "train", tokenizer)
        assert "there are 2 prompts, fewer than the 3 that one step needs" in message
        assert "1 longer than" in message
        assert (
            len(load_prompt_set(made("drop", prompts_per_step=3, last_batch="short"), "train", tokenizer).prompts) == 2
        )


def test_the_report_is_a_sentence(manifest, write, verl_row, fake, length_of):
    write("a.parquet", [verl_row("abcd")] * 1200 + [verl_row("x" * 30)])
    write("b.parquet", [verl_row("abcd", data_source="sums")])
    limit, longest = length_of(("user", "abcd")), length_of(("user", "x" * 30))
    data = manifest(train=["a.parquet", "b.parquet"], max_prompt_tokens=limit, overlong_prompts="drop")
    report = load_prompt_set(data, "train", fake()).report
    assert report.sources == {"openai/gsm8k": 1200, "sums": 1}
    assert str(report) == (
        f"train: 1,201 prompts of 1,202 rows (openai/gsm8k 1,200, sums 1), the longest of {longest} tokens; "
        f"1 longer than {limit} tokens dropped."
    )


def test_errors_of_the_chat_template_name_the_row(manifest, write, verl_row, fake):
    class Refusing(fake):
        def encode_chat(self, messages, template_kwargs):
            raise DataError("roles must alternate")

    write("train.parquet", [verl_row("a")])
    assert "train.parquet row 1: roles must alternate" in refusal(manifest(), "train", Refusing())


def test_a_struct_that_is_null_everywhere_is_no_missing_column(manifest, write, tokenizer):
    schema = pa.schema({"prompt": pa.string(), "reward_model": pa.struct({"ground_truth": pa.string()})})
    write("a.parquet", [{"prompt": "a", "reward_model": None}], schema)
    assert "a.parquet row 1: the ground truth" in refusal(manifest(train="a.parquet"), "train", tokenizer)
