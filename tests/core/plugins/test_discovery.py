from __future__ import annotations

from importlib.metadata import version

import pytest
from rlcore.errors import PluginError
from rlcore.plugins import discovery
from rlcore.plugins.discovery import PluginInfo, find_plugins
from rlcore.plugins.kinds import GROUPS, KINDS

REWARDS = "rlcore.rewards"


def the(name: str, kind: str = "reward") -> PluginInfo:
    (info,) = [info for info in find_plugins() if (info.kind, info.name) == (kind, name)]
    return info


def test_a_plugin_is_listed_from_metadata_and_not_imported(make_distribution) -> None:
    make_distribution("a-reward", {REWARDS: {"a": "a_module"}}, {"a_module": "raise SystemExit('imported')"})
    assert the("a") == PluginInfo(
        kind="reward",
        name="a",
        version="1.0",
        distribution="a-reward",
        status="ok",
        summary="A plugin for a test",
        module="a_module",
    )


def test_every_group_is_found_under_its_kind(make_distribution) -> None:
    make_distribution("all-kinds", {group: {"everywhere": f"m_{kind}"} for kind, group in GROUPS.items()})
    found = [(info.kind, info.module) for info in find_plugins() if info.name == "everywhere"]
    assert found == [(kind, f"m_{kind}") for kind in KINDS]
    assert {info.kind for info in find_plugins("loss")} == {"loss"}


def test_plugins_of_the_core_are_found_by_its_own_entry_points() -> None:
    assert the("clip", "loss").distribution == "rlcore"
    assert the("jsonl", "tracker").summary == "Metrics as lines of JSON in the run folder"


def test_the_first_of_one_distribution_found_twice_counts(make_distribution) -> None:
    make_distribution("twice", {REWARDS: {"t": "stale"}}, version="0.9", folder="stale")
    make_distribution("Twice", {REWARDS: {"t": "fresh"}}, version="1.1", folder="editable")  # prepended: first
    assert (the("t").module, the("t").version, the("t").status) == ("fresh", "1.1", "ok")


def test_two_distributions_with_one_name_are_a_conflict_in_both_rows(make_distribution) -> None:
    make_distribution("dist-b", {REWARDS: {"same": "b"}})
    make_distribution("dist-a", {REWARDS: {"same": "a"}, "rlcore.losses": {"same": "c"}})
    rows = [info for info in find_plugins("reward") if info.name == "same"]
    assert [info.distribution for info in rows] == ["dist-a", "dist-b"]
    assert {info.status for info in rows} == {"conflict: dist-a, dist-b"}
    assert the("same", "loss").status == "ok"  # another kind is another name


@pytest.mark.parametrize(
    ("metadata", "value", "status"),
    [
        (["Requires-Dist: not-there>=0.10"], "m", "missing not-there>=0.10"),
        (["Requires-Dist: not-there", "Requires-Dist: nor-this<2"], "m", "missing not-there, nor-this<2"),
        (["Requires-Dist: pluggy>=99"], "m", f"missing pluggy>=99 (found {version('pluggy')})"),
        (["Requires-Dist: pluggy>=1"], "m", "ok"),
        (["Requires-Dist: not-there; python_version < '3'"], "m", "ok"),
        (["Requires-Dist: not-there; python_version > '3'"], "m", "missing not-there"),
        (["Provides-Extra: gpu", "Requires-Dist: not-there; extra == 'gpu'"], "m", "ok"),
        (["Provides-Extra: gpu", "Requires-Dist: not-there; extra == 'gpu'"], "m [gpu]", "missing not-there"),
        (["Provides-Extra: my-gpu", "Requires-Dist: not-there; extra == 'my-gpu'"], "m[x,my-gpu]", "missing not-there"),
        # A requirement's own extras count: rlcore[torch] without torch is not met.
        (["Requires-Dist: extra-owner[fast]"], "m", "missing not-there"),
        (["Requires-Dist: extra-owner"], "m", "ok"),
        (["Requires-Dist: rlcore>=99"], "m", f"needs rlcore>=99, found {version('rlcore')}"),
        (["Requires-Dist: not-there", "Requires-Dist: rlcore<0"], "m", f"needs rlcore<0, found {version('rlcore')}"),
        (["Requires-Dist: ???"], "m", "missing a requirement that can be read: "),
    ],
)
def test_status_compares_requirements_with_what_is_installed(make_distribution, metadata, value, status) -> None:
    make_distribution("extra-owner", {}, metadata=["Provides-Extra: fast", "Requires-Dist: not-there; extra == 'fast'"])
    make_distribution("r-reward", {REWARDS: {"r": value}}, metadata=metadata)
    assert the("r").module == "m"
    if status.endswith(": "):
        assert the("r").status.startswith(status)
    else:
        assert the("r").status == status


def test_extras_that_ask_for_each_other_end(make_distribution) -> None:
    metadata = [
        "Provides-Extra: a",
        "Provides-Extra: b",
        "Requires-Dist: loop[b]; extra == 'a'",
        "Requires-Dist: loop[a]; extra == 'b'",
        "Requires-Dist: not-there; extra == 'b'",
    ]
    make_distribution("loop", {REWARDS: {"l": "m [a]"}}, metadata=metadata)
    assert the("l").status == "missing not-there"


def test_a_folder_named_as_a_requirement_does_not_stand_in_for_it(make_distribution, monkeypatch, tmp_path) -> None:
    (tmp_path / "cwd" / "not_there").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.syspath_prepend("")
    make_distribution("r-reward", {REWARDS: {"r": "m"}}, metadata=["Requires-Dist: not-there"])
    assert the("r").status == "missing not-there"


def test_blocked_plugins_stay_in_the_list(make_distribution, monkeypatch) -> None:
    make_distribution("a-reward", {REWARDS: {"a": "m"}})
    monkeypatch.setenv("RLCORE_BLOCK", "reward/a, loss/clip,")
    assert the("a").status == "blocked"
    assert the("clip", "loss").status == "blocked"
    assert the("jsonl", "tracker").status == "ok"


@pytest.mark.parametrize("entry", ["rewards/a", "a", "reward/"])
def test_a_block_list_that_means_nothing_is_an_error(monkeypatch, entry) -> None:
    monkeypatch.setenv("RLCORE_BLOCK", entry)
    with pytest.raises(
        PluginError, match=f"RLCORE_BLOCK: '{entry.split('/')[0]}.*kinds are trainer, rollout, algorithm"
    ):
        find_plugins()


def test_the_fix_installs_an_extra_of_the_core_from_its_checkout_and_the_rest_by_name(
    make_distribution, monkeypatch
) -> None:
    have = discovery._installed_version
    monkeypatch.setattr(
        discovery, "_installed_version", lambda name: None if name in ("jinja2", "safetensors") else have(name)
    )
    make_distribution("a", {REWARDS: {"a": "m"}}, metadata=["Requires-Dist: rlcore[torch]"])
    make_distribution("b", {REWARDS: {"b": "m"}}, metadata=["Requires-Dist: rlcore[torch]", "Requires-Dist: no-x>=1"])
    make_distribution("c", {REWARDS: {"c": "m"}}, metadata=["Requires-Dist: jinja2>=3"])
    assert the("a").status.startswith("missing ")
    assert the("a").fix == 'pip install -e ".[torch]"'
    assert the("a").how_to_fix == 'in the checkout of rlcore, run: pip install -e ".[torch]"'
    assert the("b").fix == 'pip install -e ".[torch]" "no-x>=1"'
    assert the("c").how_to_fix == 'run: pip install "jinja2>=3"'
    assert (the("clip", "loss").fix, the("clip", "loss").how_to_fix) == ("", "")
