"""GSM8K from its original form, ``{"question": …, "answer": "… #### 72"}``, to parquet in verl's schema."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlcore.data.reader import Row, read_files
from rlcore.errors import DataError, RunFolderError

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
SPLITS = ("train", "test")

_TEXT = pa.string()
SCHEMA = pa.schema(
    {
        "data_source": _TEXT,
        "prompt": pa.list_(pa.struct({"role": _TEXT, "content": _TEXT})),
        "ability": _TEXT,
        "reward_model": pa.struct({"style": _TEXT, "ground_truth": _TEXT}),
        "extra_info": pa.struct({"split": _TEXT, "index": pa.int64(), "answer": _TEXT, "question": _TEXT}),
    }
)


def convert(source: str, out: Path, *, overwrite: bool = False) -> dict[Path, int]:
    """Write a parquet file for each split into ``out``; returns the files with their numbers of rows.

    ``source`` is a folder with train.jsonl and test.jsonl, one .jsonl file (its name is the split), or "hub". Nothing
    is written before every row has been read.

    Raises:
        DataError: a file or a field is missing, a line is not JSON, an answer has no "####", the hub can't be reached.
        RunFolderError: a file is in the way and ``overwrite`` is false.
    """
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out} is a file; --out names a folder")
    inputs = _inputs(source)
    targets = {split: out / f"{split}.parquet" for split in inputs}
    in_the_way = [str(path) for path in targets.values() if path.exists()]
    if in_the_way and not overwrite:
        raise RunFolderError(f"{', '.join(in_the_way)} exists already; choose another --out, or pass --overwrite")
    files = read_files(list(inputs.values()))
    tables = {split: to_table(file.rows, split) for split, file in zip(inputs, files, strict=True)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out, prefix=".writing-") as folder:
            for split, table in tables.items():
                pq.write_table(table, Path(folder, split))
            for split, path in targets.items():
                Path(folder, split).replace(path)
    except OSError as error:
        raise RunFolderError(f"can't write to {out}: {error.strerror or error}") from error
    return {path: tables[split].num_rows for split, path in targets.items()}


def to_table(rows: Sequence[Row], split: str) -> pa.Table:
    """Rows with ``question`` and ``answer`` in verl's schema."""
    return pa.Table.from_pylist([_verl_row(row, split, index) for index, row in enumerate(rows)], SCHEMA)


def _verl_row(row: Row, split: str, index: int) -> dict[str, Any]:
    question, answer = _text(row, "question"), _text(row, "answer")
    _, marker, truth = answer.rpartition("#### ")
    truth = truth.replace(",", "").strip()
    if not marker or not truth:
        raise DataError(f'{row.location}: the answer does not end in "#### " and a number: {answer[-60:]!r}')
    return {
        "data_source": SOURCE,
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
    }


def _text(row: Row, name: str) -> str:
    value = row.values.get(name)
    if not isinstance(value, str):
        given = f"is {value!r}" if name in row.values else f"is missing (it has: {', '.join(row.values) or 'none'})"
        raise DataError(f"{row.location}: field {name!r} {given}; it must be a string")
    return value


def _inputs(source: str) -> dict[str, Path]:
    """The file of each split."""
    if source == "hub":
        return {split: _download(split) for split in SPLITS}
    path = Path(source).expanduser()
    if path.is_dir():
        files = {split: path / f"{split}.jsonl" for split in SPLITS}
        if lacking := [file.name for file in files.values() if not file.exists()]:
            raise DataError(f"{path} has no {' and no '.join(lacking)}; GSM8K is train.jsonl and test.jsonl")
        return files
    if not path.exists():
        raise DataError(f"--from {source}: there is no such folder or file (or say hub, to download {SOURCE})")
    if path.suffix != ".jsonl":
        raise DataError(
            f"--from {source}: GSM8K's original form is .jsonl, not {path.suffix or 'a file without suffix'}"
        )
    return {path.stem: path}


def _download(split: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise DataError(f"--from hub needs huggingface_hub ({error}): pip install huggingface_hub") from error
    try:
        file = hf_hub_download(SOURCE, f"main/{split}-00000-of-00001.parquet", repo_type="dataset")
    except OSError as error:  # huggingface_hub's errors all are
        raise DataError(
            f"{SOURCE} can't be downloaded: {error}. Without network, pass the folder of train.jsonl and test.jsonl "
            "from github.com/openai/grade-school-math"
        ) from error
    return Path(file)
