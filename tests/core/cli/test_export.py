import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rlcore.cli.export import app
from rlcore.errors import CheckpointError, ManifestError, RunFolderError
from rlcore.run.checkpoints import CheckpointStore
from rlcore.run.folder import RunFolder
from rlcore.testing.tiny import write_tiny_model
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 1 and 2, whose models differ, that computed in bfloat16."""
    path = tmp_path_factory.mktemp("runs") / "a"
    with RunFolder.create(path, overwrite=False) as run:
        run.write_record({"model": {"path": "x", "dtype": "bfloat16"}})
        store = CheckpointStore(run.checkpoints, keep=2)
        for step in (1, 2):

            def write(folder: Path, seed: int = step) -> None:
                write_tiny_model(folder / "model", seed=seed)

            store.save(step, write, {})
    return path


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def export(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(("given", "dtype"), [([], torch.bfloat16), (["--dtype", "float32"], torch.float32)])
def test_the_newest_model_in_the_dtype_of_the_run_or_the_one_given(
    run: Path, tmp_path: Path, given: list[str], dtype: torch.dtype
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "deep" / "hf"
    assert export(run, "--out", out, *given) == f"{out}: the model of step 2\n"
    expected = weights(run / "checkpoints" / "step_000002" / "model")
    got = weights(out)
    assert got.keys() == expected.keys()
    assert "lm_head.weight" not in got  # tied: one tensor on disk
    for name, tensor in expected.items():
        assert got[name].dtype == dtype
        assert torch.equal(got[name], tensor.to(dtype)), name
    model = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert model.dtype == dtype
    assert AutoTokenizer.from_pretrained(out).chat_template
    assert [path.name for path in out.parent.iterdir()] == ["hf"]


def test_a_step_or_a_checkpoint_by_path(run: Path, tmp_path: Path) -> None:
    first = run / "checkpoints" / "step_000001"
    export(run, "--step", 1, "--out", tmp_path / "by-step", "--dtype", "float32")
    export(first, "--out", tmp_path / "by-path", "--dtype", "float32")
    expected = weights(first / "model")
    for name in ("by-step", "by-path"):
        assert all(torch.equal(tensor, expected[key]) for key, tensor in weights(tmp_path / name).items())
    with pytest.raises(CheckpointError, match="is the checkpoint of step 1, not of step 2"):
        export(first, "--step", 2, "--out", tmp_path / "x")
    with pytest.raises(CheckpointError, match="it has: step_000001, step_000002"):
        export(run, "--step", 3, "--out", tmp_path / "x")


def test_a_damaged_newest_is_passed_over_but_an_error_if_named(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run / "checkpoints" / "step_000002" / "model" / "tokenizer.json").unlink()
    assert export(run, "--out", tmp_path / "hf").endswith("step 1\n")
    assert "step_000002, which is not whole: model/tokenizer.json is missing" in caplog.text
    with pytest.raises(CheckpointError, match=r"step_000002 is not whole: model/tokenizer\.json is missing"):
        export(run / "checkpoints" / "step_000002", "--out", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_pickles_are_not_even_looked_at(run: Path, tmp_path: Path) -> None:
    store = CheckpointStore(run / "checkpoints", keep=3)

    def write(folder: Path) -> None:
        write_tiny_model(folder / "model")
        for name in ("model/training_args.bin", "model/pytorch_model.bin", "optimizer.pt"):
            (folder / name).write_bytes(b"not a pickle")

    store.save(3, write, {})
    export(run, "--out", tmp_path / "hf")
    assert not list((tmp_path / "hf").glob("*.bin"))


def test_what_is_in_the_way_stays(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    out.mkdir()
    export(run, "--out", out)  # empty is fine
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(
        RunFolderError, match="holds something already; name a new folder with --out, or give --overwrite"
    ):
        export(run, "--step", 1, "--out", out)
    assert (out / "model.safetensors").read_bytes() == before
    (out / "extra.json").touch()
    export(run, "--step", 1, "--out", out, "--overwrite")
    assert (out / "model.safetensors").read_bytes() != before
    assert not (out / "extra.json").exists()
    (out / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match=r"holds more than a model \(thesis\.tex\)"):
        export(run, "--out", out, "--overwrite")
    assert (out / "thesis.tex").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").touch()
    with pytest.raises(RunFolderError, match=r"no model \(no config\.json\)"):
        export(run, "--out", tmp_path / "thesis", "--overwrite")
    with pytest.raises(RunFolderError, match="is no folder"):
        export(run, "--out", out / "config.json")
    with pytest.raises(RunFolderError, match="can't be made: File exists; name another folder with --out"):
        export(run, "--out", out / "config.json" / "hf")
    link = tmp_path / "thesis" / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="link is no folder"):
        export(run, "--out", link)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "run", "thesis"]


def test_never_into_the_checkpoint_itself(run: Path) -> None:
    checkpoint = run / "checkpoints" / "step_000002"
    for out in (checkpoint / "model", checkpoint / "new"):
        with pytest.raises(RunFolderError, match="lie in one another"):
            export(checkpoint, "--out", out, "--overwrite")


def test_a_failure_half_way_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, out: Path, dtype: torch.dtype) -> None:
        out.mkdir()
        (out / "half").touch()
        raise OSError("No space left on device")

    monkeypatch.setattr("rlcore.torch.folder.convert_model_folder", fail)
    with pytest.raises(OSError, match="No space left"):
        export(run, "--out", tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_is_no_run_says_what_to_name(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    with pytest.raises(RunFolderError, match=r"there is no folder .*; name a run's folder or one of its checkpoints"):
        export(tmp_path / "missing", "--out", out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"neither a run's folder .* nor a whole checkpoint"):
        export(tmp_path / "empty", "--out", out)
    with RunFolder.create(tmp_path / "young", overwrite=False) as young:
        young.write_record({})
    with pytest.raises(CheckpointError, match="has saved no checkpoint yet"):
        export(tmp_path / "young", "--out", out)
    moved = run.rename(tmp_path / "moved") / "checkpoints" / "step_000002"
    (tmp_path / "moved" / "manifest.yaml").write_text(json.dumps({"model": {"dtype": "float8"}}))
    with pytest.raises(ManifestError, match=r"model\.dtype is 'float8', not bfloat16 or float32; give --dtype"):
        export(moved, "--out", out)
    (tmp_path / "moved" / "manifest.yaml").unlink()
    with pytest.raises(RunFolderError, match=r"no manifest\.yaml that says which dtype the run used; give --dtype"):
        export(moved, "--out", out)
    assert not out.exists()
