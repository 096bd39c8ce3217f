from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from rlcore.cli.check import app
from rlcore.cli.schema import app as schema_app
from rlcore.manifest.load import load_manifest
from typer.testing import CliRunner

MANIFEST = """\
rlcore: 1
name: test
model: {path: ./model}
data:
  train: train.parquet
  prompts_per_step: 8
  max_prompt_tokens: 100
  max_response_tokens: 200
trainer: {use: fsdp}
rollout: {use: hf, samples_per_prompt: 4}
algorithm: {use: grpo}
rewards:
  correct: {use: gsm8k-rule-reward}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    parquet.write_table(pa.table({"prompt": ["x"] * 20}), tmp_path / "train.parquet")
    (tmp_path / "m.yaml").write_text(MANIFEST)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_a_good_manifest_prints_the_plan(folder) -> None:
    result = run("m.yaml")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:2] == ["OK: m.yaml", "  steps       2 of 8 prompts × 1 epoch = 2 (20 rows)"]


def test_problems_exit_with_2_and_positions_are_as_the_file_was_named(folder) -> None:
    result = run("m.yaml", "--set", "trainer.lrr=1", "--set", "rollout.temperature=0")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "--set rollout.temperature: must be a number above 0, got 0; greedy decoding (0) is for eval.temperature only",
        "--set trainer.lrr: unknown key 'lrr'; did you mean 'lr'?",
    ]
    (folder / "m.yaml").write_text(MANIFEST.replace("name: test", "name: ''"))
    assert run("m.yaml").stderr.startswith("m.yaml:2:7: name: must be text that matches")


def test_resolved_is_a_manifest_with_sources(folder) -> None:
    result = run("m.yaml", "--resolved", "--set", "trainer.lr=5e-7")
    assert result.exit_code == 0
    assert "lr: 5.0e-07" in result.stdout
    assert "# --set trainer.lr" in result.stdout
    (folder / "again.yaml").write_text(result.stdout)
    assert load_manifest(folder / "again.yaml").manifest.trainer.lr == 5e-7


def test_warnings_are_printed_and_stop_nothing(folder) -> None:
    result = run("m.yaml", "--set", "rollout.top_p=0.9")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: --set rollout.top_p: ")


def test_local_plugins_are_imported_with_load_only(folder) -> None:
    (folder / "my_reward.py").write_text("raise RuntimeError('imported')\n")
    (folder / "m.yaml").write_text(MANIFEST.replace("gsm8k-rule-reward", "./my_reward.py, x: 1"))
    result = run("m.yaml")
    assert result.exit_code == 0, result.output
    file = f"{folder}/my_reward.py"
    sentence = f"{file} is not imported, its options are not validated; --load does both"
    assert result.stderr == f"warning: m.yaml:13:18: {sentence}\n"
    result = run("m.yaml", "--load")
    assert result.exit_code == 2
    assert result.stderr.startswith("m.yaml:13:18: rewards.correct.use: ")
    assert "RuntimeError: imported" in result.stderr


def test_data_is_judged(folder, monkeypatch) -> None:
    pytest.importorskip("transformers")
    from rlcore.testing.tiny import write_byte_tokenizer

    write_byte_tokenizer(folder / "model")
    columns = {"question": ["x" * n for n in range(1, 21)], "answer": ["1"] * 20}
    parquet.write_table(pa.table(columns), folder / "train.parquet")
    flat = ["--set", "data.columns={prompt: question, ground_truth: answer}", "--set", "data.template=none"]
    result = run("m.yaml", "--data", *flat)
    assert result.exit_code == 0, result.output
    assert "  data        train: 20 prompts of 20 rows" in result.stdout
    # A byte is a token: 20 bytes are over a limit of 19.
    result = run("m.yaml", "--data", *flat, "--set", "data.max_prompt_tokens=19")
    assert result.exit_code == 2
    assert "data.max_prompt_tokens (19)" in result.stderr
    result = run("m.yaml", "--data")
    assert result.exit_code == 2
    assert "data.columns.prompt" in result.stderr


def test_nothing_heavy_is_imported(folder) -> None:
    code = (
        "import sys\nfrom rlcore.cli.check import app\n"
        "try: app(['m.yaml'])\nexcept SystemExit as stop: assert stop.code == 0, stop.code\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'safetensors', 'ray', 'vllm', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, capture_output=True, timeout=60)


def test_schema(tmp_path) -> None:
    printed = CliRunner().invoke(schema_app, [])
    assert printed.exit_code == 0
    out = tmp_path / "s.json"
    assert CliRunner().invoke(schema_app, ["--out", str(out)]).exit_code == 0
    assert out.read_text() == printed.stdout
    assert '"pass-at-k"' in printed.stdout
