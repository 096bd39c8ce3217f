"""`rlcore data gsm8k` from the command line."""

from __future__ import annotations

import json

import pytest
from rlcore.cli.data import app
from rlcore.errors import DataError, RunFolderError
from typer.testing import CliRunner


@pytest.fixture
def run(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": "q", "answer": "#### 1"}) + "\n")

    def run(*more: str):
        return CliRunner().invoke(app, ["gsm8k", "--from", str(tmp_path), "--out", str(tmp_path / "out"), *more])

    return run


def test_files_and_rows_are_printed(run, tmp_path):
    result = run()
    assert result.exit_code == 0
    assert result.output.splitlines() == [f"{tmp_path}/out/{name}.parquet: 1 rows" for name in ("train", "test")]


def test_overwrite(run):
    run()
    assert isinstance(run().exception, RunFolderError)
    assert run("--overwrite").exit_code == 0


def test_errors_are_left_to_the_command_line(run, tmp_path):
    (tmp_path / "test.jsonl").unlink()
    assert isinstance(run().exception, DataError)


def test_from_and_out_are_needed():
    result = CliRunner().invoke(app, ["gsm8k"])
    assert result.exit_code == 2
