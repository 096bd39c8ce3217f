import json
from pathlib import Path

import numpy as np
import pytest
from rlcore.run.files import digest, plain, replace_synced, write_json


def test_numpy_values_become_what_json_knows() -> None:
    given = {
        "ok": np.bool_(True),
        "n": np.int64(3),
        "x": np.float32(0.5),
        "a": np.arange(3),
        "t": (1, None),
        "p": Path("a/b"),
    }
    assert json.dumps(plain(given)) == '{"ok": true, "n": 3, "x": 0.5, "a": [0, 1, 2], "t": [1, null], "p": "a/b"}'


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rng": {"state": b"x"}}, r"^state\.rng\.state: a bytes can't be kept as JSON"),
        ({"seen": [1, {2: "x"}]}, r"^state\.seen\[1\]: key 2 is a int; JSON has only strings for keys"),
        ({"ids": {1}}, r"^state\.ids: a set can't be kept"),
    ],
)
def test_what_would_not_come_back_is_an_error_that_names_the_place(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        plain(value, "state")


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = [0.1, 1e-310, float("-inf"), 2**80, np.nextafter(1.0, 2.0)]
    write_json(tmp_path / "x.json", {"v": values})
    assert json.loads((tmp_path / "x.json").read_text())["v"] == values


def test_digest_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")  # the example of FIPS 180-2, appendix B.1
    assert digest(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_replacing_leaves_nothing_beside(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    replace_synced(tmp_path / "x", "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x", "new")]
