"""Files as plain Python rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlcore.data.reader import MISSING, reach, read_files
from rlcore.errors import DataError


def message_of(path) -> str:
    with pytest.raises(DataError) as caught:
        read_files([path])
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_rows_are_plain_python_and_know_their_place(write, name):
    rows = [
        {"n": 1, "f": 0.5, "b": True, "s": "é\u2028x", "l": [1, 2], "m": [{"role": "user", "content": "hi"}]},
        {"n": None, "f": 1.0, "b": False, "s": "", "l": [], "m": []},
    ]
    (file,) = read_files([write(name, rows)])
    assert [row.values for row in file.rows] == rows
    kind = "row" if name.endswith("parquet") else "line"
    assert [row.location for row in file.rows] == [f"{name} {kind} 1", f"{name} {kind} 2"]

    def types(value):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        return {type(value)} | {kind for item in inner for kind in types(item)}

    assert types(dict(file.rows[0].values)) == {int, float, bool, str, list, dict}


def test_integers_beside_a_null_stay_integers(write):
    (file,) = read_files([write("a.parquet", [{"n": 18}, {"n": None}])])
    assert [(type(row.values["n"]), row.values["n"]) for row in file.rows] == [(int, 18), (type(None), None)]


def test_parquet_written_from_arrays_of_numpy(tmp_path):
    # What pandas leaves behind: dictionary-encoded strings, fixed-size lists, maps.
    table = pa.table(
        {
            "s": pa.array(["x", "y"]).dictionary_encode(),
            "l": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4)), 2),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (file,) = read_files([tmp_path / "a.parquet"])
    assert [row.values for row in file.rows] == [
        {"s": "x", "l": [0, 1], "m": {"k": 1}},
        {"s": "y", "l": [2, 3], "m": {}},
    ]


def test_one_column_may_have_other_types_in_other_files_and_lines(write):
    files = read_files(
        [
            write("a.parquet", [{"gold": "18"}]),
            write("b.parquet", [{"gold": 18}]),
            write("c.jsonl", [{"gold": 18.0}, {"gold": ["18"]}]),
        ]
    )
    assert [row.values["gold"] for file in files for row in file.rows] == ["18", 18, 18.0, ["18"]]


def test_files_of_one_name_are_told_apart(write, tmp_path):
    files = read_files([write("a/x.jsonl", [{"n": 1}]), write("b/x.jsonl", [{"n": 1}])])
    assert [file.rows[0].location for file in files] == [f"{tmp_path}/{folder}/x.jsonl line 1" for folder in "ab"]


def test_a_folder_called_name_equals_value_adds_no_column(write):
    (file,) = read_files([write("run=3/a.parquet", [{"n": 1}])])
    assert file.rows[0].values == {"n": 1}


def test_jsonl_blank_lines_count_but_make_no_row(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\r\n{"n": 2}')
    (file,) = read_files([tmp_path / "a.jsonl"])
    assert [(row.values["n"], row.location) for row in file.rows] == [(1, "a.jsonl line 1"), (2, "a.jsonl line 3")]


def test_reach():
    values = {"a": {"b": {"c": 1}, "n": None}, "a.b": 2, "x": [1]}
    assert reach(values, "a.b") == 2  # a column that has a dot in its name comes first
    assert reach(values, "a.b.c") == 1
    assert reach(values, "a.n") is None
    assert reach(values, "a.n.more") is None
    assert reach(values, "a.z") is MISSING
    assert reach(values, "x.y") is MISSING
    assert reach(values, "z") is MISSING


def test_columns_and_has(write):
    (file,) = read_files([write("a.jsonl", [{"q": None, "meta": None}, {"q": 1, "meta": {"a": 1, "b": 2}}])])
    assert file.columns == ["q", "meta.a", "meta.b"]
    assert [file.has(name) for name in ("q", "meta", "meta.a", "meta.z", "z")] == [True, True, True, False, False]


class TestErrors:
    def test_places(self, tmp_path):
        assert f"there is no file {tmp_path}/no.parquet" in message_of(tmp_path / "no.parquet")
        assert "is a folder; name the .parquet or .jsonl files in it" in message_of(tmp_path)

    def test_suffix(self, tmp_path):
        (tmp_path / "a.csv").touch()
        assert "a.csv ends in '.csv'; data is read from .parquet and .jsonl files" in message_of(tmp_path / "a.csv")

    def test_empty(self, tmp_path, write):
        for name in ("a.jsonl", "b.jsonl", "c.parquet", "d.parquet"):
            (tmp_path / name).touch()
        (tmp_path / "b.jsonl").write_text("\n\n")
        assert "a.jsonl has no rows" in message_of(tmp_path / "a.jsonl")
        assert "b.jsonl has no rows" in message_of(tmp_path / "b.jsonl")
        assert "can't read" in message_of(tmp_path / "c.parquet")
        write("d.parquet", [], pa.schema({"n": pa.int64()}))
        assert "d.parquet has no rows" in message_of(tmp_path / "d.parquet")

    def test_damaged_parquet(self, tmp_path, write):
        path = write("a.parquet", [{"n": 1}])
        path.write_bytes(path.read_bytes()[:-20])
        assert f"can't read {path} as parquet" in message_of(path)
        (tmp_path / "b.parquet").write_text('{"n": 1}\n')
        assert "as parquet" in message_of(tmp_path / "b.parquet")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b'{"n": 2', "line 2: not JSON: Expecting ',' delimiter"),
            (b'{"n": NaN}', "line 2: not JSON: NaN is no JSON value; write null"),
            (b'{"n": "\xff"}', "line 2: not JSON: 'utf-8' codec can't decode"),
            (b"[1]", "line 2: a line must be an object {…}, not list"),
        ],
    )
    def test_bad_line(self, tmp_path, line, message):
        (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n' + line + b'\n{"n": 3}\n')
        assert message in message_of(tmp_path / "a.jsonl")
