"""One process per run folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from typing import TYPE_CHECKING

from rlcore.errors import RunFolderError

if TYPE_CHECKING:
    from pathlib import Path

LOCK = ".rlcore.lock"

_held: set[Path] = set()


class FolderLock:
    """Holds a folder for this process until ``release`` or the process's end, however it ends.

    A record lock of the operating system: it dies with its process, so that nothing is ever stale, and forked children
    (a pool of reward workers) don't keep it alive, as they would with ``flock``. It is not counted within one process
    and is lost when any handle of the file is closed there; hence the set of held paths.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.resolve() / LOCK
        if self.path in _held:
            raise RunFolderError(f"{folder} is in use by this process already")
        self._file = self.path.open("a+", encoding="utf-8")
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            self._file.close()
            raise RunFolderError(
                f"{folder} is in use by {holder}; wait for it to end, or give this run another name"
            ) from None
        self._file.truncate(0)
        self._file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        self._file.flush()
        _held.add(self.path)

    def release(self) -> None:
        """Let go of the folder. The lock file stays: it is also the sign that a run was here."""
        if self.path in _held:
            _held.discard(self.path)
            self._file.close()

    def _holder(self) -> str:
        self._file.seek(0)
        try:
            content = json.loads(self._file.read())
            return f"process {content['pid']} on {content['host']}"
        except (ValueError, KeyError, TypeError):
            return "another process"
