"""One name and one version everywhere, so that nothing has to be looked up."""

import re
import tomllib
from pathlib import Path

import pytest
import rlcore
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rlcore.plugins.kinds import GROUPS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in ROOT.glob("plugins/*/*/pyproject.toml"))
GROUPS_OF = {
    "trainers": {"rlcore.trainers"},
    "rollout": {"rlcore.rollout"},
    "algorithms": {"rlcore.algorithms", "rlcore.losses"},
    "rewards": {"rlcore.rewards"},
    "trackers": {"rlcore.trackers"},
}
"""Entry-point groups of the distributions in each folder under plugins/."""


def read(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request) -> Path:
    return request.param


@pytest.fixture
def project(folder) -> dict:
    return read(folder)["project"]


def test_there_are_plugins():
    assert {"fsdp", "hf", "grpo", "gsm8k_rule_reward"} <= {folder.name for folder in FOLDERS}
    assert set().union(*GROUPS_OF.values()) == set(GROUPS.values())


def test_the_core_has_the_version_it_says():
    assert read(ROOT)["project"]["version"] == rlcore.__version__


def test_versions_in_lockstep(project):
    assert project["version"] == rlcore.__version__


def test_plugins_take_the_core_and_each_other_of_this_minor_version(project):
    compatible = "~=" + ".".join([*rlcore.__version__.split(".")[:2], "0"])
    extras = project.get("optional-dependencies", {}).values()
    asked = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    ours = [one for one in asked if one.name == "rlcore" or one.name.startswith("rlcore-")]
    assert "rlcore" in {one.name for one in ours}
    assert {one.name: str(one.specifier) for one in ours} == {one.name: compatible for one in ours}
    assert {one.name for one in ours} <= {"rlcore"} | {read(folder)["project"]["name"] for folder in FOLDERS}


def test_one_name_everywhere(folder, project):
    name = project["name"].removeprefix("rlcore-")
    package = f"rlcore_{name.replace('-', '_')}"
    assert project["name"] == f"rlcore-{name}" == canonicalize_name(project["name"])
    assert folder.name == name.replace("-", "_")
    assert read(folder)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [package]
    assert [path.parent.name for path in folder.glob("*/__init__.py")] == [package]
    assert (folder / package / "py.typed").is_file()


def test_entry_points_are_named_for_the_distribution(folder, project):
    groups = project["entry-points"]
    assert groups.keys() <= GROUPS_OF[folder.parent.name]
    points = {name: target for group in groups.values() for name, target in group.items()}
    if len(points) == 1:  # a distribution of small relatives carries several
        assert list(points) == [project["name"].removeprefix("rlcore-")]
    for target in points.values():
        module = re.match(r"[\w.]+", target)[0]
        assert (folder / (module.replace(".", "/") + ".py")).is_file()


def test_what_a_reader_of_the_index_sees(folder, project):
    core = read(ROOT)["project"]
    assert (project["license"], project["requires-python"]) == (core["license"], core["requires-python"])
    assert project["description"]
    readme = (folder / project["readme"]).read_text(encoding="utf-8")
    assert readme.startswith(f"# {project['name']}\n"), f"the first line of {folder.name}/README.md names it"
    assert len(readme.splitlines()) > 5
