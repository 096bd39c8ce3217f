"""Parquet and JSONL files as rows of plain Python values, each row with its place for error messages.

Rows of parquet and lines of JSONL count from 1. Values are str, int, float, bool, None, lists and dicts (never numpy):
integers beside nulls stay integers, and columns of one name may have different types in different files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from rlcore.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

MISSING: Final = object()
"""What ``reach`` returns where there is no such column; ``None`` is a null."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it stands ("train.parquet row 17", "extra.jsonl line 3")."""

    values: Mapping[str, Any]
    location: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that has been read. It has at least one row."""

    path: Path
    rows: Sequence[Row]

    def has(self, column: str) -> bool:
        """Whether there is such a column, null or not; dots reach into structs."""
        struct, _, name = column.rpartition(".")
        for row in self.rows:
            holder = reach(row.values, struct) if struct else None
            if column in row.values or (isinstance(holder, Mapping) and name in holder):
                return True
        # Structs that are null in every row say nothing of their fields.
        return all(reach(row.values, column) is None for row in self.rows)

    @property
    def columns(self) -> list[str]:
        """Names of all columns, those inside structs with dots."""
        names: dict[str, None] = {}
        for row in self.rows:
            for name, value in row.values.items():
                inner = [f"{name}.{key}" for key in value] if isinstance(value, Mapping) else []
                names.update(dict.fromkeys(inner or [name]))
        # A struct that is null in some rows was also noted without its fields.
        return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def read_files(paths: Sequence[Path]) -> list[DataFile]:
    """Read parquet and JSONL files, told apart by suffix.

    Raises:
        DataError: a file is missing, empty, damaged, or of another kind.
    """
    names = Counter(path.name for path in paths)
    return [_read(path, path.name if names[path.name] == 1 else str(path)) for path in paths]


def read_jsonl(path: Path, label: str | None = None) -> list[Row]:
    """The objects of a JSONL file; blank lines are skipped. ``label`` names the file in locations."""
    label = label or path.name
    try:
        with path.open("rb") as file:
            return list(_json_rows(file, label))
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror or error}") from error


def reach(values: Mapping[str, Any], column: str) -> Any:
    """The value of a column, where dots reach into structs; ``None`` below a null, ``MISSING`` if there is none."""
    if column in values:
        return values[column]
    value: Any = values
    for name in column.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def _read(path: Path, label: str) -> DataFile:
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the .parquet or .jsonl files in it")
    if path.suffix not in (".parquet", ".jsonl"):
        raise DataError(f"{path} ends in {path.suffix or 'nothing'!r}; data is read from .parquet and .jsonl files")
    rows = _read_parquet(path, label) if path.suffix == ".parquet" else read_jsonl(path, label)
    if not rows:
        raise DataError(f"{path} has no rows")
    return DataFile(path, rows)


def _read_parquet(path: Path, label: str) -> list[Row]:
    try:
        # Not pq.read_table, which makes columns of folders called name=value.
        with pq.ParquetFile(path) as file:
            if twice := [name for name, count in Counter(file.schema_arrow.names).items() if count > 1]:
                raise DataError(f"{path} has more than one column {', '.join(map(repr, twice))}; rename them")
            values = file.read().to_pylist(maps_as_pydicts="strict")
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"can't read {path} as parquet: {error}") from error
    return [Row(row, f"{label} row {number}") for number, row in enumerate(values, 1)]


def _json_rows(lines: Iterator[bytes], label: str) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        location = f"{label} line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if not text:
                continue
            values = json.loads(text, parse_constant=_refuse_constant)
            if "\\u" in text:
                json.dumps(values, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError) as error:  # also bad UTF-8
            raise DataError(f"{location}: not JSON: {error}") from error
        if not isinstance(values, dict):
            raise DataError(f"{location}: a line must be an object {{…}}, not {type(values).__name__}")
        yield Row(values, location)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value; write null")
