from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rlcore import cli

REWARDS = "rlcore.rewards"

OPTIONS = '''
"""Module doc."""
from typing import Literal
from pydantic import Field
from rlcore import PluginConfig, hookimpl

class Config(PluginConfig):
    """Scores
    something."""
    limit: int | None = Field(3, ge=1)
    """Most of them."""
    mode: Literal["a", "b"] = "a"
    names: list[str]
    """Which ones."""

    def provides(self):
        return frozenset({"tool:x"})

@hookimpl
def rlcore_reward(config: Config):
    return len
'''


@pytest.fixture
def rlcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """``rlcore(*arguments)``: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlcore", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return (end.value.code or 0, *capsys.readouterr())

    return run


def test_the_list_in_a_pipe_is_aligned_text(rlcore, make_distribution) -> None:
    make_distribution("a-very-long-distribution-name", {REWARDS: {"zz": "m"}}, summary="Scores [brackets] too")
    code, out, _ = rlcore("plugins", "--kind", "reward")
    header, *lines = out.splitlines()
    assert code == 0
    assert header.split() == ["KIND", "NAME", "VERSION", "DISTRIBUTION", "STATUS", "SUMMARY"]
    assert {line.split()[0] for line in lines} == {"reward"}
    assert lines[-1][header.index("NAME") :].startswith("zz ")
    assert lines[-1][header.index("DISTRIBUTION") :].startswith("a-very-long-distribution-name  ok")
    assert lines[-1][header.index("SUMMARY") :] == "Scores [brackets] too"


def test_the_list_on_a_terminal_loses_no_brackets(rlcore, make_distribution, monkeypatch) -> None:
    make_distribution("a-reward", {REWARDS: {"zz": "m"}}, summary="Scores [bold] too")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    _, out, _ = rlcore("plugins", "--kind", "reward")
    assert "Scores [bold] too" in out


def test_a_broken_plugin_does_not_stop_the_list(rlcore, make_distribution) -> None:
    make_distribution("bad", {REWARDS: {"bad": "bad_module"}}, {"bad_module": "import not_there"})
    code, out, _ = rlcore("plugins", "--json")
    (row,) = [row for row in json.loads(out) if row["name"] == "bad"]
    assert (code, row["status"], row["module"]) == (0, "ok", "bad_module")
    assert "bad_module" not in sys.modules


def test_an_unknown_kind_names_the_kinds(rlcore) -> None:
    code, _, err = rlcore("plugins", "--kind", "rewards")
    assert code == 2
    assert err == (
        "error: --kind: 'rewards' is no kind of plugin; kinds are trainer, rollout, algorithm, loss, reward, tracker\n"
    )


def test_options_before_a_subcommand_are_refused_not_ignored(rlcore) -> None:
    code, _, err = rlcore("plugins", "--kind", "reward", "check")
    assert code == 2
    assert "put options after check" in err


def test_show_prints_options_as_a_manifest_has_them(rlcore, make_distribution) -> None:
    make_distribution("o", {REWARDS: {"o": "o_module"}}, {"o_module": OPTIONS})
    code, out, _ = rlcore("plugins", "show", "reward/o")
    assert code == 0
    assert out.splitlines() == [
        "reward/o (distribution o 1.0, module o_module)",
        "status: ok",
        "",
        "Scores",
        "something.",
        "",
        "OPTION  TYPE             DEFAULT   MEANING",
        "limit   int >= 1 | null  3         Most of them.",
        'mode    "a" | "b"        "a"',
        "names   list of str      required  Which ones.",
        "",
        "needs: depends on its options",
        "provides: depends on its options",
    ]


def test_show_as_json(rlcore, make_distribution) -> None:
    source = OPTIONS.replace("names: list[str]", "names: list[str] = []")
    make_distribution("o", {REWARDS: {"o": "o_module"}}, {"o_module": source}, metadata=["Requires-Dist: not-there"])
    _, out, _ = rlcore("plugins", "show", "reward/o", "--json")
    told = json.loads(out)
    assert told["status"] == "missing not-there"
    assert told["options"][0] == {"name": "limit", "type": "int >= 1 | null", "default": "3", "doc": "Most of them."}
    assert (told["needs"], told["provides"]) == ([], ["tool:x"])


def test_show_of_a_local_file(rlcore, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(OPTIONS)
    monkeypatch.chdir(tmp_path)
    code, out, _ = rlcore("plugins", "show", "reward/./mine.py")
    assert code == 0
    assert out.startswith(f"reward plugin {tmp_path / 'mine.py'}\nstatus: ok\n")


def test_show_blames_needs_on_the_plugin(rlcore, make_distribution) -> None:
    source = OPTIONS.replace("names: list[str]", "names: list[str] = []").replace('frozenset({"tool:x"})', "1 / 0")
    make_distribution("o", {REWARDS: {"o": "o_module"}}, {"o_module": source})
    code, _, err = rlcore("plugins", "show", "reward/o")
    assert code == 2
    assert "reward/o (distribution o 1.0, module o_module): needs and provides" in err
    assert "ZeroDivisionError: division by zero" in err


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("gsm8k", "no plugin 'gsm8k' is installed; `rlcore plugins` lists them"),
        ("rewards/x", "plugins show: 'rewards' is no kind of plugin"),
        ("reward/gsm8k", "no reward plugin 'gsm8k' is installed; did you mean 'gsm8k-rule-reward'?"),
    ],
)
def test_show_of_what_is_not_there(rlcore, key: str, told: str) -> None:
    code, _, err = rlcore("plugins", "show", key)
    assert code == 2
    assert told in err


def test_check_imports_each_alone_and_tells_how_it_went(rlcore, make_distribution) -> None:
    hook = "from rlcore import hookimpl\n@hookimpl\ndef rlcore_reward():\n    return len\n"
    points = {name: f"{name}_module" for name in ("bad", "crash", "heavy", "loud", "waits")}
    modules = {
        "bad_module": "import not_there",
        "crash_module": "import os; os._exit(7)",
        "heavy_module": f"import sys, types; sys.modules['vllm'] = types.ModuleType('vllm')\n{hook}",
        "loud_module": f"print('hello', end='')\n{hook}",
        "waits_module": f"import time; time.sleep(0.5)\n{hook}",
    }
    make_distribution("several", {REWARDS: points}, modules)
    make_distribution("waiting", {REWARDS: {"missing": "loud_module"}}, metadata=["Requires-Dist: not-there"])
    make_distribution("rival-a", {REWARDS: {"rival": "bad_module"}})
    make_distribution("rival-b", {REWARDS: {"rival": "bad_module"}})
    code, out, err = rlcore("plugins", "check", "--kind", "reward", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 1
    assert err == "2 of 9 plugins broken\n"
    assert rows["bad"]["status"].startswith("broken: reward/bad (distribution several 1.0, module bad_module)")
    assert "No module named 'not_there'" in rows["bad"]["status"]
    assert rows["crash"]["status"] == "broken: ended its process with exit code 7: no output"
    assert (rows["heavy"]["status"], rows["heavy"]["heavy"]) == ("ok", ["vllm"])
    assert (rows["loud"]["status"], rows["loud"]["heavy"]) == ("ok", [])
    assert 0.5 <= rows["waits"]["seconds"] < 5
    assert rows["missing"]["status"] == "missing not-there"
    assert rows["missing"]["seconds"] is not None
    assert (rows["rival"]["status"], rows["rival"]["seconds"]) == ("conflict: rival-a, rival-b", None)


def test_check_of_what_works_ends_well(rlcore) -> None:
    code, out, err = rlcore("plugins", "check", "--kind", "loss")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["KIND", "NAME", "DISTRIBUTION", "SECONDS", "HEAVY", "STATUS"]
    assert {line.split()[-1] for line in out.splitlines()[1:]} == {"ok"}


def test_check_imports_nothing_from_the_current_folder(rlcore, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "pydantic.py").write_text("raise RuntimeError('not the package')")
    monkeypatch.chdir(tmp_path)
    code, out, _ = rlcore("plugins", "check", "--kind", "loss")
    assert (code, "broken" in out) == (0, False)


def test_show_by_name_alone_where_it_is_unique(rlcore, make_distribution) -> None:
    assert rlcore("plugins", "show", "clip") == rlcore("plugins", "show", "loss/clip")
    make_distribution("rival", {REWARDS: {"clip": "m"}})
    code, _, err = rlcore("plugins", "show", "clip")
    assert (code, err) == (2, "error: several plugins are named 'clip'; say loss/clip or reward/clip\n")


def test_the_list_says_how_to_get_what_is_missing(rlcore, make_distribution) -> None:
    make_distribution("o", {REWARDS: {"o": "m", "p": "m"}}, metadata=["Requires-Dist: not-there>=1"])
    _, out, err = rlcore("plugins", "--kind", "reward")
    assert "pip" not in out
    assert 'reward/o, reward/p: run: pip install "not-there>=1"' in err.splitlines()
