import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from rlcore.errors import CheckpointError
from rlcore.run.checkpoints import CheckpointStore, recover


def model(content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_text(content)

    return write


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, warnings: list[str]) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2, warn=warnings.append)


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_saves_and_reads_back(store: CheckpointStore, warnings: list[str]) -> None:
    assert store.latest() is None
    path = store.save(100, model("w"), {"best": np.float32(0.5), "done": np.bool_(True), "rng": [2**70, "x"]})
    assert path == store.folder / "step_000100"
    assert (path / "model" / "model.safetensors").read_text() == "w"
    latest = store.latest()
    assert latest is not None
    assert (latest.step, latest.path, latest.state) == (100, path, {"best": 0.5, "done": True, "rng": [2**70, "x"]})
    assert store.has(100)
    assert not store.has(99)
    assert warnings == []


def test_keeps_the_newest(store: CheckpointStore) -> None:
    for step in (5, 10, 15, 20):
        store.save(step, model("w"), {})
    assert names(store) == ["step_000015", "step_000020"]


def test_retention_counts_checkpoints_of_earlier_processes(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        store = CheckpointStore(tmp_path, keep=1)
        store.save(step, model("w"), {})
        assert names(store) == [f"step_{step:06d}"]


def test_the_loaded_checkpoint_stays_until_the_next_is_whole(store: CheckpointStore) -> None:
    store.keep = 1
    store.save(1, model("w"), {})

    def look(folder: Path) -> None:
        model("new")(folder)
        assert store.has(1)

    store.save(2, look, {})
    assert names(store) == ["step_000002"]


def test_a_damaged_checkpoint_is_not_counted_among_those_kept(store: CheckpointStore) -> None:
    for step in (1, 2):
        store.save(step, model("w"), {})
    (store.folder / "step_000002" / "state.json").unlink()
    store.save(3, model("w"), {})
    assert names(store) == ["step_000001", "step_000002", "step_000003"]


def test_what_was_just_saved_stays_even_below_others(store: CheckpointStore) -> None:
    for step in (10, 20, 5):
        store.save(step, model("w"), {})
    assert store.has(5)


def test_a_step_saved_again_is_replaced(store: CheckpointStore) -> None:
    store.save(1, model("first"), {"n": 1})
    store.save(1, model("second"), {"n": 2})
    assert store.named("1").state == {"n": 2}
    assert (store.folder / "step_000001" / "model" / "model.safetensors").read_text() == "second"
    assert names(store) == ["step_000001"]


def damage(path: Path, how: str) -> None:
    file = path / "model" / "model.safetensors"
    if how == "cut":
        file.write_text(file.read_text()[:-1])
    elif how == "changed":
        file.write_text("x" * len(file.read_text()))
    elif how == "missing":
        file.unlink()
    elif how == "state":
        (path / "state.json").unlink()
    elif how == "no marker":
        (path / "complete.json").unlink()
    elif how == "cut marker":
        (path / "complete.json").write_text((path / "complete.json").read_text()[:40])
    elif how == "empty marker":
        (path / "complete.json").write_text("[]")
    elif how == "by hand":
        (path / "complete.json").write_text('{"format": 1, "step": 2, "files": {}}')
    elif how == "later":
        (path / "complete.json").write_text('{"format": 2, "step": 2, "files": {}}')


DAMAGES = {
    "cut": "model/model.safetensors has 6 bytes instead of 7",
    "changed": "model/model.safetensors has the right size but other content than was saved",
    "missing": "model/model.safetensors is missing",
    "state": "state.json is missing",
    "no marker": "complete.json is missing, so it was never finished",
    "cut marker": "complete.json can't be read",
    "empty marker": "complete.json can't be read",
    "by hand": "complete.json lists no state.json",
    "later": "complete.json is of format 2, and this version of rlcore reads format 1",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_one_is_passed_over_with_a_warning_and_an_error_if_named(
    store: CheckpointStore, warnings: list[str], how: str
) -> None:
    store.save(1, model("weights"), {})
    newest = store.save(2, model("weights"), {})
    damage(newest, how)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
    assert warnings == [f"passing over checkpoint {newest}, which is not whole: {DAMAGES[how]}"]
    with pytest.raises(CheckpointError) as error:
        store.named("step_000002")
    assert str(error.value) == f"checkpoint {newest} is not whole: {DAMAGES[how]}"
    assert store.has(2) is (how == "changed")  # has() looks at sizes only


def test_none_whole_is_none_with_all_warnings(store: CheckpointStore, warnings: list[str]) -> None:
    for step in (1, 2):
        damage(store.save(step, model("weights"), {}), "missing")
    assert store.latest() is None
    assert len(warnings) == 2


def test_a_marker_of_another_step_is_not_believed(store: CheckpointStore) -> None:
    shutil.copytree(store.save(1, model("w"), {}), store.folder / "step_000009")
    with pytest.raises(CheckpointError, match=r"complete\.json is that of step 1"):
        store.named("9")


def test_named_by_step_name_or_path(store: CheckpointStore) -> None:
    path = store.save(7, model("w"), {})
    assert {store.named(n).path for n in ("7", "step_000007", path, str(path))} == {path}
    with pytest.raises(CheckpointError, match=r"no checkpoint '8' in .*; it has: step_000007"):
        store.named("8")


def test_an_error_half_way_leaves_the_earlier_ones_and_nothing_else(store: CheckpointStore) -> None:
    store.keep = 1
    store.save(1, model("w"), {"n": 1})

    def full(folder: Path) -> None:
        model("half")(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step 2 was not saved .*No space left.*untouched \(step_000001\)"):
        store.save(2, full, {})
    assert names(store) == ["step_000001"]

    def interrupted(folder: Path) -> None:
        model("half")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(2, interrupted, {})
    with pytest.raises(TypeError, match=r"^state\.json\.rng: a bytes"):
        store.save(2, model("w"), {"rng": b"x"})
    assert names(store) == ["step_000001"]
    assert store.named("1").state == {"n": 1}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_really_full_disk(small_disk: Path) -> None:
    store = CheckpointStore(small_disk, keep=1)
    store.save(1, model("a" * 300_000), {})
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.save(2, model("b" * 900_000), {})
    assert names(store) == ["step_000001"]
    assert store.named("1").step == 1
    store.save(3, model("c" * 300_000), {})
    assert names(store) == ["step_000003"]


def test_recover_removes_halves_and_puts_back_what_was_being_replaced(store: CheckpointStore) -> None:
    path = store.save(1, model("w"), {"n": 1})
    path.rename(store.folder / ".step_000001.old-7")  # killed between the two renames
    (store.folder / ".step_000001.tmp-7").mkdir()
    model("half")(store.folder / ".step_000001.tmp-7")
    recover(store.folder)
    assert names(store) == ["step_000001"]
    assert store.named("1").state == {"n": 1}


def test_set_aside_after(store: CheckpointStore) -> None:
    for round_ in (1, 2):
        store.save(1, model("w"), {})
        store.save(2, model("w"), {})
        assert store.set_aside_after(1) == [store.folder / f"set_aside-{round_}.step_000002"]
        assert store.steps() == [1]
    assert not store.has(2)


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep must be at least 1, not 0"):
        CheckpointStore(tmp_path, keep=0)
