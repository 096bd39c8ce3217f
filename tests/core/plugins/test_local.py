from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rlcore.errors import BrokenPluginError, PluginError, UnknownPluginError
from rlcore.plugins.config import PluginRef
from rlcore.plugins.loading import build, config_class
from rlcore.plugins.local import is_local

SHOUT = """
from __future__ import annotations

from dataclasses import dataclass

from rlcore import PluginConfig, hookimpl


class Config(PluginConfig):
    mark: str = "!"


@dataclass
class Shout:
    mark: str

    def __call__(self, sample):
        return float(sample.response.count(self.mark))


@hookimpl
def rlcore_reward(config: Config):
    return Shout(config.mark)
"""


@pytest.fixture
def shout(tmp_path: Path) -> Path:
    path = tmp_path / "my reward" / "shout-1.py"  # neither name is an identifier
    path.parent.mkdir()
    path.write_text(SHOUT)
    return path


@pytest.mark.parametrize(
    ("name", "local"),
    [("./r.py", True), ("r.py", True), ("../a/r.py", True), ("a/b", True), ("gsm8k-rule-reward", False), ("py", False)],
)
def test_a_file_is_told_from_a_name(name: str, local: bool) -> None:
    assert is_local(name) is local


def test_a_file_goes_through_the_same_hook(shout: Path) -> None:
    score = build(PluginRef("reward", str(shout), {"mark": "?"}))
    assert score(SimpleNamespace(response="a? b!? ")) == 2.0
    assert config_class("reward", str(shout)) is config_class("reward", str(shout))


def test_a_relative_path_is_relative_to_the_current_folder(shout: Path, monkeypatch) -> None:
    monkeypatch.chdir(shout.parent)
    assert build(PluginRef("reward", "./shout-1.py"))(SimpleNamespace(response="!!")) == 2.0


def test_two_files_of_one_name_are_two_plugins(shout: Path, tmp_path: Path) -> None:
    other = tmp_path / shout.name
    other.write_text(SHOUT.replace('"!"', '"."'))
    assert build(PluginRef("reward", str(shout))).mark == "!"
    assert build(PluginRef("reward", str(other))).mark == "."


def test_what_a_file_defines_can_be_pickled_into_another_process(shout: Path, tmp_path: Path) -> None:
    reference = PluginRef("reward", str(shout))
    (tmp_path / "p").write_bytes(pickle.dumps((reference, build(reference))))
    code = (
        "import pickle, sys\nfrom types import SimpleNamespace\nfrom rlcore.plugins.config import PluginRef\n"
        "from rlcore.plugins.loading import config_class\n"
        f"config_class('reward', {str(shout)!r})\n"
        "reference, score = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(reference, score(SimpleNamespace(response='!!!')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "p"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"reward {shout} 3.0"


def test_a_file_that_fails_names_file_and_line_and_is_read_again(shout: Path) -> None:
    shout.write_text("import os\n\nos.absent\n")
    with pytest.raises(BrokenPluginError, match=rf"^reward plugin {shout} can't be imported: .*\(at {shout}:3\)$"):
        config_class("reward", str(shout))
    shout.write_text(SHOUT)
    assert config_class("reward", str(shout))().mark == "!"


def test_an_error_in_its_hook_names_file_and_line(shout: Path) -> None:
    shout.write_text(SHOUT.replace("return Shout(config.mark)", "return helper()\n\ndef helper():\n    return 1 / 0"))
    line = shout.read_text().split("\n").index("    return 1 / 0") + 1
    with pytest.raises(
        PluginError, match=rf"^reward plugin {shout} failed in rlcore_reward: Zero.*\(at {shout}:{line}\)$"
    ):
        build(PluginRef("reward", str(shout)))


def test_a_file_without_the_hook_is_told_the_hook(shout: Path) -> None:
    with pytest.raises(
        BrokenPluginError, match=r"implements rlcore_reward; a loss implements rlcore_policy_loss\(config\)"
    ):
        config_class("loss", str(shout))


def test_a_file_that_is_not_there_or_not_python(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownPluginError, match=f"no plugin file {tmp_path}/absent.py; paths in a manifest are relative"
    ):
        config_class("reward", str(tmp_path / "absent.py"))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UnknownPluginError, match=r"notes\.txt is no \.py file"):
        config_class("reward", str(tmp_path / "notes.txt"))


def test_a_ref_reads_as_kind_and_name_or_as_kind_and_file() -> None:
    assert str(PluginRef("loss", "clip")) == "loss/clip"
    assert str(PluginRef("loss", "/tmp/x.py")) == "loss /tmp/x.py"
