"""Files that survive a crash: plain JSON values, synced writes, digests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = 8
"""Hashing and syncing release the interpreter lock; more threads than this only wait for the disk."""


def plain(value: Any, where: str = "value") -> Any:
    """``value`` as JSON knows it: numpy scalars and arrays, tuples and paths become numbers, lists and strings.

    Raises ``TypeError`` that names the place for anything else, and for keys that are no strings: JSON would turn them
    into strings and they would come back as other keys.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist(), where)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where}: key {key!r} is a {type(key).__name__}; JSON has only strings for keys")
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise TypeError(f"{where}: a {type(value).__name__} can't be kept as JSON; give numbers, strings, lists, mappings")


def write_synced(path: Path, text: str) -> None:
    """Write a text file and wait until it is on the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Write plain values as JSON, synced. NaN and infinities are kept, as Python's ``json`` spells them."""
    write_synced(path, json.dumps(plain(value, path.name), indent=1, ensure_ascii=False) + "\n")


def replace_synced(path: Path, text: str) -> None:
    """Replace a text file at once: a reader sees the old text or the new one, never a part."""
    beside = path.with_name(f".{path.name}.tmp")
    write_synced(beside, text)
    beside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Wait until everything under a folder is on the disk."""
    paths = sorted(folder.rglob("*"))
    in_threads(sync, [path for path in paths if path.is_file()])
    for path in [*(path for path in paths if path.is_dir()), folder]:
        sync(path)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """``function`` of every item, in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))
