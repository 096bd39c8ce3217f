"""GSM8K's conversion: the schema that verl's reader expects, real row counts, bad rows by line."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rlcore.data.gsm8k import convert
from rlcore.data.prompts import load_prompt_set
from rlcore.errors import DataError, RunFolderError

ROW = {"question": "1+1?", "answer": "One and one is <<1+1=2>>2.\n#### 2"}
REAL = Path(os.environ.get("RLCORE_GSM8K", Path(__file__).parents[4] / "shared/data/gsm8k"))

needs_real = pytest.mark.skipif(not (REAL / "train.jsonl").exists(), reason=f"no GSM8K at {REAL} (set RLCORE_GSM8K)")


@pytest.fixture
def source(write, tmp_path):
    write("source/train.jsonl", [ROW, {"question": "Big?", "answer": "x\n#### 114,200"}])
    write("source/test.jsonl", [ROW])
    return str(tmp_path / "source")


def test_schema_and_rows(source, tmp_path):
    out = tmp_path / "out"
    assert convert(source, out) == {out / "train.parquet": 2, out / "test.parquet": 1}
    assert sorted(path.name for path in out.iterdir()) == ["test.parquet", "train.parquet"]
    assert pq.read_table(out / "train.parquet").to_pylist() == [
        {
            "data_source": "openai/gsm8k",
            "prompt": [
                {
                    "role": "user",
                    "content": '1+1? Let\'s think step by step and output the final answer after "####".',
                }
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"split": "train", "index": 0, "answer": ROW["answer"], "question": "1+1?"},
        },
        {
            "data_source": "openai/gsm8k",
            "prompt": [
                {
                    "role": "user",
                    "content": 'Big? Let\'s think step by step and output the final answer after "####".',
                }
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "114200"},
            "extra_info": {"split": "train", "index": 1, "answer": "x\n#### 114,200", "question": "Big?"},
        },
    ]


def test_one_file(source, tmp_path):
    out = tmp_path / "out"
    assert convert(f"{source}/test.jsonl", out) == {out / "test.parquet": 1}
    assert pq.read_table(out / "test.parquet")["extra_info"][0].as_py()["split"] == "test"


def test_nothing_is_overwritten_unless_told(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "test.parquet").write_text("mine")
    (out / "notes.txt").write_text("mine too")
    with pytest.raises(RunFolderError, match=r"out/test.parquet exists already; .* pass --overwrite"):
        convert(source, out)
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "test.parquet"]
    convert(source, out, overwrite=True)
    assert pq.read_table(out / "test.parquet").num_rows == 1
    assert (out / "notes.txt").read_text() == "mine too"


def test_out_is_a_file(source, tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(RunFolderError, match="out is a file; --out names a folder"):
        convert(source, tmp_path / "out")


def test_a_failed_write_leaves_what_was_there(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    convert(source, out)
    before = (out / "train.parquet").read_bytes()
    real, calls = pq.write_table, []

    def full(table, where):
        calls.append(where)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(table, where)

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(RunFolderError, match=r"can't write to .*out: No space left on device"):
        convert(source, out, overwrite=True)
    assert (out / "train.parquet").read_bytes() == before
    assert sorted(path.name for path in out.iterdir()) == ["test.parquet", "train.parquet"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"question": "q", "answer": "2"}',
            "train.jsonl line 2: the answer does not end in \"#### \" and a number: '2'",
        ),
        ('{"question": "q", "answer": "x #### "}', "line 2: the answer does not end in"),
        ('{"question": "q"}', "line 2: field 'answer' is missing (it has: question); it must be a string"),
        ('{"question": 3, "answer": "#### 2"}', "line 2: field 'question' is 3; it must be a string"),
        ('{"question": ', "train.jsonl line 2: not JSON"),
    ],
)
def test_bad_rows_are_named_and_nothing_is_written(source, tmp_path, line, message):
    Path(source, "train.jsonl").write_text(json.dumps(ROW) + "\n" + line + "\n")
    with pytest.raises(DataError, match=re.escape(message)):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sources_that_are_none(source, tmp_path):
    with pytest.raises(DataError, match="there is no such folder or file"):
        convert(str(tmp_path / "nope"), tmp_path / "out")
    Path(source, "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no test\.jsonl; GSM8K is train\.jsonl and test\.jsonl"):
        convert(source, tmp_path / "out")
    (tmp_path / "train.csv").touch()
    with pytest.raises(DataError, match=r"original form is \.jsonl, not \.csv"):
        convert(str(tmp_path / "train.csv"), tmp_path / "out")


def test_hub_without_the_library(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"--from hub needs huggingface_hub .*: pip install huggingface_hub"):
        convert("hub", tmp_path / "out")


def test_hub_without_network(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    def offline(*args, **kwargs):
        raise hub.errors.OfflineModeIsEnabled("offline mode is enabled")

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    with pytest.raises(DataError, match=r"openai/gsm8k can't be downloaded: offline mode is enabled\. Without network"):
        convert("hub", tmp_path / "out")


def test_hub_reads_the_parquet_files_of_both_splits(monkeypatch, write, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    asked = []

    def download(repo, filename, repo_type):
        asked.append((repo, filename, repo_type))
        return str(write(f"cache/{filename}", [ROW]))

    monkeypatch.setattr(hub, "hf_hub_download", download)
    assert set(convert("hub", tmp_path / "out").values()) == {1}
    assert asked == [("openai/gsm8k", f"main/{split}-00000-of-00001.parquet", "dataset") for split in ("train", "test")]


@needs_real
def test_the_real_data(tmp_path, manifest, fake):
    out = tmp_path / "out"
    assert list(convert(str(REAL), out).values()) == [7473, 1319]
    for name in ("train", "test"):
        golds = [row["ground_truth"] for row in pq.read_table(out / f"{name}.parquet")["reward_model"].to_pylist()]
        lines = (REAL / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        # The pattern that the data set's authors extract answers with.
        found = [re.search(r"#### (\-?[0-9\.\,]+)", json.loads(line)["answer"]) for line in lines]
        assert golds == [match.group(1).replace(",", "") for match in found if match]
    loaded = load_prompt_set(manifest(train=str(out / "train.parquet"), max_prompt_tokens=2000), "train", fake())
    assert (len(loaded.prompts), len({prompt.id for prompt in loaded.prompts})) == (7473, 7473)
