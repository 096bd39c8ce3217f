"""Checkpoints that are whole or don't count.

A checkpoint is written into a hidden folder beside its place, synced, marked by ``complete.json`` last of all, and only
then renamed to ``step_000100``. The marker lists every file with its size and SHA-256. Old checkpoints go when the new
one is in place. So whatever kills the process, and whenever, the newest whole checkpoint is still there.

One process writes into a folder at a time: the lock of the run's folder sees to that.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.errors import CheckpointError
from rlcore.run.files import digest, in_threads, sync, sync_tree, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARKER = "complete.json"
STATE = "state.json"
FORMAT = 1
"""Version of what a checkpoint holds."""

_log = logging.getLogger(__name__)
_NAME = re.compile(r"step_(\d{6,})")
_TEMPORARY = re.compile(r"\.step_\d{6,}\.tmp-.*")
_REPLACED = re.compile(r"\.(step_\d{6,})\.old-.*")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: every file listed by its marker is there, with the right size and hash."""

    path: Path
    step: int
    state: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one run, ``folder/step_000100`` and so on.

    ``keep`` newest ones stay, whichever process saved them. ``warn`` is told in a sentence of each damaged checkpoint
    that is passed over.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder = folder
        self.keep = keep
        self.warn = warn

    def save(self, step: int, write: Callable[[Path], None], state: Mapping[str, Any]) -> Path:
        """Save a checkpoint of ``step``: what ``write(folder)`` writes, and ``state`` as JSON.

        Saving a step again replaces it. On any failure the half-written folder is removed and the checkpoints before
        it are as they were; an ``OSError`` (a full disk) becomes a ``CheckpointError`` that says so.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        recover(self.folder)
        final = self.folder / _name(step)
        beside = self.folder / f".{final.name}.tmp-{os.getpid()}"
        try:
            beside.mkdir()
            write(beside)
            write_json(beside / STATE, state)
            sync_tree(beside)
            _write_marker(beside, step)
            self._put_in_place(beside, final)
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint of step {step} was not saved in {self.folder}: {error}. Those saved before are "
                f"untouched ({', '.join(map(_name, self.steps())) or 'there are none'}); make room, then --resume"
            ) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        self._delete_oldest(step)
        return final

    def has(self, step: int) -> bool:
        """Whether a checkpoint of this step is there and whole by its marker and sizes."""
        return not faults(self.folder / _name(step), hashes=False)

    def steps(self) -> list[int]:
        """Steps of all checkpoints, damaged ones included, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint, after a warning for each newer one that is not; None where there is none."""
        for step in reversed(self.steps()):
            path = self.folder / _name(step)
            found = faults(path)
            if not found:
                return _read(path)
            self.warn(f"passing over checkpoint {path}, which is not whole: {'; '.join(found)}")
        return None

    def named(self, name: str | Path) -> Checkpoint:
        """The checkpoint of this name ("step_000100"), step ("100") or path. One that is not whole is an error."""
        return read_checkpoint(self.find(name))

    def find(self, name: str | Path) -> Path:
        """The folder of the checkpoint of this name, step or path, whole or not; an error where there is none."""
        text = str(name)
        path = self.folder / (_name(int(text)) if text.isdecimal() else text)
        if not path.is_dir():
            path = Path(text).expanduser()
        if not path.is_dir():
            have = ", ".join(map(_name, self.steps())) or "none"
            raise CheckpointError(f"no checkpoint {text!r} in {self.folder}; it has: {have}")
        return path

    def set_aside_after(self, step: int) -> list[Path]:
        """Rename checkpoints past ``step``, which a run resumed there will not be a continuation of.

        ``step_000100`` becomes ``set_aside-1.step_000100``: no longer found or counted, and not deleted. Returns the
        new paths.
        """
        moved = []
        for late in (late for late in self.steps() if late > step):
            number = 1
            while (target := self.folder / f"set_aside-{number}.{_name(late)}").exists():
                number += 1
            moved.append((self.folder / _name(late)).rename(target))
        return moved

    def _put_in_place(self, beside: Path, final: Path) -> None:
        replaced = self.folder / f".{final.name}.old-{os.getpid()}"
        if final.exists():
            final.rename(replaced)  # a kill between the two renames is mended by recover()
        beside.rename(final)
        sync(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def _delete_oldest(self, saved: int) -> None:
        """Delete what is older than the ``keep`` newest whole checkpoints, never the one just saved."""
        whole = [step for step in self.steps() if self.has(step)]
        if len(whole) < self.keep:
            return
        for step in self.steps():
            if step >= whole[-self.keep] or step == saved:
                continue
            path = self.folder / _name(step)
            try:
                # Renamed first, so that a kill in the middle leaves no half checkpoint under a checkpoint's name.
                shutil.rmtree(path.rename(self.folder / f".{path.name}.tmp-{os.getpid()}"))
            except OSError as error:
                self.warn(f"the old checkpoint {path} could not be deleted: {error}")


def recover(folder: Path) -> None:
    """Clear up after a killed process: remove half-written checkpoints, put back one that was about to be replaced."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        replaced = _REPLACED.fullmatch(path.name)
        if replaced and not (folder / replaced[1]).exists():
            path.rename(folder / replaced[1])
        elif replaced or _TEMPORARY.fullmatch(path.name):
            shutil.rmtree(path)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in this folder; ``CheckpointError`` names every file that is missing, cut or changed."""
    if found := faults(path):
        raise CheckpointError(f"checkpoint {path} is not whole: {'; '.join(found)}")
    return _read(path)


def faults(path: Path, *, hashes: bool = True) -> list[str]:
    """What is wrong with a checkpoint, file by file; nothing if it is whole. ``hashes`` False compares sizes only."""
    marker = path / MARKER
    if not path.is_dir():
        return ["the folder is missing"]
    if not marker.is_file():
        return [f"{MARKER} is missing, so it was never finished"]
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        files: Mapping[str, Mapping[str, Any]] = content["files"]
        expected = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
        step, version = int(content["step"]), content["format"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{MARKER} can't be read"]
    if version != FORMAT:
        return [f"{MARKER} is of format {version!r}, and this version of rlcore reads format {FORMAT}"]
    found = [] if STATE in expected else [f"{MARKER} lists no {STATE}"]
    if (match := _NAME.fullmatch(path.name)) and int(match[1]) != step:
        found.append(f"{MARKER} is that of step {step}")
    whole = []
    for name, (size, _) in expected.items():
        file = path / name
        if not file.is_file():
            found.append(f"{name} is missing")
        elif (actual := file.stat().st_size) != size:
            found.append(f"{name} has {actual:,} bytes instead of {size:,}")
        elif hashes:
            whole.append(name)
    for name, actual_hash in zip(whole, in_threads(lambda name: digest(path / name), whole), strict=True):
        if actual_hash != expected[name][1]:
            found.append(f"{name} has the right size but other content than was saved")
    return found


def _read(path: Path) -> Checkpoint:
    marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
    return Checkpoint(path, int(marker["step"]), json.loads((path / STATE).read_text(encoding="utf-8")))


def _write_marker(folder: Path, step: int) -> None:
    from rlcore import __version__

    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha}
        for path, sha in zip(files, in_threads(digest, files), strict=True)
    }
    write_json(folder / MARKER, {"format": FORMAT, "rlcore": __version__, "step": step, "files": entries})
    sync(folder)


def _name(step: int) -> str:
    return f"step_{step:06d}"
