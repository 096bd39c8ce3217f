import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from rlcore.errors import RunFolderError
from rlcore.run.folder import RunFolder, read_manifest

RESOLVED = {"name": "a", "trainer": {"lr": 1e-6, "betas": [0.9, 0.999], "note": "two\nlines # no comment"}, "kl": None}


def make_run(path: Path) -> None:
    with RunFolder.create(path, overwrite=False) as run:
        run.write_record(RESOLVED)


def test_a_new_folder_and_its_places(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs" / "a", overwrite=False) as run:
        assert run.path.is_dir()
        assert run.checkpoints == run.path / "checkpoints"
        assert run.rollouts == run.path / "rollouts"
        assert run.metrics_file == run.path / "metrics.jsonl"


def test_the_record(tmp_path: Path) -> None:
    sources = {"trainer.lr": "grpo.yaml:7:7", "trainer": "grpo.yaml:6:1"}
    with RunFolder.create(tmp_path / "a", overwrite=False) as run:
        run.write_record(RESOLVED, sources)
        assert run.recorded_manifest() == RESOLVED
    lines = (tmp_path / "a" / "manifest.yaml").read_text().splitlines()
    assert "trainer:  # grpo.yaml:6:1" in lines
    assert "  lr: 1.0e-06  # grpo.yaml:7:7" in lines
    environment = json.loads((tmp_path / "a" / "environment.json").read_text())
    assert environment["rlcore"] == version("rlcore")
    assert environment["plugins"]["rlcore-grpo"] == version("rlcore-grpo")
    assert environment["libraries"]["numpy"] == version("numpy")
    assert environment["python"] == sys.version.split()[0]


def test_a_record_that_differs_keeps_the_earlier_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    with RunFolder.open(tmp_path / "a") as run:
        run.write_record(RESOLVED)
        run.write_record({**RESOLVED, "name": "b"})
    names = sorted(path.name for path in (tmp_path / "a").iterdir() if path.suffix == ".yaml")
    assert names == ["manifest.1.yaml", "manifest.yaml"]
    assert yaml.safe_load((tmp_path / "a" / "manifest.1.yaml").read_text()) == RESOLVED


def test_a_folder_that_holds_a_run_is_refused_with_the_choices(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    before = sorted((tmp_path / "a").iterdir())
    with pytest.raises(RunFolderError) as error:
        RunFolder.create(tmp_path / "a", overwrite=False)
    assert str(error.value) == (
        f"{tmp_path / 'a'} holds a run already (environment.json, manifest.yaml): --resume goes on with it, "
        "--overwrite deletes it, and another name leaves it alone"
    )
    assert sorted((tmp_path / "a").iterdir()) == before


def test_overwrite_deletes_the_run_and_only_that(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "a" / "checkpoints" / "step_000001").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "elsewhere")
    with RunFolder.create(tmp_path / "a", overwrite=True) as run:
        assert [path.name for path in run.path.iterdir()] == [".rlcore.lock"]
    assert (tmp_path / "elsewhere" / "kept").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_run_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(
        RunFolderError, match=r"holds something that is no run \(thesis\.tex\); give this run another name"
    ):
        RunFolder.create(tmp_path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunFolderError, match="it is no folder"):
        RunFolder.create(tmp_path / "thesis.tex", overwrite=overwrite)


def test_an_empty_folder_and_one_where_nothing_was_written_are_free(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, overwrite=False).close()
    RunFolder.create(tmp_path, overwrite=False).close()


def test_open_needs_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunFolderError, match=r"no run to resume in .*no manifest\.yaml; start without --resume"):
            RunFolder.open(path)
    assert list(tmp_path.iterdir()) == []


def test_open_clears_up_after_a_killed_save(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    half = tmp_path / "a" / "checkpoints" / ".step_000100.tmp-12345"
    half.mkdir(parents=True)
    with RunFolder.open(tmp_path / "a"):
        assert not half.exists()


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no run folder: it has no manifest\.yaml"):
        read_manifest(tmp_path)
    for text in ("a: [", "- 1"):
        (tmp_path / "manifest.yaml").write_text(text)
        with pytest.raises(RunFolderError, match=r"manifest\.yaml can't be read"):
            read_manifest(tmp_path)


HOLDS = """
import os, sys, time
from pathlib import Path
from rlcore.run.folder import RunFolder
run = RunFolder.create(Path(sys.argv[1]), overwrite=False)
run.write_record({"name": "a"})
pid = os.fork()  # a worker that outlives its parent
if pid:
    print(pid, flush=True)
time.sleep(60)
"""


@contextmanager
def other_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDS, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        yield process
    finally:
        process.kill()
        os.kill(worker, signal.SIGKILL)
        process.communicate()


def test_two_processes_never_use_one_folder_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    with other_process(tmp_path / "a") as process:
        said = rf"is in use by process {process.pid} on .*; wait for it to end"
        with pytest.raises(RunFolderError, match=said):
            RunFolder.open(tmp_path / "a")
        with pytest.raises(RunFolderError, match=said):
            RunFolder.create(tmp_path / "a", overwrite=True)
        assert read_manifest(tmp_path / "a") == {"name": "a"}
        process.kill()
        process.wait()
        RunFolder.open(tmp_path / "a").close()  # although its forked worker is still alive


def test_nor_does_one_process_twice(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a", overwrite=False) as run:
        run.write_record({})
        with pytest.raises(RunFolderError, match="in use by this process already"):
            RunFolder.open(tmp_path / "a")
    RunFolder.open(tmp_path / "a").close()


def test_the_run_folder_needs_no_torch() -> None:
    modules = ["folder", "checkpoints", "metrics", "rollouts", "resume", "export", "environment"]
    code = f"import sys, importlib; [importlib.import_module('rlcore.run.' + m) for m in {modules}]; "
    code += "heavy = {'torch', 'transformers', 'safetensors', 'tokenizers'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True)


def begun(path: Path, trackers: list[str]) -> None:
    """A run that ended before its first step."""
    with RunFolder.create(path, overwrite=False) as run:
        run.write_record({"run": {"trackers": [{"use": name} for name in trackers]}})
        run.checkpoints.mkdir()
        run.rollouts.mkdir()
        (run.path / "tensorboard").mkdir()
        (run.path / "tensorboard" / "events").touch()
        (run.path / "messages.jsonl").touch()


def test_a_run_that_recorded_nothing_is_replaced(tmp_path: Path) -> None:
    begun(tmp_path / "a", ["console", "jsonl"])
    RunFolder.require_free(tmp_path / "a", overwrite=False)
    assert (tmp_path / "a" / "manifest.yaml").exists()
    with RunFolder.create(tmp_path / "a", overwrite=False) as run:
        assert [path.name for path in run.path.iterdir()] == [".rlcore.lock"]


@pytest.mark.parametrize(
    "trace",
    ["metrics.jsonl", "checkpoints/step_000001", "rollouts/step_000001.parquet", "metrics.set_aside-1.jsonl", "my.txt"],
)
def test_a_run_with_any_trace_of_a_step_is_not(tmp_path: Path, trace: str) -> None:
    begun(tmp_path / "a", ["jsonl"])
    (tmp_path / "a" / trace).touch()
    with pytest.raises(RunFolderError, match="holds a run already"):
        RunFolder.require_free(tmp_path / "a", overwrite=False)
    with pytest.raises(RunFolderError, match="holds a run already"):
        RunFolder.create(tmp_path / "a", overwrite=False)


def test_nor_one_whose_steps_another_tracker_may_have_recorded(tmp_path: Path) -> None:
    begun(tmp_path / "a", ["tensorboard"])
    with pytest.raises(RunFolderError, match="holds a run already"):
        RunFolder.create(tmp_path / "a", overwrite=False)


def test_looking_whether_a_folder_is_free_changes_nothing_and_sees_the_lock(tmp_path: Path) -> None:
    RunFolder.require_free(tmp_path / "new", overwrite=False)
    assert not (tmp_path / "new").exists()
    make_run(tmp_path / "a")
    RunFolder.require_free(tmp_path / "a", overwrite=True)
    assert read_manifest(tmp_path / "a") == RESOLVED
    with RunFolder.open(tmp_path / "a"), pytest.raises(RunFolderError, match="in use"):
        RunFolder.require_free(tmp_path / "a", overwrite=True)
