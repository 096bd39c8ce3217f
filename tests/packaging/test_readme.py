"""What README.md and the pages tell a newcomer to type is there and works."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from rlcore.cli import app
from rlcore.manifest.words import core_homes
from rlcore.plugins.config import PluginRef
from rlcore.plugins.kinds import GROUPS
from rlcore.plugins.loading import build
from rlcore.testing.contracts import AdvantageContract, RewardContract
from rlcore.testing.samples import make_sample

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLUGINS_PAGE = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("plugins", "rewards", "metrics", "coming-from")),
]
PROJECTS = [
    tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/*/pyproject.toml"))
]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


COMMANDS = [
    line.removeprefix("$ ")
    for block in blocks(README, "console")
    for line in block.splitlines()
    if line.startswith("$ ")
]
OURS = [shlex.split(line, comments=True) for line in COMMANDS if line.startswith("rlcore ")]


def parse(words: list[str]) -> None:
    """Read a command line as rlcore does, and run nothing. Raises on an unknown command, option or argument."""
    command: Any = typer.main.get_command(app)
    context, rest = command.make_context("rlcore", ["plugins"]), words[1:]  # the root's, whichever command it has
    while rest and hasattr(command, "resolve_command"):
        _, command, rest = command.resolve_command(context, rest)
    command.make_context("rlcore", rest)


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_commands_and_options_exist(words: list[str]) -> None:
    parse(words)


@pytest.mark.parametrize(
    "line", ["rlcore run a.yaml --invented", "rlcore invent", "rlcore data invent", "rlcore export a"]
)
def test_a_command_that_does_not_exist_would_be_found(line: str) -> None:
    with pytest.raises((Exception, SystemExit), match=r"No such|Missing"):
        parse(shlex.split(line))


def test_there_are_commands() -> None:
    assert {words[1] for words in OURS} >= {"plugins", "data", "check", "run", "report", "export", "eval", "generate"}


def test_a_model_is_exported_before_it_is_used() -> None:
    order = [words[1] for words in OURS if "hf/" in words]
    assert order[0] == "export"


def test_a_resumed_run_is_the_same_run() -> None:
    """A value that was set for the first command only would change in the second."""
    resumed = [words for words in OURS if "--resume" in words]
    assert resumed
    for words in resumed:
        assert [word for word in words if word != "--resume"] in OURS


def test_files_are_there() -> None:
    named = re.findall(r"\bexamples/[\w./]+\.(?:yaml|py)|plugins/\w+/\w+", README)
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_runs_are_where_the_commands_look_for_them() -> None:
    folders = set()
    for path in ROOT.glob("examples/*.yaml"):  # read by hand: their data need not be here
        manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
        folder = path.parent / manifest["run"]["folder"] / manifest["name"]
        folders.add(folder.resolve().relative_to(ROOT).as_posix())
    named = set(re.findall(r"\bruns/[a-z0-9.-]+\w", README))
    assert named
    assert named <= folders


def test_extras_are_there() -> None:
    extras = {extra for group in re.findall(r"-e \"\.\[([\w,]+)\]\"", README) for extra in group.split(",")}
    assert extras
    assert extras <= PROJECTS[0]["optional-dependencies"].keys()
    table = README.partition("| extra | brings |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z]+)`", table)) == PROJECTS[0]["optional-dependencies"].keys()


def test_the_manifest_is_the_example() -> None:
    (shown,) = [block for block in blocks(README, "yaml") if block.startswith("rlcore: 1")]
    example = (ROOT / "examples/qwen3_0.6b_gsm8k.yaml").read_text(encoding="utf-8")
    assert example.endswith(shown)
    assert yaml.safe_load(example) == yaml.safe_load(shown)


def test_the_table_lists_the_plugins_of_the_checkout() -> None:
    table = README.partition("## What is here")[2].partition("\n\n`")[0]
    listed = {name for row in table.splitlines() if row.startswith("| `") for name in re.findall(r"`([^`]+)`", row)}
    groups = [group for project in PROJECTS for group in project.get("entry-points", {}).items()]
    assert listed == {name for group, names in groups if group in GROUPS.values() for name in names}


KEYS = sorted(
    {
        key
        for line in (ROOT / "docs/coming-from.md").read_text(encoding="utf-8").splitlines()
        if line.count("|") == 4
        for key in re.findall(
            r"`((?:model|data|trainer|rollout|algorithm|critic|eval|run)\.[a-z_.]+)", line.split("|")[2]
        )
    }
)


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_other_systems_are_where_the_page_says(key: str) -> None:
    section, _, name = key.rpartition(".")
    assert name in {"use"} | set(core_homes()[section])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("page", ["README.md", "docs/plugins.md", "docs/rewards.md"])
def test_the_package_of_the_reward_is_whole(page: str) -> None:
    first = blocks((ROOT / page).read_text(encoding="utf-8"), "toml")[0]
    project = tomllib.loads(first)["project"]
    assert project["dependencies"] == [f"rlcore~={PROJECTS[0]['version']}"]
    assert project["name"] == "my-reward"
    assert project["version"]
    assert project["entry-points"]["rlcore.rewards"] == {"short-answer": "my_reward.plugin"}


class TestReward(RewardContract):
    """The reward of the README."""

    samples = (make_sample("yes"), make_sample("I would say so " * 20))

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def file(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        path = tmp_path_factory.mktemp("readme") / "reward.py"
        path.write_text(blocks(README, "python")[0])
        cls.plugin = str(path)

    def test_what_it_scores(self) -> None:
        score = build(PluginRef("reward", self.plugin, {"max_words": 2}))
        assert [score(make_sample(text)) for text in ("two words", "three words here")] == [1.0, 0.0]


class TestLeaveOneOut(AdvantageContract):
    """The estimator of docs/plugins.md that compares the samples of a prompt."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def file(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        (source,) = [block for block in blocks(PLUGINS_PAGE, "python") if "leave_one_out" in block]
        path = tmp_path_factory.mktemp("page") / "leave_one_out.py"
        path.write_text(source)
        cls.plugin = str(path)

    def test_it_leaves_one_out(self) -> None:
        batch = self.batch()
        rewards, groups = batch["reward"], batch["group"]
        out = build(self.ref())(batch)
        for row in range(len(batch) - 1):  # the last has no live token
            others = [rewards[i] for i in range(len(batch)) if groups[i] == groups[row] and i != row]
            live = out["loss_mask"][batch.offsets[row] : batch.offsets[row + 1]] > 0
            advantages = out["advantages"][batch.offsets[row] : batch.offsets[row + 1]][live]
            assert advantages == pytest.approx(rewards[row] - sum(others) / len(others), abs=1e-5)
