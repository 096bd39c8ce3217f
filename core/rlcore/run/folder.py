"""A run's folder, and what it records of the run."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import yaml

from rlcore.errors import RunFolderError
from rlcore.run import checkpoints
from rlcore.run.environment import versions as installed_versions
from rlcore.run.files import plain, replace_synced
from rlcore.run.lock import LOCK, FolderLock
from rlcore.run.metrics import METRICS_FILE
from rlcore.run.record import annotated_yaml, json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

MANIFEST = "manifest.yaml"
ENVIRONMENT = "environment.json"


class RunFolder:
    """The folder of one run, held by this process until ``close`` (docs/run-folder.md)."""

    def __init__(self, path: Path, lock: FolderLock) -> None:
        """Use ``create`` or ``open``."""
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, path: Path, *, overwrite: bool) -> RunFolder:
        """A new run's folder.

        A folder that holds something is refused, but for a run that ended before its first step: that is replaced. With
        ``overwrite`` any run in it is deleted first; a folder that holds something else is refused even so.
        """
        with _explained(path):
            _refuse_occupied(path, overwrite)
            path.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(path)
            try:
                _refuse_occupied(path, overwrite)  # again: another process may have been here before the lock
                _empty(path)
            except OSError:
                lock.release()
                raise
        return cls(path, lock)

    @classmethod
    def require_free(cls, path: Path, *, overwrite: bool) -> None:
        """Refuse what ``create`` would, and change nothing."""
        with _explained(path):
            _refuse_occupied(path, overwrite)
            if (path / LOCK).exists():
                FolderLock(path).release()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run to resume; what a killed process left half-written is cleared up."""
        # Both: a folder of someone's own may well hold a manifest.yaml.
        if lacking := [name for name in (MANIFEST, ENVIRONMENT) if not (path / name).is_file()]:
            raise RunFolderError(f"there is no run to resume in {path}: it has no {lacking[0]}; start without --resume")
        with _explained(path):
            run = cls(path, FolderLock(path))
            checkpoints.recover(run.checkpoints)
        return run

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def rollouts(self) -> Path:
        """Folder of the rollout files."""
        return self.path / "rollouts"

    @property
    def metrics_file(self) -> Path:
        """Path of the metrics, which the tracker ``jsonl`` writes."""
        return self.path / METRICS_FILE

    def write_record(
        self,
        resolved: Mapping[str, Any],
        sources: Mapping[str, str] | None = None,
        versions: Mapping[str, Any] | None = None,
    ) -> None:
        """Write ``manifest.yaml`` and ``environment.json``.

        ``resolved`` is the whole manifest as plain values; ``sources`` says by dotted key where a value came from, and
        becomes a comment behind it. ``versions`` left out is what ``rlcore.run.environment.versions`` finds. Records
        of an earlier start that differ stay as ``manifest.1.yaml`` and so on.
        """
        record = installed_versions() if versions is None else plain(versions, "versions")
        self._write(ENVIRONMENT, json_text(record))
        self._write(MANIFEST, annotated_yaml(plain(resolved, "manifest"), sources or {}))

    def recorded_manifest(self) -> dict[str, Any]:
        """The manifest that the run was last started with, as plain values."""
        return read_manifest(self.path)

    def close(self) -> None:
        """Let other processes use the folder."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, name: str, text: str) -> None:
        path = self.path / name
        if path.exists():
            if path.read_text(encoding="utf-8") == text:
                return
            number = 1
            while (earlier := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
                number += 1
            shutil.copyfile(path, earlier)
        replace_synced(path, text)


def read_manifest(run_folder: Path) -> dict[str, Any]:
    """The resolved manifest that a run recorded; ``RunFolderError`` if there is none or it can't be read."""
    path = run_folder / MANIFEST
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(f"{run_folder} is no run folder: it has no {MANIFEST}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise RunFolderError(f"{path} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} can't be read: it is no mapping")
    return content


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What the system says of a folder that can't be used, as a ``RunFolderError``."""
    try:
        yield
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(
            f"the run's folder {path} can't be used: {error.strerror} ({error.filename}); set run.folder or name to "
            "where a folder can be made and written"
        ) from error


def _empty(path: Path) -> None:
    for entry in path.iterdir():
        if entry.name == LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _refuse_occupied(path: Path, overwrite: bool) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir():
        raise RunFolderError(f"{path} is in the way of the run's folder: it is no folder; give the run another name")
    holds = sorted(entry.name for entry in path.iterdir() if entry.name != LOCK)
    if not holds:
        return
    shown = ", ".join(holds[:4]) + (", …" if len(holds) > 4 else "")
    if not (path / LOCK).exists():
        raise RunFolderError(f"{path} holds something that is no run ({shown}); give this run another name")
    if not overwrite and not _untrained(path):
        raise RunFolderError(
            f"{path} holds a run already ({shown}): --resume goes on with it, --overwrite deletes it, "
            "and another name leaves it alone"
        )


_BEFORE_THE_FIRST_STEP = re.compile(
    r"(manifest|environment)(\.\d+)?\.(yaml|json)|messages\.jsonl|checkpoints|rollouts|tensorboard|wandb"
)
"""Names of what a run may have written by then."""


def _untrained(path: Path) -> bool:
    """Whether the run in this folder recorded and saved nothing, so that another one may take its place."""
    if not all(entry.name == LOCK or _BEFORE_THE_FIRST_STEP.fullmatch(entry.name) for entry in path.iterdir()):
        return False
    if any(any((path / name).iterdir()) for name in ("checkpoints", "rollouts") if (path / name).exists()):
        return False
    try:  # Other trackers may have recorded steps; where jsonl was among them, no metrics.jsonl says that none did.
        return any(tracker["use"] == "jsonl" for tracker in read_manifest(path)["run"]["trackers"])
    except (RunFolderError, LookupError, TypeError):
        return False
